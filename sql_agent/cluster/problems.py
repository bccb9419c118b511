"""What keeps a run from starting on a cluster, from facts of its nodes: pure functions that return sentences.

A sentence names the node, what was found there, what was expected, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sql_agent.cluster.facts import DIGEST_CHARS, SHARED_MEMORY, Facts
from sql_agent.cluster.gcs import Node

CPUS_OF_A_WORKER = 3
"""verl asks Ray for so many (single_controller/ray/base.py)."""
CPUS_OF_A_SAMPLER = 2
"""The same for each GPU of a model server that has its own (workers/rollout/replica.py, `init_standalone`)."""
MIN_TEMP_BYTES = 2**30
TRAINS, SAMPLES = "trains", "samples"
"""What a GPU does where model servers have their own."""


@dataclass(frozen=True)
class Wanted:
    """What a run asks of the cluster."""

    nodes: int
    """`cluster.nodes`"""
    per_node: int
    """Training workers of a node; each takes one of Ray's resource GPU."""
    cpu: bool
    n_runners: int
    """Runners that Ray starts; 0 if they are started elsewhere."""
    runner_cpus: float
    bfloat16_is_open: bool
    """Whether each node would decide on bfloat16 for itself, by its CPU."""
    shm_bytes: int
    """What the workers of a node need in /dev/shm."""
    sampler_gpus: int = 0
    """`cluster.sampler_gpus`"""
    server_gpus: int = 1
    """GPUs of a model server, which are on one node."""

    @property
    def setting(self) -> str:
        return "cluster.workers_per_node" if self.cpu else "engine.n_gpus"


@dataclass(frozen=True)
class Holder:
    """A job that has actors or placement groups on a node."""

    driver: str
    has_ended: bool


@dataclass(frozen=True)
class Free:
    """What is left of a node's resources, and who has the rest."""

    gpus: float
    cpus: float
    holders: tuple[Holder, ...] = ()


def trainers(nodes: Collection[Node], per_node: int) -> list[Node]:
    return [node for node in nodes if node.gpus >= per_node]


def too_few(nodes: Sequence[Node], wanted: int, per_node: int, address: str, waited_s: float) -> str | None:
    """
    Args:
        per_node: of Ray's resource GPU.
    """
    able = trainers(nodes, per_node)
    if len(able) >= wanted:
        return None
    named = f" ({', '.join(map(_place, able))})" if able else ""
    text = (
        f"{len(able)} of {wanted} nodes that train have joined the Ray cluster at {address} in {waited_s:.0f} s{named}"
    )
    start = f"`ray start --address={address} --num-gpus={per_node}`"
    unable = [
        f"{node} has {node.gpus} of Ray's resource GPU, expected {per_node}" for node in nodes if node not in able
    ]
    if unable:
        text += (
            f", and {', '.join(unable)}; there `ray stop`, then `ray start` with --num-gpus={per_node}, which a CPU "
            "needs too"
        )
    if len(nodes) < wanted:
        text += f"; on each machine that is missing {start}"
    return text + (f"; or --set cluster.nodes={len(able)}" if able else "")


def wrong_gpus(facts: Mapping[Node, Facts], device: str, n_gpus: int) -> list[str]:
    """
    Args:
        facts: of the nodes that train.
        device: `engine.device`
    """
    counts = {node: fact.gpus for node, fact in facts.items()}
    if device == "cpu" or (device == "auto" and not any(counts.values())):
        return []
    without = [node for node, count in counts.items() if not count]
    if device == "auto" and without:
        others = ", ".join(f"{node} has {count}" for node, count in counts.items() if count)
        return [
            f"{node} has no GPU that nvidia-smi lists, and {others}; give --device cpu, or start Ray only on nodes "
            "with GPUs, elsewhere with --num-gpus=0"
            for node in without
        ]
    return [
        f"nvidia-smi lists {count} GPUs on {node}, expected {n_gpus} (engine.n_gpus); --set engine.n_gpus={count}, or "
        "start Ray there with --num-gpus=0 so that it does not train"
        if count
        else f"nvidia-smi finds no GPU on {node}, expected {n_gpus} (engine.n_gpus); mend its driver, give --device "
        "cpu, or start Ray there with --num-gpus=0 so that it does not train"
        for node, count in counts.items()
        if count < n_gpus
    ]


