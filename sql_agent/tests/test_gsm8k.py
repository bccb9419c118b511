"""Word problems: where they come from, what the generator makes, how they are played, judged and shown."""

import json
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbbench_adapter.datatypes import Score
from sql_agent.commands.check_env import main as check_env
from sql_agent.environments.base import make_environment
from sql_agent.environments.rows import RowTask
from sql_agent.gsm8k.calculator import calculate
from sql_agent.gsm8k.environment import HELD_OUT_SEED, RULES, Gsm8k
from sql_agent.gsm8k.problems import STORIES, generate_problems, gold_answer, load_problems, read_problems
from sql_agent.oracle import app, call, calls, recite, serve
from sql_agent.play.served import run_rollout
from sql_agent.settings.groups import AgentConfig, DataConfig
from sql_agent.settings.load import load_config

HENS = {
    "id": "p-0",
    "question": "Ada's 12 hens lay 2 eggs each. She sells half of the eggs. How many does she keep?",
    "answer": "The hens lay 12*2 = <<12*2=24>>24 eggs.\nShe keeps 24/2 = <<24/2=12>>12 of them.\n#### 12",
}


def as_tasks(rows):
    return [RowTask(row["id"], "gsm8k", row) for row in rows]


def row(question="How many?", answer="It is 1+1 = <<1+1=2>>2.\n#### 2"):
    return {"question": question, "answer": answer}


def write(path, rows):
    path.write_text("".join(json.dumps(fields) + "\n" for fields in rows))
    return str(path)


# where problems come from ---------------------------------------------------------------------------------------------


def test_a_row_of_gsm8k_becomes_a_problem(tmp_path):
    source = write(tmp_path / "own.jsonl", [row(" Why? ", "So.\n#### $1,234"), row("And?", "#### -3.50\n")])
    both = read_problems(Path(source))
    assert [(problem["id"], gold_answer(problem)) for problem in both] == [
        ("own-1", Decimal("1234")),
        ("own-2", Decimal("-3.50")),
    ]
    assert [Gsm8k.prompt(problem)[-1]["content"] for problem in both] == ["Why?", "And?"]


def test_a_file_can_be_read_whole_and_in_its_order(tmp_path):
    source = write(tmp_path / "own.jsonl", [row(f"Question {n}?") for n in range(50)])
    whole = read_problems(Path(source))
    assert [problem["question"] for problem in whole] == [f"Question {n}?" for n in range(50)]
    shares = load_problems(source) + load_problems(source, split="test")
    assert sorted(shares, key=lambda problem: int(problem["id"][4:])) == whole


def test_a_local_file_has_a_held_out_share_that_the_seed_does_not_move(tmp_path):
    source = write(tmp_path / "own.jsonl", [row(f"Question {n}?") for n in range(200)])
    train, test = ({p["question"] for p in load_problems(source, split=s)} for s in ("train", "test"))
    assert train.isdisjoint(test)
    assert len(train | test) == 200
    assert 25 <= len(test) <= 55  # a fifth, by the hash of the question
    assert {p["question"] for p in load_problems(source, split="test", seed=9)} == test


def test_the_seed_decides_which_problems_a_limit_leaves(tmp_path):
    source = write(tmp_path / "own.jsonl", [row(f"Question {n}?") for n in range(50)])
    drawn = load_problems(source, limit=5, seed=1)
    assert drawn == load_problems(source, limit=5, seed=1) == load_problems(source, seed=1)[:5]
    assert drawn != load_problems(source, limit=5, seed=2)


@pytest.mark.parametrize("made", [True, False], ids=["generated", "a_file"])
def test_every_seed_holds_out_the_same_problems_in_the_same_order(tmp_path, made):
    file = None if made else Path(write(tmp_path / "own.jsonl", [row(f"Question {n}?") for n in range(50)]))
    data = DataConfig(train_file=file, generate=20, val_limit=8)
    (train, held_out), (other_train, other_held_out) = Gsm8k.load_split(data, 0), Gsm8k.load_split(data, 7)
    assert held_out == other_held_out and train != other_train


def test_parquet_reads_as_jsonl_does(tmp_path):
    rows = [row(f"Question {n}?") for n in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "own.parquet")
    assert load_problems(str(tmp_path / "own.parquet")) == load_problems(write(tmp_path / "own.jsonl", rows))


