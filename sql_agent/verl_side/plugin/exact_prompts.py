"""Keeps conversations token-exact: the next prompt contains exactly the token ids that the engine sampled.

A chat server renders every request anew: it parses a tool call out of the sampled text, the agent sends the parsed call
back, the template writes it again and the tokenizer may split it differently. Then the next prompt may not begin with
the ids that were sampled, and the rollout breaks into pieces that cannot be trained as one sequence.

Here vLLM's chat server remembers, for the latest conversations, the ids up to and including each sampled reply. When a
request continues one of them, those ids are used unchanged, and the template provides only the part after the reply
(`agentgrpo.chat.continuation`). This works for every model family whose template ends an assistant turn with a token
that the engine stops at, even if the agent changes the tool call and the template changes earlier turns. A conversation
that is unknown (another replica's, an evicted one) or ambiguous is rendered as usual, and the rollout manager counts
the break if there is one. Source of the two methods that are wrapped: vLLM
entrypoints/openai/chat_completion/serving.py, `render_chat_request` and `chat_completion_full_generator`.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from agentgrpo.chat.continuation import another_reply, continue_exactly
from sql_agent.verl_side.plugin import model_server

# Memory for a server's replies: 16,000 of 1,000 tokens each, far more than a batch of rollouts has open.
CAPACITY_BYTES = 64 * 2**20
# Memory of an entry besides its ids: key, array and table (about 390 bytes measured).
ENTRY_BYTES = 512
# The prefix of vLLM's `make_tool_call_id`. Some parsers (kimi_k2) count, so ids repeat in every conversation.
RANDOM_ID = "chatcmpl-tool-"


def conversation_key(messages: Sequence[Mapping[str, Any]], scope: str | None = None) -> str:
    """The conversation ends with an assistant message, as its client will send it back.

    A reply with tool calls is identified by the ids of the calls if the server drew them at random. So an agent may
    re-render the reply, and return the results of parallel calls in any order. Every other change makes it another
    conversation (other instructions after a handoff, a history that was cut), and the policy reads that as it was sent.

    Args:
        scope: other values that all requests of the conversation share, such as the client's name; conversations of
        different scopes have different keys.
    Returns:
        A digest of 64 characters.
    """
    said: list[Any] = []
    for is_result, group in itertools.groupby(messages, lambda message: message.get("role") == "tool"):
        named = map(_named, group)
        said += sorted(named) if is_result else named
    return hashlib.sha256(json.dumps([scope, *said]).encode()).hexdigest()


class ReplyMemory:
    """Token ids of the latest conversations by `conversation_key`; the least recently used one is evicted first.

    Two rollouts of a task may have the same text in different tokens. Such a conversation counts as unknown.

    Args:
        capacity: size of all entries together, in bytes.
    """

    def __init__(self, capacity: int = CAPACITY_BYTES) -> None:
        self._ids: OrderedDict[str, array[int] | None] = OrderedDict()
        self._capacity, self._bytes = capacity, 0

    def remember(self, messages: Sequence[Mapping[str, Any]], ids: Iterable[int], scope: str | None = None) -> None:
        key, new = conversation_key(messages, scope), array("i", ids)
        known = self._ids.get(key, new)
        if key in self._ids:
            self._bytes -= _size(known)
        self._ids[key] = entry = new if known == new else None
        self._bytes += _size(entry)
        self._ids.move_to_end(key)
        while self._bytes > self._capacity:
            self._bytes -= _size(self._ids.popitem(last=False)[1])

    def recall(self, messages: Sequence[Mapping[str, Any]], scope: str | None = None) -> tuple[int, list[int]] | None:
        """The number of messages up to the last assistant message and their ids; None if they are not known."""
        last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=None)
        if last is None:
            return None
        key = conversation_key(messages[: last + 1], scope)
        ids = self._ids.get(key)
        if ids is None:
            return None
        self._ids.move_to_end(key)
        return last + 1, ids.tolist()


def _size(ids: array[int] | None) -> int:
    return ENTRY_BYTES + (0 if ids is None else len(ids) * ids.itemsize)


def _wrap_chat_server(module: ModuleType) -> None:
    server = module.OpenAIServingChat
    render, generate = server.render_chat_request, server.chat_completion_full_generator
    memory = ReplyMemory()
    ends = functools.cache(_ends)  # reads a file; a process has one server

    async def render_chat_request(self: Any, request: Any) -> Any:
        # Pydantic leaves `tool_calls` as one-shot iterators, and rendering parses their arguments in place. The
        # original messages are needed again below, and for the conversation's key when its reply is there.
        for message in request.messages:
            if isinstance(message, dict) and message.get("tool_calls") is not None:
                message["tool_calls"] = list(message["tool_calls"])
        sent = copy.deepcopy(request.messages)
        try:
            rendered = await render(self, request)
        except RecursionError:  # vLLM takes any other fault of arguments for the client's, and answers this one by 500
            _refuse_nested_arguments()
        request.messages = sent
        known = memory.recall(request.messages, _scope(request))
        if known is None or not isinstance(rendered, tuple):
            return rendered
        conversation, engine_inputs = rendered
        covered, ids = known
        messages = copy.deepcopy(sent)
        messages[covered - 1] = another_reply(messages[covered - 1])
        otherwise = await render(self, request.model_copy(update={"messages": messages}))
        if isinstance(otherwise, tuple) and len(engine_inputs) == 1:
            exact = continue_exactly(
                ids,
                engine_inputs[0]["prompt_token_ids"],
                otherwise[1][0]["prompt_token_ids"],
                ends(self),
            )
            if exact is not None:
                _check_length(exact, self.model_config.max_model_len)
                engine_inputs[0]["prompt_token_ids"] = exact
        return conversation, engine_inputs

    async def chat_completion_full_generator(
        self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any
    ) -> Any:
        aborted, weights = False, 0

        async def watched() -> Any:
            nonlocal aborted, weights
            async for output in result_generator:
                aborted, weights = output.outputs[0].finish_reason == "abort", model_server.weights_version
                yield output

        response = await generate(self, request, watched(), *args, **kwargs)
        choices = getattr(response, "choices", None)
        if choices:
            response.system_fingerprint = str(weights)
        if choices and aborted:  # vLLM says tool_calls if what was sampled until then can be read as a call
            choices[0].finish_reason = "abort"
        elif choices and choices[0].token_ids and response.prompt_token_ids:
            for call in choices[0].message.tool_calls or []:
                call.function.name = _utf8(call.function.name)
                call.function.arguments = _utf8(call.function.arguments)
            reply = choices[0].message.model_dump()
            ids = [*response.prompt_token_ids, *choices[0].token_ids]
            memory.remember([*request.messages, reply], ids, _scope(request))
        return response

    server.render_chat_request = render_chat_request
    server.chat_completion_full_generator = chat_completion_full_generator


def _ends(server: Any) -> frozenset[int]:
    # As in vLLM (`SamplingParams.update_from_generation_config`): turns of Gemma and Llama do not end with the
    # tokenizer's EOS.
    more = server.model_config.try_get_generation_config().get("eos_token_id") or []
    return frozenset([server.renderer.tokenizer.eos_token_id, *([more] if isinstance(more, int) else more)])


def _refuse_nested_arguments() -> NoReturn:
    from vllm.exceptions import VLLMValidationError

    # clients read these words as a call that the model wrote wrongly (`model_servers.refusals`)
    raise VLLMValidationError("Failed to parse tool call arguments: brackets are nested too deep") from None


def _check_length(ids: Sequence[int], max_model_len: int) -> None:
    # vLLM's renderer only saw the template's prompt, which may be shorter.
    if len(ids) >= max_model_len:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(
            f"This model's maximum context length is {max_model_len} tokens, and the prompt has {len(ids)}"
        )


def _utf8(text: str) -> str:
    # JSON may hold lone surrogates (\ud83d), which UTF-8 cannot encode. vLLM would refuse its own reply, and the
    # rollout would be lost because of the policy's text.
    return text.encode("utf-8", "replace").decode()


def _named(message: Mapping[str, Any]) -> list[Any]:
    ids = _tool_call_ids(message)
    if ids and all(call_id.startswith(RANDOM_ID) for call_id in ids):
        return [ids]
    call_id = str(message.get("tool_call_id") or "")
    return [str(message.get("role")), call_id, _text(message.get("content")), _calls(message)]


def _scope(request: Any) -> str:
    # All requests of a conversation share the client's name, and the tools that the prompt describes.
    tools = [tool if isinstance(tool, dict) else tool.model_dump(mode="json") for tool in request.tools or []]
    return json.dumps([request.user, tools], sort_keys=True)


def _calls(message: Mapping[str, Any]) -> list[list[Any]]:
    calls = message.get("tool_calls") or []
    return [[call["id"], call["function"]["name"], call["function"]["arguments"]] for call in calls]


def _tool_call_ids(message: Mapping[str, Any]) -> list[str]:
    return [str(call["id"]) for call in message.get("tool_calls") or []]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    return content or ""
