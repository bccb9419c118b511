"""Trains with TRL's GRPOTrainer and its `environment_factory`: `python -m bench.parts.peers.trl_peer ORDER [vllm]`.

It generates with transformers, as TRL does on a CPU, or with vLLM inside its process (`vllm_mode="colocate"`), which
needs one change to vLLM (`_let_weights_in`). The subclass only counts; nothing of TRL is changed.
The chat templates of our two policies are not among those that TRL knows, so the tokenizer is told how a reply is
parsed, as TRL's documentation says: in the form of Qwen3's, which is theirs too.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from agentgrpo.imports import after_import
from agentgrpo.processes import end_with_parent
from bench.parts.peers.order import SEED, Order, append_lines, read_lines
from bench.parts.peers.world import SqlTools, count_sampled, open_world, trained_pieces

STEPS = "steps.jsonl"
VLLM = {"use_vllm": True, "vllm_mode": "colocate"}
# vLLM's own variables for a CPU.
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    # nothing is compiled, as for the other peers; TRL has no `enforce_eager`
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_USE_AOT_COMPILE": "0",
    "HF_HUB_OFFLINE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def main() -> None:
    end_with_parent()
    order, vllm = Order.read(Path(sys.argv[1])), sys.argv[2:] == ["vllm"]
    if vllm:
        after_import("vllm.model_executor.layers.utils", _let_weights_in)
    from transformers import AutoTokenizer, TrainerCallback
    from trl.chat_template_utils import qwen3_schema
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from dbbench_adapter.tasks.load import load_tasks

    tokenizer = AutoTokenizer.from_pretrained(order.model, trust_remote_code=False)
    tokenizer.response_schema = qwen3_schema
    SqlTools.too_long = text_of_more_than(order.sizes.rollout_tokens, tokenizer)
    counts: dict[str, int] = {}

    class Counting(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            ids, log_probs = super()._generate_single_turn(*args, **kwargs)
            self.replies += [tuple(reply) for reply in ids]  # before they are cut and joined
            return ids, log_probs

        def _generate(self, prompts: list[Any]) -> Any:
            self.replies: list[tuple[int, ...]] = []
            generated = super()._generate(prompts)
            completions, masks = generated[1], generated[2] or []
            pieces = [p for ids, mask in zip(completions, masks, strict=True) for p in trained_pieces(ids, mask)]
            counts["rollouts"] = len(completions)
            counts["trained"] = sum(map(len, pieces))
            counts["sampled"] = count_sampled(pieces, self.replies)
            return generated

    class Report(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            started = time.monotonic()
            weights = order.weights / str(state.global_step)
            if order.sizes.held_out:
                trainer.save_model(str(weights))
            line = {"save_s": time.monotonic() - started, "weights": str(weights), **counts}
            append_lines(order.folder / STEPS, [line])

    with open_world() as world:
        SqlTools.world = world
        rows = [
            {"prompt": world.messages(task), "task": json.dumps(task.to_dict())} for task in load_tasks(order.tasks)
        ]
        trainer = Counting(
            model=str(order.model),
            processing_class=tokenizer,
            environment_factory=SqlTools,
            train_dataset=_dataset(rows),
            args=GRPOConfig(**config(order, vllm=vllm)),
            callbacks=[Report()],
        )
        trainer.train()


def _let_weights_in(module: ModuleType) -> None:
    import torch

    # vLLM's CPU layers drop the weight that they repack, so that TRL's first push of new weights would fail; and TRL,
    # unlike verl, does not have it repacked after a push
    def plain_linear(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    module.dispatch_cpu_unquantized_gemm = plain_linear  # type: ignore[attr-defined]


def steps(order: Order) -> list[dict[str, Any]]:
    """The steps so far, in the form that `bench.parts.peers.run` reads."""
    return read_lines(order.folder / STEPS)


def config(order: Order, *, vllm: bool) -> dict[str, Any]:
    """GRPOConfig's arguments: the loss, the optimiser and the limits that the other peers have, and what is fastest."""
    sizes = order.sizes
    bfloat16 = sizes.precision == "bfloat16"
    return {
        "output_dir": str(order.folder / "trl"),
        "max_steps": 10_000,  # it is ended from outside
        "per_device_train_batch_size": sizes.micro_batch_rows,
        "gradient_accumulation_steps": sizes.rollouts // sizes.micro_batch_rows,
        "num_generations": sizes.group_size,
        "max_completion_length": sizes.rollout_tokens,
        "generation_kwargs": {"max_tokens" if vllm else "max_new_tokens": sizes.reply_tokens},
        "temperature": 1.0,
        "loss_type": "dapo",  # every token of a step weighs the same, as verl's token-mean
        "scale_rewards": False,
        "beta": 0.0,
        "learning_rate": sizes.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "bf16": bfloat16,
        "model_init_kwargs": {"dtype": sizes.precision},
        "gradient_checkpointing": False,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "seed": SEED,
        **(VLLM | {"vllm_max_model_length": sizes.prompt_tokens + sizes.rollout_tokens} if vllm else {}),
    }


def text_of_more_than(tokens: int, tokenizer: Any) -> str:
    text = "This rollout has ended. "
    while len(tokenizer(text)["input_ids"]) <= tokens:
        text += text
    return text


def _dataset(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_list(rows)


if __name__ == "__main__":
    main()
