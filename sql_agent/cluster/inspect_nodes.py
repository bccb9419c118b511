"""Looks at every node of a Ray cluster before anything loads, and refuses what users of clusters get wrong most.

The rest is left to the errors of Ray, verl and torch (doc/guides/cluster.md). It runs in a process of its own, since
the command forks its runners later, which no process that has talked to Ray may do.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.checks import UsageError
from agentgrpo.machine import ENGINES, HOME, ROOT, gpu_memory, installed_versions, listed_gpus
from agentgrpo.processes import Events, end_with_parent
from agentgrpo.settings import Settings
from sql_agent.cluster import gcs
from sql_agent.cluster.gcs import RayNode
from sql_agent.cluster.network import TOKEN_MODE, Network, actor_on, interfaces
from sql_agent.settings.main_job import ClusterConfig, EngineConfig

OUR_PACKAGES = ("agentgrpo", "dbbench_adapter", "reward_model", "sql_agent")
MAIN = "from sql_agent.cluster.inspect_nodes import main; main()"
"""Not `-m`: nodes have to import the actor from their own files, and Ray would send them what `__main__` defines."""
JOIN_S = 60.0
"""Nodes may join so much later than the command starts."""
ANSWER_S = 90.0
# A folder is there at once on one disk; NFS may take a few seconds.
SHARED_S = 5.0
# What a job that has just ended held comes back within seconds.
GIVEN_BACK_S = 15.0
SHARED_MEMORY = "/dev/shm"
# verl's default of update_weights_bucket_megabytes: a worker pushes its weights through a segment of that size.
BUCKET_BYTES = 2 * 2**30
CPUS_OF_A_WORKER = 3
"""verl asks Ray for so many (single_controller/ray/base.py)."""
CPUS_OF_A_SAMPLER = 2
"""The same for each GPU of a model server that has its own (workers/rollout/replica.py, `init_standalone`)."""


class ClusterRequest(Settings):
    """What a run asks of its cluster."""

    cluster: ClusterConfig
    engine: EngineConfig
    n_runners: int
    """Runners that Ray starts; 0 if they are started elsewhere."""
    weights: int
    """The model's number of weights."""
    model: Path
    """Its folder, on nodes that train or sample."""
    files: tuple[Path, ...]
    """What every node reads under the same path."""
    run_dir: Path
    join_s: float = JOIN_S

    def workers(self, *, cpu: bool) -> int:
        """Training workers of a node; each takes one of Ray's resource GPU."""
        return self.cluster.workers_per_node if cpu else self.engine.n_gpus


@dataclass(frozen=True)
class NodeFacts:
    versions: Mapping[str, str]
    """Versions of Python and of packages that run in one version alone, and a digest of this project's modules."""
    gpus: int
    """GPUs that the NVIDIA driver lists."""
    gpu_bytes: tuple[tuple[int, int], ...]
    """Bytes of each of them, in all and free."""
    missing: tuple[str, ...]
    """Files of the run that are not there."""
    unshared: str
    """Why nothing can be written into the run's folder that the command sees; "": it can."""
    shm_bytes: int
    """Free in /dev/shm."""
    interfaces: Mapping[str, str]
    """Network interfaces by IPv4 address."""


class NodeProbe:
    """An actor that looks at its node."""

    def look(self, files: Collection[Path], meeting: Path) -> NodeFacts:
        """
        Args:
            meeting: a folder that the command has just made in the run's folder.
        """
        return NodeFacts(
            versions(),
            listed_gpus(),
            tuple(gpu_memory().values()),
            tuple(str(each) for each in files if not each.exists()),
            why_unshared(meeting),
            shutil.disk_usage(SHARED_MEMORY).free,
            interfaces(),
        )


def versions(root: Path = ROOT) -> dict[str, str]:
    installed, code = installed_versions(), hashlib.sha256()
    for package in OUR_PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            if "tests" not in file.relative_to(root).parts:
                code.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    ours = {"Python": platform.python_version(), "this project's code": code.hexdigest()[:12]}
    return {name: installed[name] for name in ENGINES if name in installed} | ours


