"""Make a medical database of invented entries: `agentgrpo tasks medical --output medical.db --questions DIR`.

Nothing in it is medical advice: every drug, disease and company is invented, in English and Chinese. Questions go to
DIR/train.jsonl and DIR/held_out.jsonl, over different entries. --pairs adds preference pairs for a scorer over the same
two halves. doc/medical.md describes all of it.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agentgrpo.flags import Parser

# The held-out share of the entries, and of the questions.
HELD_OUT = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description="Make a medical database of invented entries, questions and pairs.")
    parser.add_argument("--output", type=Path, required=True, help="the SQLite file to write")
    parser.add_argument("--questions", type=Path, metavar="DIR", help="write train.jsonl and held_out.jsonl there")
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="preference pairs; X.jsonl, the held-out half in X.held_out.jsonl"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same files; default 0")
    parser.add_argument("--n-drugs", type=int, default=200, help="rows of drugs_info; default 200")
    parser.add_argument("--n-diseases", type=int, default=120, help="rows of disease; default 120")
    parser.add_argument("--n-questions", type=int, default=500, help="both files together; default 500")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    args = parser.parse_args(argv)
    for name in ("n_drugs", "n_diseases", "n_questions"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; it has to be 1 or more")
    from agentgrpo.outputs import OutputError, check_output

    try:
        for path, flag in outputs(args):
            check_output(path, flag, overwrite=args.overwrite)
    except OutputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write(args)
    return 0


def outputs(args: argparse.Namespace) -> list[tuple[Path, str]]:
    files = [(args.output, "--output")]
    if args.questions is not None:
        files += [(args.questions / f"{half}.jsonl", "--questions") for half in ("train", "held_out")]
    if args.pairs is not None:
        files += [(args.pairs, "--pairs"), (held_out_of(args.pairs), "--pairs")]
    return files


def held_out_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}.held_out{path.suffix}")


def write(args: argparse.Namespace) -> None:
    from reward_model.preferences import write_preferences
    from sql_agent.medical.database import read_schema
    from sql_agent.medical.datatypes import write_questions
    from sql_agent.medical.pairs import make_pairs
    from sql_agent.medical.questions import Half, make_questions
    from sql_agent.medical.words import make_database

    make_database(args.output, n_drugs=args.n_drugs, n_diseases=args.n_diseases, seed=args.seed)
    print(f"{args.n_drugs} drugs and {args.n_diseases} diseases, all of them invented: {args.output}")
    schema = read_schema(args.output)
    held_out = round(args.n_questions * HELD_OUT)
    counts: dict[Half, int] = {"train": args.n_questions - held_out, "held_out": held_out}
    for half, count in counts.items():
        questions = make_questions(args.output, schema, count, half=half, held_out_fraction=HELD_OUT, seed=args.seed)
        if args.questions is not None:
            args.questions.mkdir(parents=True, exist_ok=True)
            write_questions(questions, args.questions / f"{half}.jsonl")
            short = f" of {count} asked for; more entries give more" if len(questions) < count else ""
            print(f"{len(questions)} questions{short}: {args.questions / f'{half}.jsonl'}")
        if args.pairs is not None:
            path = args.pairs if half == "train" else held_out_of(args.pairs)
            path.parent.mkdir(parents=True, exist_ok=True)
            pairs = make_pairs(args.output, schema, questions, seed=args.seed)
            write_preferences((pair.preference for pair in pairs), path)
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(p.kind for p in pairs).items()))
            longer = sum(pair.longer > 0 for pair in pairs)
            print(f"{len(pairs)} pairs ({kinds}; the better side is the longer one in {longer}): {path}")
