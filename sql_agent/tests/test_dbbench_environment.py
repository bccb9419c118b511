"""`sql_agent.environments.dbbench`: which tasks a run trains on, and its instructions."""

import json
from dataclasses import replace

import pytest

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from sql_agent.environments.base import InstructionsError, Split, make_environment
from sql_agent.environments.dbbench import DbBench
from sql_agent.model_check import chat_template
from sql_agent.prompts.fit import PromptLimit, fit_split
from sql_agent.prompts.tokenizer import PromptTokenizer
from sql_agent.report.reading import ValidationChange
from sql_agent.settings.groups import DataConfig, EnvironmentSettings
from sql_agent.startup.data import (
    CLEAR_FROM,
    describe_kinds,
    describe_out_of_reach,
    drawn,
    few_held_out,
    kinds_of,
)


@pytest.fixture
def split():
    return lambda **data: DbBench("strict").read_split(DataConfig(**data), seed=3)


def skills(tasks):
    return {skill for task in tasks for skill in task.skills}


def test_without_skills_every_kind_is_there(split):
    found = split(generate=16, val_limit=8)
    assert (found.train, found.val) == (
        generate_tasks(16, seed=3, split="train"),
        generate_tasks(8, seed=3, split="held_out"),
    )


def test_asked_for_skills_are_what_both_halves_show_and_the_number_of_tasks_is_kept(split):
    found = split(generate=16, val_limit=8, skills=("delete", "order_by_single_column"))
    assert (len(found.train), len(found.val)) == (16, 8)
    assert all({"delete", "order_by_single_column"} & set(task.skills) for task in [*found.train, *found.val])
    assert {"delete", "order_by_single_column"} <= skills(found.train)


def test_tasks_of_a_file_are_kept_by_skill(split, tmp_path):
    file = tmp_path / "tasks.jsonl"
    write_tasks(file, generate_tasks(32, seed=0))
    found = split(train_file=file, val_file=file, skills=("delete",))
    assert found.train == found.val == [task for task in generate_tasks(32, seed=0) if "delete" in task.skills]
    assert len(found.train) == 4  # each eight in a row hold each kind once


def test_skills_that_nothing_shows_are_named_beside_those_that_are_there(split, tmp_path):
    with pytest.raises(
        ValueError, match=r"no task shows joins or deletee \(data.skills\); these tasks show delete, insert"
    ):
        split(skills=("joins", "deletee"))
    file = tmp_path / "tasks.jsonl"
    write_tasks(file, [task for task in generate_tasks(32, seed=0) if "delete" in task.skills])
    with pytest.raises(ValueError, match="these tasks show delete, where_single_condition"):
        split(train_file=file, skills=("insert",))


# the held-out draw ----------------------------------------------------------------------------------------------------

EIGHT_KINDS = [replace(task, kind=f"kind {i // 8}") for i, task in enumerate(generate_tasks(64, seed=0))]  # sorted


def test_held_out_tasks_are_drawn_of_every_kind_after_those_that_are_too_long_are_gone(split, tmp_path):
    write_tasks(tmp_path / "tasks.jsonl", EIGHT_KINDS)
    found = split(train_file=tmp_path / "tasks.jsonl", val_file=tmp_path / "tasks.jsonl", val_limit=16)
    too_long = {task.id for task in EIGHT_KINDS[1::2]}
    environment = DbBench("strict")
    limit = PromptLimit(512, "as given", "--max_prompt_tokens", True)
    whole, _ = fit_split(found, environment, lambda task: 513 if task.id in too_long else 512, limit)
    assert (len(whole.val), whole.too_long) == (32, 64)
    assert set(kinds_of(drawn(whole, 16, seed=0))["held_out"].values()) == {2}  # 16 of eight kinds
    assert drawn(whole, 16, seed=0) == drawn(whole, 16, seed=0) != drawn(whole, 16, seed=1)


def test_a_limit_that_covers_the_held_out_tasks_changes_nothing(split):
    found = split(generate=16, val_limit=192, skills=("delete", "order_by_single_column"))  # as in demo.yaml
    assert drawn(found, 192, seed=0) == found


def test_the_kinds_are_named_and_those_that_are_in_one_half_only():
    def of_kinds(kinds):
        return [replace(EIGHT_KINDS[0], id=f"t-{i}", kind=kind) for i, kind in enumerate(kinds)]

    parts = Split(of_kinds(["INSERT", "other", "INSERT"]), of_kinds(["other", "UPDATE"]), too_long=4)
    assert describe_kinds(parts, held_out=9) == [
        "tasks: 3 to train on, 2 held out of 9, drawn evenly by kind; left out: too long 4",
        "to train on, by kind: INSERT 2, other 1",
        "held out, by kind: other 1, UPDATE 1",
        "warning: held out, but never trained on: UPDATE; give more tasks, or hold others out: --val-file FILE",
        "warning: trained on, but not held out, so not measured: INSERT; give more tasks, or hold others out: "
        "--val-file FILE",
    ]
    assert describe_kinds(Split(parts.val, parts.val, left_out={"reference_failed": 1}), held_out=2) == [
        "tasks: 2 to train on, 2 held out; left out: too long 0, reference_failed 1",
        "to train on, by kind: other 1, UPDATE 1",
        "held out, by kind: other 1, UPDATE 1",
    ]
    assert describe_kinds(Split(parts.val, []), held_out=0) == [
        "tasks: 2 to train on, 0 held out; left out: too long 0",
        "to train on, by kind: other 1, UPDATE 1",
    ]
    assert kinds_of(parts) == {"train": {"INSERT": 2, "other": 1}, "held_out": {"other": 1, "UPDATE": 1}}


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (13, "13 held-out tasks: a change is clear (McNemar's exact test, p < 0.05) from 6 newly solved with none lost"
             "; give more tasks, or hold others out: --val-file FILE"),
        (5, "5 held-out tasks: no change can be clear (McNemar's exact test, p < 0.05), which takes 6 newly solved; "
            "give more tasks, or hold others out: --val-file FILE"),
    ],
)  # fmt: skip
def test_it_is_said_where_a_clear_change_takes_more_than_a_third_of_the_held_out_tasks(count, said):
    assert list(map(str, few_held_out(count))) == [said]


