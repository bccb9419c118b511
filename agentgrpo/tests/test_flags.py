"""Flags are spelt alike everywhere, and a misspelt one is told what it was meant to be."""

import pytest

from agentgrpo.flags import Parser


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
