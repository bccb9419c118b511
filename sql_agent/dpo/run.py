"""Runs DPO: checks everything, makes tokens, trains and saves.

Leaves out reading the pairs, which `sql_agent.commands.dpo` does with the reward model's readers, the loop
(`sql_agent.dpo.trainer`), and what it shares with fine-tuning (`sql_agent.sft.fine_tuning`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgrpo.checkpoints import CHECKPOINTS
from agentgrpo.hub_address import shown_name
from agentgrpo.machine import sampling_dtype
from agentgrpo.model_kinds import count_weights
from agentgrpo.outputs import failures_of_the_disk
from agentgrpo.printed_commands import agentgrpo_command
from reward_model.datatypes import Preference
from sql_agent.dpo.trainer import RECORD, EncodedPair, calls_without_tools, encode_pairs, make_trainer
from sql_agent.model_check import read_json
from sql_agent.serve_commands import evaluate_command, serve_command
from sql_agent.settings.load import config_flag
from sql_agent.settings.tuning import DpoConfig
from sql_agent.sft.fine_tuning import (
    Say,
    Start,
    check_resumed,
    check_start,
    encoded_sha256,
    fine_tune,
    load_trainable,
    record_of,
    stop_at_end_of_turn,
)
from sql_agent.trained_on import TaskSource, read_trained_on, trained_further


@dataclass(frozen=True)
class DpoRun:
    cfg: DpoConfig
    start: Start
    pairs: list[EncodedPair]
    held_out: list[EncodedPair]
    record: dict[str, Any]


def prepare_dpo(
    cfg: DpoConfig, rows: Sequence[Preference], held_out: Sequence[Preference], *, resume: bool, say: Say = print
) -> DpoRun:
    """Check everything and make the tokens. Weights are only read for their hash, and nothing is written.

    Args:
        rows: the pairs to train on.
        held_out: the pairs to measure after each epoch; they may be none.
    Raises:
        ValueError: something is wrong; the message says what to do.
    """
    start = check_start(cfg, RECORD, dropout=0.0, resume=resume, say=say)  # TRL's DPO trains without dropout
    names = (str(cfg.dataset), str(cfg.val_file or f"the held-out part of {cfg.dataset}"))
    pairs, measured = (
        encode_pairs(start.tokenizer, part, name, max_length=start.max_length)
        for part, name in zip((rows, held_out), names, strict=True)
    )
    left_out = {"too_long": len(rows) - len(pairs), "held_out_too_long": len(held_out) - len(measured)}
    say(
        f"{len(pairs)} pairs to train on, {len(measured)} held out; left out as longer than --max-length "
        f"{start.max_length}: {left_out['too_long']} and {left_out['held_out_too_long']}"
    )
    lengths = [pair.longer for pair in pairs]
    say(f"longer sides: {min(lengths):,} to {max(lengths):,} tokens, median {statistics.median(lengths):,.0f}")
    if without := calls_without_tools(rows):
        say(
            f"{without} of {len(rows)} pairs call tools and have no `tools`: their prompts are rendered without "
            "schemas, as no agent sees them; write pairs of rollouts with pairs_from_rollouts --with-tools"
        )
    stop_at_end_of_turn(start.tokenizer, pairs[0].chosen.ids[-1], say)
    data = {
        "source": str(cfg.dataset),
        "sha256": encoded_sha256([[side.ids, side.mask] for side in (pair.chosen, pair.rejected)] for pair in pairs),
        "pairs": len(pairs),
        "held_out": str(cfg.val_file) if cfg.val_file else cfg.held_out_fraction,
        "held_out_pairs": len(measured),
    }
    record = record_of(cfg, start, data, left_out, beta=cfg.beta)
    if start.checkpoint:
        check_resumed(start.checkpoint, read_json(start.checkpoint / RECORD), record, say)
    return DpoRun(cfg, start, pairs, measured, record)


def train_dpo(run: DpoRun, say: Say = print) -> None:
    """Train, save, and print the result and the next commands.

    Raises:
        UsageError: a loss is not finite, or the disk fails.
    """
    cfg, start = run.cfg, run.start
    with failures_of_the_disk(cfg.run_dir):
        (cfg.run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    say(f"the log-probs of the reference are computed for {len(run.pairs) + len(run.held_out)} pairs")
    model = load_trainable(start.model, start.base, all_weights=start.trains_all_weights, device=start.device)
    trainer = make_trainer(model, start.tokenizer, run.pairs, run.held_out, cfg, lora=start.lora, record=run.record)
    source = TaskSource(
        command="agentgrpo dpo",
        tasks=shown_name(cfg.dataset),
        learnt=len(run.pairs),
        held_out=len(run.held_out),
        listed=False,
    )
    trained_on = trained_further(read_trained_on(cfg.model_path), source)
    checkpoint = str(start.checkpoint) if start.checkpoint else None

    def epochs() -> int:
        return trainer.train(resume_from_checkpoint=checkpoint).global_step

    steps = fine_tune(trainer.model, epochs, start, cfg.run_dir, RECORD, run.record, say, trained_on)
    say(f"trained {steps} steps on {len(run.pairs)} pairs of {cfg.dataset}")
    say(f"{'model' if start.trains_all_weights else 'adapter'} and tokenizer: {cfg.run_dir}")
    cpu, adapter = start.device == "cpu", not start.trains_all_weights
    for command in commands_after_dpo(cfg, count_weights(start.base), cpu=cpu, is_adapter=adapter):
        say(f"next: {command}")


def commands_after_dpo(cfg: DpoConfig, weights: int | None, *, cpu: bool, is_adapter: bool) -> list[str]:
    """The commands that measure held-out success and go on with GRPO; vLLM and verl take whole models.

    Args:
        weights: of the whole model; None: not known.
    """
    output = cfg.run_dir
    merged = f"{output}-merged" if is_adapter else output
    dtype = sampling_dtype(cfg.precision, weights or 0, cpu=cpu)
    merge = agentgrpo_command("merge", "--adapter", output, "--output", merged)
    return [
        *([merge] if is_adapter else []),
        serve_command(merged, "dpo", cpu=cpu, dtype=dtype),
        evaluate_command("dpo", ["--tasks", "HELD_OUT_TASKS"]),
        agentgrpo_command("train", "--model", merged, "--train-file", "TASKS", *config_flag(weights)),
    ]
