import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from agentgrpo.chat.replies import EncodedReplies
from agentgrpo.checks import UsageError
from agentgrpo.limited_fork import forked
from agentgrpo.printed_commands import program_command
from agentgrpo.run_folder import read_start
from agentgrpo.training_run import RunLog
from reward_model.tests.conftest import make_base
from sql_agent.commands.sft import main
from sql_agent.commands.tests.conftest import command, metrics
from sql_agent.dpo.run import commands_after_dpo as after_dpo
from sql_agent.local.policy import LocalPolicy
from sql_agent.names import TINY_POLICY
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.settings.tuning import DpoConfig
from sql_agent.sft.fine_tuning import SETTINGS, check_resumed, load_trainable
from sql_agent.sft.run import RECORD, SftConfig, SftRun, commands_after_sft, prepare_sft
from sql_agent.sft.trainer import (
    CrossEntropy,
    epoch_order,
    related_conversations,
    train_epochs,
    trained_policy,
    updates_that_fit,
)

ROOT = Path(__file__).parents[3]
AGENTGRPO = program_command("agentgrpo")
"""The interpreter, as printed commands name it."""


# Refusals -------------------------------------------------------------------------------------------------------------


def test_an_environment_that_makes_its_own_tasks_is_a_dataset_where_there_are_no_rows(base, tmp_path, capsys):
    flags = ["--model_path", str(base), "--output_dir", str(tmp_path / "out"), "--max_length", "256"]
    assert main([*flags, "--env", "gsm8k"]) == 1
    assert "--env gsm8k without rows of your own is --dataset gsm8k; give that" in capsys.readouterr().err


def test_a_run_that_an_earlier_version_began_is_not_begun_anew_over_its_checkpoints(base, rows, tmp_path, capsys):
    earlier = tmp_path / "out" / "checkpoints" / "checkpoint-4"
    earlier.mkdir(parents=True)
    (earlier / RECORD).touch()
    assert main(command(base, rows, tmp_path / "out", "--resume")) == 1
    assert "in another folder if an earlier version began one here" in capsys.readouterr().err


def test_the_run_of_another_command_is_not_gone_on_with(base, rows, tmp_path, capsys):
    (tmp_path / "out" / "checkpoints" / "step_4").mkdir(parents=True)
    (tmp_path / "out" / "run.json").write_text('{"kind": "greedy-grpo", "run_id": "r"}')
    assert main(command(base, rows, tmp_path / "out", "--resume")) == 1
    assert "out holds a run of `.venv/bin/agentgrpo greedy-grpo`; go on with it there" in capsys.readouterr().err


class Program:
    def __reduce__(self):
        return print, ("it ran",)


def broken(folder: Path, fault: str) -> None:
    template = folder / "chat_template.jinja"
    match fault:
        case "raises":
            template.write_text("{{ nothing.at_all }}")
        case "silent":
            template.write_text("{% for m in messages %}{% endfor %}")
        case "no_syntax":
            template.write_text("{% for m in messages %}")
        case "binary":
            template.write_bytes(bytes(range(256)))
        case "endless":
            template.write_text("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
        case "pickle":
            (folder / "model.safetensors").unlink()
            torch.save({"a": Program()}, folder / "pytorch_model.bin")
        case "no_layers":
            save_file({"score.weight": torch.zeros(1, 32)}, folder / "model.safetensors", metadata={"format": "pt"})
        case "reward_model":
            config = json.loads((folder / "config.json").read_text())
            config["architectures"] = ["Qwen3ForSequenceClassification"]
            (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "raises",
            "the chat template cannot render a question and its answer (UndefinedError: 'nothing' is undefined)",
        ),
        ("silent", "the chat template writes nothing for a question and its answer; give one that does with --chat"),
        ("no_syntax", "the chat template cannot render a question and its answer (TemplateSyntaxError: "),
        ("binary", "has no tokenizer that can be read ("),
        ("endless", "does not end: a short conversation took more than 1 s; give a template that does"),
        ("pickle", "(*.bin) are no pickle of plain tensors: it may run a program, or is damaged"),
        ("no_layers", "14 missing ("),
        (
            "reward_model",
            "is a reward model or another classifier (Qwen3ForSequenceClassification), expected a language",
        ),
    ],
)
def test_a_model_that_is_broken_is_refused_in_a_line(base, rows, tmp_path, capsys, monkeypatch, fault, words):
    monkeypatch.setattr(forked, "__kwdefaults__", {"cpu_s": 1.0, "memory_bytes": 2**30})
    folder = shutil.copytree(base, tmp_path / "m")
    broken(folder, fault)
    assert main(command(folder, rows, tmp_path / "out")) == 1
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert "it ran" not in said.out
    assert not (tmp_path / "out").exists()


