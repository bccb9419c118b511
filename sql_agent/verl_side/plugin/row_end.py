"""Lets a reply use the rest of its rollout's row.

vLLM's chat server (entrypoints/openai/chat_completion/protocol.py, `build_tok_params`) refuses a prompt that leaves
less than `max_tokens` of `max_model_len`. That would end a rollout long before its row is full: with 512 tokens per
reply and a row of 512 + 768, a rollout whose first prompt has 500 tokens could use 268 of its 768. Here the prompt may
fill the row except for one token, and the reply gets the rest, `max_tokens` at most. So `max_model_len` can be the
length of the longest row: the KV cache needs no more, and a model with exactly that many positions can be served.

The client sends the row's end in `vllm_xargs` (`sql_agent.datatypes.ROW_END`), because first prompts differ in length.
The engine knows the length of the next prompt.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sql_agent.datatypes import ROW_END


def _reply_may_be_shorter(module: ModuleType) -> None:
    upstream = module.OpenAIServingChat.render_chat_request

    async def render_chat_request(self: Any, request: Any) -> Any:
        if request.max_tokens is None:
            return await upstream(self, request)
        asked, request.max_tokens = request.max_tokens, None
        rendered = await upstream(self, request)
        request.max_tokens = asked
        if isinstance(rendered, tuple):  # else an error
            end = min(
                (request.vllm_xargs or {}).get(ROW_END, self.model_config.max_model_len),
                self.model_config.max_model_len,
            )
            request.max_tokens = reply_tokens(asked, end, max(len(one["prompt_token_ids"]) for one in rendered[1]))
        return rendered

    module.OpenAIServingChat.render_chat_request = render_chat_request


def reply_tokens(asked: int, row_end: int, prompt: int) -> int:
    """Tokens that a reply may have.

    Args:
        asked: the request's `max_tokens`.
        row_end: tokens of the whole row.
        prompt: tokens of this request's prompt.
    Raises:
        VLLMValidationError: the prompt fills the row; clients read the message as a full context.
    """
    if prompt >= row_end:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(
            f"This rollout's maximum context length is {row_end} tokens, and the prompt has {prompt}"
        )
    return min(asked, row_end - prompt)
