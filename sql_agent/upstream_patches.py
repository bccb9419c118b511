"""Lists and makes every change to an upstream library, and checks that none is missing and that all fit.

If a library renamed a target, it would silently run without our change: no exact prompts, no merged weights. So a run
looks up every target in the installed sources before anything loads and compares its parameters with ours
(`check_installed`), a change without effect or with other parameters raises where it is made (`install`, `change`), and
a process checks that its changes were made before it begins its work (`require`). What is private and only used is
listed too. The table leaves out upstream's extension points (an advantage estimator, a platform, a router class): if
one of them is gone, the run fails anyway.

A new change is one line in `PATCHES`, and the function that it names. If two changes replace the same target, the later
one wraps the earlier one. Importing this module is instant.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from agentgrpo.printed_commands import agentgrpo_command
from sql_agent.upstream_sources import find, misfit, signature_of

# Process in which a change has to be active: verl's driver, its training workers, its vLLM servers. `own`: every
# process that imports our module with the change (it derives a class, replaces a module or uses what is private).
# `local`: the same in commands that train without servers, which a main job does not look at.
Process = Literal["driver", "trainer", "server", "own", "local"]

# The pinned versions by top-level module: first that of the CPU requirements, for which the changes were written and
# tested, then that of the GPU requirements if it differs.
VERSIONS: dict[str, tuple[str, ...]] = {
    "agentlightning": ("0.3.0",),
    "agents": ("0.24.0",),
    "openai": ("3.57.0",),
    "pymysql": ("1.2.4",),
    "ray": ("2.60.0",),
    "torch": ("2.13.0+cpu", "2.11.0"),
    "transformers": ("5.10.4", "5.9.0"),
    "trl": ("1.16.0",),
    "uvicorn": ("0.54.0",),
    "verl": ("0.9.1",),
    "vllm": ("0.28.0+cpu", "0.24.0"),
}
# Distributions whose name differs from their module's.
DISTRIBUTIONS = {"agents": "openai-agents"}


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
        f"{_PLUGIN}model_server:_reply_may_be_shorter",
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
        f"{_PLUGIN}model_server:_know_the_weights",
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        ("vLLMHttpServer.set_global_steps",),
        "a reply says with which weights it was sampled",
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
        f"{_PLUGIN}weight_socket:_receive_there",
        "verl.workers.rollout.vllm_rollout.utils",
        ("vLLMColocateWorkerExtension._get_zmq_handle",),
        "a model server takes weights from its own run",
    ),
    Patch(
        "server",  # training workers import it too, and a server does not find the memory of one without the change
        f"{_PLUGIN}weight_socket:_name_memory",
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer",
        ("create_shared_memory", "rebuild_shared_memory"),
        "what a push of weights leaves in /dev/shm when a run is killed goes with the run",
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
    Patch(
        "server",
        f"{_PLUGIN}vllm_cpu:_norm_in_one_call",
        "vllm.model_executor.layers.layernorm",
        ("RMSNorm.forward_native",),
        "a norm is one call, in the same bits",
        cpu=True,
    ),
    Patch(
        "server",
        f"{_PLUGIN}vllm_cpu:_draw_once",
        "vllm.v1.sample.ops.topk_topp_sampler",
        ("TopKTopPSampler.forward_cpu",),
        "a row with a seed draws its random numbers once",
        cpu=True,
    ),
    # verl's training workers
    Patch(
        "trainer",
        f"{_PLUGIN}weight_socket:_send_there",
        "verl.workers.engine_workers",
        ("get_rollout_class",),
        "weights are sent to the model servers of this run",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}weight_socket:_send_there",
        "verl.checkpoint_engine.base",
        ("get_rollout_class",),
        "the same for model servers with GPUs of their own",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}training_worker:_skip",
        "verl.workers.engine_workers",
        ("TrainingWorker.train_batch",),
        "a mini-batch whose rows are all lost moves no weight",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}one_pass:_take_own_log_probs",
        "verl.workers.engine_workers",
        ("ppo_loss",),
        "one update after a batch computes its rows once",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}training_worker:_hide_trl",
        "verl.utils.import_utils",
        ("is_trl_available",),
        "verl patches a class that TRL 1.16 no longer has",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}training_worker:_end_states",
        _ENGINE,
        ("FSDPEngineWithLMHead.prepare_model_inputs",),
        "a state that a layer carries from token to token ends with its conversation",
    ),
    Patch(
        "trainer",
        f"{_PLUGIN}training_worker:_report",
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
        f"{_PLUGIN}balance:_share",
        "verl.trainer.ppo.ray_trainer",
        ("RayPPOTrainer._balance_batch",),
        "several workers update the weights as one would, and groups stay together",
    ),
    Patch(
        "driver",
        f"{_PLUGIN}one_pass:_compare_afterwards",
        "verl.trainer.ppo.ray_trainer",
        ("RayPPOTrainer._update_actor",),
        "entropy, and sampler against trainer, where one update computes its rows once",
    ),
    Patch(
        "driver",
        f"{_PLUGIN}model_server:_serve_apart",
        "verl.workers.rollout.llm_server",
        ("LLMServerManager.create",),
        "model servers may have GPUs of their own, which verl's V0 trainer does not ask for",
    ),
    Patch(
        "driver",
        _DRIVER,
        "verl.utils.debug.metrics",
        ("calculate_debug_metrics",),
        "sampler and trainer are compared on rows of the newest weights",
    ),
    Patch(
        "driver",
        _DRIVER,
        "ray._private.node",
        ("Node.start_api_server", "Node.start_monitor", "Node.__init__"),
        "no dashboard, which asks three clouds; no autoscaler, whose metrics port answers everybody; Ray's workers are "
        "forks of a process that has imported everything",
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
        "no process imports LiteLLM",
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
        "sql_agent.own_agents.policy_client",
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
    Patch(
        "own",
        f"{_PLUGIN}packed_engine:PackedEngine",
        _ENGINE,
        (
            "FSDPEngine._build_module",
            "FSDPEngine._build_lora_module",
            "FSDPEngine.forward_backward_batch",
            "FSDPEngineWithLMHead.forward_step",
        ),
        "shared prompts are computed once, and logits only at trained positions",
    ),
    Patch(
        "own",
        "sql_agent.block_mask",
        "torch._higher_order_ops.flex_attention",
        ("flex_attention",),
        "flex_attention has gradients on a CPU, where torch's function refuses them",
        cpu=True,
    ),
    Patch(
        "own",
        "sql_agent.verl_side.weight_sync:QuietWeightSync",
        "verl.checkpoint_engine.base",
        ("CheckpointEngineManager.sleep_replicas", "CheckpointEngineManager.update_weights"),
        "no call is answered by half of the new weights",
    ),
    Patch(
        "own",
        "agentgrpo.http_protocol:LimitedHttpProtocol",
        "uvicorn.protocols.http.httptools_impl",
        tuple(
            f"HttpToolsProtocol.{name}"
            for name in (
                "connection_made",
                "data_received",
                "on_message_begin",
                "on_header",
                "on_headers_complete",
                "on_message_complete",
                "connection_lost",
            )
        ),
        "slow or huge headers, and connections without a token, cost a server nothing",
    ),
    Patch(
        "own",
        "sql_agent.lightning.runner",
        "agentlightning.runner.agent",
        ("LitAgentRunner._step_impl", "LitAgentRunner._start_heartbeat_loop"),
        "many rollouts are in flight in one runner, which calls both",
    ),
    Patch(
        "own",
        "sql_agent.apo.search:InstructionsSearch",
        "agentlightning.algorithm.apo.apo",
        tuple(
            f"APO.{name}"
            for name in (
                "evaluate_prompt_on_batch",
                "get_rollout_results",
                "textual_gradient_and_apply_edit",
                "_update_best_prompt",
            )
        ),
        "candidates are judged by our rewards, refused where they do not fit, and saved",
    ),
    Patch(
        "own",
        "sql_agent.apo.search",
        "agentlightning.algorithm.apo.apo",
        ("APO._history_best_version",),
        "the version of the best instructions is read",
    ),
    Patch(
        "own",
        "dbbench_adapter.engines.mysql",
        "pymysql.connections",
        ("Connection._read_timeout",),
        "a statement that the server does not end is given up after its own time",
    ),
    # trainers of TRL
    Patch(
        "local",
        "sql_agent.dpo.trainer:PairDpoTrainer",
        "trl.trainer.dpo_trainer",
        ("DPOTrainer._prepare_dataset",),
        "pairs are encoded as rollouts are",
    ),
    *(
        Patch(
            "local",
            f"agentgrpo.pair_training{by}",
            f"trl.trainer.{kind.lower().removesuffix('trainer')}_trainer",
            tuple(f"{kind}.{name}" for name in names),
            "a batch is trained in micro-batches, and a checkpoint goes on with the count of tokens",
        )
        for kind in ("DPOTrainer", "RewardTrainer")
        for by, names in (
            (":PairMicroBatches", ("training_step", "compute_loss")),
            ("", ("_metrics", "_total_train_tokens")),
        )
    ),
)


class PatchError(ValueError):
    """An upstream library is not the version for which one of our changes was written."""


# In the installed sources ---------------------------------------------------------------------------------------------


def check_installed(cpu: bool) -> None:
    """Check every target of a main job in the installed packages; it takes half a second.

    Raises:
        PatchError: see `check_sources`.
    """
    for patch in PATCHES:
        if patch.process != "local" and (cpu or not patch.cpu):
            check_sources(patch)


def check_sources(patch: Patch) -> None:
    """Look up the targets of a change, and compare the parameters of our class's methods with theirs.

    What a function of the plugin makes is compared where it is made (`install`).

    Raises:
        PatchError: a target is missing, or takes other parameters.
    """
    ours, _, kind = patch.by.partition(":")
    for name in patch.names:
        theirs = find(patch.module, name)
        if theirs is None:
            raise _missing(patch, name)
        if patch.process in ("own", "local") and kind:
            method = signature_of(find(ours, f"{kind}.{name.rpartition('.')[2]}"))
            if method is not None and (upstream := signature_of(theirs)) is not None:
                _compare(patch, name, method, upstream)


def _compare(patch: Patch, name: str, ours: inspect.Signature, theirs: inspect.Signature) -> None:
    if (parameter := misfit(ours, theirs)) is not None:
        pinned, installed = _versions(patch)
        raise _refusal(
            patch,
            f"{name} takes {theirs}, and ours, written for {pinned} ({installed} is installed), takes {ours}: they "
            f"differ in {parameter}",
        )


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
        ours = _look_up(patch, module, name)
        if ours is upstream:
            raise PatchError(f"{patch.by} left {module.__name__}:{name} as it was; {patch.why}")
        if inspect.isfunction(ours) and inspect.isfunction(upstream):
            _compare(patch, name, inspect.signature(ours, follow_wrapped=False), inspect.signature(upstream))
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
    pinned, installed = _versions(patch)
    return _refusal(patch, f"{name} is not where {pinned} had it ({installed} is installed)")


def _versions(patch: Patch) -> tuple[str, str]:
    """The versions that the change was written for, and the one that is installed."""
    library = patch.module.partition(".")[0]
    distribution = DISTRIBUTIONS.get(library, library)
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    return f"{distribution} {' and '.join(VERSIONS[library])}", installed


def _refusal(patch: Patch, what: str) -> PatchError:
    return PatchError(
        f"{patch.module}:{what}, so {patch.by} cannot replace it: {patch.why}. `{agentgrpo_command('doctor')}` says "
        "how to install what is pinned; for another version adapt that code and sql_agent/upstream_patches.py"
    )
