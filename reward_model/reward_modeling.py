"""Trains a reward model on preferences, with TRL's RewardTrainer:

    accelerate launch reward_model/reward_modeling.py --dataset-name ./converted.jsonl --model-name-or-path MODEL \\
        --output-dir OUT
    accelerate launch reward_model/reward_modeling.py --config reward_model/configs/tiny_cpu.yaml

  --dataset-name FILE          preferences, as convert_dpo_format.py writes them
  --eval-dataset-name FILE     held-out preferences
  --held-out-fraction 0.1      without that file: the share of pairs to hold out, whole prompts at a time; 0 for none
  --model-name-or-path MODEL   the language model to start from: a folder, or its id on the hub, ORG/NAME
  --output-dir OUT             adapter, tokenizer, reward_model.json, metrics.jsonl and checkpoints
  --no-use-peft                train all weights; default is LoRA on all linear layers (--lora-r 16 --lora-alpha 32)
  --learning-rate 1e-4         --num-train-epochs 3  --per-device-train-batch-size 8  --max-length 1024 (tokens)
  --center-rewards-coefficient 0.01
  --chat-template-path FILE    for a model without a chat template
  --resume-from-checkpoint     a checkpoint; default auto: the newest in OUT, if there is one
  --report-to TRACKER          wandb, swanlab, trackio, tensorboard beside metrics.jsonl; without a key they write files
  --config FILE                any of these in YAML; flags win

Every flag of TRL's RewardConfig (and so of transformers' TrainingArguments) and ModelConfig works.
`accelerate launch --num_processes N` trains on N GPUs, `torchrun --nproc_per_node N` on N CPU processes.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.reward_modeling")

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.checks import UsageError
from agentgrpo.hub import ModelError, go_offline
from agentgrpo.signed_checkpoints import NotOursError


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    go_offline()  # TRL would report the run otherwise
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch reads this variable at import: threads that wait actively stop while another process has their core
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import yaml

    from agentgrpo.checkpoints import how_to_go_on
    from reward_model.arguments import OUTPUT, parse_arguments
    from reward_model.datatypes import RECORD
    from reward_model.preferences import PreferenceFileError
    from reward_model.training import train_reward_model

    ours = (ModelError, NotOursError, PreferenceFileError, UsageError)
    output = Path(OUTPUT)
    try:
        parsed = parse_arguments(arguments)
        output = Path(parsed[1].output_dir or OUTPUT)
        train_reward_model(*parsed)
    except (*ours, yaml.YAMLError) as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(f"\nstopped; {how_to_go_on(output, 'the same command', record=RECORD)}", file=sys.stderr)
        return 130
    return 0
