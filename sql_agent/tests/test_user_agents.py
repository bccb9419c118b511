"""Agents of the user's own, played through the real LLM proxy and store; only the model behind is scripted."""

import asyncio
import json
import os
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from openai import BadRequestError, OpenAI

from agentgrpo.agl_without_litellm import agl
from dbbench_adapter.datatypes import Score
from sql_agent import oracle
from sql_agent.credit.row import stitch
from sql_agent.environments.rows import RowTask
from sql_agent.lightning.spans import read_turns
from sql_agent.model_address.request_guard import RUN_TOKEN, RunRequestGuard, authorization
from sql_agent.model_address.responses_api import events_of, response_of
from sql_agent.model_address.signed_address import RolloutSampling, signed_prefix, without_signature
from sql_agent.reward_functions import RewardRecord
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import AgentConfig
from sql_agent.tests.conftest import forget_user_files, llm_proxy
from sql_agent.user_agents.datatypes import Policy
from sql_agent.user_agents.play import play_agent

pytestmark = pytest.mark.slow

LIMITS = AgentConfig(turn_timeout_s=10, rollout_timeout_s=30, max_tokens=64)
SCRIPT = SimpleNamespace(answer=lambda messages: {"role": "assistant", "content": "done"}, seen=[], pause_s=0.0)
"""How the model answers, and the requests that reached it."""


def say(text):
    return {"role": "assistant", "content": text}


def call(name, arguments="{}", call_id="call_0"):
    return oracle.calls(oracle.call(name, arguments, call_id))