def cards_of(facts: Mapping[Node, Facts], wanted: Wanted) -> list[tuple[int, int, str, str]]:
    """The GPUs that the run may take, if Ray gives each node's emptiest: bytes in all, those that are free, the node,
    and what the GPU does.

    It is not known on which of the nodes that could train Ray puts the training workers, and on which the model
    servers that have their own GPUs; nor which of a node's GPUs do what where it has both.

    Args:
        facts: of all nodes; a node whose driver does not say has no GPUs here.
    Returns:
        What a GPU does is TRAINS or SAMPLES; "" is both, where trainer and sampler share it.
    """
    able, cards = trainers(facts, wanted.per_node), []
    for node, fact in facts.items():
        training = wanted.per_node if node in able else 0
        # where no node could be left out, each gives the servers what its workers leave
        left = node.gpus - (training if len(able) == wanted.nodes else 0)
        serving = min(left, wanted.sampler_gpus) // wanted.server_gpus * wanted.server_gpus
        does = [role for role, gpus in ((TRAINS, training), (SAMPLES, serving)) if gpus]
        if not wanted.sampler_gpus:
            does = [""] if training else []
        emptiest = sorted(fact.gpu_bytes, key=lambda size: -size[1])[: min(node.gpus, training + serving)]
        cards += [(total, free, str(node), role) for role in does for total, free in emptiest]
    return cards


def no_room(free: Mapping[Node, Free], wanted: Wanted) -> list[str]:
    """Ray waits for ever for what it cannot give."""
    need = CPUS_OF_A_WORKER * wanted.per_node
    full, roomy = [], 0
    for node in trainers(free, wanted.per_node):
        has = free[node]
        again = _held_by(has.holders)
        if has.gpus < wanted.per_node:
            full.append(
                f"{node} has {has.gpus:g} of {node.gpus} GPUs of Ray free, expected {wanted.per_node} "
                f"({wanted.setting}); {again}"
            )
        elif has.cpus < need:
            more = again if node.cpus >= need else f"there `ray stop`, then `ray start` with --num-cpus={need} or more"
            full.append(
                f"{node} has {has.cpus:g} of {node.cpus:g} CPUs of Ray free, expected {need}, {CPUS_OF_A_WORKER} for "
                f"each of {wanted.per_node} workers; {more}"
            )
        else:
            roomy += 1
    if roomy < wanted.nodes:
        return full
    return [*_no_room_for_samplers(free, wanted), *_no_room_for_runners(free, wanted)]


def _held_by(holders: Sequence[Holder]) -> str:
    if running := [holder.driver for holder in holders if not holder.has_ended]:
        return f"held by {', '.join(running)}; end that run first"
    restart = "on every node `ray stop` and `ray start` as before"
    if holders:
        return f"left behind by {', '.join(holder.driver for holder in holders)}, which has ended; {restart}"
    return restart