@pytest.mark.parametrize(("text", "words"), [
    ("{not json}\n", r"own.jsonl, line 2: not JSON"),
    ('{"question": "?"}\n', r"own.jsonl, line 2, field answer: expected a text, found None"),
    ('{"question": "?", "answer": 7}\n', r"own.jsonl, line 2, field answer: expected a text, found 7"),
    ('{"question": "?", "answer": "7"}\n', r"line 2, field answer: expected a last line such as #### 72, found '7'"),
    ('{"question": " ", "answer": "#### 7"}\n', r"line 2, field question: expected a text"),
    ("[1]\n", r"own.jsonl, line 2: expected a JSON object with the columns of a row, found list"),
])  # fmt: skip
def test_a_row_that_is_no_problem_is_named(tmp_path, text, words):
    (tmp_path / "own.jsonl").write_text(json.dumps(row()) + "\n" + text)
    with pytest.raises(ValueError, match=words):
        load_problems(str(tmp_path / "own.jsonl"))


def test_a_source_that_is_not_there_names_the_others():
    with pytest.raises(ValueError, match=r"gsm9k: no such file.*`gsm8k` is the hub's; give a .jsonl or .parquet file"):
        load_problems("gsm9k")


def test_the_hubs_rows_keep_the_hubs_split(monkeypatch):
    asked = []
    hub = SimpleNamespace(load_dataset=lambda *name, **more: asked.append((name, more)) or [row("One?")])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    (problem,) = load_problems("gsm8k", split="test")
    assert problem == {"id": "gsm8k-test-0", **row("One?")}
    assert asked == [(("openai/gsm8k", "main"), {"split": "test"})]


@pytest.mark.slow
def test_without_the_hub_and_its_cache_the_other_ways_are_named(tmp_path):
    code = "from sql_agent.gsm8k.problems import load_problems; load_problems('gsm8k')"
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HOME": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert re.search(
        r"ValueError: gsm8k: openai/gsm8k is neither in the cache nor can the hub be reached \(.*\); "
        r"give a .jsonl or .parquet file of rows with question and answer, or `generated`",
        ended.stderr,
    )


# the generator --------------------------------------------------------------------------------------------------------

ANNOTATION = re.compile(r"<<(.+?)=(.+?)>>")
KNOWN = {2: "half|twice|around", 3: "three times", 4: "four times", 5: "five times", 7: "week", 12: "dozen", 60: "hour",
         100: "%"}  # fmt: skip


@pytest.fixture(scope="module")
def generated():
    return generate_problems(500, seed=0)


def test_every_annotation_is_true_and_the_last_one_is_the_answer(generated):
    for problem in generated:
        steps = ANNOTATION.findall(problem["answer"])
        assert 2 <= len(steps) <= 4
        assert [calculate(expression) for expression, _ in steps] == [said for _, said in steps]
        assert all(said.isdigit() and int(said) > 0 for _, said in steps)
        assert problem["answer"].endswith(f"\n#### {steps[-1][1]}")


def test_a_question_holds_all_that_its_solution_needs(generated):
    for problem in generated:
        known = Counter(re.findall(r"\d+", problem["question"]))
        words = {str(number) for number, words in KNOWN.items() if re.search(words, problem["question"])}
        for expression, result in ANNOTATION.findall(problem["answer"]):
            assert set(re.findall(r"\d+", expression)) <= known.keys() | words, problem
            known[result] += 1
        assert not re.search(r"[{}\[\]<>]", problem["question"])


def story_of(problem):
    told = (s.name for s in STORIES if all(part in problem["question"] for part in re.split(r"\{.*?\}", s.question)))
    return next(told)


def test_all_stories_are_told_and_no_problem_twice(generated):
    assert {story_of(problem) for problem in generated} == {story.name for story in STORIES}
    assert len(STORIES) == 15
    assert len({problem["question"] for problem in generated}) == len({problem["id"] for problem in generated}) == 500


def test_the_seed_decides_the_problems_and_no_seed_crosses_the_split():
    assert generate_problems(9, seed=1) == generate_problems(9, seed=1) != generate_problems(9, seed=2)
    train, test = (
        {
            (story_of(problem), *ANNOTATION.findall(problem["answer"]), *re.findall(r"\d+", problem["question"]))
            for seed in range(2)
            for problem in generate_problems(200, split=split, seed=seed)
        }
        for split in ("train", "test")
    )
    assert train.isdisjoint(test)  # whoever a story is told of


def test_a_generated_problem_reads_like_this():
    assert generate_problems(1, seed=2) == [
        {
            "id": "generated-train-2-0",
            "question": "Amara earns $27 an hour at a hotel. She works 3 hours a day on 3 days of every week. How "
            "much money does she earn in 5 weeks?",
            "answer": "In a week Amara works 3*3 = <<3*3=9>>9 hours.\n"
            "So she earns 27*9 = $<<27*9=243>>243 a week.\n"
            "In 5 weeks she earns 243*5 = $<<243*5=1215>>1215.\n"
            "#### 1215",
        }
    ]


