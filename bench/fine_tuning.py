"""Time updates of fine-tuning on questions about many databases: `python -m bench.fine_tuning DATABASE TRAIN_FILE`.

Three ways, on the same questions: batches of one database, whose schema is computed once; the same batches, each row
by itself; and batches in TRL's order, of many databases, sharing what they happen to. An epoch's time is that of the
measured updates times the share of its tokens that they hold.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch

from agentgrpo.chat.replies import EncodedReplies
from agentgrpo.flags import described_parser
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.fine_tuning import load_trainable
from sql_agent.sft.run import choose_pass_tokens, prepare_sft
from sql_agent.sft.trainer import CrossEntropy, epoch_order, related_conversations, trained_policy


class Timed(NamedTuple):
    tokens: int
    seconds: float
    losses: list[float]


def timed(learner: CrossEntropy, batches: Sequence[list[EncodedReplies]]) -> Timed:
    began = time.perf_counter()
    losses = [learner.update(batch, 0.0)["sft/loss"] for batch in batches]  # the weights stay: losses can be compared
    return Timed(sum(len(one.ids) for batch in batches for one in batch), time.perf_counter() - began, losses)


def copies(one: EncodedReplies, count: int) -> list[EncodedReplies]:
    """Rows whose replies differ from their first token on, as those of a group do."""
    first = one.mask.index(1)
    return [replace(one, ids=[*one.ids[:first], one.ids[first] + n, *one.ids[first + 1 :]]) for n in range(count)]


def main() -> None:
    parser = described_parser("python -m bench.fine_tuning", __doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("train_file", type=Path)
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    parser.add_argument("--schema-form", default="compact")
    parser.add_argument("--updates", type=int, default=12, help="updates of each way (default 12)")
    parser.add_argument("--copies", type=int, default=1, help="rows of each question, as in a group (default 1)")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/bench-fine-tuning"))
    args: argparse.Namespace = parser.parse_args()
    cfg = SftConfig(
        model_path=str(args.model), database=args.database, train_file=args.train_file, held_out_fraction=0.0,
        schema_form=args.schema_form, lora_rank=0, learning_rate=1e-5, run_dir=args.run_dir,
    )  # fmt: skip
    run = prepare_sft(cfg, resume=False)
    model = load_trainable(run.start.model, run.start.base, all_weights=True, device=run.start.device)
    longest = max(len(one.ids) for one in run.encoded)
    policy = trained_policy(model, run.start, cfg, choose_pass_tokens(cfg, run.start, longest, print))
    learner = CrossEntropy(policy, cfg.learning_rate)
    whole = sum(len(one.ids) for one in run.encoded)

    def batches(order: Sequence[int]) -> list[list[EncodedReplies]]:
        cut = [order[at : at + cfg.batch_size] for at in range(0, len(order), cfg.batch_size)]
        drawn = cut[:: -(-len(cut) // args.updates)]
        return [[row for number in batch for row in copies(run.encoded[number], args.copies)] for batch in drawn]

    related = batches(epoch_order(related_conversations(run.encoded), cfg.batch_size, cfg.seed))
    drawn = batches(torch.randperm(len(run.encoded), generator=torch.Generator().manual_seed(cfg.seed)).tolist())
    timed(learner, related[:1])  # kernels are compiled
    ways = {
        "batches of one database, the schema once": timed(learner, related),
        "batches in TRL's order, sharing what they can": timed(learner, drawn),
    }
    with patch("sql_agent.local.packed_model.packs", return_value=False):
        ways["batches of one database, each row by itself"] = timed(learner, related)
    each = f"{args.updates} updates of {cfg.batch_size} x {args.copies} rows each way"
    print(f"{len(run.encoded)} conversations, {whole:,} tokens; {each}")
    print("| way | tokens a second | an epoch, minutes | mean loss |\n| --- | ---: | ---: | ---: |")
    for name, way in ways.items():
        rate = way.tokens / way.seconds
        print(
            f"| {name} | {rate:,.0f} | {whole / rate / 60:,.0f} | {sum(way.losses) / len(way.losses):.5f} |", flush=True
        )


if __name__ == "__main__":
    main()
