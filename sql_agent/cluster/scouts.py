"""Joins Ray, puts an actor on every node, and asks Ray who holds what."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agentgrpo.checks import UsageError
from agentgrpo.machine import ROOT
from sql_agent.cluster import problems
from sql_agent.cluster.facts import ECHO, Facts, Order
from sql_agent.cluster.gcs import Node
from sql_agent.cluster.problems import Free, Holder

FACTS_S = 90.0
REDUCE_S = 10.0


def join(address: str, home: Node) -> str:
    """Join, and return the value of `ECHO` that every actor should see."""
    import ray

    echo = secrets.token_hex(8)
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # a Ray job may name the same variables
    variables = {ECHO: echo, "PYTHONPATH": os.environ["PYTHONPATH"]}
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": variables},
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=home.address,
        )
    except (ConnectionError, RuntimeError) as error:  # another version of Ray or Python, or no raylet of this container
        words = " ".join(str(error).split())[:300]
        raise UsageError(
            f"{home}, where the command is, cannot join the Ray cluster at {address} ({words}); start the command with "
            "the environment and in the container in which Ray was started there"
        ) from None
    return echo


def ask(scouts: Mapping[Node, Any], order: Order) -> dict[Node, Any]:
    return {node: scout.gather.remote(order, node.id) for node, scout in scouts.items()}


def answers(asked: Mapping[Node, Any]) -> dict[Node, Facts]:
    """
    Raises:
        UsageError: a node did not answer, or cannot run this project's code.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    deadline, facts, silent = time.monotonic() + FACTS_S, {}, []
    for node, answer in asked.items():
        try:
            facts[node] = ray.get(answer, timeout=max(0.1, deadline - time.monotonic()))
        except GetTimeoutError:
            silent.append(
                f"{node} did not answer within {FACTS_S:.0f} s; look at Ray's logs there, or `ray stop` and `ray "
                "start` it anew"
            )
        except RayError as error:
            last = str(error).strip().splitlines()[-1][:300]
            silent.append(
                f"{node} cannot run this project's code ({last}), expected it in {ROOT} with the packages of the "
                "command; clone and set it up there, share the folder, or send it along with `ray job submit "
                "--working-dir`"
            )
    if silent:
        raise UsageError("\n".join(silent))
    return facts


def free_on(nodes: Iterable[Node]) -> dict[Node, Free]:
    import ray
    from ray._private.state import available_resources_per_node, state

    me = ray.get_runtime_context().get_job_id()
    jobs = {job["JobID"]: job for job in state.job_table()}
    actors = [actor for actor in state.actor_table(None).values() if actor["State"] == "ALIVE"]
    groups = {name: group for name, group in state.placement_group_table().items() if group["state"] == "CREATED"}
    left, free = available_resources_per_node(), {}
    for node in nodes:
        held = {actor["JobID"] for actor in actors if actor["Address"]["NodeID"] == node.id}
        # the id of a placement group ends with that of its job
        held |= {name[-len(me) :] for name, group in groups.items() if node.id in group["bundles_to_node_id"].values()}
        has = left.get(node.id, {})
        holders = tuple(_holder(jobs[job]) for job in sorted(held - {me}) if job in jobs)
        free[node] = Free(has.get("GPU", 0.0), has.get("CPU", 0.0), holders)
    return free


def _holder(job: Mapping[str, Any]) -> Holder:
    entry = " ".join(job["Entrypoint"].split())[:80]
    driver = f"process {job['DriverPid']} on {job['DriverIPAddress']} ({entry})"
    return Holder(driver, job["IsDead"])


def all_reduce(scouts: Mapping[Node, Any], facts: Mapping[Node, Facts], asked: str | None) -> str | None:
    """
    Args:
        asked: `cluster.interface`
    Returns:
        What is wrong, as soon as one node has failed.
    """
    import ray
    from ray.exceptions import RayError

    ports = ray.get([scout.get_ready.remote(node.address) for node, scout in scouts.items()], timeout=FACTS_S)
    meeting = f"{next(iter(scouts)).address}:{ports[0]}"
    interfaces = {node: problems.interface_on(node, facts[node], asked) or "" for node in scouts}
    sums = {
        scout.all_reduce.remote(rank, len(scouts), meeting, interfaces[node], REDUCE_S): node
        for rank, (node, scout) in enumerate(scouts.items())
    }
    errors = dict.fromkeys(scouts, "")
    while sums and not any(errors.values()):
        done, _ = ray.wait(list(sums), timeout=3 * REDUCE_S)
        for each in done or list(sums):
            node = sums.pop(each)
            try:
                errors[node] = ray.get(each, timeout=0)
            except RayError as error:  # also that there is no answer yet
                errors[node] = str(error).strip().splitlines()[-1][:200]
    return problems.no_reduce(errors, interfaces)
