"""Fine-tune a chat model on demonstrations: the loss is on what the assistant says, and on nothing else.

    python scripts/train_sft.py --model_path models/tiny-sql --dataset dbbench --output_dir outputs/sft
    python scripts/train_sft.py --model_path MODEL --dataset demonstrations.jsonl --num_epochs 3

--dataset is one of
  dbbench          DB-Bench tasks played by the scripted oracle; only episodes that the judge calls right
  gsm8k            GSM8K's solutions with calculator calls; gsm8k:FILE and gsm8k:generated need no network
  FILE             JSONL of {"messages": [...], "tools": [...]}, in chat-completions form

The output is an adapter with its tokenizer, which every --model_path takes, or a whole model with --lora_r 0.
"""

import os
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # run as a script

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path


def number(kind: type, low: float, high: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """A number from `low` (or above it) to below `high`, in argparse's manner."""
    words = f"expected {'a number' if kind is float else 'a whole number'} " + (
        f"above {low:g}" if above else f"of {low:g} or more"
    )
    words += f" and below {high:g}" if high < math.inf else ""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (low < value if above else low <= value) or not value < high:
            raise argparse.ArgumentTypeError(f"{text} is given, {words}")
        return value

    return read


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python scripts/train_sft.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    whole = number(int, 1)
    add("--model_path", type=Path, required=True, help="folder of a chat model, or of an adapter, which is trained on")
    add("--dataset", required=True, metavar="NAME|FILE", help="what to learn from: dbbench, gsm8k or a JSONL file")
    add("--output_dir", type=Path, default=Path("outputs/sft"), help="an empty or new folder (default outputs/sft)")
    add("--num_epochs", type=whole, default=3, help="passes over the data (default 3)")
    add("--batch_size", type=whole, default=8, help="conversations of one forward pass (default 8)")
    add("--gradient_accumulation_steps", type=whole, default=1, help="forward passes per update (default 1)")
    add("--max_samples", type=whole, help="at most so many conversations (default: all of a file, 512 generated ones)")
    add("--learning_rate", type=number(float, 0, above=True), default=2e-4, help="falls linearly to 0 (default 2e-4)")
    add("--lora_r", type=number(int, 0), help="rank of the adapter on all linear layers; 0 trains all weights (16)")
    add("--lora_alpha", type=whole, help="scale of the adapter times its rank (32)")
    add("--lora_dropout", type=number(float, 0, 1), help="(0.05)")
    add("--max_length", type=number(int, 16), default=2048, help="tokens; longer ones are left out (default 2048)")
    add("--seed", type=number(int, 0), default=0, help="of the adapter, the order and generated tasks (default 0)")
    add(
        "--tasks",
        type=Path,
        metavar="FILE",
        help="dbbench: task file whose references are played; without it generated",
    )
    add("--protocol", choices=("fc", "text", "lab"), help="dbbench: how the oracle acts (default fc)")
    add("--chat_template_path", type=Path, metavar="FILE", help="Jinja file, or a model folder that has the template")
    add("--save_steps", type=whole, default=100, help="updates between checkpoints, and at the end (default 100)")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint of --output_dir, if there is one")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the first GPU, where there is one")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL would report the run otherwise
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one process, one GPU
    if args.dataset != "gsm8k":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing else is fetched
    from sql_agent.local.sft import SftSettings, TrainingError, prepare, train

    try:
        run = prepare(SftSettings(**vars(args)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        train(run)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
