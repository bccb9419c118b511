"""Trains a reward model on preferences, with TRL's RewardTrainer:

    accelerate launch reward_model/reward_modeling.py --dataset_name ./converted.jsonl --model_name_or_path MODEL \\
        --output_dir OUT
    accelerate launch reward_model/reward_modeling.py --config reward_model/configs/tiny_cpu.yaml

  --dataset_name FILE          preferences, as convert_dpo_format.py writes them
  --eval_dataset_name FILE     held-out preferences
  --held_out_fraction 0.1      without that file: the share of pairs to hold out, whole prompts at a time; 0 for none
  --model_name_or_path MODEL   the language model to start from: a folder, or its id on the hub, ORG/NAME
  --output_dir OUT             adapter, tokenizer, reward_model.json, metrics.jsonl and checkpoints
  --no_use_peft                train all weights; default is LoRA on all linear layers (--lora_r 16 --lora_alpha 32)
  --learning_rate 1e-4         --num_train_epochs 3  --per_device_train_batch_size 8  --max_length 1024 (tokens)
  --center_rewards_coefficient 0.01
  --chat_template_path FILE    for a model without a chat template
  --resume_from_checkpoint     a checkpoint; default auto: the newest in OUT, if there is one
  --report_to wandb|swanlab    a second sink beside metrics.jsonl; without a key it writes to disk
  --config FILE                any of these in YAML; flags win

Every flag of TRL's RewardConfig (and so of transformers' TrainingArguments) and ModelConfig works.
`accelerate launch --num_processes N` trains on N GPUs, `torchrun --nproc_per_node N` on N CPU processes.
"""

from __future__ import annotations

import os
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # run as a script

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from core.hub import ModelError, go_offline, model_folder
from core.machine import git_commit
from core.signed import NotOursError, file_sha256


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    go_offline()  # TRL would report the run otherwise
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch reads this when it is imported: threads that wait actively stand still while another process has their core
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import yaml

    from core.training_run import TrainingError
    from reward_model.data.preferences import PreferenceFileError

    ours = (ModelError, NotOursError, PreferenceFileError, TrainingError)
    try:
        train(*parse(arguments))
    except (*ours, yaml.YAMLError) as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print("\nstopped; the same command continues from the newest whole checkpoint", file=sys.stderr)
        return 130
    return 0