@pytest.fixture(scope="module")
def proxy_url(store_url):
    def answer(messages):
        time.sleep(SCRIPT.pause_s)
        return SCRIPT.answer(messages)

    app = oracle.app(answer, on_request=SCRIPT.seen.append)
    with oracle.serve(RunRequestGuard(app)) as url, llm_proxy(store_url, url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def script():
    SCRIPT.answer, SCRIPT.pause_s = (lambda messages: say("done")), 0.0
    SCRIPT.seen.clear()
    forget_user_files()
    return SCRIPT


@pytest.fixture
async def store(store_url):
    client = agl.LightningStoreClient(store_url)
    yield client
    await client.close()


@pytest.fixture
async def policy(proxy_url, store):
    rollout = await store.start_rollout(input={}, mode="train")
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    prefix = signed_prefix(RolloutSampling(*ids, "policy-0", 0.7, 64, seed=5), os.environ[RUN_TOKEN])
    url = f"{proxy_url}{prefix}/rollout/{ids[0]}/attempt/{ids[1]}/v1"
    return Policy(url, "policy-0", 0.7, 64, 10.0, None, rollout)


async def turns_of(store, policy, count):
    deadline = time.monotonic() + 10
    while True:
        spans = await store.query_spans(policy.rollout.rollout_id, attempt_id="latest")
        if len(spans) >= count or time.monotonic() > deadline:
            return read_turns(spans, one_conversation=False)
        await asyncio.sleep(0.05)


def task(**row):
    return RowTask("one", "task", row)


# what the proxy does under a signed address


def chat(policy, **request):
    client = OpenAI(base_url=policy.base_url, api_key="dummy", max_retries=0)
    return client.chat.completions.create(
        **{"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]} | request
    )


async def test_the_address_alone_is_enough_and_the_run_says_how_is_sampled(policy, store):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    asked = {"temperature": 0.1, "top_p": 0.5, "seed": 1, "max_tokens": 9, "presence_penalty": 1.0, "stop": ["x"]}
    shape = {"response_format": {"type": "json_object"}, "tools": [tool], "tool_choice": "required"}
    await asyncio.to_thread(chat, policy, **asked, **shape)
    (request,) = SCRIPT.seen
    assert request.pop("seed") not in (None, 1)
    assert request == {
        "messages": [{"role": "user", "content": "hi"}],
        "stop": ["x"],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "model": oracle.MODEL,
        "temperature": 0.7,
        "max_tokens": 9,
        "user": policy.rollout.attempt.attempt_id,
        "return_token_ids": True,
        "logprobs": True,
    }
    assert len(await turns_of(store, policy, 1)) == 1


async def test_a_stream_is_collected_and_traced_like_any_call(policy, store):
    def ask():
        SCRIPT.answer = lambda messages: call("look", '{"at": 1}')
        parts = list(chat(policy, stream=True, stream_options={"include_usage": True}))
        (said,) = parts[0].choices[0].delta.tool_calls
        assert (said.function.name, said.function.arguments) == ("look", '{"at": 1}')
        assert [part.choices[0].finish_reason for part in parts[:-1]] == [None, "tool_calls"]
        assert parts[-1].usage.completion_tokens > 0
        assert [part.usage for part in chat(policy, stream=True)] == [None, None]

    await asyncio.to_thread(ask)
    assert len(await turns_of(store, policy, 2)) == 2
    assert not any("stream" in request for request in SCRIPT.seen)


async def test_several_replies_a_call_and_other_routes_are_refused_in_words(policy):
    with pytest.raises(BadRequestError, match="ask for one reply a call"):
        await asyncio.to_thread(chat, policy, n=2)
    answer = await asyncio.to_thread(httpx.post, f"{policy.base_url}/completions", json={"prompt": "hi"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "/completions is not served: only /chat/completions and /responses can be trained",
    )
    models = await asyncio.to_thread(httpx.get, f"{policy.base_url}/models")
    assert [each["id"] for each in models.json()["data"]] == ["policy-0"]
    assert SCRIPT.seen == []


LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}


def looked(messages):
    """Looks, then answers what it saw."""
    return say(messages[-1]["content"]) if messages[-1]["role"] == "tool" else call("look")


async def test_the_responses_api_is_asked_as_chat_completions(policy, store):
    """The loop of OpenAI's guide to function calling: the output is appended to the input."""
    SCRIPT.answer = looked

    def ask():
        client = OpenAI(base_url=policy.base_url, api_key="dummy", max_retries=0)
        asked = {"model": "gpt-5", "instructions": "Be short.", "tools": [LOOK], "temperature": 0.1}
        items = [{"role": "user", "content": "hi"}]
        first = client.responses.create(input=items, max_output_tokens=9, **asked)
        items += first.output
        items.append({"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"})
        return client.responses.create(input=items, **asked)

    said = await asyncio.to_thread(ask)
    assert (said.output_text, said.status, said.usage.output_tokens > 0) == ("3", "completed", True)
    begin = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]
    first, second = SCRIPT.seen
    assert (first["messages"], second["messages"][:2], first["temperature"]) == (begin, begin, 0.7)
    assert (first["max_tokens"], second["max_tokens"]) == (9, 64)
    assert first["tools"] == [{"type": "function", "function": {"name": "look", "parameters": LOOK["parameters"]}}]
    assert second["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert second["messages"][3] == {"role": "tool", "tool_call_id": "call_0", "content": "3"}
    assert len(await turns_of(store, policy, 2)) == 2
    rollout = without_signature(policy.base_url)
    ended = await asyncio.to_thread(httpx.post, f"{rollout}/ended", timeout=10, headers=authorization(RUN_TOKEN))
    assert [message["role"] for message in ended.json()["messages"]] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip


@pytest.mark.parametrize("streams", [False, True])
async def test_openai_agents_default_model_is_served(policy, store, streams):
    from agents import Agent, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    SCRIPT.answer = looked
    client = AsyncOpenAI(base_url=policy.base_url, api_key="dummy", max_retries=0)
    agent = Agent(
        "clerk", tools=[function_tool(lambda: "7", name_override="look")], model=OpenAIResponsesModel("gpt-5", client)
    )
    if streams:
        result = Runner.run_streamed(agent, "hi")
        kinds = [event.type async for event in result.stream_events()]
        assert "raw_response_event" in kinds
    else:
        result = await Runner.run(agent, "hi")
    assert result.final_output == "7"
    assert len(await turns_of(store, policy, 2)) == 2
    await client.close()


async def test_langchain_keeps_the_calls_of_a_response_apart(policy):
    """By one id for all items it joined two calls: the second tool ran with the first one's arguments."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    SCRIPT.answer = lambda messages: (
        oracle.calls(oracle.call("look", "{}", "c0"), oracle.call("look", '{"b": 2}', "c1"))
        if messages[-1]["role"] == "user"
        else say("seen")
    )

    def ask(streams):
        model = ChatOpenAI(
            model="gpt-5", base_url=policy.base_url, api_key="dummy", use_responses_api=True, streaming=streams
        )
        first = model.invoke([HumanMessage("hi")])
        results = [ToolMessage("3", tool_call_id=each["id"]) for each in first.tool_calls]
        return [each["args"] for each in first.tool_calls], model.invoke([HumanMessage("hi"), first, *results])

    for streams in (False, True):
        arguments, last = await asyncio.to_thread(ask, streams)
        assert (arguments, last.text) == ([{}, {"b": 2}], "seen")
        said = SCRIPT.seen[-1]["messages"][1]["tool_calls"]
        assert [each["function"]["arguments"] for each in said] == ["{}", '{"b": 2}']


async def test_the_conversation_of_openais_guide_goes_on(policy):
    def ask():
        client = OpenAI(base_url=policy.base_url, api_key="dummy", max_retries=0)
        history = [{"role": "user", "content": "tell me a joke"}]
        first = client.responses.create(model="any", input=history, store=False)
        history += [{"role": each.role, "content": each.content} for each in first.output]
        history.append({"role": "user", "content": "another"})
        client.responses.create(model="any", input=history, store=False)

    await asyncio.to_thread(ask)
    assert SCRIPT.seen[-1]["messages"] == [
        {"role": "user", "content": "tell me a joke"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "another"},
    ]


@pytest.mark.parametrize("reason", ["abort", "repetition", None])
def test_an_end_that_openais_types_do_not_know_is_answered(reason):
    choice = {"index": 0, "finish_reason": reason, "message": say("one")}
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    assert response_of({"model": "m", "tools": [{"type": "function"}]}, answer)["status"] == "completed"


def test_each_item_of_a_response_has_an_id_of_its_own():
    choice = {"index": 0, "finish_reason": "tool_calls", "message": call("look") | {"content": "I look."}}
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    found = [(item["type"], item["id"]) for item in response_of({"model": "m"}, answer)["output"]]
    assert found == [("message", "resp_1_0"), ("function_call", "resp_1_1")]


async def test_a_response_that_a_limit_cut_is_incomplete():
    choice = {"index": 0, "finish_reason": "length", "message": say("one two")}
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    events = [event async for event in events_of({"model": "m"}, answer)]
    assert events[-1].startswith("event: response.incomplete\n")
    streamed = json.loads(events[-1].partition("data: ")[2])["response"]
    for response in (response_of({"model": "m"}, answer), streamed):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert response["output"][0]["content"][0]["text"] == "one two"


@pytest.mark.parametrize(("request_", "said"), [
    ({"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id names what no server here keeps; send"),
    ({"input": "hi", "tools": [{"type": "web_search"}]}, "a tool of the type 'web_search' runs on OpenAI's servers"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input: "),
    ({"input": [{"role": "user"}]}, "input: "),
    ({"input": 3}, "the request does not fit"),
    ([], "the request does not fit"),
])  # fmt: skip
async def test_a_response_that_cannot_be_asked_is_refused_in_words(policy, request_, said):
    answer = await asyncio.to_thread(httpx.post, f"{policy.base_url}/responses", json=request_)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]
    assert SCRIPT.seen == []


async def test_the_llm_proxy_takes_no_endless_headers(proxy_url):
    host, port = proxy_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300)
        assert line.recv(4096).startswith(b"HTTP/1.1 400")


async def test_an_address_of_another_rollout_is_refused(policy):
    other = policy.base_url.replace(policy.rollout.rollout_id, "ro-other")
    assert (await asyncio.to_thread(httpx.get, f"{other}/models")).status_code == 401


async def test_after_its_end_a_rollout_asks_in_vain_and_what_was_open_is_broken_off(policy, store):
    SCRIPT.pause_s = 3.0
    late = asyncio.create_task(
        asyncio.to_thread(httpx.post, f"{policy.base_url}/chat/completions", timeout=10, json=HI)
    )
    while not SCRIPT.seen:
        await asyncio.sleep(0.05)
    rollout = without_signature(policy.base_url)
    ended = await asyncio.to_thread(httpx.post, f"{rollout}/ended", timeout=10, headers=authorization(RUN_TOKEN))
    assert (ended.json()["calls"], ended.json()["messages"]) == (0, [])
    assert (await late).status_code == 410
    again = await asyncio.to_thread(httpx.post, f"{policy.base_url}/chat/completions", json=HI)
    assert (again.status_code, len(SCRIPT.seen)) == (410, 1)
    assert list(await store.query_spans(policy.rollout.rollout_id, attempt_id="latest")) == []


HI = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}


# agents of openai-agents

HANDOFF = """
from agents import Agent, function_tool

@function_tool
def count(of: str) -> str:
    '''Count.'''
    return '3'

clerk = Agent(name='clerk', instructions='I count.', tools=[count], model='gpt-4o')
agent = Agent(name='desk', instructions='I hand over.', handoffs=[clerk])
"""


def counted(messages):
    """Hands over, counts, answers."""
    if messages[0]["content"] == "I hand over.":
        return call("transfer_to_clerk", call_id="a")
    return (
        say("3")
        if messages[-1]["role"] == "tool" and messages[-1]["content"] == "3"
        else call("count", '{"of": "x"}', "b")
    )


async def test_a_handoff_is_two_conversations_of_one_rollout_and_every_turn_is_kept_and_says_who_asked(
    load, policy, store
):
    SCRIPT.answer = counted
    record = await play_agent(load(HANDOFF), task(prompt="how many?"), policy, LIMITS, others_reward=True)
    assert (record.stop_reason, record.score.reason, record.output) == ("answered", "no_judge", "3")
    roles = ["system", "user", "assistant", "system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert ([m["role"] for m in record.messages], record.replies) == (roles, [2, 7, 9])
    seen = RewardRecord.of(record, {})
    assert [name for name, _ in seen.calls] == ["transfer_to_clerk", "count"]
    assert seen.answer == "3"
    turns = await turns_of(store, policy, 3)
    assert [turn.agent for turn in turns] == ["desk", "clerk", "clerk"]
    assert record.num_turns == 3
    assert record.completion_tokens == sum(len(turn.sampled_ids) for turn in turns)
    row = stitch(turns, max_response_tokens=10_000, one_conversation=False)
    assert (row.num_chains, row.num_turns, row.dropped_turns, row.prefix_break) == (2, 3, 0, None)
    assert sum(row.sampled) == record.completion_tokens


async def test_what_the_agent_starts_inside_asks_the_same_policy(load, policy, store):
    """A guardrail that runs an agent of its own, without an address, and an agent as a tool."""
    agent = load("""
from agents import Agent, GuardrailFunctionOutput, Runner, input_guardrail

judge = Agent(name='judge', instructions='I judge.')
translator = Agent(name='translator', instructions='I translate.')

@input_guardrail
async def polite(context, agent, text):
    result = await Runner.run(judge, text)
    return GuardrailFunctionOutput(output_info=result.final_output, tripwire_triggered=result.final_output == 'rude')

agent = Agent(name='boss', instructions='I ask.', input_guardrails=[polite],
              tools=[translator.as_tool(tool_name='translate', tool_description='Translate')])
""")

    def answer(messages):
        who = messages[0]["content"]
        if who == "I judge.":
            return say("rude" if "!" in messages[-1]["content"] else "fine")
        if who == "I translate.":
            return say("hola")
        return say("it is hola") if messages[-1]["role"] == "tool" else call("translate", '{"input": "hello"}')

    SCRIPT.answer = answer
    record = await play_agent(agent, task(prompt="hello"), policy, LIMITS, others_reward=True)
    assert (record.output, record.num_turns, record.error) == ("it is hola", 4, None)
    assert stitch(await turns_of(store, policy, 4), max_response_tokens=9999, one_conversation=False).num_chains == 3


async def test_sixteen_at_once_do_not_mix(load, proxy_url, store):
    agent = load(HANDOFF)
    SCRIPT.answer = lambda messages: (
        say(messages[-1]["content"]) if messages[0]["content"] == "I count." else counted(messages)
    )

    async def one(number):
        rollout = await store.start_rollout(input={}, mode="train")
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        prefix = signed_prefix(RolloutSampling(*ids, "policy-0", 0.7, 64), os.environ[RUN_TOKEN])
        address = f"{proxy_url}{prefix}/rollout/{ids[0]}/attempt/{ids[1]}/v1"
        record = await play_agent(
            agent,
            task(prompt=f"I am {number}"),
            Policy(address, "policy-0", 0.7, 64, 10.0, None, rollout),
            LIMITS,
            others_reward=True,
        )
        return [m["content"] for m in record.messages if m["role"] == "user"], record.num_turns

    # the question stands in both conversations, before and after the handoff
    assert await asyncio.gather(*map(one, range(16))) == [([f"I am {number}"] * 2, 2) for number in range(16)]


@pytest.mark.parametrize(
    ("answer", "stop", "error"),
    [
        (lambda messages: call("count", '{"of": "x"}', f"c{len(messages)}"), "max_turns", "Max turns (3) exceeded"),
        (lambda messages: call("no_such_tool"), "malformed", "no_such_tool"),
    ],
)
async def test_what_the_policy_does_wrong_is_for_the_reward_and_no_loss(load, policy, answer, stop, error):
    SCRIPT.answer = answer
    record = await play_agent(
        load(HANDOFF, "clerk"), task(prompt="go"), replace(policy, max_turns=3), LIMITS, others_reward=True
    )
    assert (record.stop_reason, record.score.reason, record.output) == (stop, "no_judge", None)
    assert error in record.error


async def test_a_guardrail_that_trips_is_an_answer_of_its_own(load, policy):
    agent = load("""
from agents import Agent, GuardrailFunctionOutput, output_guardrail

@output_guardrail
async def no_threes(context, agent, output):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered='3' in output)

agent = Agent(name='one', output_guardrails=[no_threes])
""")
    SCRIPT.answer = lambda messages: say("3")
    record = await play_agent(agent, task(prompt="go"), policy, LIMITS, others_reward=True)
    assert (record.stop_reason, record.score.reason, record.output) == ("answered", "no_judge", None)
    assert "OutputGuardrailTripwireTriggered" in record.error


async def test_a_function_of_the_task_gives_an_agent_and_its_context(load, policy):
    text = """
from agents import Agent, RunContextWrapper

def told(context: RunContextWrapper, agent):
    return f'The word is {context.context}.'

listener = Agent(name='listener', instructions=told)

async def with_context(task):
    return listener, task['word']

"""
    SCRIPT.answer = lambda messages: say(messages[0]["content"])
    record = await play_agent(
        load(text, "with_context"), task(prompt="go", word="blue"), policy, LIMITS, others_reward=True
    )
    assert record.output == "The word is blue."


async def test_of_a_graph_every_turn_says_which_node_or_named_agent_asked(load, policy, store):
    pytest.importorskip("langgraph", reason="needs the extra langgraph of pyproject.toml")
    agent = load("""
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model='gpt-4.1')
clerk = create_agent(model, tools=[], name='clerk')

