"""`agentgrpo merge`: what it writes computes what was trained, `vllm serve` loads it, and it refuses with words.

Checkpoints here are written by two real FSDP2 workers, as verl's checkpoint manager does;
test_own_environment_end_to_end.py merges one that verl wrote.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.machine import free_port
from agentgrpo.printed_commands import program_command
from reward_model.tests.serving import started
from sql_agent.commands.merge import find_checkpoint, main
from sql_agent.tests.conftest import random_policy_folder  # noqa: F401  one is a fixture
from sql_agent.verl_side.checkpoints import describe_checkpoint, write_manifest

ROOT = Path(__file__).parents[3]
FACTS = {"run_id": "r", "commit": "c"}


# What it refuses ------------------------------------------------------------------------------------------------------


def empty_checkpoint(folder: Path, step: int) -> Path:
    checkpoint = folder / "checkpoints" / f"global_step_{step}"
    (checkpoint / "actor" / "huggingface").mkdir(parents=True)
    (checkpoint / "actor" / "model.pt").write_text("weights")
    write_manifest(checkpoint, describe_checkpoint(checkpoint, FACTS))
    return checkpoint


@pytest.mark.parametrize("part", [".", "checkpoints", "{}", "{}/actor", "{}/actor/huggingface"])
def test_a_checkpoint_is_found_from_any_folder_of_its_run(tmp_path, part):
    empty_checkpoint(tmp_path, 9)
    newest = empty_checkpoint(tmp_path, 10)
    assert find_checkpoint(tmp_path / part.format("checkpoints/global_step_10"), print) == newest


def torn(folder: Path) -> Path:
    checkpoint = empty_checkpoint(folder, 4)
    (checkpoint / "actor" / "model.pt").write_text("Weights")
    return checkpoint


def adapter_of(folder: Path, base: str) -> Path:
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    header = b"{}"
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder / "adapter"


@pytest.mark.parametrize(
    ("flag", "make", "words"),
    [
        pytest.param("--checkpoint", lambda f: f / "none", "none is no folder", id="nothing_there"),
        pytest.param("--checkpoint", lambda f: f, "holds no checkpoint of the training command", id="another_folder"),
        pytest.param(
            "--checkpoint", lambda f: adapter_of(f, "b"), "it is an adapter, give it as --adapter", id="an_adapter"
        ),
        pytest.param(
            "--checkpoint", torn, "actor/model.pt holds something else than was written; take another", id="changed"
        ),
        pytest.param("--checkpoint", lambda f: torn(f).parents[1], "no checkpoint in .* is whole", id="all_changed"),
        pytest.param("--adapter", lambda f: f, "has no adapter_config.json; give the folder that", id="no_adapter"),
        pytest.param(
            "--adapter", lambda f: adapter_of(f, "/no/base"), "needs its base: /no/base is no folder", id="no_base"
        ),
    ],
)
def test_what_cannot_be_merged_is_named_and_nothing_is_written(tmp_path, capsys, flag, make, words):
    source = make(tmp_path)
    assert main([flag, str(source), "--output", str(tmp_path / "merged")]) == 1
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "merged").exists()


def test_what_is_there_is_not_written_over(tmp_path, capsys):
    assert main(["--adapter", str(tmp_path), "--output", str(tmp_path)]) == 1
    assert "is there already; name another --output" in capsys.readouterr().err
    (tmp_path / "link").symlink_to("nowhere")
    assert main(["--adapter", str(tmp_path), "--output", str(tmp_path / "link")]) == 1
    assert "link is there already" in capsys.readouterr().err


# What it writes -------------------------------------------------------------------------------------------------------

WORKER = """
import json, os, sys
from pathlib import Path
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer

