"""Graphs of LangGraph, LangChain's agents and clients of the openai package, played through the real proxy route; only
the model behind is scripted."""

import asyncio
import secrets
from types import SimpleNamespace

import openai
import pytest
from agents import UserError

from agentgrpo.user_files import UserFileError
from sql_agent import oracle
from sql_agent.environments.rows import RowTask
from sql_agent.settings.groups import AgentConfig
from sql_agent.tests.conftest import forget_user_files
from sql_agent.user_agents.datatypes import Policy
from sql_agent.user_agents.evaluation import SERVER, policy_served
from sql_agent.user_agents.play import play_agent, policy_of
from sql_agent.user_agents.policy_client import unaddressed_client

pytest.importorskip("langgraph", reason="needs the extra langgraph of pyproject.toml")

LIMITS = AgentConfig(turn_timeout_s=10, rollout_timeout_s=30, max_tokens=64)
SCRIPT = SimpleNamespace(answer=None, seen=[])
"""How the model answers, and the requests that reached it."""


def say(text):
    return {"role": "assistant", "content": text}


def call(name, arguments="{}", call_id="call_0"):
    return oracle.calls(oracle.call(name, arguments, call_id))


@pytest.fixture(scope="module")
def address():
    app = oracle.app(lambda messages: SCRIPT.answer(messages), model="served", on_request=SCRIPT.seen.append)
    with oracle.serve(app) as url, policy_served(url, "served", "-", timeout_s=10) as address:
        yield address


@pytest.fixture(autouse=True)
def script():
    SCRIPT.answer = lambda messages: say("done")
    SCRIPT.seen.clear()
    forget_user_files()


@pytest.fixture
def run(address):
    """Plays one rollout of an agent and gives its record."""

    async def run(agent, *, max_turns=None, **row):
        attempt = SimpleNamespace(attempt_id="1")
        rollout = SimpleNamespace(rollout_id=secrets.token_hex(8), attempt=attempt, mode="test")
        limits = LIMITS.model_copy(update={"max_turns": max_turns})
        policy = policy_of(address, SERVER, limits, rollout, seed=None)
        return await play_agent(agent, RowTask("one", "task", row), policy, limits, others_reward=True)

    return run


COUNTER = """
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

def count(of: str) -> str:
    'Count.'
    return '3'

model = ChatOpenAI(model='gpt-4.1', base_url='http://elsewhere.invalid/v1', api_key='mine', temperature=0.1, {more})
agent = create_agent(model, tools=[count], system_prompt='You count.')
"""


def counted(messages):
    return say("it is 3") if messages[-1]["role"] == "tool" else call("count", '{"of": "x"}')


@pytest.mark.parametrize("more", ["", "streaming=True"])
async def test_the_policy_answers_whatever_model_and_address_a_graph_names(load, run, more):
    SCRIPT.answer = counted
    record = await run(load(COUNTER.replace("{more}", more)), prompt="how many?", answer="gold")
    assert (record.stop_reason, record.score.reason, record.output, record.error) == (
        "answered",
        "no_judge",
        "it is 3",
        None,
    )
    assert [message["role"] for message in record.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert {(request["model"], request["temperature"]) for request in SCRIPT.seen} == {("served", LIMITS.temperature)}
    assert "gold" not in str(SCRIPT.seen)


async def test_messages_of_a_row_are_the_input_as_they_are(load, run):
    shown = [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "2"}]
    await run(load(COUNTER.replace("{more}", "")), prompt=[*shown, {"role": "user", "content": "three?"}])
    assert SCRIPT.seen[0]["messages"] == [
        {"role": "system", "content": "You count."},
        *shown,
        {"role": "user", "content": "three?"},
    ]


OWN_NODES = """
import threading
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model, together = ChatOpenAI(model='gpt-4.1'), threading.Barrier(16, timeout=20)

def first(state: MessagesState):
    together.wait()
    return {'messages': [model.invoke(state['messages'])]}

async def second(state: MessagesState):
    return {'messages': [await model.ainvoke(state['messages'])]}

builder = StateGraph(MessagesState)
builder.add_node(first)
builder.add_node(second)
builder.add_edge(START, 'first')
builder.add_edge('first', 'second')
agent = builder.compile()
"""


async def test_sixteen_graphs_at_once_do_not_mix_and_do_not_wait_for_each_other(load, run):
    """Their first nodes block until all sixteen are there, which asyncio's own number of threads does not allow."""
    SCRIPT.answer = lambda messages: say(messages[0]["content"] + "!")
    agent = load(OWN_NODES)
    records = await asyncio.gather(*(run(agent, prompt=f"I am {number}") for number in range(16)))
    assert [(record.output, record.num_turns, record.error) for record in records] == [
        (f"I am {number}!", 2, None) for number in range(16)
    ]


