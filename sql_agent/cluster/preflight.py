"""Looks at a Ray cluster before anything loads: `python -m sql_agent.cluster.preflight`, a process of its own.

The command forks its runners later, which no process that has talked to Ray may do.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentgrpo.checks import UsageError
from agentgrpo.machine import HOME, LARGE, ROOT
from agentgrpo.model_kinds import count_weights
from agentgrpo.passwords import MASK
from agentgrpo.passwords import VARIABLE as PASSWORD
from agentgrpo.processes import Events, end_with_parent
from sql_agent.cluster import gcs, problems, scouts
from sql_agent.cluster.facts import COMMAND, SHARED_S, Facts, Order, Scout, gather, why_unread
from sql_agent.cluster.gcs import Node
from sql_agent.cluster.network import TOKEN_MODE, Network, actor_on
from sql_agent.cluster.problems import Wanted
from sql_agent.settings.train import TrainConfig

LOOK_S = 300.0
JOIN_S = 60.0
"""Nodes may join so much later than the command starts."""
# What a job that has just ended held comes back within seconds.
GIVEN_BACK_S = 15.0
END_S = 5.0
# verl's default of update_weights_bucket_megabytes: a worker pushes its weights through a segment of that size.
BUCKET_BYTES = 2 * 2**30
MODEL = "the model"


def look(cfg: TrainConfig, own_files: Mapping[str, str], *, join_s: float = JOIN_S) -> Network:
    """Look at every node, print what is there, and return where the run's processes listen and which Ray they join.

    Args:
        cfg: it names a cluster, and its model is a folder.
        own_files: paths of the user's own files by their settings.
    Raises:
        UsageError: the run cannot start on the cluster; the message names the node and the remedy.
    """
    for name, address in (("env.database", cfg.env.database), ("rollout.backend", cfg.rollout.backend)):
        if f":{MASK}@" in str(address) and PASSWORD not in os.environ:
            raise UsageError(
                f"{name}: the password in {address} stays in this process, and runners on other nodes need it; leave "
                f"it out of the address and set {PASSWORD} in the environment"
            )
    asked = {"config": cfg.model_dump(mode="json"), "own_files": dict(own_files), "join_s": join_s}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sql_agent.cluster.preflight"],
            cwd=HOME,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | TOKEN_MODE | {"PYTHONPATH": paths},
        )
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(LOOK_S, process.kill)
        timer.start()
        try:
            with suppress(BrokenPipeError), process.stdin as inlet:  # it has ended; its log says why
                json.dump(asked, inlet)
            for line in process.stdout:
                event: dict[str, Any] = json.loads(line)
                if "problem" in event:
                    raise UsageError(event["problem"])
                if "network" in event:
                    return Network(**event["network"])
                print(event["say"], flush=True)
            process.wait()
        finally:
            timer.cancel()
            with suppress(subprocess.TimeoutExpired):  # it leaves Ray, and after Ctrl-C takes its files away
                process.wait(END_S)
            process.kill()
            process.wait()
        log.seek(0)
        raise UsageError(
            f"the look at the cluster ended with exit code {process.returncode}, or took longer than {LOOK_S:.0f} s; "
            f"its last words: {log.read()[-1000:]}"
        )


def main() -> None:
    events = Events()
    end_with_parent()
    asked = json.load(sys.stdin)
    cfg = TrainConfig.model_validate(asked["config"])
    try:
        network = examine(cfg, asked["own_files"], asked["join_s"], events)
    except UsageError as error:
        events.emit({"problem": str(error)})
    else:
        events.emit({"network": network})


def examine(cfg: TrainConfig, own_files: Mapping[str, str], join_s: float, events: Events) -> dict[str, Any]:
    """The fields of `Network`.

    Raises:
        UsageError: see `look`.
    """
    began, cluster = time.monotonic(), cfg.cluster
    assert cluster.ray_address is not None
    address = gcs.find(cluster.ray_address)
    gcs.check_token(address)
    nodes = gcs.nodes(address)
    home = gcs.own_node(nodes, address)
    # `auto` becomes known with the facts; one of the two is 1
    per_node = {"cpu": cluster.workers_per_node, "gpu": cfg.engine.n_gpus}.get(
        cfg.engine.device, max(cluster.workers_per_node, cfg.engine.n_gpus)
    )
    if (joined := len(problems.trainers(nodes, per_node))) < cluster.nodes:
        events.emit({"say": f"{joined} of {cluster.nodes} nodes that train have joined; waiting for {join_s:.0f} s"})
        nodes = gcs.wait_for(address, cluster.nodes, per_node, join_s)
    _refuse([problems.too_few(nodes, cluster.nodes, per_node, address, join_s)])
    echo = scouts.join(address, home)
    meeting = cfg.run_dir / f".cluster-{secrets.token_hex(8)}"
    order = _order(cfg, own_files, meeting)
    actors = {node: actor_on(node.id, Scout) for node in nodes}
    with _folder(meeting):
        asked = scouts.ask(actors, order)
        here = gather(order, COMMAND)
        facts = scouts.answers(asked)
        owners = {node: _owner(meeting / node.id) for node in nodes}
    for node, there in facts.items():
        events.emit({"say": problems.describe(node, there, command=node == home)})
    training = {node: facts[node] for node in problems.trainers(nodes, per_node)}
    _refuse(problems.wrong_gpus(training, cfg.engine.device, cfg.engine.n_gpus))
    gpus = 0 if cfg.engine.device == "cpu" else min(there.gpus for there in training.values())
    wanted = _wanted(cfg, cpu=not gpus)
    _refuse(_about(nodes, facts, here, owners, order, echo, wanted, cfg))
    _refuse(_room(nodes, wanted))
    if wanted.nodes > 1:
        _refuse([scouts.all_reduce({node: actors[node] for node in training}, training, cluster.interface)])
    events.emit({"say": f"{len(nodes)} nodes of the Ray cluster at {address}: {time.monotonic() - began:.1f} s"})
    network = {"ray_address": address, "host": home.address, "interface": cluster.interface, "gpus": gpus}
    network["nodes"] = [node.id for node in nodes]
    return network | {"cards": problems.cards_of(facts, wanted) if gpus else []}


def _refuse(sentences: Iterable[str | None]) -> None:
    if found := [each for each in sentences if each]:
        raise UsageError("\n".join(found))


def _order(cfg: TrainConfig, own_files: Mapping[str, str], meeting: Path) -> Order:
    files = {MODEL: str(cfg.model), **own_files}
    if cfg.judge.rubric is not None:
        files["judge.rubric"] = str(cfg.judge.rubric.resolve())
    database = cfg.env.database
    if isinstance(database, Path):
        files["env.database"], database = str(database.resolve()), None
    return Order(files, database, cfg.rollout.backend, str(meeting), os.environ.get(PASSWORD))


def _wanted(cfg: TrainConfig, *, cpu: bool) -> Wanted:
    assert cfg.model is not None
    weights = count_weights(cfg.model) or 0
    per_node = cfg.workers_per_node(cpu=cpu)
    return Wanted(
        nodes=cfg.cluster.nodes,
        per_node=per_node,
        cpu=cpu,
        n_runners=cfg.rollout.n_runners if os.environ.get("AGL_CURRENT_ROLE", "both") == "both" else 0,
        runner_cpus=cfg.cluster.runner_cpus,
        bfloat16_is_open=cpu and cfg.engine.precision == "auto" and weights >= LARGE,
        shm_bytes=per_node * min(BUCKET_BYTES, 4 * weights),
        sampler_gpus=cfg.cluster.sampler_gpus,
        server_gpus=cfg.engine.tensor_parallel_size,
    )


@contextmanager
def _folder(meeting: Path) -> Iterator[None]:
    """The folder in which command and nodes write their files; a run's folder that was not there goes with it."""
    made = not meeting.parent.exists()
    meeting.mkdir(parents=True)
    (meeting / COMMAND).write_text(meeting.name)
    try:
        yield
    finally:
        shutil.rmtree(meeting, ignore_errors=True)
        if made:
            with suppress(OSError):  # something else is in it by now
                meeting.parent.rmdir()