base, out, number, port = sys.argv[1:]
os.environ |= {"RANK": number, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
torch.distributed.init_process_group("gloo")
for kind in ("full", "lora"):
    torch.manual_seed(0)
    whole = model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if kind == "lora":
        model = get_peft_model(whole, LoraConfig(r=2, lora_alpha=3, target_modules="all-linear"))
    with torch.no_grad():  # as an update would: nothing that is trained is as it was
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
        logits = model(torch.arange(40)[None]).logits
    for layer in whole.model.layers:
        fully_shard(layer)
    fully_shard(model)
    checkpoint = Path(out) / kind / "global_step_3"
    actor = checkpoint / "actor"
    (actor / "huggingface").mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), actor / f"model_world_size_2_rank_{number}.pt")
    for other in ("optim", "extra_state"):
        torch.save({}, actor / f"{other}_world_size_2_rank_{number}.pt")
    if number == "0":
        torch.save(logits, checkpoint / "logits.pt")
        whole.config.save_pretrained(actor / "huggingface")
        AutoTokenizer.from_pretrained(base).save_pretrained(actor / "huggingface")
        (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
        if kind == "lora":
            meta = {"r": 2, "lora_alpha": 3, "task_type": "CAUSAL_LM"}
            (actor / "lora_train_meta.json").write_text(json.dumps(meta))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def sharded(random_policy_folder, tmp_path_factory):  # noqa: F811
    """A full and a LoRA checkpoint, each in the shards of two workers."""
    folder, port = tmp_path_factory.mktemp("sharded"), str(free_port())
    command = [sys.executable, "-c", WORKER, random_policy_folder, folder]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([*command, number, port], env=environment) for number in "01"]
    assert [worker.wait(200) for worker in workers] == [0, 0]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_the_shards_of_two_workers_become_the_model_they_were(sharded, random_policy_folder, tmp_path, capsys, kind):  # noqa: F811
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = sharded / kind / "global_step_3"
    logits = torch.load(checkpoint / "logits.pt")
    write_manifest(checkpoint, describe_checkpoint(checkpoint, FACTS))

    assert main(["--checkpoint", str(checkpoint / "actor"), "--output", str(tmp_path / "merged")]) == 0
    printed = capsys.readouterr().out
    assert "step 3 of run r, every file as it was written" in printed
    assert "tokens: the same afterwards" in printed
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.dtype == torch.float32
    torch.testing.assert_close(merged(torch.arange(40)[None]).logits, logits, atol=1e-5, rtol=0)
    base = AutoTokenizer.from_pretrained(random_policy_folder)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == base.chat_template
    record = json.loads((tmp_path / "merged" / "merge.json").read_text())
    assert (record["train_step"], record["run_id"], record["same_greedy_reply"]) == (3, "r", True)