def test_a_bad_row_is_named_before_the_weights_are_read(base, tmp_path, capsys):
    weightless = shutil.copytree(base, tmp_path / "weightless", ignore=shutil.ignore_patterns("*.safetensors"))
    save_file({"nothing": torch.zeros(1)}, weightless / "model.safetensors")
    (tmp_path / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    assert main(command(weightless, tmp_path / "rows.jsonl", tmp_path / "out")) == 1
    assert "rows.jsonl, line 1, messages: no assistant message to imitate" in capsys.readouterr().err


# The loss -------------------------------------------------------------------------------------------------------------


def started(
    base: Path, rows: Path, output: Path, *, pass_tokens: int = 2048, **settings: object
) -> tuple[SftRun, LocalPolicy]:
    """What `train` makes before its first update."""
    given = {"model_path": str(base), "dataset": str(rows), "output_dir": output, "max_length": 256, **settings}
    cfg = SftConfig.model_validate(given)
    run = prepare_sft(cfg, resume=False, say=lambda line: None)
    model = load_trainable(base, base, all_weights=run.start.trains_all_weights, device="cpu")
    return run, trained_policy(model, run.start, cfg, pass_tokens)


def test_the_loss_is_the_mean_cross_entropy_of_what_the_assistant_says(base, rows, tmp_path):
    run, policy = started(base, rows, tmp_path / "out", lora_r=0)
    chosen = [run.encoded[0], run.encoded[9]]  # "1" and "10": two lengths
    each = []
    for one in chosen:
        log_probs = policy.model(torch.tensor([one.ids])).logits[0].log_softmax(-1)
        each += [-log_probs[place - 1, one.ids[place]].item() for place in range(1, len(one.ids)) if one.mask[place]]
    assert len(each) == 2 + 2 + 3 + 3  # digits, and the end of each reply
    everything = cross_entropy(
        policy.model(torch.tensor([run.encoded[0].ids])).logits[0, :-1], torch.tensor(run.encoded[0].ids[1:])
    )
    loss = CrossEntropy(policy, 1e-3).update(chosen, 1e-3)["sft/loss"]
    assert loss == pytest.approx(sum(each) / len(each), rel=1e-5)
    assert abs(everything.item() - loss) > 1e-3


@pytest.mark.parametrize("lora_r", [0, 4], ids=["all_weights", "adapter"])
def test_losses_and_weights_of_several_updates_are_those_of_trls_trainer(base, rows, tmp_path, lora_r):
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    shared = {"gradient_accumulation_steps": 2, "learning_rate": 1e-3, "seed": 3}
    adapter = {"lora_r": lora_r, "lora_dropout": 0} if lora_r else {"lora_r": 0}
    run, policy = started(base, rows, tmp_path / "ours", num_epochs=2, batch_size=3, **adapter, **shared)
    train_epochs(policy, run.encoded, run.cfg, {}, None)

    encoded = {"input_ids": [one.ids for one in run.encoded], "labels": [one.labels for one in run.encoded]}
    trainer = SFTTrainer(
        model=load_trainable(base, base, all_weights=not lora_r, device="cpu"),
        args=SFTConfig(
            **shared, output_dir=str(tmp_path / "theirs"), num_train_epochs=2, per_device_train_batch_size=3,
            logging_steps=1, save_strategy="no", max_length=None, use_cpu=True, bf16=False, report_to=["none"],
        ),
        train_dataset=Dataset.from_dict(encoded),
        processing_class=run.start.tokenizer,
        peft_config=run.start.lora and run.start.lora.peft_config(),
    )  # fmt: skip
    trainer.train()

    names = {"loss": "sft/loss", "grad_norm": "optim/grad_norm", "learning_rate": "optim/learning_rate"}
    names |= {"num_tokens": "data/tokens", "epoch": "data/epoch"}
    theirs = [{names[key]: row[key] for key in names} for row in trainer.state.log_history if "loss" in row]
    assert len(theirs) == 2 * 3  # of 16 conversations 3 updates: 6, 6 and 4
    ours = [{name: row[name] for name in names.values()} for row in metrics(tmp_path / "ours")]
    assert ours == [pytest.approx(row, rel=1e-5) for row in theirs]
    expected = dict(trainer.model.named_parameters())
    for name, weight in policy.model.named_parameters():
        torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=1e-5)


