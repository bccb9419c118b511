"""Measures the scoring service under load: `python -m bench.reward_service`; five minutes on two idle cores.

The soak test takes additional time (`--soak-s 600`). The command makes the model, the same each time: a random Qwen3
classifier of 6 layers, 256 wide. The baseline is `bench/parts/reward_baseline.py`, which scores one request at a time
with the same model inside an `async def`. Servers and clients are separate processes, on loopback.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from agentgrpo.flags import Parser
from bench.parts.children import ROOT, Server, python, serving
from bench.parts.report import Row, add_options, check_options, facts, finish
from bench.parts.reward_load import Job, play
from bench.parts.reward_workload import GROUP, HIDDEN, LAYERS, conversations, make_reward_model

PARTS = ("speed", "crowd", "hostile")
CLIENTS, CROWD = 32, 256
NUM_CONVERSATIONS = 8192
NUM_MALFORMED, NUM_SLOW = 10_000, 100
SETTLE_S = 3.0
# Request bodies, one per line: groups of answers to one task, and others of the same lengths without shared prefix.
GROUPED, SINGLE = "grouped.jsonl", "single.jsonl"
# Both servers get this environment. The service sets the second variable itself; the baseline does not, and beside any
# other process it would take up to 20 times as long. With equal settings only the way of serving is compared.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-reward-") as name,
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as clients,
    ):
        folder = prepare(Path(name))
        if "speed" in args.only:
            rows += speed(folder, clients, args.seconds)
        if {"crowd", "hostile"} & set(args.only) or args.soak_s:
            with service(folder) as server:
                job = Job(server.port, args.seconds, str(folder / GROUPED), CLIENTS)
                if "crowd" in args.only:
                    rows += crowd(replace(job, clients=CROWD, seconds=args.crowd_s), clients)
                if "hostile" in args.only:
                    rows += hostile(job, clients)
                if args.soak_s:
                    rows += soak(replace(job, seconds=args.soak_s), clients, psutil.Process(server.pid))
    print(f"Qwen3 classifier, {LAYERS} layers, {HIDDEN} wide\n")
    return finish(rows, facts(), args.output)


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m bench.reward_service", description=(__doc__ or "").splitlines()[0])
    add_options(parser, PARTS)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each measurement, default %(default)s")
    parser.add_argument("--crowd-s", type=float, default=60.0, help="seconds with 256 clients, default %(default)s")
    parser.add_argument(
        "--soak-s", type=float, default=0.0, help="seconds of the soak test, default 0; the target is for 600"
    )
    args = parser.parse_args(arguments)
    check_options(parser, args, PARTS)
    return args


def prepare(folder: Path) -> Path:
    make_reward_model(folder / "model")
    for name, shared in ((GROUPED, True), (SINGLE, False)):
        with (folder / name).open("w") as out:
            for messages in conversations(NUM_CONVERSATIONS, shared=shared):
                out.write(json.dumps({"messages": messages}) + "\n")
    return folder


def service(folder: Path) -> AbstractContextManager[Server]:
    command = [sys.executable, str(ROOT / "reward_model" / "inference_api.py"), "--model", str(folder / "model")]
    return serving(command, "/readyz", folder / "servers.log", ENVIRONMENT)


def baseline(folder: Path) -> AbstractContextManager[Server]:
    command = python("bench.parts.reward_baseline", str(folder / "model"))
    return serving(command, "/livez", folder / "servers.log", ENVIRONMENT)


def speed(folder: Path, clients: Executor, seconds: float) -> list[Row]:
    """Start both servers and load one at a time, in turns, so that a change of the machine's speed affects both. The
    latencies of a turn end with its last answer, so nothing of one server is left when the other is asked."""
    rates: dict[str, list[float]] = {}
    worst_ms: dict[str, float] = {"service": 0.0, "baseline": 0.0}
    with service(folder) as ours, baseline(folder) as other:
        for turn, bodies in enumerate((GROUPED, SINGLE, GROUPED)):
            for name, server in (("baseline", other), ("service", ours)):
                probed = ("/livez", "/healthz") if name == "service" else ("/livez",)
                job = Job(server.port, SETTLE_S, str(folder / bodies), CLIENTS, skip=turn * 2048)
                clients.submit(play, job).result()
                job = replace(job, seconds=seconds / 2, probe=probed, skip=turn * 2048 + 1024)
                found = clients.submit(play, job).result()
                rates.setdefault(f"{name} {bodies}", []).append(_rate(found, job))
                worst_ms[name] = max(worst_ms[name], found["probed"]["max_ms"])
    mean = {name: fmean(found) for name, found in rates.items()}
    grouped = f"requests/s against the baseline's, {CLIENTS} clients, {GROUP} answers a task"
    single, why = (
        "the same where no two conversations begin alike",
        "every token has to be computed: a batch saves little",
    )
    ratio = {bodies: mean[f"service {bodies}"] / mean[f"baseline {bodies}"] for bodies in (GROUPED, SINGLE)}
    return [
        Row(grouped, ratio[GROUPED], "x", 3.0, "at least", "matrix products of what is not shared"),
        *(Row(f"... {name}", mean[f"{name} {GROUPED}"], "requests/s") for name in worst_ms),
        Row(single, ratio[SINGLE], "x", limit=why),
        *(Row(f"... {name}", mean[f"{name} {SINGLE}"], "requests/s") for name in worst_ms),
        Row("slowest health check under that load", worst_ms["service"], "ms", 100.0, limit="cores shared"),
        Row("... baseline", worst_ms["baseline"], "ms"),
    ]


def crowd(job: Job, clients: Executor) -> list[Row]:
    found = clients.submit(play, job).result()["asked"]
    statuses = found["statuses"]
    wrong = sum(count for status, count in statuses.items() if status not in ("200", "503"))
    return [
        Row(f"{job.clients} clients, {job.seconds:.0f} s: answers other than 200 and 503", wrong, "", 0),
        *(Row(f"... {status}", statuses.get(status, 0), "") for status in ("200", "503")),
        Row("... P50", found["p50_ms"], "ms"),
        Row("... P99", found["p99_ms"], "ms"),
    ]


def hostile(job: Job, clients: Executor) -> list[Row]:
    """Measure legal requests alone, beside the hostile ones, and alone again."""
    alone, long = replace(job, seconds=job.seconds / 2), replace(job, seconds=3 * job.seconds)
    clients.submit(play, replace(job, seconds=SETTLE_S)).result()
    before = _rate(clients.submit(play, alone).result(), alone)
    bad = clients.submit(play, Job(job.port, long.seconds, malformed=NUM_MALFORMED, slow=NUM_SLOW))
    beside = _rate(clients.submit(play, long).result(), long)
    refused = bad.result()["refused"]["statuses"]
    after = _rate(clients.submit(play, alone).result(), alone)
    what = f"legal requests/s beside {NUM_MALFORMED:,} malformed bodies in {long.seconds:.0f} s and {NUM_SLOW} slow "
    limit = "0.4 ms CPU of the service a body, and what the clients need on the same cores"
    wrong = sum(count for status, count in refused.items() if not status.startswith("4"))
    return [
        Row(what + "clients, share of alone", beside / fmean([before, after]), "", 0.9, "at least", limit),
        Row("... malformed bodies not answered 4xx", wrong, "", 0),
        Row("... malformed bodies answered", sum(refused.values()), ""),
    ]


def soak(job: Job, clients: Executor, process: psutil.Process) -> list[Row]:
    """Measure resident memory after a fifth of the time and at the end; meanwhile the allocator meets every length."""
    clients.submit(play, replace(job, seconds=job.seconds / 5)).result()
    early = process.memory_info().rss / 2**20
    rest = replace(job, seconds=job.seconds * 4 / 5, skip=4096)
    found = clients.submit(play, rest).result()
    late = process.memory_info().rss / 2**20
    what = f"soak of {job.seconds:.0f} s: growth of resident memory over its last four fifths"
    return [
        Row(what, late - early, "MiB", 16.0),
        Row("... resident at the end", late, "MiB"),
        Row("... requests/s", _rate(found, rest), "requests/s"),
    ]


def _rate(found: dict[str, Any], job: Job) -> float:
    return found["asked"]["statuses"].get("200", 0) / job.seconds


if __name__ == "__main__":
    execute(main)
