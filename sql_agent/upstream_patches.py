"""Lists and makes every change to an upstream library, and checks that none is missing.

If a library renamed a target, it would silently run without our change: no exact prompts, no merged weights. So a run
looks up every target in the installed sources before anything loads (`check_installed`), a change without effect raises
where it is made (`install`, `change`), and a process checks that its changes were made before it begins its work
(`require`). The table leaves out upstream's extension points (an advantage estimator, a platform, a router class): if
one of them is gone, the run fails anyway.

A new change is one line in `PATCHES`, and the function that it names. If two changes replace the same target, the later
one wraps the earlier one. Importing this module is instant.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from agentgrpo.printed_commands import agentgrpo_command

Process = Literal["driver", "trainer", "server", "own"]
"""Process in which a change has to be active: verl's driver, its training workers, its vLLM servers. `own`: every
process that imports our module with the change (it derives a class or replaces a module)."""

VERSIONS: dict[str, tuple[str, ...]] = {
    "agentlightning": ("0.3.0",),
    "agents": ("0.20.0",),
    "openai": ("2.54.0",),
    "ray": ("2.60.0",),
    "torch": ("2.13.0+cpu", "2.11.0"),
    "transformers": ("5.10.4", "5.9.0"),
    "uvicorn": ("0.54.0",),
    "verl": ("0.9.1",),
    "vllm": ("0.28.0+cpu", "0.24.0"),
}
"""The pinned versions by top-level module: first that of the CPU requirements, for which the changes were written and
tested, then that of the GPU requirements if it differs."""
DISTRIBUTIONS = {"agents": "openai-agents"}
"""Distributions whose name differs from their module's."""


@dataclass(frozen=True)
class Patch:
    process: Process
    by: str
    """The code that makes the change: `module:function`, called with the upstream module after its import; without a
    colon, that module's own code."""
    module: str
    """The upstream module."""
    names: tuple[str, ...]
    """The names that are replaced: `function`, `Class.method`, `Class.mapping.key`."""
    why: str
    cpu: bool = False
    """Whether the change is made only on a CPU."""