def parse(arguments: list[str]) -> tuple[Any, Any, Any]:
    """Data, training and model arguments; flags override the file, and the file overrides the defaults.

    Raises:
        TrainingError: the file is missing or holds an unknown setting.
    """
    from trl.scripts.utils import TrlParser

    from core.training_run import TrainingError
    from reward_model.training import DataArguments, ModelArguments, TrainingArguments

    parser = TrlParser((DataArguments, TrainingArguments, ModelArguments))  # type: ignore[arg-type]
    try:
        return parser.parse_args_and_config(arguments)  # type: ignore[return-value]
    except OSError as error:
        raise TrainingError(f"--config {error.filename} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TrainingError("--config is not a text, expected YAML with settings") from None
    except ValueError as error:
        raise TrainingError(str(error)) from None


def train(data: Any, args: Any, model: Any) -> None:
    """Check everything, then train, save and say where.

    Raises:
        ModelError, NotOursError, PreferenceFileError, TrainingError: what is wrong, before the weights are read; only
            a loss that is not finite comes later.
    """
    import datasets
    from transformers.trainer_callback import PrinterCallback
    from transformers.utils.logging import disable_progress_bar
    from trl.trainer.utils import get_peft_config, get_quantization_config

    from core.chat_tokenizer import load_tokenizer, tokenizer_sha256
    from core.outputs import OutputError, failures_of_the_disk
    from core.processes import ends_in_order
    from core.training_run import TrainingError, versions
    from core.weights import weights_sha256
    from reward_model.base_model import check_base, num_parameters
    from reward_model.data.preferences import read_preferences
    from reward_model.datatypes import prompt_key
    from reward_model.training import (
        PairTrainer,
        RewardRunLog,
        checkpoint_to_resume,
        describe_rest,
        encode_pairs,
        save_whole,
        settings,
        split_by_prompt,
    )

    datasets.disable_progress_bars()
    disable_progress_bar()
    say = print if args.process_index == 0 else lambda *parts: None
    if not model.model_name_or_path:
        raise TrainingError("--model_name_or_path is missing: the language model to start from, a folder or ORG/NAME")
    base, output = model_folder(model.model_name_or_path, say=say), Path(args.output_dir)
    tokenizer = load_tokenizer(base, Path(args.chat_template_path) if args.chat_template_path else None)
    args.chat_template_path = None  # it is set already, and TRL would set it again
    check_base(base, tokenizer)
    args.suit(num_parameters(base))

    rows, dataset = read_preferences(Path(data.dataset_name)), Path(data.dataset_name)
    if data.eval_dataset_name:
        train_rows, held_out_rows = rows, read_preferences(Path(data.eval_dataset_name))
        known = {prompt_key(row) for row in train_rows}
        if shared := sum(prompt_key(row) in known for row in held_out_rows):
            say(f"warning: {shared} of {len(held_out_rows)} held-out pairs have a prompt that is trained on")
    else:
        train_rows, held_out_rows = split_by_prompt(rows, data.held_out_fraction, seed=args.seed)
    train_set = encode_pairs(train_rows, tokenizer, args.max_length, data.dataset_name)
    held_out_name = data.eval_dataset_name or data.dataset_name
    held_out = encode_pairs(held_out_rows, tokenizer, args.max_length, held_out_name) if held_out_rows else None
    if held_out is None:
        args.eval_strategy = "no"
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if len(train_set) < batch:
        raise TrainingError(
            f"{len(train_set)} pairs are fewer than one batch of {batch} (--per_device_train_batch_size x "
            "--gradient_accumulation_steps x processes); lower one of them or bring more pairs"
        )

    counts = {
        "train_pairs": len(train_set),
        "train_too_long": len(train_rows) - len(train_set),
        "held_out_pairs": len(held_out or ()),
        "held_out_too_long": len(held_out_rows) - len(held_out or ()),
    }
    record = {
        "base": {"path": str(base), "sha256": weights_sha256(base)},
        "dataset": {"path": str(dataset), "sha256": file_sha256(dataset), "held_out": data.eval_dataset_name} | counts,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "max_length": args.max_length,
        "pad_token": tokenizer.pad_token,
        "processes": args.world_size,
        "settings": settings(data, args, model),
        "seed": args.seed,
        "versions": versions(),
        "git_commit": git_commit(),
    }
    checkpoint = checkpoint_to_resume(args, record, say)
    say(
        f"{counts['train_pairs']} pairs to train on, {counts['held_out_pairs']} held out; left out as longer than "
        f"{args.max_length} tokens: {counts['train_too_long']} and {counts['held_out_too_long']}"
    )
    if checkpoint:
        say(f"going on from {checkpoint}")

    with failures_of_the_disk(output):
        output.mkdir(parents=True, exist_ok=True)
    args.model_init_kwargs = {"dtype": model.dtype, "attn_implementation": model.attn_implementation}
    trainer = PairTrainer(
        model=str(base),
        args=args,
        train_dataset=train_set,
        eval_dataset=held_out,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        callbacks=[RewardRunLog(output, record)],
    )
    trainer.remove_callback(PrinterCallback)
    sizes = [(weight.numel(), weight.requires_grad) for weight in cast(Any, trainer.model).parameters()]
    trained, total = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
    say(f"{trained:,} of {total:,} weights are trained, on {args.device}")
    try:
        with ends_in_order(), failures_of_the_disk(output):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            save_whole(trainer, output, record)
    except OutputError as error:
        raise TrainingError(f"{error}; {describe_rest(output)}") from error
    say(f"reward model: {output}")


if __name__ == "__main__":
    execute(main)
