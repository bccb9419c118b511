"""The client against a scripted service: retries within a deadline, a circuit, and errors told apart."""

import asyncio
import time

import pytest
from aiohttp import web

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from reward_model import client as client_module
from reward_model.client import RewardClient, ScorerRefusedError, ScorerUnavailableError, parse_score_args
from reward_model.datatypes import RewardScore

pytestmark = pytest.mark.usefixtures("few_objects")

ASKED = [Message(role="user", content="How many?"), Message(role="assistant", content="Twelve.")]
GONE = "http://127.0.0.1:1"


def scored(value, **more):
    return lambda: web.json_response({"data": [{"index": 0, "probs": [value], **more}]})


def refused(status, text="", **headers):
    return lambda: web.Response(status=status, text=text, headers=headers)


class Service:
    """Answers `/classify` with one scripted answer after the other, the last one again and again."""

    def __init__(self, answers, ready):
        self.answers, self.ready = list(answers), ready
        self.bodies, self.headers = [], []
        self.url = ""

    async def classify(self, request):
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()

    async def readyz(self, request):
        return web.Response(status=self.ready)


@pytest.fixture
async def serve():
    runners = []

    async def start(*answers, ready=200):
        service = Service(answers, ready)
        app = web.Application()
        app.add_routes([web.post("/classify", service.classify), web.get("/readyz", service.readyz)])
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        service.url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
        return service

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_score_is_the_raw_logit_of_classify(serve):
    service = await serve(scored(-2.5))
    call = ToolCall(id="1", function=FunctionCall(name="run", arguments='{"q": 1}'))
    async with RewardClient(service.url + "/", token="secret") as client:
        messages = [*ASKED, Message(role="assistant", tool_calls=(call,))]
        assert await client.score(messages, '[{"type": "function"}]') == RewardScore(-2.5)
        assert client.down_s == 0.0
    assert service.bodies == [
        {
            "messages": [
                {"role": "user", "content": "How many?"},
                {"role": "assistant", "content": "Twelve."},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "run", "arguments": '{"q": 1}'}}
                    ],
                },
            ],
            "use_activation": False,
            "chat_template_kwargs": {"tools": [{"type": "function"}]},
        }
    ]
    assert service.headers[0]["Authorization"] == "Bearer secret"


async def test_our_service_says_itself_that_it_cut(serve):
    async with RewardClient((await serve(scored(1.0, truncated=True))).url) as client:
        assert await client.score(ASKED) == RewardScore(1.0, truncated=True)


async def test_vllm_is_asked_to_cut_after_it_refused(serve):
    too_long = refused(400, "This model's maximum context length is 8 tokens. However, you requested")
    service = await serve(too_long, scored(1.0))
    async with RewardClient(service.url) as client:
        assert await client.score(ASKED) == RewardScore(1.0, truncated=True)
    assert service.bodies[1] == service.bodies[0] | {"truncate_prompt_tokens": -1, "truncation_side": "left"}


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_service_that_recovers_is_asked_again(serve, status):
    service = await serve(refused(status), refused(status), scored(3.0))
    async with RewardClient(service.url) as client:
        assert await client.score(ASKED) == RewardScore(3.0)
        assert client.down_s == 0.0
    assert len(service.bodies) == 3


@pytest.mark.parametrize(
    "garbage",
    ["", "{}", '{"data": []}', '{"data": [{"probs": [NaN]}]}', '{"data": [{"probs": [1, 2]}]}', "[1]", "[" * 10**5],
)
async def test_an_answer_that_is_no_score_is_never_taken_for_one(serve, garbage):
    service = await serve(refused(200, garbage), scored(3.0))
    async with RewardClient(service.url) as client:
        assert await client.score(ASKED) == RewardScore(3.0)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 302])
async def test_a_refusal_is_told_at_once_with_its_field(serve, status):
    service = await serve(refused(status, '{"detail": [{"field": "messages.0.role"}]}'))
    async with RewardClient(service.url) as client:
        with pytest.raises(ScorerRefusedError, match=rf"{status}.*messages\.0\.role"):
            await client.score(ASKED)
        assert client.down_s == 0.0
    assert len(service.bodies) == 1


async def test_retry_after_is_waited_for(serve):
    service = await serve(refused(503, **{"Retry-After": "0.4"}), scored(3.0))
    began = time.monotonic()
    async with RewardClient(service.url) as client:
        await client.score(ASKED)
    assert 0.4 <= time.monotonic() - began < 2


async def test_a_retry_after_behind_the_deadline_is_not_waited_for(serve):
    service = await serve(refused(503, **{"Retry-After": "60"}))
    began = time.monotonic()
    async with RewardClient(service.url, timeout_s=2) as client:
        with pytest.raises(ScorerUnavailableError, match=r"given up after 1 attempts.*503"):
            await client.score(ASKED)
    assert time.monotonic() - began < 1


async def test_attempts_are_counted(serve):
    service = await serve(refused(503))
    async with RewardClient(service.url, max_attempts=2) as client:
        with pytest.raises(ScorerUnavailableError, match="after 2 attempts"):
            await client.score(ASKED)
    assert len(service.bodies) == 2


async def test_the_deadline_holds_against_a_service_that_says_nothing():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    began = time.monotonic()
    async with RewardClient(url, timeout_s=0.3) as client:
        with pytest.raises(ScorerUnavailableError, match=r"no score within 0\.3 s"):
            await client.score(ASKED)
        assert client.down_s > 0
        assert await client.ready() is False
    assert time.monotonic() - began < 2
    server.close()


