"""Makes our changes to verl and vLLM; every verl process loads it through `VERL_USE_EXTERNAL_MODULES`.

The changes are our advantages and losses (`credit`), exact prompts in vLLM's chat server, merged weights from LoRA
runs, no update on a mini-batch whose rows are all lost, recurrent states that end with their conversation, reports of
micro-batches, with `VERL_PLATFORM=cpu` the CPU platform, and there or with `engine.shared_prompts` the engine that
computes shared prompts once. Each module names the upstream code that it replaces; `sql_agent.upstream_patches` lists
them all.
"""

import logging
import os
from types import ModuleType

from agentgrpo.imports import after_import
from sql_agent import upstream_patches as patches
from sql_agent.cluster.network import settle
from sql_agent.verl_side.plugin import credit
from sql_agent.verl_side.plugin.balance import shares_prompts

settle()
_CPU = os.environ.get("VERL_PLATFORM") == "cpu"

credit.register()
patches.install(cpu=_CPU)


def silence_tool_parsers(_: ModuleType) -> None:
    """A malformed call is the policy's mistake and is counted; vLLM would log a traceback for each one."""
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)


# as it is imported, `vllm.logger` resets the level of every logger below "vllm" that is there already
after_import("vllm.logger", silence_tool_parsers)

if _CPU:
    from sql_agent.verl_side.plugin import cpu_platform

    cpu_platform.register_cpu_platform()


def register_engines(_: ModuleType) -> None:
    import sql_agent.verl_side.plugin.packed_engine  # noqa: F401  its decorators register them with verl


if shares_prompts():
    after_import("verl.workers.engine.fsdp.transformer_impl", register_engines)
