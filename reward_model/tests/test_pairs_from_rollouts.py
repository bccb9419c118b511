import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.chat.messages import Message, num_chars
from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.datatypes import Score
from reward_model.datatypes import ROLLOUTS
from reward_model.pairs_from_rollouts import (
    Candidate,
    SavedRollout,
    balanced,
    candidates,
    is_held_out,
    main,
    read_rollouts,
)
from reward_model.preferences import read_preferences
from sql_agent.datatypes import RolloutRecord

SECRET = "gold-7391"


def call(name, **arguments):
    return {
        "id": f"x{id(arguments)}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def record(task, value, sql="SELECT 1", *, stop="answered", messages=None, **more):
    """A rollout as `sql_agent` writes it: one statement, then an answer; its id differs from time to time."""
    asks, commits = call("execute_sql", query=sql), call("commit_final_answer", answers=["1"])
    told = messages or [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": f"question {task}"},
        {"role": "assistant", "content": None, "tool_calls": [asks]},
        {"role": "tool", "tool_call_id": asks["id"], "content": "[(1,)]"},
        {"role": "assistant", "content": None, "tool_calls": [commits]},
        {"role": "tool", "tool_call_id": commits["id"], "content": "Committed."},
    ]
    score = Score(value, f"{SECRET} {value}", {"correctness": 1.0})
    turns = sum(message["role"] == "assistant" for message in told)
    return RolloutRecord(task, "counting", stop, score, turns, 0, told, 10, 10, 1.0, error=SECRET).to_dict() | more


def write(folder, *records, name="a.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    lines = (line if isinstance(line, str) else json.dumps(line) for line in records)
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def run(folder, output, *flags):
    return main(["--rollouts", str(folder), "--output", str(output), *flags])


@pytest.fixture
def told(tmp_path, capsys):
    """Make pairs of records, all prompts in the first file; exit status, pairs and what was printed."""

    def told(*records, **files):
        write(tmp_path / "rollouts", *records)
        status = run(tmp_path / "rollouts", tmp_path / "pairs.jsonl", "--held-out-fraction", "0")
        said = capsys.readouterr()
        pairs = read_preferences(tmp_path / "pairs.jsonl") if status == 0 else []
        return status, pairs, " ".join((said.out + said.err).split())

    return told


def test_right_against_wrong_on_the_same_task_up_to_the_agents_last_message(told):
    _, [pair], _ = told(record("a", 1.0, "SELECT 1"), record("a", 0.0, "SELECT 2"), record("b", 1.0), record("c", 0.0))
    assert [message.role for message in pair.prompt] == ["system", "user"]
    assert pair.prompt[1].content == "question a"
    # the result of the last call is no longer the agent's doing
    assert [message.role for message in pair.chosen] == ["assistant", "tool", "assistant"]
    assert pair.chosen[0].tool_calls[0].function.arguments == '{"query": "SELECT 1"}'
    assert pair.rejected[0].tool_calls[0].function.arguments == '{"query": "SELECT 2"}'
    assert pair.chosen[2].tool_calls[0].function.name == "commit_final_answer"
    assert pair.metadata == {"task_id": "a", "kind": "counting", "sources": ["a.jsonl:1", "a.jsonl:2"]}
    assert pair.metadata.keys() == ROLLOUTS
    assert pair.tools is None


TOOLS = [{"type": "function", "function": {"name": "execute_sql"}}]


def test_with_tools_a_pair_has_the_schemas_that_the_agent_was_offered(tmp_path, capsys):
    right, wrong = record("a", 1.0, "SELECT 1", tools=TOOLS), record("a", 0.0, "SELECT 2", tools=TOOLS)
    folder = write(tmp_path / "rollouts", right, wrong, record("b", 1.0))
    assert run(folder, tmp_path / "with.jsonl", "--held-out-fraction", "0", "--with-tools") == 0
    assert "1 rollouts call tools, and their files lack the schemas: run them again" in capsys.readouterr().out
    assert run(folder, tmp_path / "without.jsonl", "--held-out-fraction", "0") == 0
    [pair], [bare] = (read_preferences(tmp_path / f"{name}.jsonl") for name in ("with", "without"))
    assert json.loads(pair.tools) == TOOLS
    assert bare == pair.model_copy(update={"tools": None})


def test_nothing_of_the_verdict_gets_into_the_file(told, tmp_path):
    assert told(record("a", 1.0, "SELECT 1"), record("a", 0.0, "SELECT 2"))[0] == 0
    text = (tmp_path / "pairs.jsonl").read_text()
    assert SECRET not in text
    assert not {"score", "reason", "reward", "correctness", "stop_reason", "answered"} & set(
        json.loads(text)["metadata"]
    )


def test_the_same_question_over_another_prompt_or_under_another_id_is_another_task(told):
    other = record("a", 0.0, "SELECT 2")
    other["messages"][1]["content"] = "another table"
    same_words = record("b", 0.0, "SELECT 3")
    same_words["messages"][1]["content"] = "question a"
    status, _, said = told(record("a", 1.0), other, same_words)
    assert status == 1 and "error: no pairs; more rollouts per task" in said


def test_a_reward_of_an_environments_own_is_no_verdict_but_what_it_says_of_the_solution_is(told):
    def own(value, parts, sql):
        return {**record("a", 1.0, sql), "score": {"value": value, "reason": "own_reward", "parts": parts}}

    solved, unsolved = own(9.5, {"correctness": 1.0}, "SELECT 1"), own(1.0, {"correctness": 0.0}, "SELECT 2")
    _, [pair], said = told(solved, unsolved, own(1.0, {}, "SELECT 3"))
    assert pair.metadata["sources"] == ["a.jsonl:1", "a.jsonl:2"]
    assert "neither right nor wrong 1" in said.replace(":", "")


def test_what_can_be_in_no_pair_is_counted_by_its_reason(told):
    _, pairs, said = told(
        record("a", 1.0, "SELECT 1"),
        record("a", 0.0, "SELECT 2"),
        record("a", 0.0, "SELECT 2"),
        record("a", None, "SELECT 3"),
        record("a", 0.5, "SELECT 4"),
        record("a", 1.0, "SELECT 5", lost="worker died"),
        record("a", 1.0, "SELECT 6", validate=True),
        {"train_step": 1, "validate": False, "task_id": "a", "group": "g", "lost": "deadline"},
        record("a", 0.0, messages=[{"role": "system", "content": "r"}, {"role": "user", "content": "q"}]),
        record("a", 1.0, "SELECT 7"),
        record("a", 0.0, "SELECT 7"),
        record("b", 1.0),
        record("c", 0.0),
        '{"task_id": "a", "torn',
        {"prompt": "p", "chosen": "c", "rejected": "r"},
    )
    assert len(pairs) == 1
    for reason, count in {
        "the same conversation again": 1,
        "not judged": 1,
        "neither right nor wrong": 1,
        "lost": 2,
        "of a run's validation": 1,
        "no reply of the agent": 1,
        "judged right and wrong": 2,
        "of a task without other than right ones": 1,
        "of a task without other than wrong ones": 1,
        "not readable as a rollout": 2,
    }.items():
        assert f"left out, {reason}: {count}" in said
    assert "a.jsonl:14: row: not JSON: Unterminated string" in said and "a.jsonl:15: score: expected a verdict" in said


def test_the_reply_in_a_text_prompt_is_part_of_the_prompt(told):
    def text(value, answer):
        return record("a", value, messages=[*prompt, {"role": "assistant", "content": answer}]) | {"num_turns": 1}

    prompt = [{"role": r, "content": c} for r, c in [("user", "rules"), ("assistant", "Ok."), ("user", "question")]]
    _, [pair], _ = told(text(1.0, "Action: Answer 1"), text(0.0, "Action: Answer 2"))
    assert [message.content for message in pair.prompt] == ["rules", "Ok.", "question"]
    assert [message.content for message in pair.chosen] == ["Action: Answer 1"]


def test_a_rollout_that_ends_in_an_empty_reply_ends_before_it(told):
    empty = record("a", 0.0, "SELECT 2", stop="max_turns")
    empty["messages"][4:] = [
        {"role": "user", "content": "No tool call was found."},
        {"role": "assistant", "content": ""},
    ]
    _, pairs, _ = told(record("a", 1.0), empty, record("a", 1.0, "SELECT 10"))
    assert {len(pair.rejected) for pair in pairs} <= {1}


def longer(task, value, extra):
    return record(task, value, "SELECT 1" + " " * extra)


def test_a_right_side_that_is_longer_is_written_with_a_wrong_one_that_is(told):
    # task a to e: the wrong one is longer; f and g: the right one is -> 2 of either kind
    records = [longer(task, value, 0 if value else 40) for task in "abcde" for value in (1.0, 0.0)]
    records += [longer(task, value, 40 if value else 0) for task in "fg" for value in (1.0, 0.0)]
    _, pairs, said = told(*records)
    assert Counter(num_chars(p.chosen) > num_chars(p.rejected) for p in pairs) == {True: 2, False: 2}
    assert "2 / 0 / 2 50.0 %" in said
    assert "3 of 7 possible pairs left out for balance and for the limit per task" in said
    assert "characters 28.6 %, tool calls 50.0 %, an answer 50.0 % of the possible pairs" in said  # 2 / 7
    assert "characters 50.0 %, tool calls 50.0 %, an answer 50.0 % of those written" in said


def test_sides_of_one_length_need_no_opposite(told):
    assert len(told(*(record(t, v, f"SELECT {v:.0f}") for t in "abc" for v in (1.0, 0.0)))[1]) == 3


def empty_commit(task, value):
    told = record(task, value)
    told["messages"][4]["tool_calls"][0]["function"]["arguments"] = '{"answers": []}'
    return told


@pytest.mark.parametrize(
    "without", [lambda task: record(task, 0.0, "SELECT 2", stop="max_tokens"), lambda task: empty_commit(task, 0.0)]
)
def test_a_wrong_side_without_an_answer_is_in_no_pair_unless_a_right_one_is(told, without):
    _, pairs, said = told(record("a", 1.0), without("a"), record("b", 1.0), record("b", 0.0, "SELECT 2"))
    # the right side has an answer and the wrong one none in one of two pairs -> (1 + 1 / 2) / 2
    assert "an answer 75.0 % of the possible pairs" in said and "an answer 50.0 % of those written" in said
    assert [pair.metadata["task_id"] for pair in pairs] == ["b"]


def rollout(task, right, chars, calls=0, answered=True):
    side = [Message(role="assistant", content="x" * chars)]
    return SavedRollout(
        task, "k", (Message(role="user", content=task),), tuple(side * (calls + 1)), right, answered, ""
    )


ROLLOUT = st.tuples(st.booleans(), st.integers(1, 400), st.integers(0, 2), st.booleans())
TASKS = st.lists(st.lists(ROLLOUT, max_size=8), max_size=12)


@settings(deadline=None)
@given(TASKS, st.integers(1, 4))
def test_right_and_wrong_sides_have_the_same_sizes_whatever_the_data(tasks, per_task):
    found = []
    for number, rollouts in enumerate(tasks):
        sides = [rollout(str(number), *parts) for parts in rollouts]
        found.append([Candidate(r, w) for r in sides if r.right for w in sides if not w.right])
    chosen = balanced(found, per_task=per_task)
    assert Counter(pair.right.shape for pair in chosen) == Counter(pair.wrong.shape for pair in chosen)
    signs = Counter(pair.cell.longer for pair in chosen)
    assert signs[1] == signs[-1]
    assert max(Counter(pair.right.task_id for pair in chosen).values(), default=0) <= per_task
    assert len(set(map(id, chosen))) == len(chosen)


def test_a_pair_without_an_opposite_takes_nothing_from_its_tasks_share():
    right, longer, other = rollout("a", True, 10), rollout("a", False, 60), rollout("a", False, 10)
    assert balanced([[Candidate(right, longer), Candidate(right, other)]], per_task=1) == [Candidate(right, other)]


def test_no_task_gives_more_than_its_share(told, tmp_path):
    records = [record("a", float(n % 2), f"SELECT {n}") for n in range(10)]
    assert len(told(*records)[1]) == 8  # of 5 * 5
    flags = ["--held-out-fraction", "0", "--max-pairs-per-task", "3"]
    assert run(tmp_path / "rollouts", tmp_path / "few.jsonl", *flags) == 0
    assert len(read_preferences(tmp_path / "few.jsonl")) == 3


def test_no_prompt_is_in_both_files_and_each_stays_where_it_is(tmp_path):
    records = [record(f"t{n}", value, f"SELECT {value:.0f}") for n in range(60) for value in (1.0, 0.0)]
    folder = write(tmp_path / "rollouts", *records[:80])
    assert run(folder, tmp_path / "few.jsonl") == 0
    write(folder, *records[80:], name="b.jsonl")
    assert run(folder, tmp_path / "all.jsonl", "--seed", "3") == 0
    prompts = {}
    for name in ("few", "all"):
        for part in ("", ".held_out"):
            prompts[name + part] = {pair.prompt for pair in read_preferences(tmp_path / f"{name}{part}.jsonl")}
    assert not prompts["all"] & prompts["all.held_out"]
    assert prompts["few"] < prompts["all"] and prompts["few.held_out"] < prompts["all.held_out"]
    # 60 draws of 0.2: 12 expected, standard deviation 3.1
    assert 3 <= len(prompts["all.held_out"]) <= 21


def test_a_held_out_file_of_an_earlier_run_does_not_stay_beside_new_pairs(tmp_path):
    records = [record(f"t{n}", value, f"SELECT {value:.0f}") for n in range(20) for value in (1.0, 0.0)]
    folder = write(tmp_path / "rollouts", *records)
    assert run(folder, tmp_path / "p.jsonl", "--held-out-fraction", "0.5") == 0
    assert run(folder, tmp_path / "p.jsonl", "--held-out-fraction", "0", "--overwrite") == 0
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["p.jsonl"]


def test_half_of_the_prompts_are_in_a_half():
    prompts = [(Message(role="user", content=str(n)),) for n in range(1000)]
    assert 450 < sum(is_held_out(prompt, 0.5) for prompt in prompts) < 550  # standard deviation 15.8
    assert not any(is_held_out(prompt, 0.0) for prompt in prompts)


def test_the_same_seed_gives_the_same_files_whatever_the_ids_of_the_calls(tmp_path):
    for name in ("one", "two"):
        records = [record("a", float(n % 2), f"SELECT {n}") for n in range(12)]
        run(write(tmp_path / name, *records), tmp_path / f"{name}.jsonl", "--held-out-fraction", "0")
    assert (tmp_path / "one.jsonl").read_text() == (tmp_path / "two.jsonl").read_text()


def test_rollouts_of_training_are_read_from_folders_below(tmp_path):
    more = {"train_step": 3, "validate": False, "group": "g", "lost": None, "reward": 1.0}
    write(tmp_path / "run" / "trajectories", record("a", 1.0) | more, record("a", 0.0, "SELECT 2") | more)
    read = read_rollouts(tmp_path)
    assert [rollout.source for rollout in read.rollouts] == ["run/trajectories/a.jsonl:1", "run/trajectories/a.jsonl:2"]
    assert len(candidates(read, seed=0)) == 1


@pytest.mark.parametrize(
    ("files", "words"),
    [
        pytest.param([], "rollouts is not a folder; give the one with the *.jsonl", id="no_folder"),
        pytest.param(
            ["rollouts/a.txt"],
            f"holds no *.jsonl; `{agentgrpo_command('evaluate', '--output')} FILE` writes such files",
            id="no_file",
        ),
        pytest.param(["rollouts/a.jsonl", "p.held_out.jsonl"], "is there already; give --overwrite", id="held_out"),
    ],
)
def test_a_bad_path_is_said_before_the_work(tmp_path, capsys, files, words):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert run(tmp_path / "rollouts", tmp_path / "p.jsonl") == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "p.jsonl").exists()
