"""DPO as a user runs it: rows that are refused, the files, and the small policy on pairs of its own tasks."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file

from agentgrpo.chat.conversations import normalize_tool_call_ids, read_conversation
from agentgrpo.printed_commands import program_command
from dbbench_adapter.generator import generate_tasks
from reward_model.datatypes import Preference
from reward_model.preferences import split_by_prompt, write_preferences
from reward_model.tests.conftest import assistant, counting_pairs
from sql_agent.commands import greedy_grpo
from sql_agent.commands.dpo import main
from sql_agent.commands.tests.conftest import command, metrics
from sql_agent.dpo.run import commands_after_dpo
from sql_agent.dpo.trainer import RECORD
from sql_agent.environments.dbbench import DbBench
from sql_agent.settings.tuning import DpoConfig
from sql_agent.sft.data import dbbench_demonstrations
from sql_agent.tiny_policy.make import make_tiny_policy

ROOT = Path(__file__).parents[3]
AGENTGRPO, VLLM = program_command("agentgrpo"), program_command("vllm")
"""The interpreter and the server, as printed commands name them."""


# Refusals -------------------------------------------------------------------------------------------------------------


def test_the_small_policy_is_not_made_for_data_that_cannot_be_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sql_agent.tiny_policy.make.TINY_POLICY", tmp_path / "tiny")
    assert main(command(tmp_path / "tiny", "gone.jsonl", tmp_path / "out")) == 1
    said = capsys.readouterr()
    assert "gone.jsonl does not exist or is not a file" in said.err
    assert (said.out, (tmp_path / "tiny").exists()) == ("", False)


def test_a_pair_is_named_by_its_prompt_and_the_part_of_the_file_that_it_came_to(base, tmp_path, capsys):
    rows, file = counting_pairs(10), tmp_path / "pairs.jsonl"
    [held_out] = split_by_prompt(rows, 0.1, seed=0)[1]
    long = held_out.model_copy(update={"rejected": (assistant("0 " * 300),)})
    write_preferences([long if row == held_out else row for row in rows], file)
    assert main(command(base, file, tmp_path / "out")) == 1
    words = f"all 1 pairs of the held-out part of {file} are longer than --max-length 256; the shortest has "
    assert words in capsys.readouterr().err
    template = tmp_path / "refuses.jinja"
    asked = held_out.prompt[0].content
    template.write_text(
        "{% if messages[0].content == '" + asked + "' %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    write_preferences(rows, file)
    assert main(command(base, file, tmp_path / "out", "--chat_template_path", template)) == 1
    words = f"the held-out part of {file}, pair with the prompt {asked!r}: the chat template of "
    assert words in capsys.readouterr().err


def test_a_row_that_is_no_pair_is_named(base, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a", "chosen": "b", "rejected": "b"}\n'
    )
    assert main(command(base, rows, tmp_path / "out")) == 1
    assert f"{rows}, row 2, rejected: says the same as chosen; agentgrpo reward convert" in capsys.readouterr().err


# Runs -----------------------------------------------------------------------------------------------------------------

FORMS = [
    {"prompt": "What comes after 1?", "chosen": "2", "rejected": "1"},
    {
        "chosen": [{"role": "user", "content": "And after 2?"}, {"role": "assistant", "content": "3"}],
        "rejected": [{"role": "user", "content": "And after 2?"}, {"role": "assistant", "content": "2"}],
    },
    {"chosen": "What comes after 3? It is 4.", "rejected": "What comes after 3? It is 3."},
]


def test_a_run_on_mixed_forms_writes_an_adapter_its_log_and_its_record(base, tmp_path, capsys):
    rows, output = tmp_path / "rows.jsonl", tmp_path / "out"
    rows.write_text("".join(json.dumps(row) + "\n" for row in FORMS))
    flags = ("--held_out_fraction", 0.3, "--num_epochs", 2, "--batch_size", 2, "--learning_rate", 1e-2)
    assert main(command(base, rows, output, *flags)) == 0
    said = capsys.readouterr().out
    assert "2 pairs to train on, 1 held out; left out as longer than --max-length 256: 0 and 0" in said
    assert re.search(r"^step 1/2  loss 0\.6931  accuracy 0\.0%  margin \+0\.000  grad ", said, re.MULTILINE)
    assert f"adapter and tokenizer: {output}\nnext: {AGENTGRPO} merge --adapter {output} " in said
    one = {f"dpo/{name}" for name in ("loss", "accuracy", "margin", "reward_chosen", "reward_rejected")}
    step = {"train_step", "at", "data/tokens", "data/epoch"}
    trained = one | step | {"optim/learning_rate", "optim/grad_norm", "time/step_s"}
    measured = {f"val/{name}" for name in (*one, "data/tokens")} | {"train_step", "at", "data/epoch"}
    assert [set(row) for row in metrics(output)] == [trained, measured | {"time/validation_s"}] * 2
    record = json.loads((output / RECORD).read_text())
    assert record["settings"]["lora"] == {"r": 16, "alpha": 32, "dropout": 0.0}
    assert (record["settings"]["beta"], record["train_step"]) == (0.1, 2)
    assert (record["data"]["pairs"], record["data"]["held_out_pairs"]) == (2, 1)
    adapter = load_file(output / "adapter_model.safetensors")
    assert {key.split(".")[-2] for key in adapter} == {"lora_A", "lora_B"}
    assert any(weight.abs().max() > 0 for key, weight in adapter.items() if "lora_B" in key)
    assert main(command(base, rows, output)) == 1
    assert f"{output} holds a finished model (dpo.json); name another --run-dir" in capsys.readouterr().err


def test_what_comes_next_measures_held_out_success_and_goes_on_with_grpo():
    cfg = DpoConfig(model_path="m", dataset=Path("pairs.jsonl"), output_dir=Path("out"))
    serve = (
        "--served-model-name dpo --generation-config vllm --enable-auto-tool-choice --tool-call-parser hermes "
        "--dtype {dtype} --host 127.0.0.1"
    )
    on_cpu = f"VLLM_CPU_KVCACHE_SPACE=1 {VLLM} serve out-merged {serve} --enforce-eager"
    measure = f"{AGENTGRPO} evaluate --base-url http://127.0.0.1:8000/v1 --model dpo --tasks HELD_OUT_TASKS"
    assert commands_after_dpo(cfg, None, cpu=True, is_adapter=True) == [
        f"{AGENTGRPO} merge --adapter out --output out-merged",
        on_cpu.format(dtype="float32"),
        measure,
        f"{AGENTGRPO} train --model out-merged --train-file TASKS",
    ]
    assert commands_after_dpo(cfg, None, cpu=False, is_adapter=False) == [
        f"{VLLM} serve out {serve.format(dtype='bfloat16')}",
        measure,
        f"{AGENTGRPO} train --model out --train-file TASKS",
    ]


# The small policy -----------------------------------------------------------------------------------------------------


def exchanged(count: int) -> list[Preference]:
    """The oracle's conversations, preferred to the same prompts answered by the replies of the next task."""
    with DbBench("strict") as environment:
        found = dbbench_demonstrations(generate_tasks(count, seed=5), environment).kept
    conversations = []
    for one in found:
        messages = normalize_tool_call_ids(read_conversation(one.messages, "messages", Counter()), "messages")
        while messages[-1].role != "assistant":
            messages.pop()
        start = next(i for i, message in enumerate(messages) if message.role == "assistant")
        conversations.append((tuple(messages[:start]), tuple(messages[start:]), json.dumps(one.tools)))
    following = [*conversations[1:], conversations[0]]
    return [
        Preference(prompt=prompt, chosen=side, rejected=other, tools=tools)
        for (prompt, side, tools), (_, other, _) in zip(conversations, following, strict=True)
        if side != other
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_thread")
def test_the_small_policy_learns_held_out_preferences_and_goes_on_with_grpo(tmp_path, capsys):
    policy, rows = ROOT / "models" / "tiny-sql", tmp_path / "pairs.jsonl"
    make_tiny_policy(policy)
    write_preferences(exchanged(30), rows)
    flags = ("--max_length", 1024, "--num_epochs", 2, "--learning_rate", 2e-3)
    flags = (*flags, "--held_out_fraction", 0.2, "--batch_size", 6)
    whole = tmp_path / "whole"
    assert main(command(policy, rows, whole, *flags)) == 0
    held_out = [row for row in metrics(whole) if "val/dpo/loss" in row]
    assert [row["val/dpo/accuracy"] for row in held_out][-1] >= 0.8  # before training every margin is 0
    assert held_out[-1]["val/dpo/margin"] > held_out[0]["val/dpo/margin"] > 0

    assert AutoPeftModelForCausalLM.from_pretrained(whole).peft_config["default"].r == 16
    grpo = ("--model_path", whole, "--save_dir", tmp_path / "grpo", "--num_tasks", "1", "--max_new_tokens", "60")
    greedy_grpo.main([*map(str, grpo), "--group_size", "2"])
    assert f"adapter: {tmp_path}/grpo/adapter" in capsys.readouterr().out