def why_unshared(meeting: Path, wait_s: float = SHARED_S) -> str:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            (meeting / secrets.token_hex(8)).touch()
        except OSError as error:
            if time.monotonic() > deadline:
                return error.strerror or str(error)
            time.sleep(0.1)
        else:
            return ""


# Sentences of what is wrong -------------------------------------------------------------------------------------------


def able(nodes: Iterable[RayNode], per_node: int) -> list[RayNode]:
    """The nodes that may train."""
    return [node for node in nodes if node.gpus >= per_node]


def check_joined(nodes: Sequence[RayNode], wanted: int, per_node: int, address: str) -> Iterator[str]:
    joined = len(able(nodes, per_node))
    if joined < wanted:
        has = ", ".join(f"{node} has {node.gpus}" for node in nodes)
        yield (
            f"{joined} of {wanted} nodes that train have joined the Ray cluster at {address}; each needs {per_node} of "
            f"Ray's resource GPU, also on a CPU, and {has}; there `ray stop`, then on every node `ray start "
            f"--address={address} --num-gpus={per_node}`" + (f", or --set cluster.nodes={joined}" if joined else "")
        )


def check_gpus(gpus: Mapping[RayNode, int], device: str, n_gpus: int) -> Iterator[str]:
    """
    Args:
        gpus: those that the driver lists on nodes that train.
        device: `engine.device`; auto is a CPU if there are none.
    """
    if device == "gpu" or (device == "auto" and any(gpus.values())):
        for node, count in gpus.items():
            if count < n_gpus:
                yield (
                    f"nvidia-smi lists {count} GPUs on {node}, expected {n_gpus} (engine.n_gpus); mend its driver, "
                    "lower the setting, give --device cpu, or start Ray there with --num-gpus=0 so that it does not "
                    "train"
                )


def check_versions(node: RayNode, there: Mapping[str, str], here: Mapping[str, str]) -> Iterator[str]:
    names = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
    if names:
        wrong = ", ".join(f"{name} {there.get(name, 'missing')} (expected {here.get(name, 'none')})" for name in names)
        yield f"{node} has {wrong}; make the command's environment and code there, or share the folder {ROOT}"


def check_shared(node: RayNode, there: NodeFacts, run_dir: Path) -> Iterator[str]:
    lacks = [f"{path} is not there" for path in there.missing]
    lacks += [f"the run's folder {run_dir} cannot be written ({there.unshared})"] if there.unshared else []
    if lacks:
        yield (
            f"{node} does not share the command's folders: {', '.join(lacks)}; use a file system that every node has "
            "mounted under the same path, for the same user"
        )


def check_shared_memory(node: RayNode, free: int, need: int) -> Iterator[str]:
    if free < need:
        yield (
            f"{SHARED_MEMORY} of {node} has {free / 2**20:,.0f} MiB free, expected {need / 2**20:,.0f} for the push of "
            "weights; give its container more --shm-size"
        )


def check_interface(node: RayNode, has: Mapping[str, str], asked: str | None) -> Iterator[str]:
    """
    Args:
        has: interfaces by address.
        asked: `cluster.interface`; None: each process takes the one that Ray uses.
    """
    others = {name: address for address, name in has.items() if not address.startswith("127.")}
    if asked is not None and asked not in others:
        there = ", ".join(f"{name} {address}" for name, address in others.items())
        yield (
            f"{node} has no network interface {asked!r} that other nodes reach (cluster.interface); it has {there}; "
            "name one that all nodes have, or leave the setting out"
        )