WITHOUT_CALLS = "{% for m in messages %}{{ m.role + ': ' + (m.content or '') }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("saved", [["lm_head"], None], ids=["its_output_layer", "matrices_alone"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_an_adapter_is_merged_to_what_peft_computes(random_policy_folder, tmp_path, monkeypatch, capsys, saved, tied):  # noqa: F811
    """An output layer among `modules_to_save` was refused, as for training; a model whose template writes no tool calls
    was told to take the protocol text."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = shutil.copytree(random_policy_folder, tmp_path / "base")
    (base / "chat_template.jinja").write_text(WITHOUT_CALLS)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, tie_word_embeddings=tied)
    model.save_pretrained(base)
    trained = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=saved))
    with torch.no_grad():
        for weight in filter(lambda weight: weight.requires_grad, trained.parameters()):
            weight += 0.1 * torch.randn_like(weight)
    trained.peft_config["default"].base_model_name_or_path = str(base)
    trained.save_pretrained(tmp_path / "adapter")
    monkeypatch.setattr("sql_agent.commands.merge.count_gpus", lambda: 0)
    assert main(["--adapter", str(tmp_path / "adapter"), "--output", str(tmp_path / "merged")]) == 0
    serve = program_command("vllm", "serve", tmp_path / "merged", "--served-model-name", "merged")
    flags = "--generation-config vllm --enable-auto-tool-choice --tool-call-parser hermes --dtype float32"
    line = f"next: VLLM_CPU_KVCACHE_SPACE=1 {serve} {flags} --host 127.0.0.1 --enforce-eager"
    assert capsys.readouterr().out.splitlines()[-1] == line
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    ids = torch.arange(40)[None]
    torch.testing.assert_close(merged(ids).logits, trained.eval()(ids).logits, atol=1e-5, rtol=0)
    assert merged.config.tie_word_embeddings is (tied and saved is None)


@pytest.fixture(scope="module")
def merged_adapter(small_policy, tmp_path_factory):
    """A small change to the small policy, as an adapter, and merged."""
    import torch

    from sql_agent.local.policy import load_policy
    from sql_agent.settings.local import AdapterConfig

    folder = tmp_path_factory.mktemp("merged")
    torch.manual_seed(0)
    policy = load_policy(small_policy, adapter=AdapterConfig(rank=4, alpha=4), device="cpu")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    policy.save(folder / "adapter")
    assert main(["--adapter", str(folder / "adapter"), "--output", str(folder / "policy")]) == 0
    return folder


@pytest.mark.slow
def test_merged_weights_that_compute_something_else_leave_nothing_behind(merged_adapter, monkeypatch, capsys):
    monkeypatch.setattr("sql_agent.commands.merge.BOUND", 0.0)
    output = merged_adapter / "second"
    assert main(["--adapter", str(merged_adapter / "adapter"), "--output", str(output)]) == 1
    assert "logits before and after differ by up to" in capsys.readouterr().err
    assert [path.name for path in merged_adapter.iterdir() if "second" in path.name] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_vllm_serves_it_and_plays_the_episode_that_the_adapter_plays(merged_adapter, tmp_path):
    from dbbench_adapter.engines import open_backend
    from dbbench_adapter.generator import generate_tasks
    from sql_agent.environments.dbbench import DbBench
    from sql_agent.local.datatypes import GREEDY
    from sql_agent.local.policy import load_policy
    from sql_agent.local.rollouts import Player
    from sql_agent.play.served import run_rollout
    from sql_agent.settings.groups import AgentConfig
    from sql_agent.settings.local import AdapterConfig

    tasks, limits = generate_tasks(6, seed=2, split="held_out"), AgentConfig(max_turns=4, max_tokens=96, temperature=0)
    policy = load_policy(merged_adapter / "adapter", adapter=AdapterConfig(), device="cpu")
    vllm = [str(Path(sys.executable).with_name("vllm")), "serve", str(merged_adapter / "policy")]
    flags = "--dtype float32 --enforce-eager --enable-auto-tool-choice --tool-call-parser hermes --host 127.0.0.1"
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_TARGET_DEVICE": "cpu"}
    with open_backend("sqlite") as backend:
        dbbench = DbBench("strict", backend=backend)
        before = [record for record, _ in Player(policy, dbbench, limits).play(tasks, [GREEDY] * len(tasks))]
        with started([*vllm, *flags.split()], tmp_path / "vllm.log", "/health", environment) as server:

            async def play():
                where = {"base_url": f"{server.url}/v1", "model": str(merged_adapter / "policy"), "config": limits}
                return [await run_rollout(task, environment=dbbench, **where) for task in tasks]

            after = asyncio.run(play())
    assert [said(record) for record in after] == [said(record) for record in before]
    assert {record.stop_reason for record in before} >= {"answered"}


def said(record) -> list:
    """What a conversation says, whatever its calls' ids are; vLLM takes the calls out of the text, the local player
    leaves them there too."""
    lines = []
    for message in record.messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        lines += [(call["name"], json.loads(call["arguments"])) for call in calls]
        lines.append(re.sub(r"<tool_call>.*?</tool_call>", "", message["content"] or "", flags=re.DOTALL).strip())
    return [*lines, record.stop_reason, record.score.value]