def desk(state: MessagesState):
    return {'messages': [model.invoke(state['messages'])]}

agent = (StateGraph(MessagesState).add_node(desk).add_node('second', clerk)
    .add_edge(START, 'desk').add_edge('desk', 'second').compile())
""")
    record = await play_agent(agent, task(prompt="how many?"), policy, LIMITS, others_reward=True)
    assert (record.output, record.error) == ("done", None)
    assert [turn.agent for turn in await turns_of(store, policy, 2)] == ["desk", "clerk"]


async def test_a_workflow_of_several_runs_is_one_rollout_whether_it_awaits_them_or_not(load, policy):
    text = """
from agents import Agent, Runner

async def workflow(task):
    first = await Runner.run(Agent(name='a'), task['x'])
    second = await Runner.run(Agent(name='b', instructions='Go on.'), first.final_output)
    return {'said': [first.final_output, second.final_output]}

def plain(task):
    return Runner.run_sync(Agent(name='a'), task['x'])
"""
    SCRIPT.answer = lambda messages: say(messages[-1]["content"] + "!")
    for name, output, turns in (("workflow", {"said": ["hi!", "hi!!"]}, 2), ("plain", "hi!", 1)):
        record = await play_agent(load(text, name), task(x="hi"), await _fresh(policy), LIMITS, others_reward=True)
        assert (record.output, record.num_turns, record.error) == (output, turns, None)


# agents of agent-lightning


async def test_what_a_lightning_agent_returns_or_emitted_last_is_its_reward(load, policy):
    text = """