def _no_room_for_samplers(free: Mapping[Node, Free], wanted: Wanted) -> Iterator[str]:
    if not wanted.sampler_gpus:
        return
    left = {node: (has.gpus, has.cpus) for node, has in free.items()}
    # the nodes with the fewest GPUs that are enough: how Ray chooses is not known, and it may choose worse
    for node in sorted(trainers(free, wanted.per_node), key=lambda node: left[node][0])[: wanted.nodes]:
        gpus, cpus = left[node]
        left[node] = gpus - wanted.per_node, cpus - CPUS_OF_A_WORKER * wanted.per_node
    each = wanted.server_gpus
    fit = sum(int(max(0.0, min(gpus, cpus / CPUS_OF_A_SAMPLER))) // each for gpus, cpus in left.values())
    if fit * each < wanted.sampler_gpus:
        there = ", ".join(f"{node} has {gpus:g} GPUs and {cpus:g} CPUs" for node, (gpus, cpus) in left.items())
        yield (
            f"cluster.sampler_gpus is {wanted.sampler_gpus}, {each} for each model server, all on one node, and "
            f"{CPUS_OF_A_SAMPLER} CPUs for each GPU, and {fit} servers fit: beside the workers {there}; lower the "
            "setting, or add a node with GPUs"
        )


def _no_room_for_runners(free: Mapping[Node, Free], wanted: Wanted) -> Iterator[str]:
    if not wanted.runner_cpus:
        return
    left = {node: has.cpus for node, has in free.items()}
    for node in sorted(trainers(free, wanted.per_node), key=lambda node: -left[node])[: wanted.nodes]:
        left[node] -= CPUS_OF_A_WORKER * wanted.per_node
    fit = sum(int(max(0.0, cpus) / wanted.runner_cpus) for cpus in left.values())
    if fit < wanted.n_runners:
        each = ", ".join(f"{node} has {cpus:g}" for node, cpus in left.items())
        yield (
            f"rollout.n_runners is {wanted.n_runners}, each with {wanted.runner_cpus:g} CPUs (cluster.runner_cpus), "
            f"and {fit} of them fit: beside the workers {each}; lower one of the two settings, or start Ray with more "
            "--num-cpus"
        )


def other_than_here(node: Node, there: Facts, here: Facts, root: str) -> Iterator[str]:
    """
    Args:
        here: of the node on which the command is.
        root: the folder of this project.
    """
    if there.python != here.python:
        yield f"{node} has Python {there.python}, expected the command's {here.python}; make the same environment there"
    names = sorted({*there.packages, *here.packages})
    wrong = [
        f"{name} {there.packages.get(name, 'missing')} (expected {here.packages.get(name, 'none')})"
        for name in names
        if there.packages.get(name) != here.packages.get(name)
    ]
    if wrong:
        yield f"{node} has {', '.join(wrong)}, other packages than the command; make the same environment there"
    if there.code != here.code:
        yield (
            f"{node} has other code of this project in {root} than the command; bring it to the same commit and "
            "changes, share the folder, or send it along with `ray job submit --working-dir`"
        )


def other_files(node: Node, there: Facts, here: Facts, paths: Mapping[str, str]) -> Iterator[str]:
    """
    Args:
        paths: `Order.files`
    """
    for what, path in paths.items():
        found, expected = there.files[what], here.files[what]
        if found == expected:
            continue
        copy = "copy it there under the same path, or use a folder that all nodes share"
        if len(found) == DIGEST_CHARS:
            yield f"{what} at {path} is another on {node} than on the command's; {copy}"
        else:
            yield f"{what} at {path} {found} on {node}, expected as on the command's; {copy}"
    for place, error in there.servers.items():
        yield f"{place} cannot be used from {node}: {error}"


def not_shared(node: Node, there: Facts, run_dir: str, owner: int | None, me: int) -> str | None:
    """
    Args:
        owner: of the node's file, as the command sees it; None: it sees none.
        me: the command's user.
    """
    share = "name one that every node has mounted, --run-dir FOLDER"
    if there.unread:
        return (
            f"the run's folder {run_dir} is not shared: {node} cannot read a file that the command wrote there "
            f"({there.unread}), and workers write checkpoints there; {share}"
        )
    if there.unwritten:
        return f"{node} cannot write into the run's folder {run_dir} ({there.unwritten}); {share}"
    if owner is None:
        return f"the run's folder {run_dir} is not shared: a file that {node} wrote there did not arrive; {share}"
    if owner != me:
        return (
            f"a file that {node} wrote into the run's folder {run_dir} belongs to user {owner}, expected {me}, the "
            "command's; start Ray there as the same user, or export the folder with no_root_squash"
        )
    return None


def no_space(node: Node, there: Facts, shm_bytes: int) -> Iterator[str]:
    for place, free in there.free_bytes.items():
        need = shm_bytes if place == SHARED_MEMORY else MIN_TEMP_BYTES
        if free < need:
            remedy = "give its container more --shm-size" if place == SHARED_MEMORY else "make room there"
            yield f"{place} of {node} has {free / 2**20:,.0f} MiB free, expected {need / 2**20:,.0f}; {remedy}"


def other_precision(node: Node, there: Facts, here: Facts) -> str | None:
    if there.fast_bfloat16 == here.fast_bfloat16:
        return None
    words = {True: "multiplies in bfloat16", False: "does not multiply in bfloat16"}
    return (
        f"the CPU of {node} {words[there.fast_bfloat16]}, and the command's {words[here.fast_bfloat16]}, so "
        "engine.precision=auto is not the same on both; give --set engine.precision=float32"
    )


def interface_on(node: Node, there: Facts, asked: str | None) -> str | None:
    """The interface of Gloo and NCCL on a node; None: it has none such."""
    if asked is not None:
        return asked if asked in there.interfaces.values() else None
    return there.interfaces.get(node.address)


def wrong_interface(node: Node, there: Facts, asked: str | None, *, alone: bool) -> str | None:
    """
    Args:
        asked: `cluster.interface`
        alone: whether no other node trains.
    """
    has = ", ".join(f"{name} {address}" for address, name in there.interfaces.items())
    name = interface_on(node, there, asked)
    if name is None and asked is not None:
        return f"{node} has no network interface {asked!r} (cluster.interface), it has {has}; name one that all have"
    if name is None:
        return (
            f"no network interface of {node} has the address that Ray uses there, they are {has}; start Ray there with "
            "--node-ip-address=ADDRESS"
        )
    loopback = {its for address, its in there.interfaces.items() if address.startswith("127.")}
    if not alone and name in loopback:
        others = ", ".join(f"{its} {address}" for address, its in there.interfaces.items() if its not in loopback)
        return (
            f"interface {name} of {node} is loopback, which no other node reaches, expected one of {others}; --set "
            "cluster.interface=NAME, or start Ray there with --node-ip-address=ADDRESS"
        )
    return None


def no_reduce(errors: Mapping[Node, str], interfaces: Mapping[Node, str]) -> str | None:
    """
    Args:
        errors: of the all-reduce, "" where there is none.
    """
    if not any(errors.values()):
        return None
    said = ", ".join(f"{node} on {interfaces[node]}: {error}" for node, error in errors.items() if error)
    return (
        f"the nodes that train cannot sum over gloo ({said}); open all ports between {' and '.join(map(str, errors))}, "
        "or name the interface that connects them, --set cluster.interface=NAME"
    )


def no_echo(node: Node, there: Facts, echo: str) -> str | None:
    if there.echo == echo:
        return None
    return (
        f"a variable of the command did not arrive on {node} (found {there.echo!r}, expected {echo!r}); look at "
        "runtime_env_agent.log in Ray's logs there"
    )


def describe(node: Node, there: Facts, *, command: bool) -> str:
    shown = ("ray", "torch", "verl", "vllm")
    versions = ", ".join(f"{name} {there.packages.get(name, 'missing')}" for name in shown)
    return (
        f"{node}: {there.gpus} GPUs of NVIDIA's, {node.gpus} GPUs and {node.cpus:g} CPUs of Ray's, "
        f"{there.cores} cores, {there.memory_gib:.0f} GiB, Python {there.python}, {versions}"
        f"{'; the command is here' if command else ''}"
    )


def _place(node: Node) -> str:
    return f"{node.host} {node.address}"
