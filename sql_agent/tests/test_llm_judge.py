"""The LLM as judge, before a real HTTP server: what it is asked, what counts as a score, bounds and secrets."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Route

from agentgrpo.checks import require
from agentgrpo.machine import free_port
from dbbench_adapter.datatypes import Score
from sql_agent import oracle
from sql_agent.datatypes import Reward
from sql_agent.reward_functions import RewardRecord, RewardUnavailable
from sql_agent.reward_functions import judge as judge_module
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.datatypes import LoadedReward
from sql_agent.reward_functions.judge import FORM, LlmJudge, judge_function, read_score
from sql_agent.rewards import NO_JUDGE, summed_reward
from sql_agent.settings.groups import JudgeConfig
from sql_agent.settings.load import load_config
from sql_agent.source.datatypes import Rollout
from sql_agent.source.dynamic_sampling import drop_scores_of_group
from sql_agent.source.stops import TooManyLostError, check_lost
from sql_agent.startup.command import ROLES, servers_of
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.startup.resume import check_resume
from sql_agent.tests.conftest import checkpoint_of
from sql_agent.tests.records import make_record
from sql_agent.tests.test_summed_rewards import start
from sql_agent.train_sql_agent import main

ROOT = Path(__file__).parents[2]
SECRET = "5ecret-key"
SAID = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "There are 4."}]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(judge_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)


def completion(content):
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": content}}]})


class Judging:
    """A server that answers the n-th request with the n-th answer, later ones with the last; it knows who asked."""

    def __init__(self, *answers, takes_s=0.0):
        self._answers, self._takes_s = answers, takes_s
        self.bodies, self.headers = [], []
        self.now = self.most = 0

    async def answer(self, request):
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self._takes_s)
        self.now -= 1
        given = self._answers[min(len(self.bodies), len(self._answers)) - 1]
        return completion(given) if isinstance(given, str) else given

    def serve(self):
        return oracle.serve(Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])]))


def record(said=SAID):
    return RewardRecord.of(make_record(Score(1.0, "match"), messages=said), {"id": "t-0", "answer": "the gold"})


def judge(url, folder, **settings):
    rubric = folder / "rubric.txt"
    cfg = JudgeConfig(url=url, model="big", rubric=rubric, **{"timeout_s": 5.0, "attempts": 2} | settings)
    return LlmJudge(cfg, "Is the answer short?", folder / "judge")


async def failure(asked):
    with pytest.raises(RewardUnavailable) as caught:
        await asked
    return caught.value.reason, str(caught.value)


# what it asks and takes -----------------------------------------------------------------------------------------------


async def test_the_rubric_and_the_conversation_are_sent_at_temperature_0_and_the_score_is_the_number(tmp_path):
    server = Judging('{"score": 0.75, "why": "short"}')
    with server.serve() as url:
        assert await judge(url, tmp_path)(record()) == 0.75
    [body] = server.bodies
    assert body == {
        "model": "big",
        "messages": [
            {"role": "system", "content": "Is the answer short?" + FORM},
            {"role": "user", "content": json.dumps(SAID)},  # neither the verdict nor the gold
        ],
        "temperature": 0,
        "max_tokens": 512,
        "response_format": {"type": "json_object"},
    }


@pytest.mark.parametrize(("reply", "score"), [('{"score": 0}', 0.0), (' {"score": 1}\n', 1.0), ('{"score": 0.5}', 0.5)])
def test_a_reply_that_is_an_object_with_a_score_is_taken(reply, score):
    assert read_score(reply) == score


@pytest.mark.parametrize(
    "reply",
    ["0.5", "Score: 0.5", '{"score": 1.1}', '{"score": -0.1}', '{"score": "0.5"}', '{"score": true}', '{"score": NaN}',
     '{"score": null}', '{"Score": 0.5}', '[{"score": 0.5}]', "", '```json\n{"score": 0.5}\n```', "{" * 100_000],
)  # fmt: skip
def test_a_reply_that_is_anything_else_is_no_score(reply):
    with pytest.raises(RewardUnavailable, match=r"the judge replied .* expected") as caught:
        read_score(reply)
    assert caught.value.reason == "judge_nonsense"


async def test_of_a_long_conversation_the_middle_is_left_out(tmp_path):
    server = Judging('{"score": 1}')
    with server.serve() as url:
        await judge(url, tmp_path, max_chars=1000)(record([{"role": "user", "content": "x" * 2000}]))
    text = server.bodies[0]["messages"][1]["content"]
    # {"role": "user", "content": "x..."} has 2032 characters
    assert text.startswith('{"role"') or text.startswith('[{"role"')
    assert " characters are left out ...] " in text
    assert len(text) < 1100


# what goes wrong ------------------------------------------------------------------------------------------------------


async def test_a_judge_that_fails_for_a_moment_is_asked_again(tmp_path):
    server = Judging(PlainTextResponse("busy", 503), '{"score": 0.5}')
    with server.serve() as url:
        assert await judge(url, tmp_path)(record()) == 0.5
    assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("answer", "calls", "reason", "words"),
    [
        (PlainTextResponse("busy", 503), 2, "judge_unavailable", "503 busy"),
        (PlainTextResponse("slow down", 429, {"Retry-After": "0"}), 2, "judge_unavailable", "429 slow down"),
        (PlainTextResponse("no such model", 404), 1, "judge_refused", "answered 404: no such model"),
        (RedirectResponse("http://127.0.0.1:1/elsewhere", 307), 1, "judge_refused", "answered 307"),
        (JSONResponse({"error": "?"}), 1, "judge_refused", 'no chat completion: {"error":"?"}'),
        ("Very good!", 1, "judge_nonsense", "the judge replied 'Very good!'"),
    ],
)
async def test_a_judge_without_a_score_is_unavailable_under_its_own_reason(tmp_path, answer, calls, reason, words):
    server = Judging(answer)
    with server.serve() as url:
        given, what = await failure(judge(url, tmp_path)(record()))
    assert (given, len(server.bodies)) == (reason, calls)
    assert words in what


@pytest.mark.parametrize("answer", [PlainTextResponse("content filter", 400), "I will not judge this."])
async def test_what_a_policy_writes_to_keep_a_judge_from_judging_is_worth_0_and_counts_as_lost(tmp_path, answer):
    """It lost the whole group of a run whose only reward is the judge."""
    with Judging(answer).serve() as url:
        functions = RewardFunctions([LoadedReward("judge", judge(url, tmp_path), None, "")], threads=1)
        given = await functions.ask(record())
    rollout = Rollout("g", {}, played=make_record(Score(None, NO_JUDGE)))
    rollout.earn(summed_reward(rollout.record, {"judge": 1.0}, given))
    neighbour = Rollout("g", {}, played=rollout.record)
    neighbour.earn(Reward(0.5, NO_JUDGE, {"judge": 0.5}, {"judge": 0.5}))
    rollout, neighbour = drop_scores_of_group([rollout, neighbour])
    assert (rollout.reward, neighbour.reward) == (0.0, 0.5)
    with pytest.raises(TooManyLostError, match=r"1 of 1 rollouts were lost or refused a score.*'judge_"):
        check_lost([rollout], 0.5)


async def test_a_judge_that_is_gone_or_late_is_unavailable(tmp_path):
    gone = judge(f"http://127.0.0.1:{free_port()}/v1", tmp_path)
    reason, what = await failure(gone(record()))
    assert reason == "judge_unavailable"
    assert "ClientConnectorError" in what
    with Judging('{"score": 1}', takes_s=0.6).serve() as url:
        assert await failure(judge(url, tmp_path, timeout_s=0.2)(record())) == (
            "judge_unavailable",
            f"{url}: no score within judge.timeout_s=0.2 s; last: no answer yet",
        )


# bounds and memory ----------------------------------------------------------------------------------------------------


async def test_the_same_conversation_is_asked_about_once_also_by_a_later_start(tmp_path):
    server = Judging('{"score": 0.25}')
    with server.serve() as url:
        assert [await judge(url, tmp_path)(record()) for _ in range(3)] == [0.25] * 3
        assert await judge(url, tmp_path)(record([*SAID, *SAID])) == 0.25
    assert len(server.bodies) == 2


async def test_what_was_no_score_is_not_remembered(tmp_path):
    server = Judging("Good.", '{"score": 1}')
    with server.serve() as url:
        assert (await failure(judge(url, tmp_path)(record())))[0] == "judge_nonsense"
        assert await judge(url, tmp_path)(record()) == 1.0


async def test_a_run_makes_so_many_calls_and_no_more_whoever_asks(tmp_path):
    server = Judging(PlainTextResponse("busy", 503))
    with server.serve() as url:
        for k in range(3):  # of two tries each
            await failure(judge(url, tmp_path, max_calls=3)(record([*SAID, {"role": "user", "content": str(k)}])))
        reason, what = await failure(judge(url, tmp_path, max_calls=3)(record()))
    assert (reason, what) == ("judge_budget", "the run has made judge.max_calls=3 calls")
    assert len(server.bodies) == 3


ELSEWHERE = """
import asyncio, sys
from pathlib import Path
from sql_agent.tests.test_llm_judge import judge, record