import agentlightning as agl
from openai import AsyncOpenAI, OpenAI

@agl.rollout
def returns(task, llm):
    client = OpenAI(base_url=llm.endpoint, api_key='dummy')
    return len(client.chat.completions.create(model=llm.model, messages=[{'role': 'user', 'content': 'hi'}]).choices)

@agl.llm_rollout
async def emits(task, llm):
    client = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    await client.chat.completions.create(model=llm.model, messages=[{'role': 'user', 'content': 'hi'}])
    agl.emit_reward(0.25)
    agl.emit_reward(task['worth'])

class Lit(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        llm = resources['main_llm']
        client = OpenAI(base_url=llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id), api_key='-')
        client.chat.completions.create(model=llm.model, messages=[{'role': 'user', 'content': 'hi'}])
        assert self.tracer.get_langchain_handler() is None
        return 0.75 if rollout.mode == 'train' else 0.0
"""
    for name, row, reward in (("returns", {}, 1.0), ("emits", {"worth": 0.5}, 0.5), ("Lit", {}, 0.75)):
        again = await _fresh(policy)
        record = await play_agent(load(text, name), task(**row), again, LIMITS, others_reward=True)
        assert (record.score.value, record.score.reason, record.num_turns) == (reward, "own_reward", 1), record.error


async def _fresh(policy):
    """The policy for another rollout of the same proxy."""
    ids = f"ro-{time.monotonic_ns()}", "at-0"
    prefix = signed_prefix(RolloutSampling(*ids, "policy-0", 0.7, 64), os.environ[RUN_TOKEN])
    root = policy.base_url.split("/as/")[0]
    rollout = SimpleNamespace(rollout_id=ids[0], attempt=SimpleNamespace(attempt_id=ids[1]), mode="train")
    return replace(policy, base_url=f"{root}{prefix}/rollout/{ids[0]}/attempt/{ids[1]}/v1", rollout=rollout)


RAISES = """
import asyncio, time
import agentlightning as agl
from openai import OpenAI