FUNCTIONS = """
import dataclasses
import openai
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

@dataclasses.dataclass
class Shop:
    name: str

def greet(state: MessagesState, runtime: Runtime[Shop]):
    said = ChatOpenAI(model='gpt-4.1').invoke([('system', f'You are {runtime.context.name}.'), *state['messages']])
    return {'messages': [said]}

builder = StateGraph(MessagesState, context_schema=Shop)
builder.add_node(greet)
builder.add_edge(START, 'greet')

def gives_a_graph_and_its_context(task):
    return builder.compile(), Shop(task['shop'])

def runs_it_itself(task):
    graph = create_agent(ChatOpenAI(model='gpt-4.1'), tools=[])
    return graph.invoke({'messages': [('user', task['prompt'])]})['messages'][-1].content

async def asks_by_openai(task):
    said = await openai.AsyncOpenAI().chat.completions.create(model='o3', messages=[{'role': 'user', 'content': 'hi'}])
    return said.choices[0].message.content

def asks_another(task):
    openai.OpenAI().chat.completions.create(model='o3', messages=[{'role': 'user', 'content': 'hi'}])
    judge = openai.OpenAI(base_url=task['judge'], api_key='mine')
    said = judge.chat.completions.create(model='judge', messages=[{'role': 'user', 'content': 'ho'}])
    return said.choices[0].message.content

def embeds(task):
    openai.OpenAI().chat.completions.create(model='o3', messages=[{'role': 'user', 'content': 'hi'}])
    openai.OpenAI().embeddings.create(model='e', input='hi')
"""


async def test_a_function_gives_a_graph_and_its_context(load, run):
    SCRIPT.answer = lambda messages: say(messages[0]["content"])
    record = await run(load(FUNCTIONS, "gives_a_graph_and_its_context"), prompt="hi", shop="Blooms")
    assert (record.output, record.error) == ("You are Blooms.", None)


@pytest.mark.parametrize("name", ["runs_it_itself", "asks_by_openai"])
async def test_in_a_function_a_client_without_an_address_asks_the_policy(load, run, name):
    record = await run(load(FUNCTIONS, name), prompt="hi")
    assert (record.output, record.num_turns, record.error) == ("done", 1, None)


async def test_in_a_function_a_client_with_an_address_keeps_it(load, run):
    asked = []
    with oracle.serve(oracle.app(lambda messages: say("fine"), model="judge", on_request=asked.append)) as url:
        record = await run(load(FUNCTIONS, "asks_another"), prompt="hi", judge=url)
    assert (record.output, record.num_turns, len(asked), len(SCRIPT.seen)) == ("fine", 1, 1, 1)


async def test_what_cannot_be_trained_is_refused_and_not_sent(load, run):
    record = await run(load(FUNCTIONS, "embeds"), prompt="hi")
    assert record.score.reason == "agent_error"
    assert "/embeddings is not served: only /chat/completions and /responses can be trained" in record.error


def test_a_client_without_an_address_of_its_own_is_known_where_the_environment_has_one(monkeypatch):
    """Its calls are those of the policy; a client whose code names an address keeps it."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:7/v1")
    assert unaddressed_client(openai.OpenAI(api_key="x"))
    assert not unaddressed_client(openai.OpenAI(api_key="x", base_url="http://127.0.0.1:8/v1"))
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert unaddressed_client(openai.OpenAI(api_key="x"))


def test_a_client_with_our_placeholder_for_a_key_reaches_nobody_outside_of_a_rollout(load):
    load(OWN_NODES)
    with pytest.raises(UserError, match="asked outside of a rollout"):
        openai.OpenAI(api_key=Policy.api_key).models.list()


async def test_a_client_outside_of_a_rollout_keeps_its_address(load):
    load(OWN_NODES)
    with oracle.serve(oracle.app(lambda messages: say("mine"), model="judge")) as url:
        async with openai.AsyncOpenAI(base_url=url, api_key="mine") as client:
            said = await client.chat.completions.create(model="judge", messages=[{"role": "user", "content": "hi"}])
    assert said.choices[0].message.content == "mine"


ENDS = """
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

class Fruit(BaseModel):
    name: str

def count(of: str) -> str:
    'Count.'
    return '3'

def raises(of: str) -> str:
    'Raise.'
    raise KeyError('mine')

def ask_a_person(state: MessagesState):
    ChatOpenAI(model='gpt-4.1').invoke(state['messages'])
    return {'messages': [interrupt('may I?')]}

model = ChatOpenAI(model='gpt-4.1')
counts = create_agent(model, tools=[count, raises], checkpointer=InMemorySaver())
fruit = create_agent(model, tools=[count], response_format=Fruit)
waits = (StateGraph(MessagesState).add_node(ask_a_person).add_edge(START, 'ask_a_person')
         .compile(checkpointer=InMemorySaver()))
both = (StateGraph(MessagesState)
    .add_node('ours', lambda state: {'messages': [model.invoke(state['messages'])]})
    .add_node('theirs', lambda state: {'messages': [FakeListChatModel(responses=['x']).invoke(state['messages'])]})
    .add_edge(START, 'ours').add_edge('ours', 'theirs').compile())
short = counts.with_config(recursion_limit=4)

def check(state: MessagesState):
    called = model.bind_tools([count], tool_choice='any').invoke(state['messages']).tool_calls[0]
    if called['name'] != 'count':
        raise ValueError(called['name'])
    return {'messages': [('ai', called['args']['of'])]}

