"""What all commands that train promise alike: refusals before anything is written, whole models, and going on.

sft has a loop of its own, dpo and reward train have TRL's trainers; greedy-grpo, gsm8k and local share another loop,
whose runs are in their own files.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentgrpo.run_folder import claim
from reward_model import reward_modeling
from sql_agent.commands import dpo, greedy_grpo, gsm8k, local, sft
from sql_agent.commands.tests.conftest import command, metrics
from sql_agent.dpo.trainer import PairDpoTrainer
from sql_agent.sft.trainer import CrossEntropy

ROOT = Path(__file__).parents[3]


class Training(NamedTuple):
    main: Callable[[list[str]], int | None]
    data: str
    """The fixture that has them."""
    record: str
    steps: tuple[object, ...]
    """Flags of six steps."""
    checkpoint: str
    """Where the one of a step is, and a file that is in it before its record."""
    state: str
    resume: tuple[str, ...] = ("--resume",)
    module: str = ""

    def arguments(self, request, model: object, output: Path, *flags: object) -> list[str]:
        data = request.getfixturevalue(self.data)
        if self.data == "pairs" and not self.resume:
            given = ("--dataset_name", data, "--model_name_or_path", model, "--output_dir", output, "--use_cpu")
            return [str(part) for part in (*given, *flags)]
        return command(model, data, output, *flags)


SIX = ("--batch_size", 8, "--learning_rate", "1e-2")
TRAINING = {
    "sft": Training(sft.main, "rows", "sft.json", ("--num_epochs", 3, *SIX), "checkpoints/step_{:06}", "training.pt",
                    module="sql_agent.commands.sft"),
    "dpo": Training(dpo.main, "pairs", "dpo.json", ("--num_epochs", 2, *SIX), "checkpoints/checkpoint-{}",
                    "optimizer.pt", module="sql_agent.commands.dpo"),
    "reward train": Training(
        reward_modeling.main, "pairs", "reward_model.json",
        ("--max_steps", 6, "--per_device_train_batch_size", 4, "--logging_steps", 1), "checkpoint-{}", "optimizer.pt",
        resume=(), module="reward_model.reward_modeling",
    ),
}  # fmt: skip
ON_CHATS = ["sft", "dpo"]


def comparable(output: Path) -> list[dict]:
    return [{key: row[key] for key in row if key != "at" and not key.startswith("time/")} for row in metrics(output)]


def unequal(one: Path, other: Path, file: str = "adapter_model.safetensors") -> list[str]:
    """The weights of two folders that differ in a bit."""
    ours, theirs = (load_file(folder / file) for folder in (one, other))
    assert ours.keys() == theirs.keys()
    return [key for key in ours if not torch.equal(ours[key], theirs[key])]


# Refusals -------------------------------------------------------------------------------------------------------------

NO_MODEL = "is no folder, and no model of that name is whole in the Hugging Face cache"
SHARED = [
    (["--model_path", "gone/model"], f"gone/model {NO_MODEL}"),
    (["--max_length", "257"], "--max-length is 257, expected at most 256, the positions of "),
    (["--resume"], "out holds no run to go on with; start it without --resume"),
    (["--output_dir", "FULL"], "FULL is not empty; go on with its run by --resume, or name another --run-dir"),
    (["--learning_rate", "0"], "--learning-rate: expected greater than 0, got '0'"),
]
REFUSED = {
    "sft": [
        *SHARED,
        (["--dataset", "gone.jsonl"], "gone.jsonl: no such file; give dbbench, text2sql, gsm8k, or a JSONL"),
        (["--dataset", "gsm8k:gone.jsonl"], "gone.jsonl: no such file"),
        (["--dataset", "dbbench", "--tasks", "gone.jsonl"], "gone.jsonl does not exist; name a file that is there"),
        (["--protocol", "text"], "--protocol belongs to --dataset dbbench, this one is "),
        (["--renamed-copies", "1"], "--renamed-copies belongs to --dataset text2sql, this one is "),
        (["--max-prompt-tokens", "64"], "--max-prompt-tokens belongs to --dataset gsm8k or --dataset dbbench or --env"),
        (["--max_length", "16"], "all 16 conversations are longer than --max-length 16; the shortest has "),
        (["--device", "cuda"], "--device cuda: torch sees no GPU here"),
        (["--output_dir", "README.md"], "--run-dir README.md is a file, expected a folder; name another"),
        (["--lora_dropout", "1"], "--lora-dropout: expected less than 1, got '1'"),
        (["--num_epochs", "0"], "--num-epochs: expected greater than or equal to 1, got '0'"),
        (["--dataset", "dbbench", "--env", "mine.py:Shop"], "give --dataset or --env, not both"),
    ],
    "dpo": [
        *SHARED,
        (["--dataset", "gone.jsonl"], "gone.jsonl does not exist or is not a file"),
        (["--eval_dataset", "gone.jsonl"], "gone.jsonl does not exist or is not a file"),
        (["--max_length", "16"], "pairs.jsonl are longer than --max-length 16; the shortest has "),
        (["--beta", "0"], "--beta: expected greater than 0, got '0'"),
        (["--held_out_fraction", "1"], "--held-out-fraction: expected less than 1, got '1'"),
    ],
    "reward train": [
        (["--held_out_fraction", "1"], "--held-out-fraction is 1.0, expected 0 or more and less than 1"),
        (["--max_length", "5"], "pairs.jsonl are longer than --max-length 5; the shortest has "),
        (
            ["--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "3"],
            "21 pairs are fewer than one batch of 24 (--per-device-train-batch-size x --gradient-accumulation-steps x",
        ),
        (["--dataset_name", "gone.jsonl"], "gone.jsonl does not exist; agentgrpo reward convert makes such"),
        (["--eval_dataset_name", "gone.jsonl"], "gone.jsonl does not exist"),
        (["--model_name_or_path", "gone"], f"gone {NO_MODEL}"),
        (["--chat_template_path", "gone.jinja"], "--chat-template-path gone.jinja does not exist; name a Jinja file"),
        (["--resume_from_checkpoint", "gone"], "--resume-from-checkpoint gone is no checkpoint of this command"),
        (["--config", "gone.yaml"], "--config gone.yaml cannot be read: No such file or directory; name a YAML"),
    ],
    "greedy-grpo": [
        (["--model_path", "nowhere"], "nowhere is no folder, and no model of that name "),
        (["--model_path", "nowhere"], "; a model on the hub has an id of two parts"),
        (["--group_size", "1"], "--group-size: expected greater than or equal to 2, got '1'"),
        (["--temperature", "0"], "--temperature: expected greater than 0"),
        (["--top_p", "1.5"], "--top-p: expected less than or equal to 1"),
        (["--lora_dropout", "1"], "--lora-dropout: expected less than 1"),
        (["--learning_rate", "nan"], "--learning-rate: expected a finite number"),
        (["--clip_param", "0"], "--clip-ratio: expected greater than 0"),
    ],
    "gsm8k": [
        (["--model_path", "nowhere"], "nowhere is no folder, and no model of that name "),
        (["--model_path", "nowhere"], "; a model on the hub has an id of two parts"),
        (["--samples_per_prompt", "1"], "--group-size: expected greater than or equal to 2, got '1'"),
        (["--gradient_accumulation_steps", "0"], "--gradient-accumulation-steps: expected greater than or equal to 1"),
        (["--temperature", "0"], "--temperature: expected greater than 0"),
        (["--max_samples", "none"], "--num-tasks: expected a valid integer"),
    ],
    "local": [
        (["--env", "agent"], "--env agent: an agent of your own calls the policy over HTTP, which only the main job"),
        (["--env", "dbbnch"], "unknown environment 'dbbnch'; known: "),
        (
            ["--env", "gsm8k", "--database", "a.sqlite"],
            "--database belongs to --env text2sql, this run's is gsm8k; leave it out",
        ),
        (["--env", "gsm8k", "--judge", "bird"], "--judge belongs to --env dbbench or text2sql, this one is gsm8k"),
        (["--database", "a.sqlite", "--protocol", "text"], "--protocol belongs to --env dbbench, this one is text2sql"),
        (["--reward", "mine"], "--reward: unknown reward preset 'mine'; known: "),
        (
            ["--reward", "judge"],
            "--reward names judge, and no LLM is given; add --judge-url, --judge-model and --judge-rubric",
        ),
        (["--top-p", "0.9"], "--top-p is 0.9: the sampler would leave out the less likely tokens"),
        (["--call_timeout_s", "0"], "--call-timeout-s: expected greater than 0"),
    ],
}
OF_EPISODES = {"greedy-grpo": greedy_grpo.main, "gsm8k": gsm8k.main, "local": local.main}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(kind, base, request, tmp_path, capsys):
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "notes").touch()
    missed = []
    for flags, words in REFUSED[kind]:
        if "cuda" in flags and torch.cuda.is_available():
            continue
        given = [flag.replace("FULL", str(tmp_path / "FULL")) for flag in flags]
        if kind in TRAINING:
            main, argv = TRAINING[kind].main, TRAINING[kind].arguments(request, base, tmp_path / "out", *given)
        else:
            more = ["--dataset", "generated"] if kind == "gsm8k" else []
            main, argv = OF_EPISODES[kind], ["--model_path", "x", "--run-dir", str(tmp_path / "out"), *more, *given]
        try:
            status = main(argv)
        except SystemExit as ended:
            status = ended.code
        said = " ".join(f"{capsys.readouterr().err} {status}".split())
        missed += [(flags, status, said)] if words not in said or status in (0, None) else []
        assert not (tmp_path / "out").exists(), flags
    assert missed == []


@pytest.mark.parametrize("kind", TRAINING)
def test_a_folder_that_a_run_is_writing_to_is_refused_before_anything_else_is_looked_at(
    kind, request, tmp_path, capsys
):
    training = TRAINING[kind]
    with claim(tmp_path / "out"):
        assert training.main(training.arguments(request, tmp_path / "gone", tmp_path / "out")) == 1
    assert "another run is writing to" in capsys.readouterr().err


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINING)
def test_a_loss_that_is_no_number_stops_the_run_and_leaves_no_model(kind, base, request, tmp_path, capsys):
    training, broken = TRAINING[kind], shutil.copytree(base, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert training.main(training.arguments(request, broken, tmp_path / "out", *training.steps)) == 1
    assert "the loss is nan at step 1; lower --learning-rate (now 0." in capsys.readouterr().err
    assert not (tmp_path / "out" / "adapter_config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_CHATS)
def test_all_weights_are_trained_and_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_ended(
    kind, base, request, tmp_path, capsys, one_thread
):
    training, unbroken, ended = TRAINING[kind], tmp_path / "unbroken", tmp_path / "ended"
    flags = (*training.steps, "--save_steps", 2, "--lora_r", 0)
    assert training.main(training.arguments(request, base, unbroken, *flags)) == 0
    words = next(line for line in capsys.readouterr().out.splitlines() if "weights are trained" in line).split()
    assert words[0] == words[2]
    before, after = (load_file(folder / "model.safetensors") for folder in (base, unbroken))
    assert [key for key in before if torch.equal(before[key], after[key])] == []
    assert (unbroken / "config.json").is_file() and not (unbroken / "adapter_config.json").exists()

    shutil.copytree(unbroken, ended)
    for name in (training.record, "model.safetensors"):
        (ended / name).unlink()
    four, six = (ended / training.checkpoint.format(step) for step in (4, 6))
    (six / training.state).write_bytes(b"")
    assert training.main(training.arguments(request, base, ended, *flags, "--resume")) == 0
    said = capsys.readouterr().out
    assert f"{six} is skipped: {training.state} has 0 bytes, expected" in said and f"resuming from {four}" in said
    assert comparable(ended) == comparable(unbroken)
    assert unequal(ended, unbroken, "model.safetensors") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_CHATS)
def test_an_adapter_is_trained_on_and_keeps_its_shape_and_its_base(kind, base, request, tmp_path, capsys):
    training, first, second = TRAINING[kind], tmp_path / "first", tmp_path / "second"
    other = shutil.copytree(base, tmp_path / "base")
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|endoftext|>"}))
    short = ("--num_epochs", 1, "--learning_rate", 1e-2)
    assert training.main(training.arguments(request, other, first, *short, "--lora_r", 2)) == 0
    ends = "replies end with <|im_end|>, which becomes the tokenizer's eos_token (it was <|endoftext|>)"
    assert ends in capsys.readouterr().out
    assert json.loads((first / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"

    assert training.main(training.arguments(request, first, second, *short)) == 0
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (first, second)]
    assert [(c["r"], c["base_model_name_or_path"]) for c in configs] == 2 * [(2, str(other.resolve()))]
    assert [path.parent.name for path in second.rglob("adapter_config.json")].count("ref") == 0
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (first, second))
    assert before.keys() == after.keys()
    assert [key for key in before if torch.equal(before[key], after[key])] == []
    losses = [metrics(folder)[0][f"{kind}/loss"] for folder in (first, second)]
    if kind == "sft":
        assert losses[1] < losses[0] - 0.01  # it goes on where the first run ended
    else:
        assert losses == [pytest.approx(0.693147, abs=1e-5)] * 2  # the reference of the second is the first adapter
    assert training.main(training.arguments(request, first, tmp_path / "third", "--lora_r", 4)) == 1
    assert "--lora-rank is given, and" in capsys.readouterr().err


# Going on -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(request, base, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a command's six steps, which are trained once."""
    made: dict[str, Path] = {}

    def unbroken(kind: str) -> Path:
        if kind not in made:
            output, training = tmp_path_factory.mktemp("unbroken") / "run", TRAINING[kind]
            assert training.main(training.arguments(request, base, output, *training.steps)) == 0
            made[kind] = output
        return made[kind]

    return unbroken


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "owner", "name"), [
    ("sft", CrossEntropy, "update"), ("dpo", PairDpoTrainer, "training_step"),
])  # fmt: skip
def test_an_interrupted_run_says_what_it_has_and_ends_as_the_unbroken_one(
    kind, owner, name, base, request, unbroken, tmp_path, capsys, monkeypatch, one_thread
):
    """Checkpoints came after every 100 updates, and a run of 18 was told to go on from the last."""
    training, output, step = TRAINING[kind], tmp_path / "out", getattr(owner, name)

    def interrupted(self, *args, **kwargs):
        if (self.steps if kind == "sft" else self.state.global_step) == 2:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    whole = unbroken(kind)
    argv = training.arguments(request, base, output, *training.steps)
    newest = output / training.checkpoint.format(2)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        for argv_now, save_s, left in (
            (argv, 300.0, "there is no checkpoint yet, so the same command with --resume starts again"),
            ([*argv, "--resume"], 0.0, f"the same command with --resume resumes from {newest}"),
        ):
            patch.setattr("agentgrpo.checkpoints.SAVE_S", save_s)
            assert training.main(argv_now) == 130
            assert f"interrupted; {left}\n" in capsys.readouterr().err
    assert training.main([*argv, "--resume"]) == 0
    assert comparable(output) == comparable(whole)
    assert unequal(output, whole) == []


