"""Benchmarks the main job: `python -m bench.main_job`; under 20 minutes on two idle cores.

It measures in one run, prints a table per part and, on request, writes JSON and the figures of
doc/project/benchmarks.md. Everything stays on loopback; every process that it starts ends with it.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import importlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.flags import Parser
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.processes import RUN_ID, end_run, ends_in_order
from bench.parts import report
from bench.parts.children import ROOT
from bench.parts.report import Row

MODEL = ROOT / "models" / "tiny-sql"
PAGE, DATA = ROOT / "doc" / "project/benchmarks.md", ROOT / "doc" / "data" / "benchmarks.json"
# The module and function of each part, which are imported when it is measured.
PARTS = {
    "startup": ("bench.parts.startup", "measure"),
    "update": ("bench.parts.update", "measure"),
    "shared": ("bench.parts.update", "measure_shared"),
    "memory": ("bench.parts.startup", "measure_memory"),
    "tokens": ("bench.parts.update", "measure_tokens"),
    "proxy": ("bench.parts.proxy_cost", "measure"),
    "overhead": ("bench.parts.overhead", "measure"),
    "episodes": ("bench.dbbench", "measure_one_by_one"),
    "lag": ("bench.parts.lag", "measure"),
}
# These parts are measured only with --only: the first two need `--model models/smollm2-135m-instruct`, the last one
# takes 17 minutes.
ON_REQUEST = ("shared", "memory", "lag")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench.main_job", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only",
        metavar="PART,...",
        help=f"some of {', '.join(PARTS)}; default all but shared and memory, which need a pretrained --model, "
        "and lag, which takes 17 minutes",
    )
    parser.add_argument("--model", type=Path, default=MODEL, help="policy; default models/tiny-sql")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    parser.add_argument(
        "--write-doc", action="store_true", help="write the figures into doc/project/benchmarks.md and doc/data"
    )
    args = parser.parse_args(argv)
    args.parts = args.only.split(",") if args.only else [part for part in PARTS if part not in ON_REQUEST]
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"--only: no part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    if args.write_doc and args.only:
        parser.error("--write-doc: the page's figures come from one run of all parts; drop --only")
    if not (args.model / "config.json").is_file():
        make = agentgrpo_command("tiny-policy")
        parser.error(f"--model: no model in {args.model}; `{make}` makes models/tiny-sql")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    os.environ[RUN_ID] = run_id = f"bench-{uuid.uuid4().hex[:12]}"
    facts, parts = report.facts(), {}
    figures: dict[str, Any] = {**facts, "parts": {}}
    with (
        ends_in_order(),
        tempfile.TemporaryDirectory(prefix="agentgrpo-bench-", ignore_cleanup_errors=True) as folder,
    ):
        try:
            for part in args.parts:
                print(f"measuring {part} ...", file=sys.stderr, flush=True)
                parts[part] = measure(part, args.model.resolve(), Path(folder))
                figures["parts"][part] = list(map(report.as_json, parts[part]))
                print(f"\n### {part}\n\n{report.table(parts[part])}\n", flush=True)
        finally:
            end_run(run_id)
            if args.output:
                args.output.write_text(json.dumps(figures, indent=2) + "\n")
    if args.write_doc:
        PAGE.write_text(report.replace_figures(PAGE.read_text(), report.markdown(parts, facts)))
        DATA.write_text(json.dumps(json.loads(DATA.read_text()) | {"main job": figures}, indent=1) + "\n")
    return int(any(row.met is False for rows in parts.values() for row in rows))


def measure(part: str, model: Path, folder: Path) -> list[Row]:
    module, function = PARTS[part]
    return getattr(importlib.import_module(module), function)(model, folder)


if __name__ == "__main__":
    execute(main)