def test_more_problems_than_there_are_is_said(monkeypatch):
    seats = next(story for story in STORIES if story.name == "seats")
    few = SimpleNamespace(**vars(seats) | {"numbers": {"a": (6, 7), "b": (8,), "c": (5,)}})
    monkeypatch.setattr("sql_agent.gsm8k.problems.STORIES", (few,))
    with pytest.raises(ValueError, match=r"has no more than \d train problems, 3 were asked for; take fewer"):
        generate_problems(3)


# how they are judged --------------------------------------------------------------------------------------------------


def judged(reply, answer="#### 72"):
    environment = Gsm8k()
    environment.reset(id="p", question="?", answer=answer)
    environment.reply = reply
    return environment.judge()


@pytest.mark.parametrize(("reply", "answer"), [
    ("So 72.\n#### 72", "72"),
    ("####72", "72"),
    ("#### 72.0", "72"),
    ("#### 72", "72.00"),
    ("#### $72", "72"),
    ("#### 72.", "72"),
    ("#### 72 clips in all", "72"),
    ("#### 60%", "60"),
    ("#### 1,000", "1000"),
    ("#### 1000.50", "1000.5"),
    ("#### -$3", "-3"),
    ("#### $-3", "-3"),
    ("#### .5", "0.5"),
    ("#### 71\nNo.\n#### 72", "72"),
])  # fmt: skip
def test_the_number_behind_the_last_mark_counts_however_it_is_written(reply, answer):
    assert judged(reply, f"#### {answer}") == (1.0, "match")


@pytest.mark.parametrize(("reply", "reason"), [
    pytest.param("#### 71", "wrong_answer", id="another_number"),
    pytest.param("#### 72.0000000000000000000000000001", "wrong_answer", id="almost_is_not_equal"),
    pytest.param("#### -72", "wrong_answer", id="another_sign"),
    pytest.param("#### 72\n#### 73", "wrong_answer", id="changed_its_mind"),
    pytest.param("#### " + "9" * 100_000, "wrong_answer", id="very_long"),
    pytest.param("The answer is 72.", "no_final_number", id="no_mark"),
    pytest.param("#### seventy-two", "no_final_number", id="words"),
    pytest.param("####\n72", "no_final_number", id="on_the_next_line"),
    pytest.param("#### 72/1", "no_final_number", id="a_fraction"),
    pytest.param("#### 70 + 2", "no_final_number", id="a_sum"),
    pytest.param("#### 72e0", "no_final_number", id="an_exponent"),
    pytest.param("#### 72\n####", "no_final_number", id="nothing_behind_the_last"),
    pytest.param("  \n", "no_answer", id="empty"),
    pytest.param(None, "no_answer", id="never_answered"),
])  # fmt: skip
def test_anything_else_is_wrong_under_its_reason(reply, reason):
    assert judged(reply) == (0.0, reason)


# solutions as replies -------------------------------------------------------------------------------------------------


def test_a_solution_becomes_calls_and_its_last_text():
    assert Gsm8k.reference(HENS) == [
        {"content": "The hens lay 12*2 =", "name": "calculator", "arguments": {"expression": "12*2"}},
        {"content": "24 eggs.\nShe keeps 24/2 =", "name": "calculator", "arguments": {"expression": "24/2"}},
        "12 of them.\n#### 12",
    ]


def test_an_annotation_may_write_its_result_another_way():
    solution = "It costs 4*4 = $<<4*4=16.00>>16.00 and <<2*.2=.4>>.4.\n#### 16"
    *calls, last = Gsm8k.reference(row("?", solution))
    assert [call["arguments"]["expression"] for call in calls] == ["4*4", "2*.2"]
    assert last == ".4.\n#### 16"


@pytest.mark.parametrize("solution", [
    pytest.param("<<48/2=25>>25\n#### 72", id="the_calculator_says_24"),
    pytest.param("<<10/3=3.33>>3.33\n#### 72", id="rounded"),
    pytest.param("<<2x=4>>4\n#### 72", id="no_arithmetic"),
    pytest.param("<<x=x>>4\n#### 72", id="twice_the_same_error"),
    pytest.param("<<48/2>>24\n#### 72", id="no_result"),
    pytest.param("#### 72\n<<36*2=72>>72", id="ends_with_something_else"),
])  # fmt: skip
def test_a_solution_that_the_calculator_does_not_confirm_is_no_reference(solution):
    assert Gsm8k.reference(row("?", solution)) == []


def test_every_generated_problem_has_a_reference_that_is_right(generated):
    for problem in generated:
        assert judged(Gsm8k.reference(problem)[-1], problem["answer"]) == (1.0, "match")


# as an environment of a training run ----------------------------------------------------------------------------------


@pytest.fixture
def environment():
    return make_environment(load_config(None, ["env.type=gsm8k"]).environment)


