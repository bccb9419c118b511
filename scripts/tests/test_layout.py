"""No code that nothing uses, and no error that is caught without a reason.

`lint-imports` checks the layers, and that no two folders import each other.
"""

import re
from pathlib import Path

from vulture import Vulture

from agentgrpo import INTERFACE
from agentgrpo.checks import CHECKS
from bench.main_job import PARTS
from sql_agent.credit.registry import ESTIMATORS, LOSSES
from sql_agent.names import ENVIRONMENTS, SAMPLERS, USER
from sql_agent.upstream_patches import PATCHES

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "agentgrpo",
    "dbbench_adapter",
    "reward_model",
    "sql_agent",
    "bench",
    "scripts",
)
CALLED_BY_FRAMEWORKS = {
    "Python": {"__getattr__", "__dir__"},
    "sqlite3": {"finalize"},
    "the policy": {"calculator"},
    "transformers": {"on_train_begin", "on_log", "on_save", "on_step_end"},
    "TRL": {
        "_prepare_dataset", "execute_sql", "commit_final_answer", "get_reward", "_generate_single_turn", "_generate",
    },
    "uvicorn": {"capture_signals"},
    "openai-agents": {
        "_fetch_response", "on_span_start", "on_span_end", "on_trace_start", "on_trace_end", "force_flush",
    },
    "IPython": {"_repr_html_"},
    "torch": {"forward"},
    "LangChain": {"on_chat_model_start", "on_llm_end", "on_llm_error"},
    "agent-lightning": {
        "enqueue_rollout", "rollout_async", "trace_context", "get_last_trace", "_spawn_runners",
        "get_langchain_handler", "get_rollout_results", "_post_process_rollout_result",
    },
    "verl": {
        "PackedEngine", "FlexEngine", "DrainedWeightSync", "forward_step", "EpisodeTool", "EpisodeLoop", "TurnManager",
        "_handle_processing_tools_state",
    },
    "verl's platform": {
        "current_device", "device_count", "set_device", "synchronize", "manual_seed_all", "set_allocator_settings",
        "empty_cache", "get_device_capability", "communication_backend_name", "visible_devices_envvar", "nvtx_range",
        "profiler_start", "profiler_stop", "ray_resource_name", "ray_resource_options", "ray_noset_envvars",
        "is_ipc_supported", "cudart",
    },
}  # fmt: skip
"""Methods and classes that only a library calls, by library."""
DECORATED = ["@model_validator*", "@field_validator*", "@app.*", "@*.get", "@*.post"]
"""Functions that a decorator hands to pydantic or FastAPI."""


def test_every_function_class_and_method_is_used_outside_the_tests():
    vulture = Vulture(ignore_decorators=DECORATED)
    vulture.scavenge([str(ROOT / package) for package in PACKAGES], exclude=["*/tests/*"])
    unused = [*vulture.unused_funcs, *vulture.unused_classes, *vulture.unused_methods, *vulture.unused_props]
    by_name = (
        [patch.by for patch in PATCHES]
        + [*ENVIRONMENTS.values(), USER, *ESTIMATORS.values(), *LOSSES.values(), *SAMPLERS.values()]
        + [check.run for check in CHECKS]
        + [":".join(part) for part in PARTS.values()]
    )
    called = {name.rpartition(":")[2] for name in by_name}.union(INTERFACE, *CALLED_BY_FRAMEWORKS.values())
    assert [str(item) for item in unused if item.name not in called] == []


def test_whatever_catches_every_error_says_why_on_its_line():
    """`except Exception` hides mistakes of our own, so it stands at a boundary, which its comment names."""
    broad = re.compile(r"except (?:Base)?Exception\b[^#]*$")
    files = [file for package in (*PACKAGES, "examples") for file in sorted((ROOT / package).rglob("*.py"))]
    lines = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in files
        if "tests" not in file.parts
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if broad.search(line)
    ]
    assert lines == []