async def ask(url, folder):
    asked = [judge(url, folder, concurrency=2)(record([{"role": "user", "content": f"!{k}"}])) for k in range(6)]
    assert await asyncio.gather(*asked) == [1.0] * 6

asyncio.run(ask(sys.argv[1], Path(sys.argv[2])))
"""


@pytest.mark.slow
async def test_so_many_calls_are_in_flight_and_no_more_over_all_processes(tmp_path):
    server = Judging('{"score": 1}', takes_s=0.2)
    with server.serve() as url:
        other = subprocess.Popen([sys.executable, "-c", ELSEWHERE, url, str(tmp_path)], cwd=ROOT)
        while not server.bodies and other.poll() is None:
            await asyncio.sleep(0.02)
        mine = [judge(url, tmp_path, concurrency=2)(record([{"role": "user", "content": str(k)}])) for k in range(6)]
        assert await asyncio.gather(*mine) == [1.0] * 6
        ended = await asyncio.to_thread(other.wait, 60)
    assert (ended, len(server.bodies), server.most) == (0, 12, 2)


async def test_so_many_calls_are_in_flight_and_no_more(tmp_path):
    server = Judging('{"score": 1}', takes_s=0.05)
    with server.serve() as url:
        asked = [judge(url, tmp_path, concurrency=3)(record([{"role": "user", "content": str(k)}])) for k in range(6)]
        assert await asyncio.gather(*asked) == [1.0] * 6
    assert (len(server.bodies), server.most) == (6, 3)


async def test_its_key_comes_from_the_environment_and_stands_in_no_file_and_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", SECRET)
    server = Judging(PlainTextResponse(f"invalid key {SECRET}", 401), '{"score": 1}')
    with server.serve() as url:
        _, what = await failure(judge(url, tmp_path)(record()))
        assert await judge(url, tmp_path)(record()) == 1.0
    assert what.endswith("answered 401: invalid key ***")
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {SECRET}"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not any(SECRET.encode() in file.read_bytes() for file in files)


async def test_a_folder_without_locks_costs_the_score_and_not_the_run(tmp_path, monkeypatch):
    """A run folder on NFS may have none; the error ended the trainer, which ranks groups."""

    def refused(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(judge_module.fcntl, "flock", refused)
    reason, what = await failure(judge("http://127.0.0.1:1/v1", tmp_path)(record()))
    assert (reason, what) == ("judge_unavailable", f"{tmp_path}/judge: [Errno 37] No locks available")


def test_a_file_of_scores_that_is_damaged_is_said(tmp_path):
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "replies.sqlite").write_bytes(b"no database" * 100)
    reason, what = asyncio.run(failure(judge("http://127.0.0.1:1/v1", tmp_path)(record())))
    assert reason == "judge_unavailable"
    assert "replies.sqlite: file is not a database" in what
    with pytest.raises(sqlite3.DatabaseError), sqlite3.connect(tmp_path / "judge" / "replies.sqlite") as damaged:
        damaged.execute("SELECT 1 FROM replies")


# before a run ---------------------------------------------------------------------------------------------------------


def flags(tmp_path, url="http://127.0.0.1:1/v1", text="Be fair."):
    (tmp_path / "rubric.txt").write_text(text)
    given = ["--judge-url", url, "--judge-model", "big", "--judge-rubric", str(tmp_path / "rubric.txt")]
    return ["--run-dir", str(tmp_path / "run"), "--reward", "agentbench", "--reward", "judge=0.5", *given]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--reward", "judge", "--judge-url", "http://h:1"],
            "config: judge: an LLM as judge needs an address, a model and a rubric; missing: --judge-model, "
            "--judge-rubric",
        ),
        (["--judge-model", "m", "--judge-rubric", "f"], "missing: --judge-url"),
        (
            ["--judge-url", "http://h:1", "--judge-model", "m", "--judge-rubric", "f"],
            "name judge or ranking in --reward too, alone or with a weight beside others",
        ),
        (["--judge-url", "h:1"], "'h:1' is no address, expected http://HOST:PORT"),
        (
            ["--judge-url", f"http://me:{SECRET}@h:1"],
            "holds a user or a password; leave it out, a key is read from JUDGE_API_KEY",
        ),
    ],
)
def test_half_a_judge_is_refused_in_a_line(capsys, tmp_path, arguments, words):
    assert main(["--run-dir", str(tmp_path), "--model", "nowhere", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert SECRET not in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read (No such file or directory); give a text file"), (b"\xff\xfe", "cannot be read (it is no"),
     (b" \n", "is empty; write what a good answer is")],
)  # fmt: skip
def test_a_rubric_that_cannot_be_used_is_refused(capsys, tmp_path, content, words):
    arguments = flags(tmp_path)
    (tmp_path / "rubric.txt").unlink()
    if content is not None:
        (tmp_path / "rubric.txt").write_bytes(content)
    assert main(arguments) == 2
    assert f"error: --judge-rubric {tmp_path}/rubric.txt {words}" in capsys.readouterr().err


def test_a_run_is_refused_while_the_judge_gives_no_score(tmp_path):
    server = Judging(PlainTextResponse("which model?", 404), '{"score": 1}')
    with server.serve() as url:
        cfg = resolve(parse_train_args(flags(tmp_path, url)))
        with pytest.raises(ValueError, match=r"gives no score \(judge_refused\): .* 404: which model.*JUDGE_API_KEY"):
            require(judge=servers_of(cfg, ROLES["both"])["judge"])
        require(judge=servers_of(cfg, ROLES["both"])["judge"])
        assert "judge" not in servers_of(cfg, ROLES["algorithm"])  # asks nobody: it plays nothing
    assert len(server.bodies) == 2
    assert not (tmp_path / "run").exists()


def test_its_deadline_is_the_one_that_ends_a_call(tmp_path):
    (tmp_path / "rubric.txt").write_text("Be fair.")
    cfg = JudgeConfig(url="http://h:1", model="m", rubric=tmp_path / "rubric.txt", timeout_s=7.0)
    assert judge_function(cfg, tmp_path).timeout_s > 7.0
    assert (
        load_config(None, ["rollout.reward=judge", "judge={url: http://h:1, model: m, rubric: f}"]).reward_wait_s == 120
    )


def test_a_run_goes_on_with_the_same_judge_at_any_address(tmp_path):
    run_dir = tmp_path / "run"
    checkpoint = checkpoint_of(run_dir, 2)
    start(run_dir, *flags(tmp_path))
    check_resume(resolve(parse_train_args(flags(tmp_path, "http://elsewhere/v1"))), checkpoint, cpu=True)
    other = resolve(parse_train_args([*flags(tmp_path), "--judge-model", "small"]))
    with pytest.raises(ValueError, match=r"other settings \(judge; "):
        check_resume(other, checkpoint, cpu=True)
    with pytest.raises(ValueError, match=r"other settings \(the content of .*rubric.txt; "):
        check_resume(resolve(parse_train_args(flags(tmp_path, text="Be strict."))), checkpoint, cpu=True)