def _owner(file: Path) -> int | None:
    return None if why_unread(file, file.parent.name, SHARED_S) else file.stat().st_uid


def _about(
    nodes: Iterable[Node],
    facts: Mapping[Node, Facts],
    here: Facts,
    owners: Mapping[Node, int | None],
    order: Order,
    echo: str,
    wanted: Wanted,
    cfg: TrainConfig,
) -> Iterable[str | None]:
    """Everything that one node alone can have wrong."""
    training = problems.trainers(facts, wanted.per_node)
    loading = [*training, *(problems.trainers(facts, wanted.server_gpus) if wanted.sampler_gpus else ())]
    for node in nodes:
        there = facts[node]
        yield problems.no_echo(node, there, echo)
        yield from problems.other_than_here(node, there, here, str(ROOT))
        needed = {what: path for what, path in order.files.items() if what != MODEL or node in loading}
        yield from problems.other_files(node, there, here, needed)
        yield problems.not_shared(node, there, str(cfg.run_dir), owners[node], os.getuid())
        yield from problems.no_space(node, there, wanted.shm_bytes if node in training else 0)
        if wanted.bfloat16_is_open and node in training:
            yield problems.other_precision(node, there, here)
        yield problems.wrong_interface(node, there, cfg.cluster.interface, alone=wanted.nodes == 1)


def _room(nodes: Iterable[Node], wanted: Wanted) -> list[str]:
    deadline = time.monotonic() + GIVEN_BACK_S
    while True:
        full = problems.no_room(scouts.free_on(nodes), wanted)
        if not full or time.monotonic() > deadline:
            return full
        time.sleep(1)


if __name__ == "__main__":
    main()
