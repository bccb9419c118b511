"""Flags are spelt alike everywhere, and a misspelt one is told what it was meant to be."""

import pytest

from agentgrpo.flags import USUAL, Parser
from agentgrpo.settings import did_you_mean_setting, names_of
from sql_agent.commands.local import parse as parse_local
from sql_agent.settings.flags import flags_of
from sql_agent.settings.local import LocalGrpoConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.settings.tuning import SftConfig
from sql_agent.startup.flags import parse_train_args


def parser() -> Parser:
    made = Parser(prog="train")
    made.add_argument("--model", "--model_path")
    made.add_argument("--run-dir", "--output_dir", "--save-dir")
    made.add_argument("--env", "--task")
    made.add_argument("--tasks")
    made.add_argument("--device", choices=["auto", "cpu"], default="auto")
    return made


def error_of(capsys, *words):
    with pytest.raises(SystemExit):
        parser().parse_args(list(words))
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["--run-dir", "--run_dir", "--output_dir", "--output-dir", "--save_dir", "--save"])
def test_dashes_underscores_and_earlier_names_are_one_flag(name):
    assert parser().parse_args([name, "out"]).run_dir == "out"
    assert parser().parse_args([f"{name}=out_put"]).run_dir == "out_put"


def test_an_earlier_name_that_begins_another_flag_is_still_that_name():
    assert vars(parser().parse_args(["--task", "gsm8k", "--tasks", "a.json"])) == {
        "model": None, "run_dir": None, "env": "gsm8k", "tasks": "a.json", "device": "auto",
    }  # fmt: skip


def test_values_keep_their_underscores():
    assert parser().parse_args(["--model", "my_model"]).model == "my_model"
    texts = Parser()
    texts.add_argument("text", nargs="*")
    assert texts.parse_args(["--", "--run_dir"]).text == ["--run_dir"]


def test_help_shows_one_name_of_each_flag():
    shown = parser().format_help()
    assert "--run-dir" in shown
    assert "_dir" not in shown
    assert not [name for name in ("--output-dir", "--save-dir", "--model-path", "--task ") if name in shown]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--modle", "x"], "train: error: unrecognized arguments: --modle; did you mean --model?"),
        (["--modelpath=x"], "train: error: unrecognized arguments: --modelpath; did you mean --model?"),
        (["--wholly-other"], "train: error: unrecognized arguments: --wholly-other"),
        (
            ["--device", "cpuu"],
            "train: error: argument --device: invalid choice: 'cpuu' (choose from 'auto', 'cpu'); did you mean cpu?",
        ),
    ],
)
def test_a_misspelt_flag_or_choice_gets_the_nearest(capsys, words, said):
    assert error_of(capsys, *words) == said


def test_a_misspelt_flag_is_named_before_one_that_is_missing(capsys):
    needs = Parser(prog="train")
    needs.add_argument("--model", required=True)
    with pytest.raises(SystemExit):
        needs.parse_args(["--modle", "x"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --modle; did you mean --model?\n")


# names that are usual elsewhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.total_training_steps=3"], "trainer.total_training_steps=3; write --set trainer.steps=3"),
        (["a.b=1", "trainer.steps=3", "+trainer.test_freq=2"],
         "a.b=1 trainer.steps=3 +trainer.test_freq=2; write --set trainer.steps=3 --set trainer.val_every=2"),
        (["a.b=1"], "a.b=1"),
        # the last part alone would be `agent.max_tokens`
        (["+judge.max_tokens=64"], "+judge.max_tokens=64; write --set judge.max_tokens=64"),
        (["--max_steps", "3"], "--max_steps; did you mean --set trainer.steps=3?"),
        (["--num-train-epochs", "1"], "--num-train-epochs; did you mean --set trainer.steps=N?"),
        (["--lr", "5e-4"], "--lr; did you mean --set optim.learning_rate=5e-4?"),
        (["--learning-rate=5e-4"], "--learning-rate; did you mean --set optim.learning_rate=5e-4?"),
        (["--batch-size", "--ci"], "--batch-size; did you mean --set data.train_batch_size=VALUE?"),
        (["--weight-decay", "0.1"], "--weight-decay; did you mean --set optim.weight_decay=0.1?"),
        (["--max_tokens_per_micro_batch", "9"],
         "--max_tokens_per_micro_batch; did you mean --set optim.micro_batch_tokens=9?"),
        (["--optim.max_tokens_per_micro_batch=9"],
         "--optim.max_tokens_per_micro_batch; did you mean --set optim.micro_batch_tokens=9?"),
        (["--output_dir", "out"], "--output_dir; did you mean --run-dir?"),
    ],
)  # fmt: skip
def test_the_main_job_answers_other_names_with_its_setting(capsys, words, said):
    with pytest.raises(SystemExit):
        parse_train_args(words)
    assert capsys.readouterr().err.splitlines()[-1].partition("unrecognized arguments: ")[2] == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "5e-4"], "--lr; did you mean --learning-rate?"),
        (["--num-train-epochs", "1"], "--num-train-epochs; did you mean --num-epochs?"),
        (["--per_device_train_batch_size", "4"], "--per_device_train_batch_size; did you mean --batch-size?"),
        (["optim.learning_rate=1"], "optim.learning_rate=1; write --learning-rate"),  # it has no --set
    ],
)
def test_a_command_without_settings_answers_them_with_its_flag(capsys, words, said):
    made = Parser()
    for name in ("--learning-rate", "--num-epochs", "--batch-size"):
        made.add_argument(name)
    with pytest.raises(SystemExit):
        made.parse_args(words)
    assert capsys.readouterr().err.splitlines()[-1].partition("unrecognized arguments: ")[2] == said


@pytest.mark.parametrize(("word", "ours"), [("--max_samples", "--num-tasks"), ("--eval_samples", "--eval-tasks")])
def test_local_training_answers_other_commands_names_of_its_numbers_of_tasks(capsys, word, ours):
    with pytest.raises(SystemExit):
        parse_local([word, "5"])
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"{word}; did you mean {ours}?")


def test_every_name_that_is_proposed_is_one_of_ours():
    flags = {f"--{flag.names[0]}" for config in (SftConfig, LocalGrpoConfig) for flag in flags_of(config)}
    known = {*flags, "--lora", "--dataset", *names_of(TrainConfig)}
    assert {each.partition("=")[0] for ours in USUAL.values() for each in ours if each[0] != "`"} - known == set()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("trainer.total_training_steps", "trainer.steps"),
        ("actor_rollout_ref.rollout.n", "rollout.group_size"),  # no name of ours is like it
    ],
)
def test_verls_name_under_set_is_answered_with_ours(name, ours):
    assert did_you_mean_setting(name, TrainConfig) == f"; did you mean {ours}?"


def test_help_says_what_a_value_is(capsys):
    with pytest.raises(SystemExit):
        parse_train_args(["--help"])
    shown = capsys.readouterr().out
    for flag in ("--train-agents NAME,...", "--agent FILE.py:NAME", "--base-url URL", "--n-runners N", "--run-dir DIR"):
        assert f"\n  {flag}" in shown
