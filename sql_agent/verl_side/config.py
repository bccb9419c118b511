"""Turns a `TrainConfig` into verl's configuration and the environment variables of its processes.

This is the only module that spells verl's keys. It reads the YAML files of the installed verl without importing verl,
which takes ten seconds, and refuses a key that they do not have.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from agentgrpo.machine import sampling_dtype
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.settings import merged, set_path, verl_keys
from sql_agent.cluster.network import LOOPBACK, Network
from sql_agent.credit.registry import VERLS
from sql_agent.model_address.request_limits import CONTEXT_TOKENS
from sql_agent.model_check import SETUP
from sql_agent.model_shape import BLOCK, ModelShape, kv_cache_bytes, shape_of
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.main_job import EngineConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.verl_side.allowed_keys import check_keys

ROLLOUT_MANAGER = "sql_agent.verl_side.rollout_manager.RolloutManager"
WEIGHT_SYNC = "sql_agent.verl_side.servers.DrainedWeightSync"
PLUGIN = "sql_agent.verl_side.plugin"
# No estimator of verl's: `PLUGIN` takes the advantages that come with the rollouts, and without it verl stops here.
ESTIMATOR = "credited_rows"
# The environment variable that hands the run's `loss` settings, as JSON, to `PLUGIN`.
LOSS = "AGENTGRPO_LOSS"
# verl's environment variable for the name under which an engine is registered.
ENGINE = "VERL_ENGINE_VENDOR"
MODEL, ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "ref", "rollout"))
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
ROUTER = Path(__file__).with_name("plugin") / "router.yaml"
# Of the trainer and of the sampler, which spell it differently.
PRECISION = tuple(key for key, setting in verl_keys(TrainConfig).items() if setting == "engine.precision")

# Keys that verl 0.9.1 reads although its YAML files do not list them: fields of its dataclasses
# (workers/config/rollout.py) and arguments it hands through to ray.init, transformers and vLLM.
UNLISTED_KEYS = (
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.checkpoint_manager_class",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.",
    "actor_rollout_ref.model.override_config.",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.",
    "ray_kwargs.ray_init.",
)


@dataclass(frozen=True)
class Files:
    """Files that exist before verl starts."""

    model: Path
    train: Path
    val: Path
    checkpoint: Path | None = None
    """The checkpoint that the run resumes from; None: it starts anew."""
    chat_template: str | None = None
    """Replaces the model's own template, in the sampler and in the tokenizer that is saved with checkpoints."""


