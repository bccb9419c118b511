"""What the training command does, by algorithm: it starts a run, or says what a run would do (`--dry-run`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from agentgrpo.checkpoints import step_of
from agentgrpo.checks import UsageError, require
from agentgrpo.model_kinds import count_weights
from agentgrpo.passwords import MASK, revealed
from agentgrpo.passwords import VARIABLE as PASSWORD
from agentgrpo.run_folder import claim
from sql_agent.cluster.inspect_nodes import ClusterRequest, inspect_nodes
from sql_agent.cluster.network import Network
from sql_agent.environments.base import Taskset, make_taskset
from sql_agent.model_address.request_guard import give_token
from sql_agent.names import TINY_POLICY
from sql_agent.reward_functions.load import judges_of
from sql_agent.settings.load import dump_config
from sql_agent.settings.train import TrainConfig
from sql_agent.source.run_context import TrainingFailedError
from sql_agent.startup import search
from sql_agent.startup.launch import run_role
from sql_agent.startup.pace import kind_of
from sql_agent.startup.plan import describe_plan, describe_time, planned, trained_of, with_learning_rate
from sql_agent.startup.preflight import (
    check_user_tasks,
    find_model,
    gpus_of,
    planned_on_cpu,
    protocol_of,
    trainable_model_here,
    use_cpu,
    with_address,
    with_ray,
)
from sql_agent.startup.resume import after_a_stop, go_on_from, hash_user_files
from sql_agent.tiny_policy.make import make_if_default
from sql_agent.verl_side.config import Files, compose, to_verl, validate


class Role(NamedTuple):
    updates: bool
    """It chooses the tasks and improves something; a runner gets its tasks from the store and needs no verl."""
    plays: bool

    @property
    def is_alone(self) -> bool:
        return self.updates and self.plays


# What a process of a command does, by AGL_CURRENT_ROLE.
ROLES = {
    "both": Role(updates=True, plays=True),
    "algorithm": Role(updates=True, plays=False),
    "runner": Role(updates=False, plays=True),
}


def begin(cfg: TrainConfig, *, dry_run: bool, debug: bool) -> None:
    """
    Args:
        cfg: as the flags say it.
    Raises:
        ValueError: the run cannot start; the message says why and what to do.
        TrainingFailedError, OSError: the run ended early; a note says what the same command does next.
    """
    role = ROLES[os.environ.get("AGL_CURRENT_ROLE", "both")]
    cfg = cfg.model_copy(update={"model": cfg.model or TINY_POLICY, "run_dir": cfg.run_dir.resolve()})
    cluster = with_ray(cfg.cluster) if cfg.algorithm == "grpo" else cfg.cluster
    cfg = cfg.model_copy(update={"store": with_address(cfg.store), "cluster": cluster})
    # made before reward functions, so that a user's file that imports agent-lightning gets it without LiteLLM
    environment = make_taskset(cfg.environment)
    require(rewards=cfg, environment=environment)
    if role.updates:
        require(files=cfg.data.expected(cfg.env.type))
        check_user_tasks(cfg.env, cfg.data, cfg.seed, environment)
    ACTIONS[cfg.algorithm, dry_run](cfg, environment, role, debug)


def plan_training(cfg: TrainConfig, environment: Taskset, _role: Role, _debug: bool) -> None:
    cpu = planned_on_cpu(cfg.engine, cfg.cluster)
    asked, protocol = cfg.model or TINY_POLICY, protocol_of(cfg.agent, environment)
    model = trainable_model_here(asked, protocol, cfg.engine, cfg.data, cpu=cpu)
    cfg = cfg.model_copy(update={"model": model})
    files = Files(model, Path("train.parquet"), Path("val.parquet"))
    chosen, tasks, work = planned(cfg, environment, cpu=cpu)
    weights = count_weights(files.model)
    optim, rate = with_learning_rate(cfg.optim, weights, lora=cfg.lora.rank > 0)
    chosen = chosen.model_copy(update={"optim": optim})
    overrides = to_verl(chosen, files, cpu=cpu, network=Network(cfg.cluster.ray_address))
    composed = compose(overrides)
    if not cpu:
        validate(composed)
    trained = trained_of(cfg.lora)
    kind = kind_of(files.model, weights, trained, cfg.engine, cfg.cluster, cpu=cpu) if weights else None
    time = describe_time(cfg.trainer, work, kind)
    plan = "\n".join([*tasks, *describe_plan(chosen, weights, rate, time, gpus=gpus_of(cpu=cpu))])
    print(f"# settings\n{dump_config(cfg)}\n# verl's keys\n{json.dumps(overrides, indent=2)}\n\n# plan\n{plan}")


def plan_search(cfg: TrainConfig, environment: Taskset, _role: Role, _debug: bool) -> None:
    planned_on_cpu(cfg.engine, cfg.cluster)
    selection, split, held_out = search.choose_tasks(cfg.data, cfg.seed, cfg.apo.selection_tasks, environment)
    policy = f"{cfg.model} at {cfg.base_url}"
    plan = "\n".join(search.describe_search(cfg.apo, policy, len(selection), split, held_out))
    print(f"# settings\n{dump_config(cfg)}\n# plan\n{plan}")


def start_training(cfg: TrainConfig, environment: Taskset, role: Role, debug: bool) -> None:
    several = cfg.cluster.ray_address is not None or cfg.cluster.nodes > 1
    network = inspect_cluster(cfg, role) if several and role.updates else Network(cfg.cluster.ray_address)
    cpu = use_cpu(cfg.engine, cfg.cluster, network.gpus)
    if role.updates:
        require(run_dir=cfg.run_dir, on_cpu=cpu)
    with claim(cfg.run_dir) if role.updates else nullcontext():
        checkpoint = go_on_from(cfg, cpu=cpu) if role.updates else None
        if checkpoint is not None and step_of(checkpoint) >= cfg.trainer.steps:
            print(
                f"{cfg.run_dir} has reached step {step_of(checkpoint)} of {cfg.trainer.steps} already; raise "
                "trainer.steps to continue, or give another --run-dir to start again"
            )
            return
        with _noted(cfg.run_dir, cfg.trainer.resume, cfg.algorithm) if role.updates else nullcontext():
            check_servers(cfg, environment, role)
            make_if_default(cfg.model or TINY_POLICY)
            cfg = cfg.model_copy(update={"model": find_model(cfg.model or TINY_POLICY)})
            run_role(cfg, environment, checkpoint, network, cpu=cpu, debug=debug)


def start_search(cfg: TrainConfig, environment: Taskset, role: Role, debug: bool) -> None:
    use_cpu(cfg.engine, cfg.cluster)
    if role.updates:
        require(run_dir=cfg.run_dir)
    with (
        claim(cfg.run_dir) if role.updates else nullcontext(),
        _noted(cfg.run_dir, cfg.trainer.resume, cfg.algorithm) if role.updates else nullcontext(),
    ):
        check_servers(cfg, environment, role)
        served = search.check_search(cfg.apo, str(cfg.base_url), str(cfg.model), environment)
        search.optimise(cfg, environment, served, debug=debug)


ACTIONS = {
    ("grpo", False): start_training,
    ("grpo", True): plan_training,
    ("apo", False): start_search,
    ("apo", True): plan_search,
}
"""By algorithm, and whether it is a dry run."""


@contextmanager
def _noted(run_dir: Path, resume: str, algorithm: str) -> Iterator[None]:
    """Note on what ends a run early what the same command does with what it leaves."""
    try:
        yield
    except (TrainingFailedError, OSError, KeyboardInterrupt) as error:
        error.add_note(after_a_stop(run_dir, resume, algorithm))
        raise


def check_servers(cfg: TrainConfig, environment: Taskset, role: Role) -> None:
    """Raises ValueError: a server that this process asks does not answer, or its password is missing."""
    give_token(shared=not role.is_alone, own_store=cfg.store.address is None)
    revealed(cfg.rollout.backend)  # raises if its password is missing; runners would only notice later
    require(environment=environment, **servers_of(cfg, role))


def servers_of(cfg: TrainConfig, role: Role) -> dict[str, Any]:
    """Name the servers that this process asks, for `require`; an algorithm's plays no rollouts."""
    played = {"episodes": cfg.env, **judges_of(cfg.rollout, cfg.judge)} if role.plays else {}
    return {"store": cfg.store, "scorer": cfg.reward_model, **played}