def check_room(free: Mapping[RayNode, tuple[float, float]], request: ClusterRequest, *, cpu: bool) -> Iterator[str]:
    """Ray waits for ever for what it cannot give.

    Args:
        free: GPUs and CPUs of Ray's resources.
    """
    cluster, workers, left = request.cluster, request.workers(cpu=cpu), dict(free)
    cpus = CPUS_OF_A_WORKER * workers
    roomy = [node for node, has in free.items() if has[0] >= workers and has[1] >= cpus]
    if len(roomy) < cluster.nodes:
        yield (
            f"{len(roomy)} of {cluster.nodes} nodes have {workers} GPUs and {cpus} CPUs of Ray's resources free for "
            f"their workers: {_listed(free)}; end the run that holds them, or on every node `ray stop` and `ray "
            f"start`, with --num-cpus={cpus} or more on a CPU"
        )
        return
    # how Ray chooses among them is not known: here the choice leaves most to others
    roomy.sort(key=lambda node: (free[node][0] if cluster.sampler_gpus else 0, -free[node][1]))
    for node in roomy[: cluster.nodes]:
        left[node] = left[node][0] - workers, left[node][1] - cpus
    each = request.engine.tensor_parallel_size
    servers = sum(int(min(gpus, cpus / CPUS_OF_A_SAMPLER)) // each for gpus, cpus in left.values())
    if servers * each < cluster.sampler_gpus:
        yield (
            f"{servers} model servers of {each} GPUs and {CPUS_OF_A_SAMPLER * each} CPUs fit beside the workers, "
            f"expected {cluster.sampler_gpus} GPUs (cluster.sampler_gpus): {_listed(left)}; lower the setting, or add "
            "a node"
        )
    runners = sum(int(cpus / cluster.runner_cpus) for _, cpus in left.values()) if cluster.runner_cpus else None
    if runners is not None and runners < request.n_runners:
        yield (
            f"{runners} runners of {cluster.runner_cpus:g} CPUs (cluster.runner_cpus) fit beside the workers, expected "
            f"{request.n_runners} (rollout.n_runners): {_listed(left)}; lower one of the two, or start Ray with more "
            "--num-cpus"
        )


def _listed(resources: Mapping[RayNode, tuple[float, float]]) -> str:
    return ", ".join(f"{node} has {gpus:g} GPUs and {cpus:g} CPUs" for node, (gpus, cpus) in resources.items())


def emptiest_gpus(facts: Mapping[RayNode, NodeFacts], n_gpus: int) -> list[tuple[int, int, str]]:
    """Bytes in all and free of the emptiest GPUs of each node that may train, and the node."""
    sizes_of = {node: sorted(facts[node].gpu_bytes, key=lambda size: -size[1])[:n_gpus] for node in able(facts, n_gpus)}
    return [(total, free, str(node)) for node, sizes in sizes_of.items() for total, free in sizes]


# The processes --------------------------------------------------------------------------------------------------------


def inspect_nodes(request: ClusterRequest) -> Network:
    """Look at every node, print what is there, and return where the run's processes listen and which Ray they join.

    Raises:
        UsageError: the run cannot start on the cluster; the message names the node and the remedy.
    """
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", MAIN, request.model_dump_json()],
            cwd=HOME,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | TOKEN_MODE | {"PYTHONPATH": paths},
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            if "problem" in event:
                raise UsageError(event["problem"])
            if "network" in event:
                return Network(**event["network"])
            print(event["say"], flush=True)
        code = process.wait()
        log.seek(0)
        raise UsageError(f"the look at the Ray cluster ended with exit code {code}: {log.read()[-1000:]}")


def main() -> None:
    events = Events()
    end_with_parent()
    try:
        network = _inspect(ClusterRequest.model_validate_json(sys.argv[1]), events)
    except UsageError as error:
        events.emit({"problem": str(error)})
    else:
        events.emit({"network": network})


def _inspect(request: ClusterRequest, events: Events) -> dict[str, Any]:
    """The fields of `Network`."""
    began, cluster, engine = time.monotonic(), request.cluster, request.engine
    assert cluster.ray_address is not None
    address = gcs.find_cluster(cluster.ray_address)
    gcs.check_token(address)
    nodes = gcs.nodes(address)
    home = gcs.own_node(nodes, address)
    # one of the two is 1; with `auto` the facts will tell
    per_node = cluster.workers_per_node if engine.device == "cpu" else max(cluster.workers_per_node, engine.n_gpus)
    if len(able(nodes, per_node)) < cluster.nodes:
        events.emit({"say": f"waiting for {cluster.nodes} nodes that train, at most {request.join_s:.0f} s"})
        nodes = gcs.wait_for(address, cluster.nodes, per_node, request.join_s)
    _refuse(check_joined(nodes, cluster.nodes, per_node, address))
    _join(address, home)
    with _meeting(request.run_dir) as meeting:
        facts = _facts(nodes, request, meeting)
    for node, there in facts.items():
        seen = f"{there.gpus} GPUs by nvidia-smi, {node.gpus} GPUs and {node.cpus:g} CPUs in Ray"
        events.emit({"say": f"{node}: {seen}"})
    here = versions()
    training = {node: facts[node].gpus for node in able(nodes, per_node)}
    _refuse(check_gpus(training, engine.device, engine.n_gpus))
    gpus = 0 if engine.device == "cpu" else min(training.values())
    shm_bytes = request.workers(cpu=not gpus) * min(BUCKET_BYTES, 4 * request.weights)
    _refuse(
        sentence
        for node, there in facts.items()
        for sentence in (
            *check_versions(node, there.versions, here),
            *check_shared(node, there, request.run_dir),
            *check_shared_memory(node, there.shm_bytes, shm_bytes if node in training else 0),
            *check_interface(node, there.interfaces, cluster.interface if cluster.nodes > 1 else None),
        )
    )
    deadline = time.monotonic() + GIVEN_BACK_S
    while (full := [*check_room(_free(nodes), request, cpu=not gpus)]) and time.monotonic() < deadline:
        time.sleep(1)
    _refuse(full)
    events.emit({"say": f"{len(nodes)} nodes of the Ray cluster at {address}: {time.monotonic() - began:.1f} s"})
    network = {"ray_address": address, "host": home.address, "interface": cluster.interface, "gpus": gpus}
    # servers with GPUs of their own may get any node's, so nothing says what has to fit where
    known = emptiest_gpus(facts, engine.n_gpus) if gpus and not cluster.sampler_gpus else []
    return network | {"nodes": [node.id for node in nodes], "gpus_of_nodes": known}


def _refuse(sentences: Iterable[str]) -> None:
    if found := list(sentences):
        raise UsageError("\n".join(found))


def _join(address: str, home: RayNode) -> None:
    import ray

    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # a Ray job may name the same variable
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=home.address,
        )
    except (ConnectionError, RuntimeError) as error:  # another version of Ray or Python, or no raylet of this container
        words = " ".join(str(error).split())[:300]
        raise UsageError(f"{home}, where the command is, cannot join the Ray cluster at {address}: {words}") from None


