"""Changes to verl's model server (workers/rollout/vllm_rollout/vllm_async_server.py, `vLLMHttpServer`).

All our changes are in place before it serves, vLLM's prefix cache is empty when it has new weights, connections that
have not shown the token are limited, and it is known with which weights a reply was sampled.

A reply can use the rest of its rollout's row. vLLM's chat server (entrypoints/openai/chat_completion/protocol.py,
`build_tok_params`) refuses a prompt that leaves less than `max_tokens` of `max_model_len`. That would end a rollout
long before its row is full: with 512 tokens per reply and a row of 512 + 768, a rollout whose first prompt has 500
tokens could use 268 of its 768. Here the prompt may fill the row except for one token, and the reply gets the rest,
`max_tokens` at most. So `max_model_len` can be the length of the longest row: the KV cache needs no more, and a model
with exactly that many positions can be served. The client sends the row's end in `vllm_xargs`
(`sql_agent.datatypes.ROW_END`), because first prompts differ in length. The engine knows the length of the next prompt.

The servers start on GPUs of their own where `cluster.sampler_gpus` asks for that. verl has such servers for the
trainers of its experimental folder (experimental/one_step_off_policy/ray_trainer.py makes `LLMServerManager` without
workers), while its V0 trainer always names its workers, so that a server shares the GPU of each. Everything else that
these need is where V0 looks for it: the checkpoint engine of the config sends the weights, to servers that never sleep.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from sql_agent import upstream_patches as patches
from sql_agent.datatypes import ROW_END

weights_version = 0
"""The train step whose update made the weights that this process samples with; 0: the initial ones."""


class StaleCacheError(RuntimeError):
    """vLLM keeps keys and values of the old weights."""


def _check_before_serving(module: ModuleType) -> None:
    upstream = module.vLLMHttpServer.run_server

    async def run_server(self: Any, args: Any) -> None:
        # A user has it for `vllm serve`; vLLM would take it in place of the size that the run's memory is planned with
        # (platforms/cpu.py, `check_and_update_config`).
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
        await upstream(self, args)  # imports the modules that are checked
        patches.require_patched("server")

    module.vLLMHttpServer.run_server = run_server


def _look_at_answer(module: ModuleType) -> None:
    upstream = module.vLLMHttpServer.clear_kv_cache

    async def clear_kv_cache(self: Any) -> None:
        if self.node_rank == 0 and not await self.engine.reset_prefix_cache(reset_connector=True):
            raise StaleCacheError(
                "vLLM could not empty its prefix cache after a weight sync, since calls are in flight: the next "
                "rollouts would be sampled on keys and values of the old weights. Give the same command again; if it "
                "stops here again, report logs/driver.log: sql_agent/verl_side/servers.py has left a call in flight"
            )
        await upstream(self)

    module.vLLMHttpServer.clear_kv_cache = clear_kv_cache


def _know_the_weights(module: ModuleType) -> None:
    upstream = module.vLLMHttpServer.set_global_steps

    async def set_global_steps(self: Any, global_steps: int) -> None:
        # Ray copies this class with the globals of its functions; `exact_prompts` reads those of the module.
        from sql_agent.verl_side.plugin import model_server

        await upstream(self, global_steps)
        model_server.weights_version = global_steps

    module.vLLMHttpServer.set_global_steps = set_global_steps


def _limit_connections(module: ModuleType) -> None:
    # as `agentgrpo.http_protocol.guard_upstreams_servers`, which cannot be imported before uvicorn is
    module.HTTP_PROTOCOLS["auto"] = "agentgrpo.http_protocol:GuardedHttpProtocol"


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


def _serve_apart(module: ModuleType) -> None:
    upstream = module.LLMServerManager.create.__func__

    def create(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["config"].actor_rollout_ref.rollout.nnodes:
            kwargs |= {"worker_group": None, "rollout_resource_pool": None}
        return upstream(cls, *args, **kwargs)

    module.LLMServerManager.create = classmethod(create)
