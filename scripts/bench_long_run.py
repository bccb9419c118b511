"""How much the processes of a run grow over 200 steps: `python -m scripts.bench_long_run`; about half an hour.

Prints a table; doc/benchmarks.md says what is measured. Ends with 1 if a process that may not grow does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from scripts.bench import long_run, report


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench_long_run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--stores", default=",".join(long_run.STORES), help="some of %(default)s")
    parser.add_argument("--steps", type=int, default=long_run.STEPS, help="default %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentgrpo-bench-") as folder:
        rows = long_run.measure(Path(folder), args.stores.split(","), steps=args.steps)
    print(report.table(rows))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
