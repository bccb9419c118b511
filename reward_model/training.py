"""Reward-model training with TRL's `RewardTrainer`; everything is checked before the weights are read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import datasets
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.utils import get_peft_config, get_quantization_config

from agentgrpo import signed_checkpoints
from agentgrpo.chat.template import ChatTemplate, ChatTemplateError
from agentgrpo.chat.tokenizer import load_tokenizer, tokenizer_sha256
from agentgrpo.checkpoints import checkpoints, how_to_go_on, newest_whole
from agentgrpo.checks import UsageError, require
from agentgrpo.hub import model_folder
from agentgrpo.hub_rows import local_rows
from agentgrpo.json_text import JsonObject, parse_json
from agentgrpo.machine import git_commit
from agentgrpo.micro_batches import micro_batch_tokens
from agentgrpo.outputs import OutputError, failures_of_the_disk
from agentgrpo.pair_training import PairLog, PairMicroBatches
from agentgrpo.processes import ends_in_order
from agentgrpo.run_folder import begun_with, claim
from agentgrpo.training_run import check_same_run, library_versions, publish, remove_torn, write_record
from agentgrpo.weights import weights_sha256
from reward_model.arguments import OUTPUT, DataArguments, ModelArguments, TrainingArguments, settings_record
from reward_model.datatypes import RECORD, Preference, place_of, prompt_key
from reward_model.preferences import PreferenceFileError, read_preferences, split_by_prompt
from reward_model.scorer import check_base, encode_truncated, num_parameters


def train_reward_model(data: DataArguments, args: TrainingArguments, model: ModelArguments) -> None:
    """Raises ModelError, NotOursError, PreferenceFileError, UsageError: something is wrong. It is found before the
    weights are read, except for a loss that is not finite.
    """
    output = Path(args.output_dir or OUTPUT)
    with ends_in_order(), claim(output) if args.process_index == 0 else nullcontext():
        _train(data, args, model, output)


def _train(data: DataArguments, args: TrainingArguments, model: ModelArguments, output: Path) -> None:
    datasets.disable_progress_bars()
    disable_progress_bar()
    say = print if args.process_index == 0 else lambda *parts: None
    if not model.model_name_or_path:
        raise UsageError("--model-name-or-path is missing: the language model to start from, a folder or ORG/NAME")
    base = model_folder(model.model_name_or_path, say=say)
    require(base_model=base)
    tokenizer = load_tokenizer(base, Path(args.chat_template_path) if args.chat_template_path else None)
    args.chat_template_path = None  # it is set already, and TRL would set it again
    check_base(base)
    args.suit(num_parameters(base))

    begun = begun_with(output)
    path = local_rows(data.dataset_name, begun, say)
    data.dataset_name = str(path)
    data.eval_dataset_name = data.eval_dataset_name and str(local_rows(data.eval_dataset_name, begun, say))
    rows = read_preferences(path)
    if data.eval_dataset_name:
        train_rows, held_out_rows = rows, read_preferences(Path(data.eval_dataset_name))
        known = {prompt_key(row) for row in train_rows}
        if shared := sum(prompt_key(row) in known for row in held_out_rows):
            say(f"warning: {shared} of {len(held_out_rows)} held-out pairs have a prompt that is trained on")
    else:
        train_rows, held_out_rows = split_by_prompt(rows, data.held_out_fraction, seed=args.seed)
    train_set = encode_preferences(train_rows, tokenizer, args.max_length, data.dataset_name)
    held_out_name = data.eval_dataset_name or f"the held-out part of {data.dataset_name}"
    held_out = encode_preferences(held_out_rows, tokenizer, args.max_length, held_out_name) if held_out_rows else None
    if held_out is None:
        args.eval_strategy = "no"
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if len(train_set) < batch:
        raise UsageError(
            f"{len(train_set)} pairs are fewer than one batch of {batch} (--per-device-train-batch-size x "
            "--gradient-accumulation-steps x processes); lower one of them or bring more pairs"
        )

    counts = {
        "train_pairs": len(train_set),
        "train_too_long": len(train_rows) - len(train_set),
        "held_out_pairs": len(held_out or ()),
        "held_out_too_long": len(held_out_rows) - len(held_out or ()),
    }
    record = {
        "base": {"path": str(base), "sha256": weights_sha256(base)},
        "dataset": {
            "path": str(path),
            "sha256": signed_checkpoints.file_sha256(path),
            "held_out": data.eval_dataset_name,
        }
        | counts,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "max_length": args.max_length,
        "pad_token": tokenizer.pad_token,
        "processes": args.world_size,
        "settings": settings_record(data, args, model),
        "seed": args.seed,
        "versions": library_versions(),
        "git_commit": git_commit(),
    }
    checkpoint = checkpoint_to_resume(args, record, say)
    say(
        f"{counts['train_pairs']} pairs to train on, {counts['held_out_pairs']} held out; left out as longer than "
        f"{args.max_length} tokens: {counts['train_too_long']} and {counts['held_out_too_long']}"
    )
    if checkpoint:
        say(f"resuming from {checkpoint}")

    kept = {name: record[name] for name in ("base", "dataset", "max_length", "seed", "settings")}
    args.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    trainer = PairTrainer(
        model=str(base.resolve()),  # an absolute path, because adapters name their base by it
        args=args,
        train_dataset=train_set,
        eval_dataset=held_out,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        callbacks=[RewardRunLog(output, record, kept)],
    )
    trainer.remove_callback(PrinterCallback)
    sizes = [(weight.numel(), weight.requires_grad) for weight in cast(Any, trainer.model).parameters()]
    trained, total = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
    say(f"{trained:,} of {total:,} weights are trained, on {args.device}")
    try:
        with failures_of_the_disk(output):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            save_reward_model(trainer, output, record)
    except OutputError as error:
        remove_torn(output, RECORD)
        left = how_to_go_on(output, "the same command", record=RECORD)
        raise UsageError(f"{error}; {left}") from error
    say(f"reward model: {output}")


# Data -----------------------------------------------------------------------------------------------------------------


def encode_preferences(
    rows: Sequence[Preference], tokenizer: PreTrainedTokenizerBase, max_length: int | None, name: str
) -> Dataset:
    """Columns `chosen_ids` and `rejected_ids` that TRL trains on, without pairs that have a too long side.

    TRL leaves out the same pairs. Here the caller can count them, because the result is shorter by their number.

    Raises:
        PreferenceFileError: the chat template refuses a row of `name`.
        UsageError: all rows are too long.
    """
    columns: dict[str, list[Any]] = {"chosen_ids": [], "rejected_ids": []}
    limit, shortest = max_length or 1 << 62, 1 << 62
    for row in rows:
        try:
            whole = [message.to_dict() for message in (*row.prompt, *row.chosen, *row.rejected)]
            ChatTemplate.of(tokenizer, json.loads(row.tools) if row.tools else None).check_calls(whole)
            sides = [
                encode_truncated(tokenizer, (*row.prompt, *side), tools=row.tools, max_length=1 << 62).ids
                for side in (row.chosen, row.rejected)
            ]
        except ChatTemplateError as error:
            raise PreferenceFileError(f"{place_of(row, name)}: {error}") from None
        except Exception as error:  # a template is a program: it may raise anything
            raise PreferenceFileError(
                f"{place_of(row, name)}: the model's chat template refuses it ({type(error).__name__}: {error}); "
                "leave such rows out or give another --chat-template-path"
            ) from None
        shortest = min(shortest, max(map(len, sides)))
        if max(map(len, sides)) <= limit:
            for column, ids in zip(columns.values(), sides, strict=True):
                column.append(torch.tensor(ids, dtype=torch.int32).numpy())
    if not columns["chosen_ids"]:
        raise UsageError(
            f"all {len(rows)} pairs of {name} are longer than --max-length {max_length}; the shortest has {shortest} "
            "tokens, so give a larger --max-length"
        )
    return Dataset.from_dict(columns)


# The trainer ----------------------------------------------------------------------------------------------------------


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


class RewardRunLog(PairLog):
    kind, record_name = "reward train", RECORD
    loss, names, line = "pair/loss", RENAMED, LINE


# The result and checkpoints -------------------------------------------------------------------------------------------


def save_reward_model(trainer: Trainer, output: Path, record: JsonObject) -> None:
    with tempfile.TemporaryDirectory(dir=output, prefix=".saving-") as scratch, failures_of_the_disk(output):
        trainer.save_model(scratch)
        publish(Path(scratch), output)
    if trainer.is_world_process_zero():
        write_record(output / RECORD, record, trainer.state.global_step)


def checkpoint_to_resume(
    args: TrainingArguments, record: JsonObject, say: Callable[[str], None] = print
) -> Path | None:
    """None starts a new run; incomplete and changed checkpoints are skipped.

    Args:
        say: a function that is told of every skipped checkpoint.
    Raises:
        UsageError: data, base or settings differ from those of the checkpoint, or the folder holds another run.
        NotOursError: this user did not write the checkpoint, or has no key to sign with.
    """
    output = Path(args.output_dir or OUTPUT)
    signed_checkpoints.user_key()
    if args.resume_from_checkpoint not in (None, "auto"):
        checkpoint = Path(args.resume_from_checkpoint)
        if not (checkpoint / RECORD).is_file():
            raise UsageError(
                f"--resume-from-checkpoint {checkpoint} is no checkpoint of this command: no {RECORD}; "
                "give one, or auto for the newest"
            )
        if fault := signed_checkpoints.why_not_loadable(checkpoint, RECORD, run_dir=checkpoint.parent):
            raise UsageError(f"--resume-from-checkpoint {checkpoint}: {fault}; give an earlier one, or auto")
    else:
        checkpoint = newest_whole(output, say, run_dir=output, record=RECORD)
        if checkpoint is None:
            if (output / RECORD).is_file():
                raise UsageError(
                    f"{output} holds a finished reward model without checkpoints; name another --output-dir"
                )
            if checkpoints(output):
                say(f"no checkpoint in {output} is complete: starting a new run")
            return None
    before = parse_json((checkpoint / RECORD).read_text())
    check_same_run(checkpoint, _weights_depend_on(before), _weights_depend_on(record))
    return checkpoint


def _weights_depend_on(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "base": record["base"]["sha256"],
        "tokenizer or chat template": record["tokenizer_sha256"],
        "dataset": record["dataset"]["sha256"],
        "processes": record["processes"],
        **record["settings"],
    }
