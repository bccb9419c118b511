"""What the scoring service holds: `python -m scripts.bench_reward_service`; five minutes on two idle cores.

The soak comes on top (`--soak_s 600`). The model is made on the spot, the same each time: a random Qwen3 classifier of
6 layers, 256 wide. The comparison is `scripts/bench/reward_baseline.py`, the same model asked one request at a time
inside an `async def`. Servers and clients are processes of their own, on loopback. Leaves out GPUs.
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from core.machine import free_port
from scripts.bench.children import ROOT, answer, python, say, started, wait_for
from scripts.bench.report import Row, facts, table
from scripts.bench.reward_workload import GROUP, HIDDEN, LAYERS, conversations, make_reward_model

PARTS = ("speed", "crowd", "hostile")
CLIENTS, CROWD = 32, 256
NUM_CONVERSATIONS = 8192
NUM_MALFORMED, NUM_SLOW = 10_000, 100
SETTLE_S = 3.0
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Of both servers. The service sets the second itself; the obvious one does not, and beside any other process it then
takes up to 20 times as long. It is given to both, so that what is compared is the way of serving."""


@dataclass(frozen=True)
class Place:
    """Where things lie during the run."""

    folder: Path
    model: Path
    grouped: Path
    """Request bodies, one a line: groups of answers to one task."""
    single: Path
    """The same lengths, but no two share a beginning."""
    log: Path


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-reward-") as name:
        place = prepare(Path(name))
        rows: list[Row] = []
        if "speed" in args.only:
            rows += speed(place, args.seconds)
        if {"crowd", "hostile"} & set(args.only) or args.soak_s:
            with service(place) as (port, process):
                if "crowd" in args.only:
                    rows += crowd(place, port, args.crowd_s)
                if "hostile" in args.only:
                    rows += hostile(place, port, args.seconds)
                if args.soak_s:
                    rows += soak(place, port, process, args.soak_s)
    found = facts()
    print(table(rows))
    print(
        f"\nQwen3 classifier, {LAYERS} layers, {HIDDEN} wide; commit {found['commit']}, load {found['load']}, ", end=""
    )
    print(f"{os.cpu_count()} cores")
    if args.json:
        args.json.write_text(json.dumps({"facts": found, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return int(any(row.met is False for row in rows))


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench_reward_service", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(PARTS), help=f"of {','.join(PARTS)}; default all"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement, default %(default)s")
    parser.add_argument("--crowd_s", type=float, default=60.0, help="of the 256 clients, default %(default)s")
    parser.add_argument("--soak_s", type=float, default=0.0, help="of the soak, default 0: none; 600 is the promise")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    args = parser.parse_args(arguments)
    if unknown := set(args.only) - {*PARTS, ""}:
        parser.error(f"--only {','.join(sorted(unknown))}: known are {', '.join(PARTS)}")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: no such folder")
    return args


def prepare(folder: Path) -> Place:
    place = Place(folder, folder / "model", folder / "grouped.jsonl", folder / "single.jsonl", folder / "servers.log")
    make_reward_model(place.model)
    for path, shared in ((place.grouped, True), (place.single, False)):
        with path.open("w") as out:
            for messages in conversations(NUM_CONVERSATIONS, shared=shared):
                out.write(json.dumps({"messages": messages}) + "\n")
    return place


def speed(place: Place, seconds: float) -> list[Row]:
    """Both servers up, one loaded at a time, in turns, so that a change of the machine's pace meets both. The latencies
    of a turn end with its last answer, so nothing of one server's is left when the other is asked."""
    measured: dict[str, list[float]] = {"service": [], "baseline": [], "service single": [], "baseline single": []}
    worst_ms = {"service": 0.0, "baseline": 0.0}
    with service(place) as (port, _), baseline(place) as other:
        for turn, (kind, bodies) in enumerate((("", place.grouped), (" single", place.single), ("", place.grouped))):
            for name, to in (("baseline", other), ("service", port)):
                probed = ["/livez", "/healthz"] if name == "service" else ["/livez"]
                job = {"port": to, "bodies": str(bodies), "clients": CLIENTS, "skip": turn * 2048}
                load(place, {**job, "seconds": SETTLE_S})
                found = load(place, {**job, "seconds": seconds / 2, "probe": probed, "skip": turn * 2048 + 1024})
                measured[name + kind].append(_rate(found, seconds / 2))
                worst_ms[name] = max(worst_ms[name], found["probed"]["max_ms"])
    rate = {name: sum(rates) / len(rates) for name, rates in measured.items()}
    return [
        Row(
            f"requests/s against the baseline's, {CLIENTS} clients, {GROUP} answers a task",
            rate["service"] / rate["baseline"],
            "x",
            3.0,
            "at least",
            "matrix products of what is not shared",
        ),
        Row("... service", rate["service"], "requests/s"),
        Row("... baseline", rate["baseline"], "requests/s"),
        Row(
            "the same where no two conversations begin alike",
            rate["service single"] / rate["baseline single"],
            "x",
            limit="every token has to be computed: a batch saves little on a CPU",
        ),
        Row("... service", rate["service single"], "requests/s"),
        Row("... baseline", rate["baseline single"], "requests/s"),
        Row(
            "slowest health check under that load",
            worst_ms["service"],
            "ms",
            100.0,
            limit="cores shared with the model",
        ),
        Row("... baseline", worst_ms["baseline"], "ms"),
    ]


def crowd(place: Place, port: int, seconds: float) -> list[Row]:
    found = load(place, {"port": port, "bodies": str(place.grouped), "clients": CROWD, "seconds": seconds})["asked"]
    statuses = found["statuses"]
    wrong = sum(count for status, count in statuses.items() if status not in ("200", "503"))
    return [
        Row(f"{CROWD} clients, {seconds:.0f} s: answers other than 200 and 503", wrong, "", 0),
        Row("... 200", statuses.get("200", 0), ""),
        Row("... 503", statuses.get("503", 0), ""),
        Row("... P50", found["p50_ms"], "ms"),
        Row("... P99", found["p99_ms"], "ms"),
    ]


def hostile(place: Place, port: int, seconds: float) -> list[Row]:
    """Legal requests alone, beside the hostile ones, and alone again."""
    legal = {"port": port, "bodies": str(place.grouped), "clients": CLIENTS, "seconds": seconds / 2}
    bad = {"port": port, "malformed": NUM_MALFORMED, "slow": NUM_SLOW, "seconds": 3 * seconds}
    load(place, {**legal, "seconds": SETTLE_S})
    before = _rate(load(place, legal), seconds / 2)
    with loading(place, bad) as clients:
        beside = _rate(load(place, {**legal, "seconds": 3 * seconds}), 3 * seconds)
        refused = answer(clients, place.log)["refused"]["statuses"]
    after = _rate(load(place, legal), seconds / 2)
    ours = sum(count for status, count in refused.items() if not status.startswith("4"))
    return [
        Row(
            f"legal requests/s beside {NUM_MALFORMED:,} malformed bodies in {3 * seconds:.0f} s and {NUM_SLOW} slow "
            "clients, share of alone",
            beside / ((before + after) / 2),
            "",
            0.9,
            "at least",
            "0.6 ms CPU of the service a body, and what the clients need on the same cores",
        ),
        Row("... malformed bodies not answered 4xx", ours, "", 0),
        Row("... malformed bodies answered", sum(refused.values()), ""),
    ]


def soak(place: Place, port: int, process: subprocess.Popen[str], seconds: float) -> list[Row]:
    """Resident memory after a fifth of the time and at the end; in between the allocator has met every length."""
    job = {"port": port, "bodies": str(place.grouped), "clients": CLIENTS}
    load(place, {**job, "seconds": seconds / 5})
    early = _mib(process)
    found = load(place, {**job, "seconds": seconds * 4 / 5, "skip": 4096})
    return [
        Row(
            f"soak of {seconds:.0f} s: growth of resident memory over its last four fifths",
            _mib(process) - early,
            "MiB",
            16.0,
        ),
        Row("... resident at the end", _mib(process), "MiB"),
        Row("... requests/s", _rate(found, seconds * 4 / 5), "requests/s"),
    ]


@contextmanager
def service(place: Place) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    port = free_port()
    command = [sys.executable, str(ROOT / "reward_model" / "inference_api.py"), "--model_path", str(place.model)]
    with started([*command, "--port", str(port)], place.log, ENVIRONMENT) as process:
        wait_for(f"http://127.0.0.1:{port}/readyz", process, place.log, 120)
        yield port, process


@contextmanager
def baseline(place: Place) -> Iterator[int]:
    port = free_port()
    command = python("scripts.bench.reward_baseline", str(place.model), str(port))
    with started(command, place.log, ENVIRONMENT) as process:
        wait_for(f"http://127.0.0.1:{port}/livez", process, place.log, 120)
        yield port


def load(place: Place, job: dict[str, Any]) -> dict[str, Any]:
    with loading(place, job) as clients:
        return answer(clients, place.log)


@contextmanager
def loading(place: Place, job: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    with started(python("scripts.bench.reward_load"), place.log, talks=True) as clients:
        say(clients, job)
        yield clients


def _rate(found: dict[str, Any], seconds: float) -> float:
    return found["asked"]["statuses"].get("200", 0) / seconds


def _mib(process: subprocess.Popen[str]) -> float:
    return psutil.Process(process.pid).memory_info().rss / 2**20


if __name__ == "__main__":
    execute(main)