def test_conversations_whose_prompts_share_more_than_half_are_related():
    a, b = [1, 2, 3, 4, 5, 6], [1, 7, 7, 7, 7, 7]
    prompts = [[*a, 20], [*b, 20], [*a, 21, 22, 23], [*a[:3], 30, 31, 32], [*b, 21]]  # the fourth shares just half
    encoded = [EncodedReplies([*prompt, 9, 9], [0] * len(prompt) + [1, 1]) for prompt in prompts]
    assert sorted(map(sorted, related_conversations(encoded))) == [[0, 2], [1, 4], [3]]


def test_an_epochs_order_keeps_related_conversations_in_a_batch_and_draws_the_rest():
    related = [[*range(0, 9)], [*range(9, 15)], [*range(15, 20)]]
    order = epoch_order(related, 4, seed=1)
    assert sorted(order) == [*range(20)]
    of = [next(i for i, group in enumerate(related) if number in group) for number in order]
    full, rest = [of[at : at + 4] for at in (0, 4, 8, 12)], of[16:]
    assert sorted(map(tuple, map(set, full))) == [(0,), (0,), (1,), (2,)]  # 9 = 2 x 4 + 1, 6 = 4 + 2, 5 = 4 + 1
    assert sorted(rest) == [0, 1, 1, 2]
    orders = {tuple(epoch_order(related, 4, seed)) for seed in range(20)}
    assert len(orders) == 20 and len({order[0] // 9 for order in orders}) > 1  # no relation always comes first
    assert epoch_order(related, 4, seed=1) == order


@pytest.mark.parametrize(("minutes", "passed_s", "update_s", "updates"), [
    (10, 20, 5, 2 + 116),  # (600 - 20) / 5
    (1, 20, 5, 2 + 8),
    (0.1, 20, 5, 3),  # one more at least, so that the learning rate ends at 0
    (1000, 20, 5, 200),  # all that are planned
])  # fmt: skip
def test_as_many_updates_are_planned_as_fit(minutes, passed_s, update_s, updates):
    assert updates_that_fit(minutes, passed_s, update_s, 2, 200) == updates


def test_the_plan_follows_updates_that_take_longer_than_the_first(base, rows, tmp_path, monkeypatch):
    """On a busy machine the first two took 16 s each and the others 20, and 20 minutes became 24."""
    run, policy = started(base, rows, tmp_path / "out", lora_r=0, batch_size=2, num_epochs=30, minutes=10)
    took = iter([10.0, 10.0, *[50.0] * 300])
    monkeypatch.setattr(RunLog, "seconds_passed", property(lambda log: log.passed))
    monkeypatch.setattr(RunLog, "passed", 0.0, raising=False)

    def timed(log, step):
        log.passed += next(took)
        return 0.0

    monkeypatch.setattr(RunLog, "seconds_per_step", timed)
    # after 2 updates 10 s each: 60 fit; 20 + 11 x 50 = 570 s, and one more would not fit
    assert train_epochs(policy, run.encoded, run.cfg, {}, None) == 13
    rates = [row["optim/learning_rate"] for row in metrics(tmp_path / "out")]
    assert rates == sorted(rates, reverse=True) and rates[-1] == pytest.approx(2e-4 / 13)


def test_a_run_with_few_minutes_ends_early_at_a_learning_rate_of_0(base, rows, tmp_path, capsys):
    settings = {"lora_r": 0, "batch_size": 2, "num_epochs": 30, "minutes": 1e-4, "save_every": 2}
    run, policy = started(base, rows, tmp_path / "out", **settings)
    assert train_epochs(policy, run.encoded, run.cfg, {}, None) == 3
    said = capsys.readouterr().out
    assert "tokens in 240 updates, " in said.splitlines()[0]  # after the first pass
    assert "3 of 240 updates fit into 0.0001 minutes" in said
    assert read_start(tmp_path / "out")["steps"] == 3  # by which its report knows that it is finished
    rates = [row["optim/learning_rate"] for row in metrics(tmp_path / "out")]
    assert rates == pytest.approx([2e-4, 2e-4 * 239 / 240, 2e-4 / 3])
    # a run that was killed then goes on to the same end
    run, policy = started(base, rows, tmp_path / "out", **settings)
    (second,) = (folder for folder in (tmp_path / "out" / "checkpoints").iterdir() if folder.name.endswith("2"))
    assert train_epochs(policy, run.encoded, run.cfg, {}, second) == 3
    assert [row["optim/learning_rate"] for row in metrics(tmp_path / "out")] == pytest.approx(rates)


def test_where_all_or_none_are_related_the_order_is_torchs():
    drawn = torch.randperm(6, generator=torch.Generator().manual_seed(5)).tolist()
    assert epoch_order([[*range(6)]], 2, 5) == epoch_order([[number] for number in range(6)], 2, 5) == drawn


class Largest(TorchDispatchMode):
    """Notes the most numbers that a tensor made inside holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return made


def test_no_step_makes_logits_of_all_tokens(rows, tmp_path):
    base = make_base(tmp_path / "base", vocab_size=100_000)
    run, policy = started(base, rows, tmp_path / "out")
    learner = CrossEntropy(policy, 1e-3)
    with Largest() as made:
        learner.update(run.encoded[:8], 1e-3)
    weights = 100_000 * policy.model.config.hidden_size
    assert made.numbers <= weights < sum(len(one.ids) for one in run.encoded[:8]) * 100_000 // 8


@pytest.mark.parametrize("most", [1, 60, 10_000], ids=["one_row", "some_rows", "whole_batch"])
def test_micro_batches_change_the_memory_and_not_the_gradient_nor_the_metrics(base, rows, tmp_path, monkeypatch, most):
    run, policy = started(base, rows, tmp_path / "out", lora_r=0, pass_tokens=most)
    chosen = [run.encoded[index] for index in (0, 9, 3)]
    batch = [(torch.tensor([one.ids]), torch.tensor(one.labels[1:])) for one in chosen]
    logits = torch.cat([policy.model(ids).logits[0, :-1] for ids, _ in batch])
    labels = torch.cat([labels for _, labels in batch])
    whole = cross_entropy(logits, labels)  # -100 is left out
    expected = torch.autograd.grad(whole, policy.parameters())
    norm = math.sqrt(sum(float((part**2).sum()) for part in expected))

    learner, gradients = CrossEntropy(policy, 1e-3), []
    step = learner.optimiser.step
    clipped = [part * min(1.0, 1.0 / norm) for part in expected]
    monkeypatch.setattr(
        learner.optimiser,
        "step",
        lambda: (gradients.extend(weight.grad.clone() for weight in policy.parameters()), step()),
    )
    found = learner.update(chosen, 1e-3)
    assert found["sft/loss"] == pytest.approx(whole.item(), rel=1e-5)
    assert found["optim/grad_norm"] == pytest.approx(norm, rel=1e-4)
    torch.testing.assert_close(gradients, clipped, rtol=1e-4, atol=1e-6)
    learnt = labels != -100
    entropy = torch.distributions.Categorical(logits=logits[learnt]).entropy().mean().item()
    assert found["sft/entropy"] == pytest.approx(entropy, rel=1e-4)
    right = (logits[learnt].argmax(-1) == labels[learnt]).float().mean().item()
    assert found["sft/token_accuracy"] == pytest.approx(right)


def test_a_gradient_that_is_no_number_stops_the_run_before_it_moves_the_weights(base, rows, tmp_path, monkeypatch):
    run, policy = started(base, rows, tmp_path / "out")
    before = [weight.detach().clone() for weight in policy.parameters()]
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(math.inf))
    with pytest.raises(UsageError, match="the norm of the gradient is inf at step 1; lower --learning-rate"):
        CrossEntropy(policy, 1e-3).update(run.encoded[:2], 1e-3)
    torch.testing.assert_close(policy.parameters(), before, atol=0, rtol=0)


# Runs -----------------------------------------------------------------------------------------------------------------


def test_a_run_writes_an_adapter_its_log_and_its_record_and_says_what_comes_next(base, tmp_path, capsys):
    output = tmp_path / "out"
    flags = ("--max_samples", 8, "--num_epochs", 1, "--batch_size", 2, "--gradient_accumulation_steps", 2)
    assert main(command(base, "dbbench", output, *flags, "--learning_rate", 1e-3, "--max_length", 250)) == 0
    said = capsys.readouterr().out
    kept, left_out = re.search(r"(\d+) conversations of dbbench.*\nleft out: (.*)\n", said).groups()
    assert re.search(r"^step 1/2  loss \d\.\d{4}  accuracy \d+\.\d%  grad ", said, re.MULTILINE)
    assert said.endswith(
        f"adapter and tokenizer: {output}\nnext: {AGENTGRPO} interactive --model {output}\n"
        f"next: {AGENTGRPO} greedy-grpo --model {output}\n"
    )
    assert (kept, left_out) == ("7", "1 longer than --max-length 250")
    assert [set(row) for row in metrics(output)] == 2 * [
        {
            "train_step",
            "at",
            "sft/loss",
            "sft/token_accuracy",
            "sft/entropy",
            "data/tokens",
            "data/epoch",
            "optim/learning_rate",
            "optim/grad_norm",
            "time/step_s",
        }
    ]
    record = json.loads((output / RECORD).read_text())
    assert record["settings"]["lora"] == {"r": 16, "alpha": 32, "dropout": 0.05}
    assert (record["train_step"], record["data"]["conversations"], record["left_out"]) == (2, 7, {"too_long": 1})
    adapter = load_file(output / "adapter_model.safetensors")
    assert {key.split(".")[-2] for key in adapter} == {"lora_A", "lora_B"}
    assert any(weight.abs().max() > 0 for key, weight in adapter.items() if "lora_B" in key)
    assert not list(output.glob(".saving-*"))
    assert main(command(base, "dbbench", output)) == 1
    assert f"{output} holds a finished model (sft.json); name another --run-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "commands"),
    [
        (
            {"dataset": "dbbench", "protocol": "text"},
            [
                f"{AGENTGRPO} interactive --model out",
                f"{AGENTGRPO} greedy-grpo --model out --protocol text",
            ],
        ),
        (
            {"dataset": "gsm8k:generated"},
            [
                f"{AGENTGRPO} interactive --model out",
                f"{AGENTGRPO} gsm8k --model out --dataset gsm8k:generated",
            ],
        ),
        (
            {"env": "mine.py:Shop", "tasks": Path("rows.jsonl")},
            [
                f"{AGENTGRPO} local --model out --env mine.py:Shop --train-file rows.jsonl",
                f"{AGENTGRPO} merge --adapter out --output out-merged",
                f"{AGENTGRPO} train --model out-merged --env mine.py:Shop --train-file rows.jsonl",
            ],
        ),
        (
            {"database": Path("s.sqlite"), "tasks": Path("q.json"), "held_out_fraction": 0.1, "max_prompt_tokens": 900},
            [
                f"{AGENTGRPO} local --model out --database s.sqlite --train-file q.json "
                "--max-prompt-tokens 900 --held-out-fraction 0.1",
                f"{AGENTGRPO} merge --adapter out --output out-merged",
                f"{AGENTGRPO} train --model out-merged --database s.sqlite --train-file q.json "
                "--set data.max_prompt_tokens=900 data.held_out_fraction=0.1",
            ],
        ),
        (
            {"dataset": "dbbench", "tasks": Path("q.json"), "held_out_fraction": 0},  # every row was learnt
            [
                f"{AGENTGRPO} interactive --model out",
                f"{AGENTGRPO} greedy-grpo --model out --train-file q.json --val-file HELD_OUT_TASKS",
            ],
        ),
        ({"dataset": "rows.jsonl"}, [f"{AGENTGRPO} interactive --model out"]),
    ],
)
def test_what_comes_next_fits_what_was_learnt(flags, commands):
    cfg = SftConfig(model_path="m", output_dir=Path("out"), **flags)
    assert commands_after_sft(cfg, None, is_adapter=True) == commands
    whole = [line.replace("out-merged", "out") for line in commands if " merge " not in line]
    assert commands_after_sft(cfg, None, is_adapter=False) == whole


@pytest.mark.parametrize(
    ("weights", "flags"),
    [
        (19_999_999, ""),  # small.yaml is read without being asked for
        (20_000_000, " --config sql_agent/configs/pretrained.yaml"),
        (134_515_008, " --config sql_agent/configs/pretrained.yaml"),
        (1_000_000_000, ""),
        (None, ""),
    ],
)
def test_the_next_training_takes_the_settings_that_the_pages_name_for_the_models_size(monkeypatch, weights, flags):
    monkeypatch.chdir(ROOT)
    cfg = SftConfig(model_path="m", output_dir=Path("out"), database=Path("s.sqlite"), tasks=Path("q.json"))
    last = commands_after_sft(cfg, weights, is_adapter=False)[-1]
    assert last.endswith(f"train --model out --database s.sqlite --train-file q.json{flags}")
    pairs = DpoConfig(model_path="m", output_dir=Path("out"), dataset=Path("pairs.jsonl"))
    assert after_dpo(pairs, weights, cpu=True, is_adapter=False)[-1].endswith(
        f"train --model out --train-file TASKS{flags}"
    )


# Whole processes ------------------------------------------------------------------------------------------------------


def run(*argv: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, *(str(part) for part in argv)]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)


@pytest.mark.parametrize(
    ("given", "source", "environment"),
    [
        ({}, "dbbench", EnvironmentSettings("dbbench")),
        ({"dataset": "dbbench", "protocol": "lab"}, "dbbench", EnvironmentSettings("dbbench", "lab")),
        ({"dataset": "gsm8k:generated"}, "gsm8k", EnvironmentSettings("gsm8k")),
        ({"database": "a.sqlite"}, "environment", EnvironmentSettings("text2sql", database=Path("a.sqlite"))),
        ({"env": "mine.py:Shop"}, "environment", EnvironmentSettings("mine.py:Shop")),
        ({"dataset": "talks.jsonl"}, "file", None),
    ],
)
def test_data_name_the_environment_that_they_imitate(given, source, environment):
    cfg = SftConfig(**given)
    assert (cfg.source, cfg.environment if source != "file" else None) == (source, environment)
    assert Path(cfg.model_path).resolve() == TINY_POLICY


def test_help_says_how_to_start_without_loading_torch():
    shown = run("-X", "importtime", "-m", "agentgrpo", "sft", "--help")
    assert "agentgrpo sft --model MODEL --dataset dbbench" in shown.stdout
    assert re.search(r"\btorch$", shown.stderr, re.MULTILINE) is None


def test_a_run_goes_on_in_the_precision_that_it_began_with():
    def record(**settings):
        return {"model": {"sha256": "m"}, "tokenizer_sha256": "t", "data": {"sha256": "d"}, "settings": settings}

    earlier, auto, half = record(seed=0), record(seed=0, precision="auto"), record(seed=0, precision="bfloat16")
    for asked in (auto, half):
        check_resumed(Path("step_2"), earlier, asked, lambda _: None)  # an earlier version did not note it
    with pytest.raises(UsageError, match=r"step_2 belongs to another run \(precision: was auto, is bfloat16\)"):
        check_resumed(Path("step_2"), auto, half, lambda _: None)
    assert "precision" in SETTINGS


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env", "agent"], "--env agent: an agent of your own calls the policy over HTTP"),
        (["--env", "shop"], "unknown environment 'shop'"),
        (["--env", "mine.py:Shop", "--database", "a.sqlite"], "--database belongs to --env text2sql"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(capsys, flags, words):
    with pytest.raises(SystemExit):
        main(["--model_path", "x", *flags])
    assert words in " ".join(capsys.readouterr().err.split())


def test_an_environment_without_rows_asks_for_them(base, tmp_path, capsys):
    where = ["--model_path", str(base), "--output_dir", str(tmp_path / "out"), "--max_length", "256"]
    assert main([*where, "--device", "cpu", "--env", "mine.py:Shop"]) == 1
    assert "mine.py:Shop needs --train-file, rows that hold references" in capsys.readouterr().err