async def test_an_open_circuit_lets_one_call_through_and_closes_on_success(serve, monkeypatch):
    monkeypatch.setattr(client_module, "PROBE_EVERY_S", 0.2)
    service = await serve(*[refused(500)] * client_module.OPEN_AFTER, scored(3.0))
    async with RewardClient(service.url, timeout_s=5, max_attempts=1) as client:
        for _ in range(client_module.OPEN_AFTER):
            with pytest.raises(ScorerUnavailableError):
                await client.score(ASKED)
        assert await asyncio.gather(*[client.score(ASKED) for _ in range(20)]) == [RewardScore(3.0)] * 20
        assert client.down_s == 0.0


async def test_a_service_silent_for_a_whole_deadline_fails_calls_at_once(monkeypatch):
    monkeypatch.setattr(client_module, "PROBE_EVERY_S", 60.0)
    async with RewardClient(GONE, timeout_s=0.5, max_attempts=10) as client:
        first = await asyncio.gather(*[client.score(ASKED) for _ in range(10)], return_exceptions=True)
        assert {type(error) for error in first} == {ScorerUnavailableError}
        await asyncio.sleep(0.3)
        with pytest.raises(ScorerUnavailableError):  # the probe
            await client.score(ASKED)
        began = time.monotonic()
        with pytest.raises(ScorerUnavailableError, match="the circuit breaker is open"):
            await client.score(ASKED)
        assert time.monotonic() - began < 0.4
        assert client.down_s > 0.6


async def test_a_pause_in_which_nobody_asks_is_not_taken_for_time_without_a_score(serve):
    service = await serve(refused(500))
    async with RewardClient(service.url, timeout_s=0.3, max_attempts=1) as client:
        for _ in range(2):
            with pytest.raises(ScorerUnavailableError):
                await client.score(ASKED)
            await asyncio.sleep(0.6)
        assert client.down_s < 0.3


async def test_a_caller_may_count_the_pauses_before_and_after_which_no_score_came(serve):
    service = await serve(refused(500), refused(500), scored(1.0))
    async with RewardClient(service.url, timeout_s=0.3, max_attempts=1, counts_pauses=True) as client:
        with pytest.raises(ScorerUnavailableError):
            await client.score(ASKED)
        await asyncio.sleep(0.6)
        assert client.down_s < 0.3  # nobody knows yet
        with pytest.raises(ScorerUnavailableError):
            await client.score(ASKED)
        assert client.down_s > 0.6
        await client.score(ASKED)
        assert client.down_s == 0.0


async def test_a_service_that_stays_silent_is_down_for_as_long_as_it_was_asked(serve):
    service = await serve(refused(500))
    async with RewardClient(service.url, timeout_s=0.3, max_attempts=1) as client:
        for _ in range(5):
            with pytest.raises(ScorerUnavailableError):
                await client.score(ASKED)
            await asyncio.sleep(0.15)
        assert client.down_s > 0.6


async def test_a_service_that_refuses_is_not_down(serve):
    service = await serve(refused(500), refused(422))
    async with RewardClient(service.url, max_attempts=1) as client:
        with pytest.raises(ScorerUnavailableError):
            await client.score(ASKED)
        with pytest.raises(ScorerRefusedError):
            await client.score(ASKED)
        assert client.down_s == 0.0


async def test_a_busy_service_does_not_open_the_circuit(serve):
    service = await serve(*[refused(503, **{"Retry-After": "0"})] * 20, scored(3.0))
    async with RewardClient(service.url, max_attempts=1) as client:
        for _ in range(20):
            with pytest.raises(ScorerUnavailableError):
                await client.score(ASKED)
        assert await client.score(ASKED) == RewardScore(3.0)


async def test_ready_is_what_readyz_says(serve):
    for status, expected in ((200, True), (503, False)):
        async with RewardClient((await serve(scored(1.0), ready=status)).url) as client:
            assert await client.ready() is expected
    async with RewardClient(GONE) as client:
        assert await client.ready() is False


async def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(serve, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", GONE)
    async with RewardClient((await serve(scored(3.0))).url, timeout_s=2) as client:
        assert await client.score(ASKED) == RewardScore(3.0)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8008", "ftp://x", "http://", "", "http://x:99999", "http://x:a", "http://[", "http://x?a"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="expected http://host:port"):
        RewardClient(url)


@pytest.mark.parametrize("arguments", [[], ["--prompt", "a"], ["--response", "b"], ["--prompt", "a", "--chosen", "b"]])
def test_the_command_says_what_it_needs(arguments, capsys):
    with pytest.raises(SystemExit):
        parse_score_args(arguments)
    assert "--prompt, --chosen and --rejected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--url", "127.0.0.1:8008"], "expected http://host:port"),
        (["--url", "http://x:99999"], "expected http://host:port"),
        (["--url", "http://me:kanarienvogel@x"], "holds a user name"),
        (["--timeout_s", "0"], "expected a number above 0"),
        (["--timeout_s", "nan"], "expected a number above 0"),
        (["--timeout_s", "x"], "invalid positive value"),
    ],
)
def test_the_command_refuses_flags_in_words(flags, words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_score_args(["--prompt", "a", "--response", "b", *flags])
    said = capsys.readouterr().err
    assert caught.value.code == 2 and words in said and "kanarienvogel" not in said
