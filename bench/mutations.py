"""Change one operator or number at a time and see whether a test fails: `python -m bench.mutations`.

The changes are drawn by lot from lines of each room. With `--beside` they are drawn from the lines that another
checkout has too, and made there as well, so that tests can be compared before and after they were merged. Run it in a
checkout of its own: a file is changed while its tests run.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = "sql_agent/tests/test_"
ROOMS = {
    "credit": (
        (
            "sql_agent/credit/grpo.py",
            "sql_agent/credit/losses.py",
            "sql_agent/credit/registry.py",
            "sql_agent/credit/reinforce.py",
            "sql_agent/rewards.py",
            "sql_agent/source/dynamic_sampling.py",
        ),
        "estimators losses dynamic_sampling none_is_not_zero turn_rewards rewards losses_parity source added_rows",
    ),
    "stitching": (
        ("sql_agent/credit/row.py", "sql_agent/source/batch.py", "sql_agent/packed_rows.py", "sql_agent/log_probs.py"),
        "stitch chains batch faithful row_end trained_rows log_probs packed_model shared_prefix rollout_manager "
        "local_policy",
    ),
    "judges": (
        ("dbbench_adapter/judges/*.py", "dbbench_adapter/judge.py", "dbbench_adapter/comparisons.py"),
        "comparison dbbench_adapter/test_judges dbbench_adapter/test_comparisons dbbench_adapter/test_kept_tables",
    ),
    "play": (
        (
            "sql_agent/play/served.py",
            "sql_agent/play/state.py",
            "dbbench_adapter/interaction.py",
            "dbbench_adapter/protocols/*.py",
        ),
        "play dbbench_adapter/test_protocol_fc dbbench_adapter/test_protocol_text dbbench_environment lost_on_purpose",
    ),
    "checkpoints": (
        ("agentgrpo/checkpoints.py", "sql_agent/verl_side/checkpoints.py", "agentgrpo/signed*.py"),
        "checkpoints local_checkpoint run_dir agentgrpo/test_signed agentgrpo/test_signed_checkpoints",
    ),
    "resume": (
        ("sql_agent/startup/resume.py", "sql_agent/local/run_folder.py", "agentgrpo/run_folder.py"),
        "run_dir local_checkpoint local_start checkpoints time_left",
    ),
}
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.And: "or",
    ast.Or: "and",
}


class Mutation(NamedTuple):
    before: str
    after: str


def swaps(text: str) -> Iterator[Mutation]:
    """Lines with one operator, number or truth value exchanged, of expressions that stand on one line."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp):
            left, right = {
                ast.Compare: lambda it: (it.left, it.comparators[0]),
                ast.BinOp: lambda it: (it.left, it.right),
                ast.BoolOp: lambda it: (it.values[0], it.values[1]),
            }[type(node)](node)
            operator = node.ops[0] if isinstance(node, ast.Compare) else node.op
            span = (left.end_lineno, left.end_col_offset, right.lineno, right.col_offset)
            new = f" {SWAPS[type(operator)]} " if type(operator) in SWAPS else ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            span = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            new = str(not node.value if isinstance(node.value, bool) else node.value + 1)
        else:
            continue
        first, start, last, end = span
        line = lines[first - 1]
        if new and first == last and line.isascii() and "(" not in line[start:end] and line.strip() != line[start:end]:
            yield Mutation(line.strip(), (line[:start] + new + line[end:]).strip())


def sources(checkout: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(checkout.glob(pattern))


def place(checkout: Path, line: str) -> Path | None:
    """The only product file in which this line stands, once."""
    command = ["git", "grep", "-nF", line, "--", "*.py", ":!*/tests/*", ":!bench/*", ":!examples/*"]
    found = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False).stdout.splitlines()
    hits = [hit for hit in found if hit.split(":", 2)[2].strip() == line]
    return checkout / hits[0].split(":", 1)[0] if len(hits) == 1 else None


def tests_of(checkout: Path, names: str) -> list[str]:
    paths = []
    for name in names.split():
        folder, slash, file = name.rpartition("/")
        paths.append(f"{folder}/tests/{file}.py" if slash else f"{TESTS}{name}.py")
    return [path for path in paths if (checkout / path).exists()]


def passes(checkout: Path, tests: list[str]) -> bool:
    """Whether the quick tests pass; slow ones are not run, and tests that hang count as failed."""
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    try:
        return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, timeout=300).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def survives(checkout: Path, mutation: Mutation, tests: list[str]) -> bool:
    path = place(checkout, mutation.before)
    assert path
    text = path.read_text()
    try:
        path.write_text(text.replace(mutation.before, mutation.after, 1))
        return passes(checkout, tests)
    finally:
        path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--count", type=int, default=11, help="changes of each room")
    parser.add_argument("--room", choices=ROOMS, action="append")
    args = parser.parse_args()
    checkouts = [Path().resolve()] + ([args.beside.resolve()] if args.beside else [])
    for room in args.room or ROOMS:
        patterns, names = ROOMS[room]
        drawn = [mutation for path in sources(checkouts[0], patterns) for mutation in swaps(path.read_text())]
        random.Random(room).shuffle(drawn)
        drawn = [one for one in drawn if all(place(checkout, one.before) for checkout in checkouts)][: args.count]
        tests = {checkout: tests_of(checkout, names) for checkout in checkouts}
        for checkout in checkouts:
            assert passes(checkout, tests[checkout]), f"{checkout}: the tests of {room} fail as they are"
        killed: Counter[Path] = Counter()
        for mutation in drawn:
            left = {checkout for checkout in checkouts if survives(checkout, mutation, tests[checkout])}
            killed.update(set(checkouts) - left)
            for checkout in checkouts:
                if checkout in left:
                    print(f"  survives in {checkout.name}: {mutation.before}  ->  {mutation.after}", flush=True)
        print(f"{room}: " + ", ".join(f"{killed[it]} of {len(drawn)} in {it.name}" for it in checkouts), flush=True)


if __name__ == "__main__":
    main()