def inspect_cluster(cfg: TrainConfig, role: Role) -> Network:
    """Look at the cluster that the run joins; its model is made or fetched first, since every node is asked for it."""
    if cfg.cluster.ray_address is None:
        raise UsageError(
            f"cluster.nodes is {cfg.cluster.nodes}, and no Ray cluster is named that has so many; start one "
            "(doc/guides/cluster.md) and give --ray-address HOST:PORT, or auto on one of its nodes"
        )
    for name, address in (("env.database", cfg.env.database), ("rollout.backend", cfg.rollout.backend)):
        if f":{MASK}@" in str(address) and PASSWORD not in os.environ:
            raise UsageError(
                f"{name}: the password in {address} stays in this process, and runners on other nodes need it; leave "
                f"it out of the address and set {PASSWORD} in the environment"
            )
    require(run_dir=cfg.run_dir)
    make_if_default(cfg.model or TINY_POLICY)
    model = find_model(cfg.model or TINY_POLICY).resolve()
    files = [Path(own["file"]) for own in hash_user_files(cfg).values()]
    files += [each.resolve() for each in (cfg.judge.rubric, cfg.env.database) if isinstance(each, Path)]
    return inspect_nodes(
        ClusterRequest(
            cluster=cfg.cluster,
            engine=cfg.engine,
            n_runners=cfg.rollout.n_runners if role.is_alone else 0,
            weights=count_weights(model) or 0,
            model=model,
            files=tuple(files),
            run_dir=cfg.run_dir,
        )
    )