def name(state: MessagesState):
    return {'messages': [('ai', model.with_structured_output(Fruit).invoke(state['messages']).name)]}

names = StateGraph(MessagesState).add_node(name).add_edge(START, 'name').compile()

class Answered(TypedDict):
    answer: str

def answer(state: MessagesState) -> Answered:
    return {'answer': model.invoke(state['messages']).content}

dictionary = (StateGraph(MessagesState, output_schema=Answered)
    .add_node(answer).add_edge(START, 'answer').compile())

checks = StateGraph(MessagesState).add_node(check).add_edge(START, 'check').compile()
"""


@pytest.mark.parametrize(
    ("name", "answer", "end", "error"),
    [
        ("counts", lambda messages: call("count", '{"of": "x"}'), ("max_turns", "no_judge", None), "Max turns (3)"),
        ("short", lambda messages: call("count", '{"of": "x"}'), ("max_turns", "no_judge", None), "Recursion limit"),
        ("counts", lambda messages: call("count", "{of:"), ("malformed", "no_judge", None), "call of count cannot be"),
        (
            "counts",
            lambda messages: call("raises", '{"of": "x"}'),
            ("environment_error", "agent_error", None),
            "'mine'",
        ),
        (
            "waits",
            lambda messages: say("go"),
            ("environment_error", "agent_error", None),
            "waits for a person (may I?)",
        ),
        (
            "both",
            lambda messages: say("go"),
            ("environment_error", "agent_error", None),
            "the graph asks a FakeListChatModel, whose calls cannot go to the policy; use langchain_openai's",
        ),
        ("names", lambda messages: say('{"name": "fig"}'), ("answered", "no_judge", "fig"), None),
        ("names", lambda messages: say("a fig"), ("malformed", "no_judge", None), "not have the form that was asked"),
        ("dictionary", lambda messages: say("go"), ("answered", "no_judge", {"answer": "go"}), None),
        # what the run does not constrain and a node takes apart
        ("checks", lambda messages: call("count", '{"of": "x"}'), ("answered", "no_judge", "x"), None),
        (
            "checks",
            lambda messages: say("three"),
            ("malformed", "no_judge", None),
            "it called no tool, and a call was asked for; then IndexError",
        ),
        (
            "checks",
            lambda messages: call("sum", '{"of": "x"}'),
            ("malformed", "no_judge", None),
            "it called sum and was offered count",
        ),
        (
            "checks",
            lambda messages: call("count", '{"off": "x"}'),
            ("malformed", "no_judge", None),
            "it called count without of; then KeyError: 'of'",
        ),
        ("fruit", lambda messages: say('{"name": "fig"}'), ("answered", "no_judge", {"name": "fig"}), None),
        ("fruit", lambda messages: say("a fig"), ("malformed", "no_judge", None), "Error"),
        (
            "counts",
            lambda messages: {"status": 500, "content": "the engine died"},
            ("model_unavailable", "model_unavailable", None),
            "the engine died",
        ),
        (
            "counts",
            lambda messages: (
                {"status": 400, "content": "This model's maximum context length is 96 tokens"}
                if messages[-1]["role"] == "tool"
                else call("count", '{"of": "x"}')
            ),
            ("max_tokens", "no_judge", None),
            "maximum context length",
        ),
    ],
)
async def test_how_a_graph_ends(load, run, name, answer, end, error):
    SCRIPT.answer = answer
    record = await run(load(ENDS, name), prompt="go", max_turns=3)
    assert (record.stop_reason, record.score.reason, record.output) == end, record.error
    assert (record.error is None) if error is None else (error in record.error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "from langgraph.graph import MessagesState, StateGraph\nagent = StateGraph(MessagesState)",
            r"is a StateGraph that is not compiled, name the result of its compile\(\); expected an agents.Agent, a",
        ),
        (
            "from typing import TypedDict\nfrom langgraph.graph import START, StateGraph\n"
            "class State(TypedDict):\n    question: str\n"
            "agent = StateGraph(State).add_node('a', lambda s: s).add_edge(START, 'a').compile()",
            "is a graph whose input is question; expected `messages`, .* Give a function of the task",
        ),
    ],
)
def test_a_graph_that_cannot_be_played_is_refused_with_a_remedy(load, text, words):
    with pytest.raises(UserFileError, match=words):
        load(text)


@pytest.mark.slow
def test_a_graph_of_another_provider_s_model_is_refused_before_a_run(tmp_path):
    """In a process of its own: models of other tests live here too."""
    import subprocess
    import sys

    (tmp_path / "mine.py").write_text(
        "from langchain.agents import create_agent\nfrom langchain_core.language_models import FakeListChatModel\n"
        "agent = create_agent(FakeListChatModel(responses=['x']), tools=[])\n"
    )
    code = f"from sql_agent.user_agents.tasks import load_agent\nload_agent('{tmp_path}/mine.py:agent')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UserFileError" in result.stderr and "the graph asks a FakeListChatModel" in result.stderr