def to_verl(cfg: TrainConfig, files: Files, *, cpu: bool, network: Network = LOOPBACK) -> dict[str, Any]:
    """verl's overrides as nested plain values, with `cfg.verl` merged in; pure but for `precision`.

    Without `optim.learning_rate` (`startup.plan.with_learning_rate` fills it in) verl's own is left.

    Raises:
        ValueError: `cfg.verl` has a key that one of our settings decides, or that `check_keys` refuses.
    """
    settings, checkpointing = verl_keys(TrainConfig), cfg.engine.gradient_checkpointing
    dtype, per_node = precision(cfg.engine, files.model, cpu=cpu), cfg.workers_per_node(cpu=cpu)
    values = {setting: attrgetter(setting)(cfg) for setting in settings.values()}
    # settings that verl knows in another form, or whose default depends on the run
    values |= {
        "data.max_prompt_tokens": cfg.data.prompt_tokens,
        "optim.mini_batch_size": cfg.optim.mini_batch_size or cfg.data.train_batch_size,
        "optim.micro_batch_tokens": cfg.micro_batch_tokens(cpu=cpu),
        "loss.name": VERLS.get(cfg.loss.name, cfg.loss.name),
        "loss.clip_ratio_high": cfg.loss.clip_ratio_high or cfg.loss.clip_ratio,
        "engine.gradient_checkpointing": not cpu if checkpointing is None else checkpointing,
        "engine.n_gpus": per_node,
        "cluster.sampler_gpus": cfg.cluster.sampler_gpus or per_node,
        "trainer.val_every": cfg.trainer.val_every or -1,
        "trainer.save_every": cfg.trainer.save_every or -1,
    }
    given = {key: values[setting] for key, setting in settings.items() if key not in PRECISION}
    if cfg.optim.learning_rate is None:
        given = {key: value for key, value in given.items() if settings[key] != "optim.learning_rate"}
    keys = FIXED | given | _lengths(cfg.data, cfg.micro_batch_tokens(cpu=cpu)) | _run(cfg.run_dir, cfg.seed, files)
    keys |= _precision(dtype, cpu=cpu) | _device(cfg.engine, cpu=cpu) | _ray(cfg.workers(cpu=cpu), network, cpu=cpu)
    keys |= {
        f"{ACTOR}.use_kl_loss": cfg.loss.kl_coef > 0,
        # Without merging, vLLM's chat server answers with the base model, because verl loads the adapter under a name
        # that only its token-level `generate` uses.
        f"{MODEL}.lora.merge": cfg.lora.rank > 0,
        f"{ROLLOUT}.load_format": "safetensors" if cfg.lora.rank else "auto",
        f"{ROLLOUT}.temperature": cfg.agent.temperature,
        f"{ROLLOUT}.top_p": cfg.agent.top_p,
        f"{VLLM}.tool_call_parser": cfg.rollout.tool_parser,
        "data.val_batch_size": cfg.data.val_limit,
        "trainer.logger": list(cfg.trainer.loggers),
        # a resumed run was already validated at that step, and verl would log a second line for it
        "trainer.val_before_train": cfg.trainer.val_before_train and files.checkpoint is None,
        "trainer.balance_batch": not cpu or cfg.workers(cpu=cpu) > 1,
    }
    if cpu:
        number_bytes = 2 if dtype == "bfloat16" else 4
        cache = kv_cache_bytes(cfg.engine, cfg.data.row_tokens, cfg.rollouts_at_once, _shape(files.model), number_bytes)
        keys |= {f"{VLLM}.kv_cache_memory_bytes": cache}
    keys |= AWAKE | CORRECTED if cfg.trainer.max_off_policy_steps else {}
    keys |= AWAKE | SEPARATE if cfg.cluster.sampler_gpus else {}
    fused = cpu or cfg.engine.shared_prompts is not None
    tree = merged(_nested(keys), _checked(cfg.verl, packed=fused))
    return merged(tree, _nested(ONE_PASS)) if _updates_once(tree, fused=fused) else tree


