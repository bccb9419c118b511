"""How much the processes of a run grow over 200 steps: `python -m scripts.bench_long_run`; about ten minutes.

Prints a table; doc/benchmarks.md says what is measured. Ends with 1 if a process that may not grow does.
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import tempfile
from pathlib import Path

from scripts.bench import report
from scripts.bench.long_run import PARTS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench_long_run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", choices=PARTS, help="one part")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory(prefix="agentgrpo-bench-") as folder:
        rows = [row for name, part in PARTS.items() if only in (None, name) for row in part(Path(folder))]
    print(report.table(rows))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    execute(main)