def test_six_solved_anew_are_the_fewest_that_the_test_calls_clear():
    assert [ValidationChange(13, gained, 0).p_value < 0.05 for gained in (CLEAR_FROM - 1, CLEAR_FROM)] == [False, True]
    assert few_held_out(3 * CLEAR_FROM) == few_held_out(0) == []


# solutions that do not fit --------------------------------------------------------------------------------------------


def test_tasks_whose_solution_is_longer_than_a_rollout_may_be_are_counted():
    tokens = {"short": [20, 12], "long reply": [20, 101], "long in all": [80, 80], "not known": []}
    split = Split(
        *([replace(EIGHT_KINDS[0], id=name) for name in names] for names in (tokens, ["short", "long reply"]))
    )
    assert describe_out_of_reach(split, lambda task: tokens[task.id], 100, 150) == [
        "warning: 1 of 2 held-out tasks and 2 of 4 to train on are out of reach: their solutions are longer than "
        "agent.max_tokens=100 or data.max_response_tokens=150 allow; held-out success can reach 50.0%. The longest "
        "reply has 101 tokens, the longest solution 160; raise the two, or leave these tasks out"
    ]
    assert describe_out_of_reach(split, lambda task: tokens[task.id], 101, 160) == []
    assert describe_out_of_reach(split, lambda task: [], 1, 1) == []  # nobody knows a solution


def test_the_tokens_of_a_solution_are_those_of_its_replies_as_the_policy_says_them(random_policy_folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(random_policy_folder / "tokenizer.json"))
    environment, task = DbBench("strict"), next(task for task in EIGHT_KINDS if task.gold.answers)
    said = [
        {"name": "execute_sql", "arguments": {"query": task.gold.sql}},
        {"name": "commit_final_answer", "arguments": {"answers": list(task.gold.answers)}},
    ]
    texts = [f"<tool_call>\n{json.dumps(call)}\n</tool_call><|im_end|>" for call in said]
    counter = PromptTokenizer(random_policy_folder, environment, chat_template(random_policy_folder, "fc"))
    assert counter.reply_tokens(task) == [len(tokenizer.encode(text).ids) for text in texts]


@pytest.mark.parametrize("protocol", ["fc", "text", "lab"])
def test_other_instructions_stand_where_the_rules_stood_and_nothing_else_changes(protocol):
    environment, (task,) = DbBench("strict", protocol), generate_tasks(1, seed=0)
    shorter = environment.instructions.replace("exactly right", "right") + "\nBe brief.\n"
    other = environment.with_instructions(shorter)
    [at] = [n for n, message in enumerate(environment.messages(task)) if message["content"] == environment.instructions]
    expected = environment.messages(task)
    expected[at] = expected[at] | {"content": shorter.strip()}
    assert other.messages(task) == expected
    assert (other.tools, [row["prompt"] for row in other.verl_rows([task])]) == (environment.tools, [expected])
    assert environment.messages(task)[at]["content"] == environment.instructions  # is as it was


@pytest.mark.parametrize(
    ("protocol", "text", "lacking"),
    [
        ("fc", "Call execute_sql until you know.", "not named: commit_final_answer"),
        ("text", "Action: Operation\n```sql\nSELECT 1\n```", "not named: Action: Answer, Final Answer:"),
    ],
)
def test_instructions_without_what_a_reply_needs_are_refused(tmp_path, protocol, text, lacking):
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(InstructionsError, match=f"the instructions of {tmp_path}/mine.txt: .*{lacking}"):
        make_environment(EnvironmentSettings(protocol=protocol, instructions=tmp_path / "mine.txt"))


def test_tasks_that_bring_their_whole_prompt_take_no_instructions(tmp_path):
    (tmp_path / "mine.txt").write_text("Call calculator.")
    with pytest.raises(InstructionsError, match="environment gsm8k bring their whole prompt"):
        make_environment(EnvironmentSettings("gsm8k", instructions=tmp_path / "mine.txt"))
    with pytest.raises(InstructionsError, match=r"none\.txt.*No such file"):
        make_environment(EnvironmentSettings(instructions=tmp_path / "none.txt"))
