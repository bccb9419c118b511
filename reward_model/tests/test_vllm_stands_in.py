"""`vllm serve MERGED --runner pooling` and our service give the same scores to the same requests. About two minutes."""

import asyncio

import httpx
import pytest

from agentgrpo.chat.messages import FunctionCall, Message, ToolCall
from reward_model.client import RewardClient
from reward_model.tests.serving import make_small_model, running, running_vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BOUND = 1e-5
CALL = ToolCall(id="1", function=FunctionCall(name="run", arguments='{"q":  "SELECT 1", "limit": 1.50}'))
TOOLS = '[{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]'
CONVERSATIONS = {
    "plain": ([Message(role="user", content="How many?"), Message(role="assistant", content="Twelve.")], None),
    "tools": (
        [
            Message(role="system", content="Use the tool."),
            Message(role="user", content="Größe? 多少"),
            Message(role="assistant", tool_calls=(CALL,)),
            Message(role="tool", content="[]", tool_call_id="1"),
            Message(role="assistant", content="None at all."),
        ],
        TOOLS,
    ),
    "too long": ([Message(role="user", content="word " * 3000), Message(role="assistant", content="Done.")], None),
}
REQUESTS = [
    ("/classify", {"input": "How many?", "use_activation": False}),
    ("/classify", {"input": ["How many?", "Twelve."]}),
    ("/classify", {"input": [5, 6, 7, 8]}),
    ("/classify", {"input": [[5, 6, 7], [8]], "use_activation": True}),
    ("/classify", {"input": "word " * 500, "truncate_prompt_tokens": 9}),
    ("/classify", {"input": "word " * 3000, "truncate_prompt_tokens": -1, "truncation_side": "left"}),
    ("/score", {"text_1": "How many?", "text_2": ["Twelve.", "No idea."], "use_activation": False}),
    ("/score", {"queries": ["How many?", "Who?"], "documents": ["Twelve.", "No idea."]}),
    ("/score", {"data_1": "How many?", "data_2": "Twelve.", "truncate_prompt_tokens": 3}),
    ("/score", {"queries": "How many?", "items": ["Twelve."]}),
]
REFUSED = [
    ("/classify", {"input": ""}),
    ("/classify", {"input": "a", "truncate_prompt_tokens": 0}),
    ("/classify", {"input": "a", "truncate_prompt_tokens": 5000}),
    ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    model = make_small_model(tmp_path_factory.mktemp("model"))
    logs = tmp_path_factory.mktemp("logs")
    with running(model, logs / "ours") as ours, running_vllm(model, logs / "vllm") as vllm:
        yield ours.url, vllm.url


def test_the_client_gets_the_same_scores_from_both(servers):
    async def ask(url):
        async with RewardClient(url) as client:
            assert await client.ready()
            return {name: await client.score(*asked) for name, asked in CONVERSATIONS.items()}

    ours, vllms = (asyncio.run(ask(url)) for url in servers)
    assert {name: score.value for name, score in ours.items()} == pytest.approx(
        {name: score.value for name, score in vllms.items()}, abs=BOUND
    )
    assert {name: score.truncated for name, score in ours.items()} == dict.fromkeys(ours, False) | {"too long": True}
    assert {name: score.truncated for name, score in vllms.items()} == dict.fromkeys(ours, False) | {"too long": True}


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_both_answer_the_same_numbers_in_the_same_shape(servers, path, body):
    answers = [httpx.post(url + path, json=body, trust_env=False, timeout=60) for url in servers]
    assert [answer.status_code for answer in answers] == [200, 200]
    ours, vllms = (answer.json() for answer in answers)
    assert ours.keys() == vllms.keys()
    assert ours["usage"] == vllms["usage"]
    assert ours["object"] == vllms["object"]
    for mine, other in zip(ours["data"], vllms["data"], strict=True):
        mine.pop("truncated", None)  # ours alone says so
        numbers = [item.pop("probs", None) or [item.pop("score")] for item in (mine, other)]
        assert numbers[0] == pytest.approx(numbers[1], abs=BOUND)
        assert mine == other


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_both_refuse(servers, path, body):
    assert [httpx.post(url + path, json=body, trust_env=False).status_code // 100 for url in servers] == [4, 4]
