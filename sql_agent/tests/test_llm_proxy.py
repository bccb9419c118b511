"""The LLM proxy in a process of its own, before a real store and a scripted model server."""

import asyncio
import ctypes
import http.client
import json
import os
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from openai import APITimeoutError, NotFoundError, OpenAI

from agentgrpo.agl_without_litellm import agl
from sql_agent import oracle
from sql_agent.lightning.spans import TURN_SPAN, Turn, read_turns, turn_span
from sql_agent.model_address.request_guard import RUN_TOKEN, RunRequestGuard, authorization
from sql_agent.model_servers.turns import TURN
from sql_agent.tests.conftest import HangingServer, llm_proxy

pytestmark = pytest.mark.slow

SQL = {"role": "assistant", "content": None, "tool_calls": [oracle.call("execute_sql", {"query": "SELECT 1"})]}
TEXT = {"role": "assistant", "content": "done"}


@pytest.fixture(scope="module")
def hanging():
    return HangingServer()


@pytest.fixture(scope="module")
def proxy_url(store_url, hanging):
    """`policy-0` answers, `policy-1` never does; both are behind the request guard of a model server."""
    replies = RunRequestGuard(oracle.app(oracle.recite([SQL, TEXT])))
    with (
        oracle.serve(replies) as base_url,
        oracle.serve(hanging) as silent_url,
        llm_proxy(store_url, base_url, silent_url) as url,
    ):
        yield url


def spans_of(store_url, rollout, attempt, count):
    async def read():
        store = agl.LightningStoreClient(store_url)
        try:
            deadline = time.monotonic() + 10
            while True:
                spans = await store.query_spans(rollout, attempt_id=attempt)
                if len(spans) >= count or time.monotonic() > deadline:
                    return spans
                await asyncio.sleep(0.05)
        finally:
            await store.close()

    return asyncio.run(read())


def enqueue(store_url):
    async def work():
        store = agl.LightningStoreClient(store_url)
        try:
            rollout = await store.start_rollout(input={"task": "of this test"})
            return rollout.rollout_id, rollout.attempt.attempt_id
        finally:
            await store.close()

    return asyncio.run(work())


def test_an_answer_is_not_held_back_until_the_client_has_confirmed_its_headers(proxy_url):
    """Without TCP_NODELAY the second part of an answer waits for the other end, which confirms after 40 ms."""
    address = urlsplit(proxy_url)
    client = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
    client.request("GET", "/", headers=authorization(RUN_TOKEN))
    client.getresponse().read()
    assert option_of_other_end(client.sock, socket.TCP_NODELAY) == 1
    client.close()


def option_of_other_end(client, option):
    """A TCP option of the socket that a child process has for this connection, asked of a copy (pidfd_getfd(2))."""
    for child in psutil.Process().children():
        for connection in child.net_connections("tcp"):
            if connection.raddr == client.getsockname():
                process = os.pidfd_open(child.pid)
                copy = ctypes.CDLL(None, use_errno=True).syscall(438, process, connection.fd, 0)
                os.close(process)
                if copy < 0:
                    pytest.skip(
                        f"this machine does not let a process look at its child: {os.strerror(ctypes.get_errno())}"
                    )
                with socket.socket(fileno=copy) as other:
                    return other.getsockopt(socket.IPPROTO_TCP, option)
    raise AssertionError("no child has this connection")


def test_each_call_leaves_one_span_with_the_engines_ids_as_agent_lightning_reads_them(proxy_url, store_url):
    rollout, attempt = enqueue(store_url)
    base_url = agl.ProxyLLM(endpoint=proxy_url, model="policy-0").get_base_url(
        rollout, attempt
    )  # as runners ask for it
    client = OpenAI(base_url=base_url, api_key=os.environ[RUN_TOKEN])
    messages = [{"role": "user", "content": "hi"}]
    client.chat.completions.create(model="policy-0", messages=messages)
    messages += [SQL, {"role": "tool", "tool_call_id": "call00000", "content": "[(1,)]"}]
    client.chat.completions.create(model="policy-0", messages=messages)

    spans = spans_of(store_url, rollout, attempt, 2)
    assert [(span.name, span.sequence_id) for span in spans] == [(TURN_SPAN, 1), (TURN_SPAN, 2)]
    sql, text = oracle.byte_ids([SQL]), oracle.byte_ids([TEXT])
    turns = read_turns(spans)
    assert turns == [
        Turn(tuple(oracle.byte_ids(messages[:1])), tuple(sql), (0.0,) * len(sql), True),
        Turn(tuple(oracle.byte_ids(messages)), tuple(text), (0.0,) * len(text), False),
    ]
    triplets = agl.LlmProxyTraceToTriplet().adapt(spans)
    assert [(t.prompt["token_ids"], t.response["token_ids"]) for t in triplets] == [
        (list(turn.prompt_ids), list(turn.sampled_ids)) for turn in turns
    ]


def test_sixteen_rollouts_at_once_do_not_mix(proxy_url, store_url):
    ids = [enqueue(store_url) for _ in range(16)]

    def ask(number):
        rollout, attempt = ids[number]
        client = OpenAI(base_url=f"{proxy_url}/rollout/{rollout}/attempt/{attempt}/v1", api_key=os.environ[RUN_TOKEN])
        client.chat.completions.create(model="policy-0", messages=[{"role": "user", "content": f"I am {number}"}])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (rollout, attempt) in enumerate(ids):
        (turn,) = read_turns(spans_of(store_url, rollout, attempt, 1))
        assert turn.prompt_ids == tuple(oracle.byte_ids([{"role": "user", "content": f"I am {number}"}]))