def ask(llm):
    OpenAI(base_url=llm.endpoint, api_key='-', max_retries=0).chat.completions.create(
        model=llm.model, messages=[{'role': 'user', 'content': 'hi'}])

@agl.rollout
def raises(task, llm):
    ask(llm)
    raise KeyError('mine')

@agl.rollout
def completes(task, llm):
    OpenAI(base_url=llm.endpoint, api_key='-', max_retries=0).completions.create(model=llm.model, prompt='hi')

@agl.rollout
def asks_nobody(task, llm):
    return 1.0

@agl.rollout
def no_number(task, llm):
    ask(llm)
    return 'good'

@agl.rollout
def too_large(task, llm):
    ask(llm)
    return 10**400

@agl.rollout
async def cancels(task, llm):
    raise asyncio.CancelledError

@agl.rollout
def not_finite(task, llm):
    ask(llm)
    return float('nan')

@agl.rollout
def says_nothing(task, llm):
    ask(llm)

@agl.rollout
def goes_on_without_an_answer(task, llm):
    try:
        ask(llm)
    except Exception:
        pass
    return 0.0

@agl.rollout
def asks_too_much(task, llm):
    ask(llm)
    OpenAI(base_url=llm.endpoint, api_key='-', max_retries=0).chat.completions.create(
        model=llm.model, messages=[{'role': 'user', 'content': 'x' * 12_000_000}])

