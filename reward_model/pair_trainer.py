from __future__ import annotations

from typing import Any

from trl.trainer.reward_trainer import RewardTrainer

from agentgrpo.micro_batches import micro_batch_tokens
from agentgrpo.pair_training import PairMicroBatches, metrics_line, rename
from agentgrpo.training_run import TrainerLog
from reward_model.datatypes import RECORD


class PairTrainer(PairMicroBatches, RewardTrainer):
    # It stops at the first loss that is not finite, and continues the token count of a checkpoint.

    def most_tokens(self) -> int:
        args: Any = self.args
        return micro_batch_tokens(args.micro_batch_tokens, args.device.type)

    def remedy(self) -> str:
        return (
            f"lower --learning-rate (now {self.args.learning_rate:g}) or --max-grad-norm (now "
            f"{self.args.max_grad_norm:g}), or train in float32 with --bf16 False"
        )


# The trainer's names of metrics with ours; its throughputs and totals are left out.
RENAMED = {
    "loss": "pair/loss",
    "accuracy": "pair/accuracy",
    "margin": "pair/margin",
    "mean_reward": "score/mean",
    "min_reward": "score/min",
    "max_reward": "score/max",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/learning_rate",
    "num_tokens": "data/tokens",
    "epoch": "data/epoch",
    "runtime": "time/validation_s",
}

LINE = (
    ("pair/loss", "loss {:.4f}"),
    ("pair/accuracy", "accuracy {:.1%}"),
    ("pair/margin", "margin {:+.3f}"),
    ("optim/grad_norm", "grad {:.2f}"),
    ("optim/learning_rate", "lr {:.1e}"),
    ("time/step_s", "{:.2f} s/step"),
    ("val/pair/loss", "held-out loss {:.4f}"),
    ("val/pair/accuracy", "held-out accuracy {:.1%}"),
    ("val/pair/margin", "held-out margin {:+.3f}"),
)


class RewardRunLog(TrainerLog):
    kind, record_name = "reward train", RECORD

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = rename(kwargs["logs"], RENAMED)
        if not state.is_world_process_zero or not any(key.endswith("pair/loss") for key in metrics):
            return
        if "pair/loss" in metrics:
            metrics["time/step_s"] = self.seconds_per_step(state.global_step)
        self.log(state.global_step, metrics, metrics_line(metrics, LINE))