def _nested(keys: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        set_path(tree, key, value)
    return tree


def _checked(verl: dict[str, Any], *, packed: bool) -> dict[str, Any]:
    settings = verl_keys(TrainConfig)
    for key in _leaf_keys(verl):
        for known, setting in settings.items():
            if f"{key}.".startswith(f"{known}."):
                raise ValueError(f"verl.{key} is the setting {setting} here; give that, --set {setting}=VALUE")
    check_keys(_leaf_keys(verl), packed=packed)
    return verl


# Keys that are the same in every run.
FIXED: dict[str, Any] = {
    "algorithm.adv_estimator": ESTIMATOR,
    "data.filter_overlong_prompts": False,  # done, and counted, before verl starts
    "data.dataloader_num_workers": 0,
    "data.shuffle": True,
    "reward.num_workers": 0,  # rewards come with the rollouts
    f"{MODEL}.use_remove_padding": True,
    # torch's own attention; verl's default is flash_attn, which neither requirements file contains
    f"{MODEL}.override_config.attn_implementation": "sdpa",
    f"{MODEL}.fused_kernel_options.impl_backend": "torch",
    f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    # With a Hugging Face folder beside verl's own shards, every checkpoint can be served without conversion.
    f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    f"{REF}.log_prob_use_dynamic_bsz": True,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.router_config_path": str(ROUTER),
    f"{ROLLOUT}.agent.num_workers": 1,
    f"{ROLLOUT}.agent.agent_loop_manager_class": ROLLOUT_MANAGER,
    f"{ROLLOUT}.checkpoint_manager_class": WEIGHT_SYNC,
    f"{ROLLOUT}.val_kwargs.do_sample": False,
    f"{ROLLOUT}.val_kwargs.temperature": 0.0,
    f"{ROLLOUT}.val_kwargs.n": 1,
    f"{VLLM}.enable_auto_tool_choice": True,
    f"{VLLM}.enable_prompt_tokens_details": True,  # `rollout/cached_prompt_frac`
    # Otherwise the chat server takes its defaults from the folder's generation_config.json. verl overrides some of them
    # (temperature, top-p, top-k, repetition penalty) but not all (min-p), and the trained log-probs ignore them. The
    # tokens that end a reply are still read from that file.
    f"{VLLM}.generation_config": "vllm",
    # the outermost middleware; vLLM's own --api-key does not protect half of its routes
    f"{VLLM}.middleware": "sql_agent.model_address.request_guard.ModelServerGuard",
    "trainer.use_v1": False,  # the V1 trainer needs TransferQueue, whose pins conflict with those of agentops
    "trainer.total_epochs": 1_000_000,  # `trainer.steps` ends the run
    "trainer.max_actor_ckpt_to_keep": None,  # sql_agent.verl_side.driver keeps `keep_checkpoints` of them
    "trainer.project_name": "agentgrpo",
}


CORRECTED: dict[str, Any] = {
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
}
"""Keys of a run with `trainer.max_off_policy_steps`."""

ONE_PASS: dict[str, Any] = {
    "algorithm.rollout_correction.bypass_mode": True,
    f"{ACTOR}.calculate_entropy": True,
}
"""Keys of a run whose old log-probs are those of the update itself (`sql_agent.verl_side.plugin.one_pass`)."""


AWAKE: dict[str, Any] = {f"{ROLLOUT}.free_cache_engine": False, f"{ROLLOUT}.enable_sleep_mode": False}
"""Keys of a sampler that keeps its memory, because it goes on during the update or has GPUs of its own."""

SEPARATE: dict[str, Any] = {
    # Any number but 0 stands for servers of their own (`plugin.model_server`). verl divides this product by the GPUs of
    # a server and asks Ray for them server by server, wherever they are.
    f"{ROLLOUT}.nnodes": 1,
    f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
}
"""Keys of a run with `cluster.sampler_gpus`."""


def _updates_once(tree: dict[str, Any], *, fused: bool) -> bool:
    """Whether one update follows a batch, and nothing needs old log-probs before it.

    Args:
        fused: whether the plugin's engine computes log-probs.
    """
    actor, model = tree["actor_rollout_ref"]["actor"], tree["actor_rollout_ref"]["model"]
    # a mean over the batch's importance weights is known after all of its micro-batches
    correction = tree["algorithm"].get("rollout_correction", {})
    normalized = correction.get("rollout_is") is not None and correction.get("rollout_is_batch_normalize", False)
    one = actor["ppo_mini_batch_size"] == tree["data"]["train_batch_size"] and actor.get("ppo_epochs", 1) == 1
    # verl's own engine without its fused kernels would keep the logits of all tokens for the entropies of the update
    fused = fused or bool(model["use_fused_kernels"])
    # the update's pass drops activations, which the sampler and a pass for old log-probs do not
    return one and fused and not normalized and not _has_dropout(model)


def _has_dropout(model: Mapping[str, Any]) -> bool:
    """Whether the policy's config.json, with verl's overrides, names a dropout above 0."""
    file = Path(model["path"]) / "config.json"
    shape = json.loads(file.read_text()) if file.is_file() else {}
    named = {**shape, **model.get("override_config", {})}
    return any(value for name, value in named.items() if name.endswith(("dropout", "pdrop")) and value is not None)


def _lengths(data: DataConfig, micro_batch: int) -> dict[str, Any]:
    return {
        f"{REF}.log_prob_max_token_len_per_gpu": micro_batch,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": micro_batch,
        f"{ROLLOUT}.max_model_len": data.row_tokens,
        f"{ROLLOUT}.max_num_batched_tokens": max(4096, data.row_tokens),
        # verl's default, the longest row, varies between steps
        f"{ACTOR}.loss_scale_factor": data.max_response_tokens,
    }


def _run(run_dir: Path, seed: int, files: Files) -> dict[str, Any]:
    resumed = files.checkpoint is not None
    seeded = ("data.seed", f"{ROLLOUT}.seed", f"{ACTOR}.data_loader_seed", f"{ACTOR}.fsdp_config.seed")
    template = {} if files.chat_template is None else {f"{VLLM}.chat_template": files.chat_template}
    return {
        **dict.fromkeys(seeded, seed),
        **template,
        "data.train_files": str(files.train),
        "data.val_files": str(files.val),
        f"{MODEL}.path": str(files.model),
        f"{MODEL}.custom_chat_template": files.chat_template,
        "trainer.resume_mode": "resume_path" if resumed else "disable",
        "trainer.resume_from_path": str(files.checkpoint) if resumed else None,
        "trainer.default_local_dir": str(run_dir / "checkpoints"),
        "trainer.experiment_name": run_dir.name,
    }


def _precision(dtype: str, *, cpu: bool) -> dict[str, Any]:
    # On a CPU the engine uses autocast, and the residual stream stays float32. FSDP would cast the weights before the
    # forward pass, and the activations with them.
    param_dtype = "bf16" if dtype == "bfloat16" and not cpu else "fp32"
    mixed = {"param_dtype": param_dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    trained, sampled = PRECISION
    return {trained: mixed, f"{REF}.fsdp_config.mixed_precision": mixed, sampled: dtype}


def _device(engine: EngineConfig, *, cpu: bool) -> dict[str, Any]:
    """The keys that differ between a CPU and a GPU."""
    only_on_a_cpu = {
        f"{REF}.fsdp_config.use_torch_compile": False,
        f"{VLLM}.distributed_executor_backend": "uni",  # saves a process that imports torch and vLLM
        f"{VLLM}.block_size": BLOCK,
        # A prompt that does not fit into a pass any more waits for the next one, which holds the longest. vLLM would
        # cut it, and of a cut prompt whose request has a seed it takes back a random number, which torch's generator
        # on a CPU cannot: the engine would end (v1/worker/gpu_model_runner.py, `_bookkeeping_sync`).
        f"{ROLLOUT}.enable_chunked_prefill": False,
    }
    return {
        f"{ACTOR}.use_torch_compile": not cpu,
        f"{ACTOR}.fsdp_config.use_torch_compile": not cpu,
        # otherwise verl keeps all logits of a micro-batch in memory and takes their log-probs token by token
        f"{MODEL}.use_fused_kernels": not (cpu or engine.shared_prompts),  # the plugin's engine does the same
        f"{ROLLOUT}.enforce_eager": cpu,
        f"{ROLLOUT}.free_cache_engine": not cpu,
        f"{ROLLOUT}.enable_sleep_mode": not cpu,
        "trainer.device": "cpu" if cpu else "cuda",
        **(only_on_a_cpu if cpu else {}),
    }


def _ray(workers: int, network: Network, *, cpu: bool) -> dict[str, Any]:
    # a cluster that is there already has its own resources, and Ray refuses to be told them
    if not network.is_loopback:
        return {"ray_kwargs.ray_init.address": network.ray_address, "ray_kwargs.ray_init.num_cpus": None}
    # verl asks Ray for three CPUs a worker (single_controller/ray/base.py), and for "GPU" on every platform
    return {
        "ray_kwargs.ray_init.include_dashboard": False,
        "ray_kwargs.ray_init.num_cpus": max(8, 3 * workers + 2, os.cpu_count() or 1),
        **({"ray_kwargs.ray_init.num_gpus": workers} if cpu else {}),
    }


def _shape(model: Path) -> ModelShape | None:
    """None: the model is not on this machine, or of a kind that is not known."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return shape_of(json.loads((model / "config.json").read_text()))
    return None


def precision(engine: EngineConfig, model: Path, *, cpu: bool) -> str:
    parameters = sum(file.stat().st_size for file in model.glob("*.safetensors")) // 4  # half as many for 16-bit files
    return sampling_dtype(engine.precision, parameters, cpu=cpu)


def compose(overrides: dict[str, Any]) -> Any:
    """The installed verl's own configuration with `overrides` merged in (an OmegaConf `DictConfig`).

    Raises:
        ValueError: the installed verl does not have a key; the message names the key in full.
    """
    from omegaconf import OmegaConf

    base, known = verls_own()
    unknown = [key for key in _leaf_keys(overrides) if not key.startswith(UNLISTED_KEYS) and not _has(known, key)]
    if unknown:
        raise ValueError(
            f"the installed verl has no key {', '.join(unknown)}; "
            f"`{agentgrpo_command('doctor')}` says how to install the one that requirements.txt pins"
        )
    return OmegaConf.merge(base, overrides)  # which changes a copy


@functools.cache  # a third of a second, and a command looks several times
def verls_own() -> tuple[Any, Any]:
    """The installed verl's own configuration, as a `DictConfig` that takes new keys and as plain values."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise ValueError(f"verl is not installed; run `{SETUP}`")
    with initialize_config_dir(str(Path(spec.origin).parent / "trainer" / "config"), version_base=None):
        base = hydra_compose("ppo_trainer")
    known = OmegaConf.to_container(base, resolve=False)
    OmegaConf.set_struct(base, False)
    return base, known


def validate(config: Any) -> None:
    """Make verl's own checks of what `compose` gives, those that its trainer and its workers make as they start.

    This imports verl, which takes ten seconds, and looks at no GPU.

    Raises:
        ValueError: verl refuses a setting; the message is verl's.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # verl prints that all is well
        from hydra.errors import InstantiationException
        from verl.utils.config import omega_conf_to_dataclass, validate_config

        kl = bool(config.actor_rollout_ref.actor.use_kl_loss)
        try:
            validate_config(config, use_reference_policy=kl, use_critic=False)
            omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        except (AssertionError, InstantiationException, ValueError) as error:
            raise ValueError(f"verl refuses these settings: {error}") from error


def worker_environment(cfg: TrainConfig, *, cpu: bool, network: Network = LOOPBACK) -> dict[str, str]:
    """Of the verl driver and of every Ray actor that it starts."""
    root = Path(__file__).resolve().parents[2]
    env = {
        "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",  # its port answers everybody, and no option asks for a token there
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TOKENIZERS_PARALLELISM": "false",
        **network.environment(),
        CONTEXT_TOKENS: str(cfg.data.row_tokens),
        LOSS: cfg.loss.model_dump_json(),
    }
    if cfg.engine.shared_prompts:
        env[ENGINE] = cfg.engine.shared_prompts
    if cpu:
        workers = cfg.workers_per_node(cpu=True)
        env |= {
            "VERL_PLATFORM": "cpu",
            # hides GPUs; Ray gives no more of them than it names, and verl takes one a worker
            "CUDA_VISIBLE_DEVICES": ",".join(["-1"] * workers),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets the engine run its one worker itself (platforms/cpu.py)
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "TORCHDYNAMO_DISABLE": "1",  # vLLM would compile one loop of its sampler with a C++ compiler, in /tmp
            # Ray sets OMP_NUM_THREADS=1 if it is unset; a training worker raises its own count to train_threads.
            "OMP_NUM_THREADS": str(cfg.engine.sampler_threads),
            # `worker_forks` forks no process with threads: pyarrow and numpy would start some as they are imported
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            "OPENBLAS_NUM_THREADS": "1",
            # idle workers, of 44 MiB or more: Ray starts none before a driver asks, and keeps none after their task
            "RAY_prestart_worker_first_driver": "0",
            "RAY_num_workers_soft_limit": "0",
            # Threads of an update that slept at once would have to be woken for each small product, 7,600 a group of
            # SmolLM2-135M; GNU's default, 3 ms of spinning, takes the cores from the other processes. Without ACTIVE
            # they would spin a tenth of 1000 where a process has more threads than cores (libgomp, env.c).
            "GOMP_SPINCOUNT": "1000",
            "OMP_WAIT_POLICY": "ACTIVE",
            **({"AGENTGRPO_TRAIN_THREADS": str(threads)} if (threads := cfg.engine.train_threads) else {}),
            "AGENTGRPO_PRECISION": precision(cfg.engine, cfg.model, cpu=True) if cfg.model else "float32",
        }
    else:
        # flashinfer's sampler is compiled at its first use, by a compiler that a GPU machine need not have; nothing is
        # lost, since it is for top-p and top-k, and a policy is sampled whole
        env["VLLM_USE_FLASHINFER_SAMPLER"] = os.environ.get("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return env


def _has(tree: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(tree, dict) or name not in tree:
            return False
        tree = tree[name]
    return True


def _leaf_keys(tree: dict[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for name, value in tree.items():
        keys += _leaf_keys(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [f"{prefix}{name}"]
    return keys