@agl.rollout
def hangs(task, llm):
    ask(llm)
    while True:
        time.sleep(0.01)

@agl.rollout
async def blocks(task, llm):
    time.sleep(1.5)
    return 1.0

@agl.rollout
async def sleeps(task, llm):
    await asyncio.sleep(60)

@agl.rollout
async def exits_async(task, llm):
    raise SystemExit(4)

@agl.rollout
def exits(task, llm):
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("name", "stop", "reason", "error"),
    [
        ("raises", "environment_error", "agent_error", "KeyError: 'mine'"),
        ("completes", "environment_error", "agent_error", "\nNotFoundError: Error code: 404 - /completions is not"),
        ("asks_nobody", "environment_error", "no_call", "the agent never asked the policy"),
        ("says_nothing", "answered", "no_reward", ""),
        ("no_number", "environment_error", "reward_error", "the agent returned good"),
        ("too_large", "environment_error", "reward_error", "expected a finite number"),
        ("cancels", "environment_error", "agent_error", "CancelledError"),
        ("not_finite", "environment_error", "reward_error", "the agent returned nan"),
        ("hangs", "timeout", "rollout_deadline", "rollout_timeout_s=1 passed"),
        ("blocks", "timeout", "rollout_deadline", "rollout_timeout_s=1 passed"),
        ("sleeps", "timeout", "rollout_deadline", "rollout_timeout_s=1 passed"),
        ("exits", "environment_error", "agent_error", "SystemExit: 3"),
        ("exits_async", "environment_error", "agent_error", "SystemExit: 4"),
    ],
)
async def test_whatever_the_code_does_loses_its_rollout_under_a_name(load, policy, name, stop, reason, error):
    timeout_s = 1.0 if stop == "timeout" else 20.0
    before, limits = set(threading.enumerate()), LIMITS.model_copy(update={"rollout_timeout_s": timeout_s})
    record = await play_agent(load(RAISES, name), task(), policy, limits, others_reward=False)
    assert (record.stop_reason, record.score.value, record.score.reason) == (stop, None, reason)
    assert error in (record.error or "")
    deadline = time.monotonic() + 5 * (name == "hangs")  # its thread is broken off
    while name == "hangs" and [t for t in set(threading.enumerate()) - before if t.name == "environment"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_call_that_cannot_fit_the_context_is_out_of_limits_as_a_full_context_is(load, policy):
    record = await play_agent(load(RAISES, "asks_too_much"), task(), policy, LIMITS, others_reward=True)
    assert (record.stop_reason, record.score) == ("max_tokens", Score(None, NO_JUDGE))
    assert "this call has 12,000," in record.error and "context has 131,072 tokens" in record.error


async def test_an_agent_that_goes_on_though_the_model_server_failed_is_not_judged(load, policy):
    SCRIPT.answer = lambda messages: {"status": 500, "content": "the engine died"}
    record = await play_agent(load(RAISES, "goes_on_without_an_answer"), task(), policy, LIMITS, others_reward=True)
    assert (record.stop_reason, record.score.reason) == ("model_unavailable", "model_unavailable")
    assert "the engine died" in record.error


HELPER = """
from agents import Agent, function_tool

helper = Agent(name='helper', instructions='I help.')

@function_tool
def leave() -> str:
    raise SystemExit(5)

agent = Agent(name='boss', instructions='I ask.', tools=[
    leave, helper.as_tool(tool_name='help', tool_description='Help')])
"""


@pytest.mark.parametrize(
    "broken", [{"status": 500, "content": "the engine died"}, {**say("x"), "finish_reason": "abort"}]
)
async def test_a_failure_that_a_framework_turns_into_text_is_a_failure(load, policy, broken):
    def answer(messages):
        if messages[0]["content"] == "I help.":
            return dict(broken)
        return say("I give up") if messages[-1]["role"] == "tool" else call("help", '{"input": "x"}')

    SCRIPT.answer = answer
    record = await play_agent(load(HELPER), task(prompt="go"), policy, LIMITS, others_reward=True)
    assert (record.output, record.score.reason) == ("I give up", "model_unavailable")


async def test_a_tool_that_exits_ends_its_rollout_and_no_other(load, policy):
    SCRIPT.answer = lambda messages: call("leave") if messages[-1]["content"] == "exit" else say("here")
    SCRIPT.pause_s = 0.3
    agent = load(HELPER)
    exits, other = await _fresh(policy), await _fresh(policy)
    records = await asyncio.gather(
        play_agent(agent, task(prompt="exit"), exits, LIMITS, others_reward=True),
        play_agent(agent, task(prompt="stay"), other, LIMITS, others_reward=True),
    )
    later = await play_agent(agent, task(prompt="stay"), await _fresh(policy), LIMITS, others_reward=True)
    assert [(r.score.reason, r.output) for r in (*records, later)] == [
        ("agent_error", None),
        ("no_judge", "here"),
        ("no_judge", "here"),
    ]
    assert "SystemExit: 5" in (records[0].error or "")


async def test_what_cannot_be_sent_back_and_a_full_context_are_the_policys_fault_and_a_refused_first_call_is_nobodys(
    load, policy
):
    bad = {"status": 400, "content": "arguments are no JSON object"}
    SCRIPT.answer = lambda messages: bad if messages[-1]["role"] == "tool" else call("count", '{"of": "x"}')
    record = await play_agent(load(HANDOFF, "clerk"), task(prompt="go"), policy, LIMITS, others_reward=True)
    assert (record.stop_reason, record.score.reason, record.num_turns) == ("malformed", "no_judge", 1)
    SCRIPT.answer = lambda messages: bad
    first = await play_agent(
        load(HANDOFF, "clerk"), task(prompt="go"), await _fresh(policy), LIMITS, others_reward=True
    )
    assert (first.score.reason, "arguments are no JSON object" in (first.error or "")) == ("no_reply", True)
    full = {"status": 400, "content": "This model's maximum context length is 96 tokens"}
    SCRIPT.answer = lambda messages: full if messages[-1]["role"] == "tool" else call("count", '{"of": "x"}')
    record = await play_agent(
        load(HANDOFF, "clerk"), task(prompt="go"), await _fresh(policy), LIMITS, others_reward=True
    )
    assert (record.stop_reason, record.score.reason, record.num_turns) == ("max_tokens", "no_judge", 1)
    assert "maximum context length" in record.error


async def test_what_another_service_refuses_and_what_the_code_cannot_write_is_the_codes_fault(load, policy):
    text = """
import agentlightning as agl
from openai import OpenAI

def ask(url):
    OpenAI(base_url=url, api_key='-', max_retries=0).chat.completions.create(
        model='m', messages=[{'role': 'user', 'content': 'hi'}])

@agl.rollout
def asks_another(task, llm):
    ask(llm.endpoint)
    ask(task['other'])

@agl.rollout
def writes_ascii(task, llm):
    ask(llm.endpoint)
    'ä'.encode('ascii')

@agl.rollout
def sends_half_a_character(task, llm):
    ask(llm.endpoint)
    '\\ud83d'.encode()
"""
    refusing = oracle.app(lambda messages: {"status": 400, "content": "no"})
    with oracle.serve(refusing) as other:
        ends = {
            name: await play_agent(
                load(text, name), task(other=other), await _fresh(policy), LIMITS, others_reward=True
            )
            for name in ("asks_another", "writes_ascii", "sends_half_a_character")
        }
    assert {name: (end.stop_reason, end.score.reason) for name, end in ends.items()} == {
        "asks_another": ("environment_error", "agent_error"),
        "writes_ascii": ("environment_error", "agent_error"),
        "sends_half_a_character": ("malformed", "no_judge"),
    }


async def test_a_cancelled_rollout_ends_at_the_proxy_too(load, policy):
    text = """
import time
import agentlightning as agl
from openai import OpenAI

@agl.rollout
def goes_on(task, llm):
    client = OpenAI(base_url=llm.endpoint, api_key='-', max_retries=0)
    while True:
        try:
            client.chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'hi'}])
            time.sleep(0.05)
        except Exception:
            pass
"""
    playing = asyncio.create_task(play_agent(load(text, "goes_on"), task(), policy, LIMITS, others_reward=True))
    while not SCRIPT.seen:
        await asyncio.sleep(0.02)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await asyncio.sleep(1.0)
    answer = await asyncio.to_thread(httpx.post, f"{policy.base_url}/chat/completions", json=HI)
    assert answer.status_code == 410


async def test_a_rollout_that_blocks_the_loop_leaves_others_their_place(load, policy, monkeypatch):
    from sql_agent.user_agents import loop

    monkeypatch.setattr(loop, "STUCK_S", 0.5)
    text = """
import asyncio, time
import agentlightning as agl
from openai import AsyncOpenAI

@agl.rollout
async def agent(task, llm):
    client = AsyncOpenAI(base_url=llm.endpoint, api_key='-')
    await client.chat.completions.create(model='m', messages=[{'role': 'user', 'content': 'hi'}])
    if task['blocks']:
        time.sleep(3)
    await asyncio.sleep(0.1)
    return 1.0
"""
    agent, short_limits = load(text), LIMITS.model_copy(update={"rollout_timeout_s": 1.0})
    blocked, beside = await _fresh(policy), await _fresh(policy)
    records = asyncio.gather(
        play_agent(agent, task(blocks=True), blocked, short_limits, others_reward=False),
        play_agent(agent, task(blocks=False), beside, LIMITS, others_reward=False),
    )
    await asyncio.sleep(2.0)  # the loop is given up by now
    later = await play_agent(agent, task(blocks=False), await _fresh(policy), LIMITS, others_reward=False)
    assert [r.score.reason for r in (*await records, later)] == ["rollout_deadline", "own_reward", "own_reward"]
