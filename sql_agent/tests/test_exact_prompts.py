"""What the engine sampled goes back to it as the same ids."""

import copy
import json
import tracemalloc
from types import SimpleNamespace

import pytest

from agentgrpo.chat.continuation import OTHER
from sql_agent.model_servers.refusals import is_unread_call
from sql_agent.verl_side.plugin import model_server
from sql_agent.verl_side.plugin.exact_prompts import RANDOM_ID, ReplyMemory, _wrap_chat_server, conversation_key

EOS = 99
SYSTEM = {"role": "system", "content": "rules"}
ASK = {"role": "user", "content": "how many?"}


def call(call_id, text=None, arguments="{}"):
    function = {"name": "execute_sql", "arguments": arguments}
    return {"role": "assistant", "content": text, "tool_calls": [{"id": call_id, "function": function}]}


ONE, TWO = RANDOM_ID + "1", RANDOM_ID + "2"


def test_a_reply_with_tool_calls_is_known_by_their_ids_however_it_is_written_down():
    memory = ReplyMemory()
    memory.remember([SYSTEM, ASK, call(ONE, "let me look", '{"a":1}')], [1, 2, 3])
    rewritten = [SYSTEM, ASK, call(ONE, None, '{"a": 1}'), {"role": "tool", "tool_call_id": ONE, "content": "[]"}]
    assert memory.recall(rewritten) == (3, [1, 2, 3])
    assert memory.recall([SYSTEM, ASK, call(TWO)]) is None


def test_what_else_an_agent_changes_makes_another_conversation():
    """A handoff gives the next agent its own instructions, a full context is cut: the policy reads what was sent."""
    memory, result = ReplyMemory(), {"role": "tool", "tool_call_id": ONE, "content": "[]"}
    memory.remember([SYSTEM, ASK, call(ONE), result, call(TWO)], [1, 2, 3])
    assert memory.recall([SYSTEM, ASK, call(ONE), result, call(TWO)]) == (5, [1, 2, 3])
    assert memory.recall([{**SYSTEM, "content": "other rules"}, ASK, call(ONE), result, call(TWO)]) is None
    assert memory.recall([SYSTEM, call(ONE), result, call(TWO)]) is None
    assert memory.recall([SYSTEM, ASK, call(TWO)]) is None
    assert memory.recall([SYSTEM, ASK, call(ONE), {**result, "content": "[...]"}, call(TWO)]) is None


def test_results_of_parallel_calls_come_in_any_order():
    memory = ReplyMemory()
    both = {"role": "assistant", "content": None, "tool_calls": call(ONE)["tool_calls"] + call(TWO)["tool_calls"]}
    results = [{"role": "tool", "tool_call_id": name, "content": name[-1]} for name in (ONE, TWO)]
    memory.remember([ASK, both, *results, call(RANDOM_ID + "3")], [1, 2])
    assert memory.recall([ASK, both, *results[::-1], call(RANDOM_ID + "3")]) == (5, [1, 2])


def test_ids_that_only_count_are_no_name():
    """The first call of every conversation is functions.execute_sql:0 with some parsers."""
    memory, counted = ReplyMemory(), "functions.execute_sql:0"
    memory.remember([SYSTEM, ASK, call(counted, arguments='{"a": 1}')], [1, 2, 3])
    assert memory.recall([SYSTEM, ASK, call(counted, arguments='{"a": 1}')]) == (3, [1, 2, 3])
    assert memory.recall([SYSTEM, ASK, call(counted, arguments='{"a": 2}')]) is None
    assert memory.recall([SYSTEM, {**ASK, "content": "how old?"}, call(counted, arguments='{"a": 1}')]) is None


def test_a_plain_reply_is_known_by_the_whole_text():
    reply = {"role": "assistant", "content": "three"}
    assert conversation_key([SYSTEM, ASK, reply]) == conversation_key([SYSTEM, {**ASK}, {**reply, "tool_calls": None}])
    assert conversation_key([SYSTEM, ASK, reply]) != conversation_key([SYSTEM, reply])


def test_the_same_text_in_other_tokens_is_nobodys():
    """Two rollouts of a task: whose ids these are cannot be told, unless each says who it is."""
    reply, memory = {"role": "assistant", "content": "three"}, ReplyMemory()
    memory.remember([SYSTEM, ASK, reply], [1, 2, 3])
    memory.remember([SYSTEM, ASK, reply], [1, 2, 3])  # the same tokens twice are no riddle
    assert memory.recall([SYSTEM, ASK, reply]) == (3, [1, 2, 3])
    memory.remember([SYSTEM, ASK, reply], [1, 4])
    assert memory.recall([SYSTEM, ASK, reply]) is None
    memory.remember([SYSTEM, ASK, reply], [1, 2, 3], scope="rollout-a")
    memory.remember([SYSTEM, ASK, reply], [1, 4], scope="rollout-b")
    assert memory.recall([SYSTEM, ASK, reply], scope="rollout-a") == (3, [1, 2, 3])
    assert memory.recall([SYSTEM, ASK, reply], scope="rollout-b") == (3, [1, 4])