_PLUGIN = "sql_agent.verl_side.plugin."
_DRIVER = "sql_agent.verl_side.driver"
_ENGINE = "verl.workers.engine.fsdp.transformer_impl"
PATCHES = (
    # the vLLM servers that verl starts
    Patch(
        "server",
        f"{_PLUGIN}exact_prompts:_wrap_chat_server",
        "vllm.entrypoints.openai.chat_completion.serving",
        ("OpenAIServingChat.render_chat_request", "OpenAIServingChat.chat_completion_full_generator"),
        "exact prompts: what was sampled goes back as the ids it was sampled as",
    ),
    Patch(
        "server",
        f"{_PLUGIN}row_end:_reply_may_be_shorter",
        "vllm.entrypoints.openai.chat_completion.serving",
        ("OpenAIServingChat.render_chat_request",),
        "a rollout may use its whole row",
    ),
    Patch(
        "server",
        f"{_PLUGIN}model_server:_check_before_serving",
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        ("vLLMHttpServer.run_server",),
        "a server without one of these changes does not start",
    ),
    Patch(
        "server",
        f"{_PLUGIN}model_server:_look_at_answer",
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        ("vLLMHttpServer.clear_kv_cache",),
        "no step samples on keys and values of old weights",
    ),
    Patch(
        "server",
        f"{_PLUGIN}model_server:_limit_connections",
        "uvicorn.config",
        ("HTTP_PROTOCOLS.auto",),
        "slow or huge headers, and connections without a token, cost it nothing",
    ),
    Patch(
        "server",
        f"{_PLUGIN}vllm_cpu:_keep_plain_weights",
        "vllm.model_executor.layers.utils",
        ("dispatch_cpu_unquantized_gemm",),
        "new weights can be loaded while vLLM runs",
        cpu=True,
    ),
    Patch(
        "server",
        f"{_PLUGIN}vllm_cpu:_fork",
        "vllm.utils.system_utils",
        ("get_mp_context",),
        "the engine inherits what its parent has imported",
        cpu=True,
    ),
    # verl's training workers
    Patch(
        "trainer",
        f"{_PLUGIN}lost_mini_batches:_skip",
        "verl.workers.engine_workers",
        ("TrainingWorker.train_batch",),
        "a mini-batch whose rows are all lost moves no weight",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}trl_class:_hide_trl",
        "verl.utils.import_utils",
        ("is_trl_available",),
        "verl patches a class that TRL 1.16 no longer has",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}chain_states:_end_states",
        _ENGINE,
        ("FSDPEngineWithLMHead.prepare_model_inputs",),
        "a state that a layer carries from token to token ends with its conversation",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}micro_batch_progress:_report",
        _ENGINE,
        ("prepare_micro_batches", "FSDPEngine.forward_backward_batch"),
        "the progress line counts the micro-batches of an update",
    ),
    Patch("trainer", f"{_PLUGIN}lora:_seed", _ENGINE, ("FSDPEngine.initialize",), "the same adapter at each start"),
    Patch(
        "trainer",
        f"{_PLUGIN}lora:_save_merged",
        "verl.utils.checkpoint.fsdp_checkpoint_manager",
        ("get_fsdp_full_state_dict",),
        "a LoRA run's Hugging Face folder holds merged weights, which every server loads",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}lora:_send_float32",
        _ENGINE,
        ("FSDPEngine._merged_lora_per_tensor_param",),
        "merged weights reach a float32 sampler unrounded",
        cpu=True,
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}cpu_platform:_reference_stays",
        _ENGINE,
        ("CPUOffloadPolicy",),
        "the reference policy is not pinned for a GPU",
        cpu=True,
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}cpu_platform:_join_gloo",
        "torch.distributed",
        ("init_process_group",),
        "verl names the CPU's backend twice, which torch refuses",
        cpu=True,
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}packed_attention:_attend",
        "transformers.modeling_utils",
        ("AttentionInterface._global_mapping.sdpa",),
        "rows that begin alike are computed once up to where they part",
        cpu=True,
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}packed_attention:_leave_out_mask",
        "transformers.masking_utils",
        ("AttentionMaskInterface._global_mapping.sdpa",),
        "no mask over all rows, which is quadratic in their sum",
        cpu=True,
    ),
    # verl's driver
    Patch("driver", _DRIVER, "verl.utils.tracking", ("Tracking",), "metrics.jsonl and the console's line"),
    Patch(
        "driver",
        _DRIVER,
        "verl.trainer.ppo.ray_trainer",
        ("RayPPOTrainer._save_checkpoint", "RayPPOTrainer._load_checkpoint"),
        "checkpoints that say whether they are whole, and go on exactly where one was written",
    ),
    Patch(
        "driver",
        _DRIVER,
        "ray._private.node",
        ("Node.start_api_server", "Node.start_monitor"),
        "no dashboard, which asks three clouds; no autoscaler, whose metrics port answers everybody",
    ),
    Patch(
        "own",
        "agentgrpo.http_protocol",
        "uvicorn.config",
        ("HTTP_PROTOCOLS.auto",),
        "slow or huge headers, and connections without a token, cost store and LLM proxy nothing",
    ),
    # private methods that our classes override, and a module that ours replaces
    Patch(
        "own",
        "agentgrpo.agl_without_litellm",
        "agentlightning.llm_proxy",
        ("LLMProxy",),
        "processes without an LLM proxy do not import LiteLLM",
    ),
    Patch(
        "own",
        "sql_agent.lightning.store:StoreClient",
        "agentlightning.store.client_server",
        ("LightningStoreClient._get_session",),
        "the store's token is shown",
    ),
    Patch(
        "own",
        "sql_agent.lightning.store:PatientStore",
        "agentlightning.store.client_server",
        ("LightningStoreClient._request_json", "LightningStoreClient._dequeue_batch"),
        "every call of the store is patient, and the mark of a request is not shown",
    ),
    Patch(
        "own",
        "sql_agent.store_server:BoundedStore",
        "agentlightning.store.memory",
        tuple(
            f"InMemoryLightningStore.{name}"
            for name in ("_post_update_rollout", "_post_add_spans", "_maybe_evict_spans", "_evict_spans_for_rollout")
        ),
        "spans go once they are read",
    ),
    Patch(
        "own",
        "sql_agent.store_server:BoundedStore",
        "agentlightning.store.collection_based",
        tuple(
            f"CollectionBasedLightningStore.{name}"
            for name in ("_add_many_spans_helper", "_unlocked_update_rollout_only")
        ),
        "late spans of a rollout that ended are dropped",
    ),
    Patch(
        "own",
        "sql_agent.lightning.runner_processes:LastingRunners",
        "agentlightning.execution.client_server",
        tuple(
            f"ClientServerExecutionStrategy.{name}"
            for name in ("_spawn_runners", "_shutdown_processes", "_execute_algorithm")
        ),
        "runners that are killed come back; the run's store looks who asks",
    ),
    Patch(
        "own",
        "sql_agent.own_agents.default_client",
        "openai._base_client",
        ("SyncAPIClient.request", "AsyncAPIClient.request"),
        "the policy answers the clients that a user's agent made",
    ),
    Patch(
        "own",
        "sql_agent.play.served:_PolicyModel",
        "agents.models.openai_chatcompletions",
        ("OpenAIChatCompletionsModel._fetch_response",),
        "the policy's turns go back as they came",
    ),
)


