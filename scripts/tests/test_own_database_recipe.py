"""The commands for a database of one's own, typed one after another in a fresh clone, on a database that they have not
seen and that stays as it is: every stage holds the same questions out and shows the policy the same prompt.

The small policy stands in for a pretrained one, and each training takes a step.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.tests import library_database
from scripts.tests.pages import ROOT
from scripts.tests.test_typed_pages import SERVERS, serving, started
from sql_agent.tiny_policy.make import make_tiny_policy

pytestmark = pytest.mark.slow
DATA = "--database {database} --train-file {questions}"
TRAINED = "runs/mine/checkpoints/global_step_1/actor/huggingface"
RECIPE = {
    "doctor": f"doctor --model models/tiny-sql {DATA}",
    "sft": f"sft --model models/tiny-sql {DATA} --lora-rank 0 --learning-rate 1e-3 --num-epochs 1 --num-tasks 8 "
    "--run-dir models/mine",
    "train": f"train --model models/mine {DATA} --config sql_agent/configs/pretrained.yaml --run-dir runs/mine "
    "--set trainer.steps=1 data.train_batch_size=2 rollout.group_size=2 rollout.max_resamples=0 agent.max_tokens=32 "
    "loss.entropy_coef=0.01",
    "report": "report runs/mine",
    "interactive": f"interactive --model {TRAINED} --database {{database}} --tasks {{questions}}",
    "evaluate": "evaluate --base-url http://127.0.0.1:8000/v1 --model mine --database {database} --tasks {questions} "
    "--split held-out --max-tokens 32",
}
SERVE = (
    f"VLLM_CPU_KVCACHE_SPACE=1 .venv/bin/vllm serve {TRAINED} --served-model-name mine --generation-config vllm "
    "--enable-auto-tool-choice --tool-call-parser hermes --dtype float32 --host 127.0.0.1 --enforce-eager"
)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each command printed, by its name, and the clone in which they were typed."""
    clone = tmp_path_factory.mktemp("recipe") / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    make_tiny_policy(ROOT / "models" / "tiny-sql")
    shutil.copytree(ROOT / "models" / "tiny-sql", clone / "models" / "tiny-sql")
    database, questions = library_database.make(clone)
    before = database.read_bytes()
    shown: dict[str, str] = {}
    for name, words in RECIPE.items():
        text = f".venv/bin/agentgrpo {words.format(database=database.name, questions=questions.name)}"
        log = clone / "command.log"
        if name == "evaluate":
            with serving(SERVE, clone, clone / "server.log", SERVERS["vllm serve"]):
                type_it(text, clone, log)
        else:
            type_it(text, clone, log)
        shown[name] = log.read_text()
    assert database.read_bytes() == before
    return shown, clone


def type_it(text: str, clone: Path, log: Path) -> None:
    with started(text, clone, log) as process:
        process.communicate(":task 1\n", timeout=3600)
        assert process.returncode == 0, f"{text}\n{log.read_text()[-5000:]}"


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def record_of(folder: Path) -> dict:
    return json.loads((folder / "trained_on.json").read_text())


@pytest.mark.timeout(7200)
def test_every_command_of_the_recipe_ends_well(said):
    shown, clone = said
    assert "a run can start" in shown["doctor"]
    assert "60 questions" in shown["doctor"]
    assert "12 held out (the same ones that training and evaluate hold out" in shown["sft"]
    assert "held-out success before" in shown["report"]
    assert (clone / "runs" / "mine" / "report.html").is_file()


@pytest.mark.timeout(7200)
def test_the_policy_is_trained_on_what_the_judge_said(said):
    run_dir = said[1] / "runs" / "mine"
    metrics = next(row for row in lines(run_dir / "metrics.jsonl") if row["train_step"] == 1)
    assert metrics["prefix/broken_frac"] == 0.0
    assert metrics["policy/grad_norm"] > 0
    assert metrics["engine/probs_diff_max"] < 1e-3
    known = {"match": 1.0, "wrong_result": 0.0, "sql_error": 0.0, "too_many_rows": 0.0, "no_answer": 0.0}
    for rollout in lines(run_dir / "trajectories" / "train_000001.jsonl"):
        assert rollout["reward"] == rollout["score"]["value"] == known[rollout["score"]["reason"]]


@pytest.mark.timeout(7200)
def test_no_held_out_question_is_in_what_was_learnt(said):
    _, clone = said
    tuned = record_of(clone / "models" / "mine")
    (checkpoint,) = (clone / "runs" / "mine" / "checkpoints").glob("global_step_*/actor/huggingface")
    trained = record_of(checkpoint)
    assert len(tuned["held_out"]) == 12
    assert trained["held_out"] == tuned["held_out"]
    assert not {*trained["learnt"]} & {*trained["held_out"]}
    (evaluated,) = (clone / "runs" / "evaluate").glob("*.jsonl")
    validated = lines(clone / "runs" / "mine" / "trajectories" / "val_000000.jsonl")
    measured = {row["task_id"] for row in lines(evaluated)}
    assert len(measured) == 12
    assert {row["task_id"] for row in validated} <= measured


@pytest.mark.timeout(7200)
def test_training_and_evaluate_have_one_prompt_of_the_length_that_doctor_says(said):
    shown, clone = said
    (evaluated,) = (clone / "runs" / "evaluate").glob("*.jsonl")
    served = {row["task_id"]: row for row in lines(evaluated)}
    shortest, longest = (
        int(number.replace(",", ""))
        for number in re.search(r"first prompts: ([\d,]+) to ([\d,]+)", shown["doctor"]).groups()
    )
    validated = lines(clone / "runs" / "mine" / "trajectories" / "val_000000.jsonl")
    for row in validated:
        other = served[row["task_id"]]
        assert row["messages"][:2] == other["messages"][:2]
        assert shortest <= row["first_prompt_tokens"] <= longest
        if other["num_turns"] == 1:
            assert row["first_prompt_tokens"] == other["prompt_tokens"]
    limits = {name: re.search(r"limit ([\d,]+)", text)[1] for name, text in shown.items() if "first prompts:" in text}
    assert {*limits} >= {"doctor", "sft", "train", "evaluate", "interactive"}
    assert len({*limits.values()}) == 1