def test_a_run_without_files_trains_on_generated_problems(environment):
    split = environment.load_split(DataConfig(generate=12, val_limit=5), seed=3)
    assert split.train == as_tasks(generate_problems(12, split="train", seed=3))
    assert split.val == as_tasks(generate_problems(5, split="test", seed=HELD_OUT_SEED))


def test_a_file_alone_is_split_by_its_questions_and_two_files_are_taken_whole(environment, tmp_path, generated):
    file = tmp_path / "problems.jsonl"
    rows = ({"question": problem["question"], "answer": problem["answer"]} for problem in generated)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    half = environment.load_split(DataConfig(train_file=file, held_out_fraction=0.5), seed=0)
    assert len(half.train) + len(half.val) == len(generated)
    assert 0.3 < len(half.val) / len(generated) < 0.7
    whole = environment.read_split(DataConfig(train_file=file, val_file=file), seed=0)
    assert len(whole.train) == len(whole.val) == len(generated)


def test_rows_for_verl_hold_the_task_and_no_prompt_its_answer(environment):
    (task,) = as_tasks([HENS])
    (row,) = environment.verl_rows([task])
    assert environment.task(json.loads(row["extra_info"]["task"])) == task
    assert row["data_source"] == "gsm8k"
    assert row["prompt"] == [
        {"role": "system", "content": RULES},
        {"role": "user", "content": HENS["question"]},
    ]


def test_the_tool_is_the_one_that_earlier_policies_were_trained_with(environment):
    expression = {"type": "string", "description": "Numbers, + - * / // % ** and parentheses."}
    assert environment.tools == [
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Calculate one arithmetic expression and return its exact value.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": expression},
                    "required": ["expression"],
                    "additionalProperties": False,
                },
            },
        }
    ]


def test_check_env_finds_nothing_that_a_policy_could_break(capsys):
    assert check_env(["gsm8k", "--limit", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "reference 2 1 1 1 2 of 2 0" in shown and "no problems found" in shown


# rollouts -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def play(environment):
    """Plays HENS on the main job's agent against fixed replies; `play.requests` holds what went over the wire."""

    async def play(*replies, config=AgentConfig(temperature=0.0)):  # noqa: B008  frozen
        play.requests = []
        (task,) = as_tasks([HENS])
        with environment, serve(app(recite(replies), on_request=play.requests.append)) as url:
            return await run_rollout(task, environment=environment, base_url=url, model="oracle", config=config)

    return play


async def test_the_reference_played_by_the_main_agent_is_right_and_sees_the_real_results(play, environment):
    (task,) = as_tasks([HENS])
    first, second, last = environment.reference_replies(task)
    record = await play(first, second, last)
    assert (record.stop_reason, record.score, record.num_turns) == ("answered", Score(1.0, "match"), 3)
    assert record.messages == [
        *environment.messages(task),
        {
            "role": "assistant",
            "content": "The hens lay 12*2 =",
            "tool_calls": [call("calculator", {"expression": "12*2"}, "call00000")],
        },
        {"role": "tool", "tool_call_id": "call00000", "content": "24"},
        second,
        {"role": "tool", "tool_call_id": "call00001", "content": "12"},
        {"role": "assistant", "content": "12 of them.\n#### 12"},
    ]
    assert (record.kind, record.malformed_calls, record.tool_calls) == ("gsm8k", 0, 2)
    assert play.requests[0]["tools"] == environment.tools
    assert play.requests[0]["messages"] == environment.messages(task)


async def test_calls_that_cannot_be_read_are_answered_in_words_and_counted(play):
    bad = [
        call("calculator", "12*2", "a"),
        call("calculator", {"sum": "12*2"}, "b"),
        call("calculator", {"expression": 24}, "c"),
        call("python", {"expression": "12*2"}, "d"),
        call("calculator", {"expression": "12 times 2"}, "e"),
    ]
    record = await play(calls(*bad), {"role": "assistant", "content": "#### 12"})
    assert [message["content"] for message in record.messages if message["role"] == "tool"] == [
        "{'error': 'the arguments of calculator do not parse; they are a JSON object'}",
        "{'error': \"Gsm8k.calculator() got an unexpected keyword argument 'sum'\"}",
        "24",
        "{'error': 'Tool python not found.'}",
        "Error: 't' is not allowed; write numbers, + - * / // % ** and parentheses.",
    ]
    # the last is a call like any other, whose expression is wrong
    assert (record.malformed_calls, record.stop_reason, record.score) == (3, "answered", Score(1.0, "match"))


@pytest.mark.parametrize(("limits", "turns"), [(AgentConfig(), 10), (AgentConfig(max_turns=3), 3)])
async def test_calling_without_end_is_no_answer(play, limits, turns):
    record = await play(calls(call("calculator", {"expression": "12*2"})), config=limits)
    assert (record.stop_reason, record.score, record.num_turns) == ("max_turns", Score(0.0, "no_answer"), turns)