def test_the_oldest_conversation_is_forgotten_first():
    """Room for 2,000 ids of four bytes and 512 bytes for each of two entries, not for a third one."""
    memory = ReplyMemory(capacity=2 * (512 + 4000))
    for name in ("a", "b", "c"):
        memory.remember([call(RANDOM_ID + name)], range(1000))
    assert [memory.recall([call(RANDOM_ID + name)]) is not None for name in ("a", "b", "c")] == [False, True, True]
    memory.remember([call(RANDOM_ID + "c")], range(1000))  # said again: it takes no room twice
    assert memory.recall([call(RANDOM_ID + "b")]) is not None
    memory.remember([call(RANDOM_ID + "d")], range(1000, 3001))  # 8,516 bytes: it needs the room of both
    assert [memory.recall([call(RANDOM_ID + name)]) is not None for name in ("b", "c", "d")] == [False, False, True]


@pytest.mark.parametrize("reply", [call(ONE), {"role": "assistant", "content": "three"}], ids=["call", "words"])
@pytest.mark.parametrize("tokens", [1, 1000])
def test_the_memory_takes_no_more_bytes_than_it_says(reply, tokens):
    """Ids beyond the small numbers that Python keeps once; words are known by all that was said before them."""
    capacity = 2**20
    memory = ReplyMemory(capacity)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for k in range(3 * capacity // (512 + 4 * tokens)):  # three times what there is room for
        messages = [{"role": "user", "content": f"{k} " * 2000}, {**reply}]
        if "tool_calls" in reply:
            messages[-1] = call(f"{RANDOM_ID}{k}")
        memory.remember(messages, range(100_000, 100_000 + tokens))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert capacity / 2 < taken <= capacity


THREE = {"role": "assistant", "content": "three"}


class Request(SimpleNamespace):
    def model_copy(self, update):
        return Request(**{**vars(self), **update})


def ask(messages, user=None, tools=None):
    return Request(messages=messages, user=user, tools=tools, add_generation_prompt=True)


def chat_server(max_model_len=100, calls=()):
    """A chat server whose template writes 1, every reply as 35 (another one than its engine's as 36), any other message
    as 4, and 5 for the next reply; its engine says 30, 31, EOS, which is the text "three" and these calls. Like vLLM it
    parses arguments in place."""

    class ChatServer:
        model_config = SimpleNamespace(max_model_len=max_model_len, try_get_generation_config=lambda: {})
        renderer = SimpleNamespace(tokenizer=SimpleNamespace(eos_token_id=EOS))

        async def render_chat_request(self, request):
            ids = [1]
            for message in request.messages:
                other = OTHER in str(message)
                ids += [36 if other else 35, EOS] if message["role"] == "assistant" else [4]
                for made in message.get("tool_calls", ()):
                    made["function"]["arguments"] = json.loads(made["function"]["arguments"])
            return [], [{"prompt_token_ids": ids + [5] * request.add_generation_prompt}]

        async def chat_completion_full_generator(self, request, result_generator):
            (result,) = [result async for result in result_generator]
            turn = sum(message["role"] == "assistant" for message in request.messages)
            reply = Reply((f"{prefix}{turn}", name, arguments) for prefix, name, arguments in calls)
            reason = "tool_calls" if calls else result.outputs[0].finish_reason  # vLLM's order
            choice = SimpleNamespace(token_ids=[30, 31, EOS], message=reply, finish_reason=reason)
            return SimpleNamespace(choices=[choice], prompt_token_ids=result.prompt_token_ids)

        async def answer(self, request, finish_reason="stop"):
            """The prompt the engine was given, and the answer."""

            async def engine():
                output = SimpleNamespace(finish_reason=finish_reason)
                yield SimpleNamespace(prompt_token_ids=inputs["prompt_token_ids"], outputs=[output])

            _, (inputs,) = await self.render_chat_request(request)
            return inputs["prompt_token_ids"], await self.chat_completion_full_generator(request, engine())

        async def ask(self, request):
            """The prompt the engine was given, and the reply as a client would send it back."""
            prompt_ids, answer = await self.answer(request)
            return prompt_ids, answer.choices[0].message.model_dump()

    _wrap_chat_server(SimpleNamespace(OpenAIServingChat=ChatServer))  # pyright: ignore[reportArgumentType]
    return ChatServer()


class Reply:
    def __init__(self, calls):
        self.tool_calls = [
            SimpleNamespace(id=i, function=SimpleNamespace(name=name, arguments=text)) for i, name, text in calls
        ]

    def model_dump(self):
        calls = [{"id": call.id, "function": dict(vars(call.function))} for call in self.tool_calls]
        return {"role": "assistant", "content": "three"} | ({"tool_calls": calls} if calls else {})


async def test_the_chat_server_continues_from_what_its_engine_sampled():
    server = chat_server()
    assert await server.ask(ask([ASK])) == ([1, 4, 5], THREE)
    assert (await server.ask(ask([ASK, THREE, ASK])))[0] == [1, 4, 5, 30, 31, EOS, 4, 5]
    twice = [1, 4, 5, 30, 31, EOS, 4, 5, 30, 31, EOS, 4, 5]
    assert (await server.ask(ask([ASK, THREE, ASK, THREE, ASK])))[0] == twice


@pytest.mark.parametrize("prefix", [RANDOM_ID, "functions.execute_sql:"])
@pytest.mark.parametrize("arguments", ['{"a":1}', '"SELECT 1"', "[]", "null"])
async def test_arguments_may_be_anything_that_json_knows(arguments, prefix):
    """A text in quotes can be parsed once, not twice."""
    server = chat_server(calls=[(prefix, "execute_sql", arguments)])
    _, reply = await server.ask(ask([ASK]))
    assert reply["tool_calls"][0]["function"]["arguments"] == arguments
    second = [ASK, reply, {"role": "tool", "content": "[]"}]
    prompt, again = await server.ask(ask(copy.deepcopy(second)))
    assert prompt == [1, 4, 5, 30, 31, EOS, 4, 5]
    prompt, _ = await server.ask(ask([*second, again, ASK]))
    assert prompt == [1, 4, 5, 30, 31, EOS, 4, 5, 30, 31, EOS, 4, 5]


async def test_a_reply_that_new_weights_cut_off_is_an_abort_even_if_it_reads_as_a_call_and_is_not_remembered(
    monkeypatch,
):
    monkeypatch.setattr(model_server, "weights_version", 7)
    server = chat_server(calls=[(RANDOM_ID, "execute_sql", "{}")])
    _, cut = await server.answer(ask([ASK]), finish_reason="abort")
    assert (cut.choices[0].finish_reason, cut.system_fingerprint) == ("abort", "7")
    reply = cut.choices[0].message.model_dump()
    prompt, whole = await server.answer(ask([ASK, reply, {"role": "tool", "content": "[]"}]))
    assert (prompt, whole.choices[0].finish_reason) == ([1, 4, 35, EOS, 4, 5], "tool_calls")  # rendered anew


async def test_half_a_pair_of_escapes_loses_no_reply():
    """JSON may hold it, an answer in UTF-8 may not."""
    server = chat_server(calls=[(RANDOM_ID, "execute\ud83d", '{"query": "\ud83d"}')])
    _, reply = await server.ask(ask([ASK]))
    assert reply["tool_calls"][0]["function"] == {"name": "execute?", "arguments": '{"query": "?"}'}


async def test_the_chat_server_keeps_scopes_apart():
    server = chat_server()
    await server.ask(ask([ASK], user="rollout-a"))
    assert (await server.ask(ask([ASK, THREE, ASK], user="rollout-b")))[0] == [1, 4, 35, EOS, 4, 5]
    assert (await server.ask(ask([ASK, THREE, ASK], user="rollout-a")))[0] == [1, 4, 5, 30, 31, EOS, 4, 5]


async def test_the_chat_server_keeps_agents_of_other_tools_apart():
    """An agent that hands over to one with the same instructions; its tools are part of the prompt."""
    server, tools = chat_server(), [{"type": "function", "function": {"name": "look"}}]
    await server.ask(ask([ASK], tools=tools))
    assert (await server.ask(ask([ASK, THREE, ASK])))[0] == [1, 4, 35, EOS, 4, 5]
    assert (await server.ask(ask([ASK, THREE, ASK], tools=tools)))[0] == [1, 4, 5, 30, 31, EOS, 4, 5]


@pytest.mark.slow  # imports vLLM
async def test_arguments_that_vllm_cannot_read_for_their_brackets_are_the_models_fault_and_no_error_of_the_server():
    from vllm.exceptions import VLLMValidationError

    deep = call(ONE, arguments="[" * 1100 + "]" * 1100)
    with pytest.raises(VLLMValidationError) as refusal:
        await chat_server().ask(ask([ASK, deep, ASK]))
    assert is_unread_call(400, str(refusal.value))


@pytest.mark.slow  # imports vLLM
async def test_a_conversation_that_is_too_long_only_as_it_was_sampled_is_refused_like_any_other():
    from vllm.exceptions import VLLMValidationError

    server = chat_server(max_model_len=8)  # the template's prompt has 6 ids, the sampled one 8
    await server.ask(ask([ASK]))
    with pytest.raises(VLLMValidationError, match="maximum context length is 8 tokens, and the prompt has 8"):
        await server.ask(ask([ASK, THREE, ASK]))
