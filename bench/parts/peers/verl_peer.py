"""The command that trains with verl 0.9.1 and its own agent loop, and what it has done so far.

`keys` are verl's, for `python -m verl.trainer.main_ppo`; `bench.parts.peers.agl_peer` trains with them too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.parts.peers.order import SEED, Order, read_lines

METRICS, ROLLOUTS = "metrics.jsonl", "rollouts.jsonl"
LOOP = "dbbench"
# Variables that tell verl's processes where the peer's order is, and agent-lightning's store.
ORDER, STORE = "AGENTGRPO_PEER_ORDER", "AGENTGRPO_PEER_STORE"
MODEL, ACTOR, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def command(order: Order) -> list[str]:
    write_files(order)
    own = {
        f"{ROLLOUT}.agent.agent_loop_config_path": order.folder / "loops.yaml",
        f"{ROLLOUT}.agent.default_agent_loop": LOOP,
        f"{ROLLOUT}.agent.num_workers": 1,
        f"{ROLLOUT}.multi_turn.enable": True,
        f"{ROLLOUT}.multi_turn.format": "hermes",
        f"{ROLLOUT}.multi_turn.tool_config_path": order.folder / "tools.yaml",
        f"{ROLLOUT}.multi_turn.max_tool_response_length": 4096,  # the episode cuts its results itself
    }
    return main_ppo(keys(order) | own)


def main_ppo(settings: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in settings.items())]


def keys(order: Order) -> dict[str, Any]:
    """The loss, the optimiser and the limits that the other peers have, and what is fastest on a CPU.

    A plus before a key is hydra's, for keys that verl reads and does not list.
    """
    sizes = order.sizes
    dtype, saves = sizes.precision, bool(sizes.held_out)
    mixed = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    if dtype == "bfloat16":
        mixed["param_dtype"] = "bf16"
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": False,
        "data.train_files": order.folder / "train.parquet",
        "data.val_files": order.folder / "train.parquet",
        "data.train_batch_size": sizes.groups,
        "data.max_prompt_length": sizes.prompt_tokens,
        "data.max_response_length": sizes.rollout_tokens,
        "data.filter_overlong_prompts": False,
        "data.dataloader_num_workers": 0,
        "data.seed": SEED,
        f"{MODEL}.path": order.model,
        f"{MODEL}.use_remove_padding": True,
        f"{MODEL}.enable_gradient_checkpointing": False,
        f"+{MODEL}.override_config.attn_implementation": "sdpa",  # flash attention is for GPUs
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.use_torch_compile": False,
        f"{ACTOR}.fsdp_config.use_torch_compile": False,
        **{f"+{ACTOR}.fsdp_config.mixed_precision.{name}": value for name, value in mixed.items()},
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": sizes.micro_batch_tokens,
        f"{ACTOR}.ppo_mini_batch_size": sizes.groups,
        f"{ACTOR}.optim.lr": sizes.learning_rate,
        f"{ACTOR}.optim.weight_decay": 0.0,
        f"{ACTOR}.use_kl_loss": False,
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.checkpoint.save_contents": "[hf_model]",
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": sizes.group_size,
        f"{ROLLOUT}.temperature": 1.0,
        f"{ROLLOUT}.dtype": dtype,
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.free_cache_engine": False,
        f"+{ROLLOUT}.enable_sleep_mode": False,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": sizes.micro_batch_tokens,
        f"{ROLLOUT}.max_model_len": sizes.prompt_tokens + sizes.rollout_tokens,
        f"{ROLLOUT}.max_num_batched_tokens": 4096,
        f"{ROLLOUT}.max_num_seqs": 64,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"+{ROLLOUT}.engine_kwargs.vllm.distributed_executor_backend": "uni",
        "reward.num_workers": 0,  # the loop gives the reward
        "trainer.device": "cpu",
        "trainer.use_v1": False,  # V1 needs TransferQueue, which is not installed
        "trainer.n_gpus_per_node": 1,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": 1 if saves else -1,
        "trainer.total_epochs": 1000,  # it is ended from outside
        "trainer.logger": '["console","file"]',
        "trainer.default_local_dir": order.folder / "checkpoints",
        "ray_kwargs.ray_init.num_cpus": 8,  # verl asks Ray for three a worker and for its other actors
        "+ray_kwargs.ray_init.num_gpus": 1,  # verl's name for a worker's place
        "+ray_kwargs.ray_init.include_dashboard": False,
    }


def environment(order: Order) -> dict[str, str]:
    """verl's and vLLM's own variables for a CPU, the plugin's name, and those that keep all on loopback and offline."""
    root = str(Path(__file__).resolve().parents[3])
    return {
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        ORDER: str(order.folder / "order.json"),
        "VERL_FILE_LOGGER_PATH": str(order.folder / METRICS),
        "VERL_USE_EXTERNAL_MODULES": "bench.parts.peers.verl_on_cpu",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # the name under which the FSDP engine is registered
        "CUDA_VISIBLE_DEVICES": "-1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "TORCHDYNAMO_DISABLE": "1",  # no C++ compiler has to be there
        "OMP_NUM_THREADS": "1",  # of the sampler; the actor takes both cores (`cpu_platform`)
        "GOMP_SPINCOUNT": "1000",
        "OMP_WAIT_POLICY": "ACTIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: Ray and the model servers on loopback
        "GLOO_SOCKET_IFNAME": "lo",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # agent-lightning 0.3.0 gives its proxy no key, without which LiteLLM 1.108.7 does not start; it is on loopback
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }


def write_files(order: Order) -> None:
    """verl's data file, the tools and the name of the loop."""
    from dbbench_adapter.export import write_rows
    from dbbench_adapter.protocols.fc import TOOLS
    from dbbench_adapter.tasks.load import load_tasks
    from sql_agent.environments.dbbench import DbBench

    rows = DbBench("strict").verl_rows(load_tasks(order.tasks))
    write_rows([{**row, "agent_name": LOOP} for row in rows], order.folder / "train.parquet")
    tools = [
        {"class_name": "bench.parts.peers.verl_loop.EpisodeTool", "config": {"type": "native"}, "tool_schema": tool}
        for tool in TOOLS
    ]
    (order.folder / "tools.yaml").write_text(json.dumps({"tools": tools}))  # JSON is YAML
    loops = [{"name": LOOP, "_target_": "bench.parts.peers.verl_loop.EpisodeLoop"}]
    (order.folder / "loops.yaml").write_text(json.dumps(loops))


def steps(order: Order) -> list[dict[str, Any]]:
    """The steps so far, in the form that `bench.parts.peers.run` reads."""
    counts, rollouts = read_lines(order.folder / ROLLOUTS), order.sizes.rollouts
    return [
        step_of(order, line, counts[place * rollouts : (place + 1) * rollouts])
        for place, line in enumerate(read_lines(order.folder / METRICS))
    ]


def step_of(order: Order, line: Mapping[str, Any], counts: list[dict[str, int]]) -> dict[str, Any]:
    """
    Args:
        line: of verl's file logger.
        counts: one for each rollout of the step.
    """
    return {
        "save_s": line["data"].get("timing_s/save_checkpoint", 0.0),
        "weights": str(order.folder / "checkpoints" / f"global_step_{line['step']}" / "actor" / "huggingface"),
        "rollouts": sum(count["trained"] > 0 for count in counts),
        "trained": sum(count["trained"] for count in counts),
        "sampled": sum(count["sampled"] for count in counts),
    }