@contextmanager
def _meeting(run_dir: Path) -> Iterator[Path]:
    """A new folder in the run's folder, which goes with it if it was not there."""
    made = not run_dir.exists()
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".cluster-", dir=run_dir, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        if made:
            with suppress(OSError):  # something else is in it by now
                run_dir.rmdir()


def _facts(nodes: Sequence[RayNode], request: ClusterRequest, meeting: Path) -> dict[RayNode, NodeFacts]:
    import ray
    from ray.exceptions import RayError

    deadline, asked, facts, silent = time.monotonic() + ANSWER_S, [], {}, []
    probes = [actor_on(node.id, NodeProbe) for node in nodes]
    for node, probe in zip(nodes, probes, strict=True):
        files = [*request.files, *([request.model] if node.gpus else [])]
        asked.append(probe.look.remote(files, meeting))
    for node, answer in zip(nodes, asked, strict=True):
        try:
            facts[node] = ray.get(answer, timeout=max(0.1, deadline - time.monotonic()))
        except RayError as error:
            last = str(error).strip().splitlines()[-1][:300]
            silent.append(
                f"{node} cannot run this project's code ({last}), expected it in {ROOT}; set it up there, share the "
                "folder, or look at Ray's logs there"
            )
    _refuse(silent)
    return facts


def _free(nodes: Iterable[RayNode]) -> dict[RayNode, tuple[float, float]]:
    from ray._private.state import available_resources_per_node

    left = available_resources_per_node()
    return {node: (left.get(node.id, {}).get("GPU", 0.0), left.get(node.id, {}).get("CPU", 0.0)) for node in nodes}