def test_a_model_nobody_serves_is_named_and_leaves_no_span(proxy_url, store_url):
    rollout, attempt = enqueue(store_url)
    client = OpenAI(
        base_url=f"{proxy_url}/rollout/{rollout}/attempt/{attempt}/v1", api_key=os.environ[RUN_TOKEN], max_retries=0
    )
    with pytest.raises(NotFoundError, match="served as policy-0, policy-1, not as 'gpt'"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "hi"}])
    assert list(spans_of(store_url, rollout, attempt, 0)) == []


def test_a_call_whose_client_has_left_is_not_asked_on(proxy_url, store_url, hanging):
    """vLLM aborts a request when its connection closes; until then the policy would go on writing for nobody."""
    rollout, attempt = enqueue(store_url)
    base_url = f"{proxy_url}/rollout/{rollout}/attempt/{attempt}/v1"
    client = OpenAI(base_url=base_url, api_key=os.environ[RUN_TOKEN], max_retries=0, timeout=0.5)
    with pytest.raises(APITimeoutError):
        client.chat.completions.create(model="policy-1", messages=[{"role": "user", "content": "hi"}])
    assert hanging.asked == 1
    assert hanging.wait_until_left(1, timeout_s=1.0)
    assert list(spans_of(store_url, rollout, attempt, 0)) == []


def test_the_agent_is_spared_the_token_ids_it_did_not_ask_for(proxy_url, store_url):
    rollout, attempt = enqueue(store_url)
    client = OpenAI(base_url=f"{proxy_url}/rollout/{rollout}/attempt/{attempt}/v1", api_key=os.environ[RUN_TOKEN])
    reply = client.chat.completions.create(model="policy-0", messages=[{"role": "user", "content": "hi"}])
    assert (reply.choices[0].logprobs, reply.model_extra) == (None, {"prompt_token_ids": None, "prompt_logprobs": None})
    assert reply.choices[0].message.tool_calls is not None


def test_a_caller_that_asks_for_the_ids_gets_them_as_the_spans_attributes_and_writes_it_itself(proxy_url, store_url):
    rollout, attempt = enqueue(store_url)
    client = OpenAI(base_url=f"{proxy_url}/rollout/{rollout}/attempt/{attempt}/v1", api_key=os.environ[RUN_TOKEN])
    messages = [{"role": "user", "content": "hi"}]
    asked = {"return_token_ids": True, "logprobs": True}
    reply = client.chat.completions.create(model="policy-0", messages=messages, extra_body=asked)
    (turn,) = read_turns([turn_span(reply.model_extra[TURN], rollout, attempt, 1)])
    sql = oracle.byte_ids([SQL])
    assert turn == Turn(tuple(oracle.byte_ids(messages)), tuple(sql), (0.0,) * len(sql), True)
    assert (reply.choices[0].logprobs, reply.model_extra["prompt_token_ids"]) == (None, None)
    client.chat.completions.create(model="policy-0", messages=messages)  # later, and it is the one span that is there
    assert [span.sequence_id for span in spans_of(store_url, rollout, attempt, 1)] == [2]


@pytest.mark.parametrize(
    "path", ["/rollout/r/attempt/a/v1/chat/completions", "/v1/chat/completions", "/v1/models", "/", "/health", "/ui/"]
)
def test_without_the_token_of_the_run_nothing_is_answered(proxy_url, path):
    """And no page is told that it may read the answer."""
    asked = {"model": "policy-0", "messages": [{"role": "user", "content": "hi"}]}
    foreign = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answers = [
        httpx.post(proxy_url + path, json=asked),
        httpx.post(proxy_url + path, json=asked, headers={"Authorization": "Bearer -"}),
        httpx.get(proxy_url + path),
        httpx.options(proxy_url + path, headers=foreign),
        httpx.get(proxy_url + path, headers=authorization(RUN_TOKEN) | {"Host": "evil.example"}),
        httpx.post(proxy_url + path, json=asked, headers=authorization(RUN_TOKEN) | foreign),
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 403, 421, 403]
    assert [name for answer in answers for name in answer.headers if name.startswith("access-control")] == []


def test_a_call_that_belongs_to_no_rollout_is_not_served(proxy_url):
    client = OpenAI(base_url=f"{proxy_url}/v1", api_key=os.environ[RUN_TOKEN], max_retries=0)
    with pytest.raises(NotFoundError):
        client.chat.completions.create(model="policy-0", messages=[{"role": "user", "content": "hi"}])


def test_a_connection_stays_open_longer_than_a_client_keeps_it(proxy_url, store_url):
    rollout, attempt = enqueue(store_url)
    connection = http.client.HTTPConnection(urlsplit(proxy_url).netloc)
    body = json.dumps({"model": "policy-0", "messages": [{"role": "user", "content": "hi"}]})
    for pause_s in (0, 6):  # openai's client keeps one for 5 s
        time.sleep(pause_s)
        path, headers = f"/rollout/{rollout}/attempt/{attempt}/v1/chat/completions", authorization(RUN_TOKEN)
        connection.request("POST", path, body, headers | {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, len(answer.read()) > 0) == (200, True)
    assert [span.sequence_id for span in spans_of(store_url, rollout, attempt, 2)] == [1, 2]
