"""Token-exact conversations: what the engine sampled goes back to it as the very ids it sampled.

A chat server renders every request anew: it parses a tool call out of the sampled text, the agent sends the parsed call
back, the template writes it down again and the tokenizer cuts it its own way. The next prompt then need not begin with
the ids that were sampled, and the rollout breaks into pieces that cannot be trained as one sequence.

Here vLLM's chat server keeps, for the latest conversations, the ids up to and including each sampled reply. When a
request continues one of them, those ids are used as they are and only what follows the reply is taken from the
template. This holds for every model family whose template ends an assistant turn with the EOS token, whatever the agent
makes of the tool call. A conversation it does not know (another replica's, an evicted one), or could take for another
one, is rendered as always; the rollout manager counts the break if there is one.

Not for multi-modal prompts. Source of the two methods that are wrapped: vLLM
entrypoints/openai/chat_completion/serving.py, `render_chat_request` and `chat_completion_full_generator`.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

CAPACITY = 4096
"""Replies remembered per server: 16 MiB at 1,000 tokens each; far more than a batch of rollouts has open."""
RANDOM_ID = "chatcmpl-tool-"
"""vLLM's `make_tool_call_id`. The ids of some parsers (kimi_k2) only count, and are the same in every conversation."""


def conversation_key(messages: Sequence[Mapping[str, Any]], scope: str | None = None) -> str:
    """Names the conversation that ends with an assistant message, as its client will send it back.

    A reply with tool calls whose ids the server drew at random is named by them, so an agent may reorder or re-render
    everything else. Any other reply is named by the whole conversation up to it.

    Args:
        scope: what the client says of itself in every request (`user`); conversations of two scopes are never alike.
    """
    ids = _tool_call_ids(messages[-1])
    if ids and all(call_id.startswith(RANDOM_ID) for call_id in ids):
        return json.dumps([scope, ids])
    return json.dumps([scope, *([m.get("role"), _text(m.get("content")), _calls(m)] for m in messages)])


def continue_exactly(
    known: Sequence[int], rendered_reply: Sequence[int], rendered: Sequence[int], eos: int
) -> list[int] | None:
    """The prompt that continues `known`, or None where the template leaves no seam to join at.

    Args:
        known: prompt and sampled ids up to the end of the reply.
        rendered_reply: the template's ids of the conversation up to and including that reply, no generation prompt.
        rendered: the template's ids of the whole request; begins with `rendered_reply`.
        eos: ends an assistant turn.
    Returns:
        `known`, an EOS if the reply was cut before it, then everything that `rendered` has after the reply's EOS.
    """
    if list(rendered[: len(rendered_reply)]) != list(rendered_reply) or eos not in rendered_reply:
        return None
    end = len(rendered_reply) - list(reversed(rendered_reply)).index(eos)
    closed = list(known) if known[-1] == eos else [*known, eos]
    return closed + list(rendered[end:])


class ReplyMemory:
    """The ids of the latest conversations, by `conversation_key`; the least recently used one goes first.

    Two rollouts of a task may say the same text in other tokens. Whoever comes back with it is not known then.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ids: OrderedDict[str, list[int] | None] = OrderedDict()
        self._capacity = capacity

    def remember(self, messages: Sequence[Mapping[str, Any]], ids: Iterable[int], scope: str | None = None) -> None:
        key, ids = conversation_key(messages, scope), list(ids)
        self._ids[key] = ids if self._ids.get(key, ids) == ids else None
        self._ids.move_to_end(key)
        while len(self._ids) > self._capacity:
            self._ids.popitem(last=False)

    def recall(self, messages: Sequence[Mapping[str, Any]], scope: str | None = None) -> tuple[int, list[int]] | None:
        """Number of messages covered and their ids, for the last assistant message; None if it is not known."""
        last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=None)
        if last is None:
            return None
        key = conversation_key(messages[: last + 1], scope)
        ids = self._ids.get(key)
        if ids is None:
            return None
        self._ids.move_to_end(key)
        return last + 1, ids


def _wrap_chat_server(module: ModuleType) -> None:
    server = module.OpenAIServingChat
    render, generate = server.render_chat_request, server.chat_completion_full_generator
    memory = ReplyMemory()

    async def render_chat_request(self: Any, request: Any) -> Any:
        # Pydantic leaves `tool_calls` as one-shot iterators, and rendering parses their arguments in place; what the
        # client sent is needed again below, and to name the conversation when its reply is there.
        for message in request.messages:
            if isinstance(message, dict) and message.get("tool_calls") is not None:
                message["tool_calls"] = list(message["tool_calls"])
        sent = copy.deepcopy(request.messages)
        rendered = await render(self, request)
        request.messages = sent
        known = memory.recall(request.messages, request.user)
        if known is None or not isinstance(rendered, tuple):
            return rendered
        conversation, engine_inputs = rendered
        covered, ids = known
        reply = request.model_copy(update={"messages": copy.deepcopy(sent[:covered]), "add_generation_prompt": False})
        rendered_reply = await render(self, reply)
        if isinstance(rendered_reply, tuple) and len(engine_inputs) == 1:
            exact = continue_exactly(
                ids,
                rendered_reply[1][0]["prompt_token_ids"],
                engine_inputs[0]["prompt_token_ids"],
                self.renderer.tokenizer.eos_token_id,
            )
            if exact is not None:
                _check_length(exact, self.model_config.max_model_len)
                engine_inputs[0]["prompt_token_ids"] = exact
        return conversation, engine_inputs

    async def chat_completion_full_generator(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = await generate(self, request, *args, **kwargs)
        choices = getattr(response, "choices", None)
        if choices and choices[0].token_ids and response.prompt_token_ids:
            for call in choices[0].message.tool_calls or []:
                call.function.name = _utf8(call.function.name)
                call.function.arguments = _utf8(call.function.arguments)
            reply = choices[0].message.model_dump()
            ids = [*response.prompt_token_ids, *choices[0].token_ids]
            memory.remember([*request.messages, reply], ids, request.user)
        return response

    server.render_chat_request = render_chat_request
    server.chat_completion_full_generator = chat_completion_full_generator


def _check_length(ids: Sequence[int], max_model_len: int) -> None:
    """Refuse what vLLM's renderer refuses; it saw the template's own prompt, which may be shorter."""
    if len(ids) >= max_model_len:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(
            f"This model's maximum context length is {max_model_len} tokens, and the prompt has {len(ids)}"
        )


def _utf8(text: str) -> str:
    """Without halves of a pair of escapes (\\ud83d), which JSON may hold and no answer can carry: vLLM would refuse its
    own reply, and the rollout would be lost for something that the policy said."""
    return text.encode("utf-8", "replace").decode()


def _calls(message: Mapping[str, Any]) -> list[list[Any]]:
    calls = message.get("tool_calls") or []
    return [[call["id"], call["function"]["name"], call["function"]["arguments"]] for call in calls]


def _tool_call_ids(message: Mapping[str, Any]) -> list[str]:
    return [str(call["id"]) for call in message.get("tool_calls") or []]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    return content or ""