class PatchError(ValueError):
    """Says that an upstream library is not the version for which one of our changes was written."""


# In the installed sources ---------------------------------------------------------------------------------------------


def check_installed(*, cpu: bool) -> None:
    """Look up every target in the installed packages, whose code is read but not run; it takes half a second.

    Raises:
        PatchError: a target that a run needs is missing.
    """
    for patch in PATCHES:
        for name in patch.names:
            if (cpu or not patch.cpu) and not in_sources(patch.module, name):
                raise _missing(patch, name)


def in_sources(module: str, name: str) -> bool:
    """Return whether the installed `module` defines or imports `name` (see `Patch.names`)."""
    file = _file(module)
    node: ast.AST | None = None if file is None else _parsed(file)
    for part in name.split("."):
        if file is None or node is None:
            return False
        node = next((member for its, member in _members(node, file) if its == part), None)
    return node is not None


def _file(module: str) -> Path | None:
    """Return the module's file; `find_spec` of the whole name would import its parent packages."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = (Path(folder, *rest) for folder in folders)
    files = (file for path in paths for file in (path / "__init__.py", path.with_suffix(".py")))
    return next((file for file in files if file.is_file()), None)


@functools.lru_cache(maxsize=32)
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _members(node: ast.AST, file: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield the members of a module, a class or a dict literal, by name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if isinstance(node, ast.Dict):
        yield from ((key.value, value) for key, value in zip(node.keys, node.values, strict=True) if _is_text(key))  # type: ignore[union-attr]
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield child.name, child
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.ImportFrom(names=[ast.alias(name="*")], level=1, module=str(module)):
                star = file.with_name(f"{module}.py")
                yield from _members(_parsed(star), star)
            case ast.ImportFrom(names=names):
                yield from ((alias.asname or alias.name, child) for alias in names)
            case ast.If() | ast.Try() | ast.ExceptHandler():
                yield from _members(child, file)


def _is_text(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)


# In a process ---------------------------------------------------------------------------------------------------------

_made: set[Patch] = set()
_wanted: set[Patch] = set()


def install(*, cpu: bool) -> None:
    """Make the plugin's changes, in imported modules now and in others right after their import."""
    from agentgrpo.import_hook import after_import

    _wanted.update(patch for patch in PATCHES if patch.process != "own" and (cpu or not patch.cpu))
    for patch in PATCHES:
        if patch in _wanted and patch.by.startswith(_PLUGIN):
            after_import(patch.module, functools.partial(_make_named, patch))


def change(module: ModuleType, make: Callable[[Any], None]) -> None:
    """Call `make(module)` for the change of that module that the driver makes.

    Raises:
        PatchError: a target is missing or unchanged.
    """
    (patch,) = (patch for patch in PATCHES if patch.by == _DRIVER and patch.module == module.__name__)
    _make(patch, make, module)


def require(process: Process) -> None:
    """Check that all changes for this kind of process were made.

    Raises:
        PatchError: a change was not made, because its module was never imported.
    """
    for patch in PATCHES:
        if patch.process == process and patch in _wanted - _made:
            raise PatchError(
                f"{patch.by} did not change {patch.module}:{patch.names[0]} in this process: {patch.why}. The plugin "
                "does that once the module is imported: either it never was, since the library uses another one, or "
                "sql_agent/upstream_patches.py names code outside of the plugin. Report it with logs/driver.log"
            )


def _make_named(patch: Patch, module: ModuleType) -> None:
    ours, _, function = patch.by.partition(":")
    _make(patch, getattr(importlib.import_module(ours), function), module)


def _make(patch: Patch, make: Callable[[Any], None], module: ModuleType) -> None:
    before = {name: _look_up(patch, module, name) for name in patch.names}
    make(module)
    for name, upstream in before.items():
        if _look_up(patch, module, name) is upstream:
            raise PatchError(f"{patch.by} left {module.__name__}:{name} as it was; {patch.why}")
    _made.add(patch)


def _look_up(patch: Patch, module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = found[name] if isinstance(found, Mapping) else inspect.getattr_static(found, name)
        except (AttributeError, KeyError):
            raise _missing(patch, path) from None
    return found


def _missing(patch: Patch, name: str) -> PatchError:
    library = patch.module.partition(".")[0]
    distribution = DISTRIBUTIONS.get(library, library)
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    return PatchError(
        f"{patch.module}:{name} is not where {distribution} {' and '.join(VERSIONS[library])} had it ({installed} is "
        f"installed), so {patch.by} cannot replace it: {patch.why}. `{agentgrpo_command('doctor')}` says how to "
        "install what is pinned; for another version adapt that code and sql_agent/upstream_patches.py"
    )