KILLED_WHILE_IT_SAVES = """
import os, signal, sys
from agentgrpo import signed_checkpoints
from {module} import main

seal, sealed = signed_checkpoints.seal, []

def seal_or_die(*given):
    sealed.append(given)
    if len(sealed) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    seal(*given)

signed_checkpoints.seal = seal_or_die
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "flags", "words"), [
    ("sft", ("--seed", "1"), "(seed: was 0, is 1); name another --run-dir"),
    ("dpo", ("--beta", "0.2"), "(beta: was 0.1, is 0.2)"),
    ("reward train", ("--seed", "1"), "(seed: was "),
])  # fmt: skip
def test_a_run_that_was_killed_while_it_saved_ends_as_the_unbroken_one(
    kind, flags, words, base, request, unbroken, tmp_path, capsys, one_thread
):
    training, killed, whole = TRAINING[kind], tmp_path / "killed", unbroken(kind)
    again = training.arguments(request, base, killed, *training.steps, "--save_steps", 2)
    line = [sys.executable, "-c", KILLED_WHILE_IT_SAVES.format(module=training.module), *again]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    assert subprocess.run(line, cwd=ROOT, env=quiet, timeout=250, capture_output=True).returncode == -9
    two, four = (killed / training.checkpoint.format(step) for step in (2, 4))
    torn = four.with_name(f"{four.name}.part") if kind == "sft" else four
    assert (torn / training.state).is_file() and not (torn / training.record).exists()
    assert not (killed / "adapter_config.json").exists()
    capsys.readouterr()

    assert training.main([*again, *training.resume, *flags]) == 1
    said = capsys.readouterr().err
    assert f"{two.name} belongs to another run {words}" in said
    assert training.main([*again, *training.resume]) == 0
    said = capsys.readouterr().out
    assert f"resuming from {two}" in said
    assert kind == "sft" or f"{four} is skipped: {training.record} is missing, so it was not" in said
    assert comparable(killed) == comparable(whole)
    assert unequal(killed, whole) == []
    if kind == "sft":
        (killed / training.record).unlink()  # as if it had been killed just before its last file
        assert training.main([*again, "--resume"]) == 0
        assert unequal(killed, whole) == []
