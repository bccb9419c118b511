"""Trains a SQL agent with GRPO: agent-lightning's store and proxy, vLLM, verl. `--help` shows the flags.
With `--algorithm apo` it rewrites the instructions of an agent whose model is served already (doc/apo.md).

    agentgrpo train --ci-fast
    AGL_MANAGED_STORE=0 agentgrpo train --llm-proxy --model MODEL

The second command uses the store of `agl store --port 9999`; --external-store-address names another.
"""

import os
import sys

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentgrpo.checkpoints import step_of
from agentgrpo.checks import UsageError, require
from agentgrpo.disk_errors import in_words
from agentgrpo.model_kinds import count_weights
from agentgrpo.passwords import MASK, masked, revealed
from agentgrpo.passwords import VARIABLE as PASSWORD
from agentgrpo.run_folder import claim
from agentgrpo.settings import describe_faults
from sql_agent.apo.launch import check_search, choose_tasks, describe_search, optimise
from sql_agent.cluster.inspect_nodes import ClusterRequest, inspect_nodes
from sql_agent.cluster.network import Network
from sql_agent.environments.base import Taskset, make_taskset
from sql_agent.model_address.request_guard import give_token
from sql_agent.names import TINY_POLICY
from sql_agent.settings.load import dump_config
from sql_agent.settings.train import TrainConfig
from sql_agent.source.run_context import TrainingFailedError
from sql_agent.startup.flags import parse_args, resolve
from sql_agent.startup.launch import train
from sql_agent.startup.plan import describe_plan, planned, with_learning_rate
from sql_agent.startup.preflight import (
    check_own_tasks,
    find_model,
    gpus_of,
    planned_on_cpu,
    use_cpu,
    with_address,
    with_model_here,
    with_ray,
)
from sql_agent.startup.resume import after_a_stop, go_on_from, own_files
from sql_agent.tiny_policy.make import make_if_default
from sql_agent.verl_side.config import Files, compose, to_verl, validate


def run(
    cfg: TrainConfig, environment: Taskset, checkpoint: Path | None, network: Network, *, cpu: bool, debug: bool
) -> None:
    """Check everything that is cheap to check, then train."""
    if checkpoint is not None and step_of(checkpoint) >= cfg.trainer.steps:
        print(
            f"{cfg.run_dir} has reached step {step_of(checkpoint)} of {cfg.trainer.steps} already; raise "
            "trainer.steps to continue, or give another --run-dir to start anew"
        )
        return
    give_token(shared=os.environ.get("AGL_CURRENT_ROLE", "both") != "both", own_store=cfg.store.address is None)
    revealed(cfg.rollout.backend)  # raises if its password is missing; runners would only notice later
    require(environment=environment, **servers_of(cfg))
    if cfg.algorithm == "apo":
        optimise(cfg, environment, check_search(cfg, environment), debug=debug)
        return
    make_if_default(cfg.model or TINY_POLICY)
    cfg = cfg.model_copy(update={"model": find_model(cfg.model or TINY_POLICY)})
    train(cfg, environment, checkpoint, network, cpu=cpu, debug=debug)


def inspect_cluster(cfg: TrainConfig) -> Network:
    """Look at the cluster that the run joins; its model is made or fetched first, since every node is asked for it."""
    if cfg.cluster.ray_address is None:
        raise UsageError(
            f"cluster.nodes is {cfg.cluster.nodes}, and no Ray cluster is named that has so many; start one "
            "(doc/cluster.md) and give --ray-address HOST:PORT, or auto on one of its nodes"
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
    files = [Path(own["file"]) for own in own_files(cfg).values()]
    files += [each.resolve() for each in (cfg.judge.rubric, cfg.env.database) if isinstance(each, Path)]
    return inspect_nodes(
        ClusterRequest(
            cluster=cfg.cluster,
            engine=cfg.engine,
            n_runners=cfg.rollout.n_runners if os.environ.get("AGL_CURRENT_ROLE", "both") == "both" else 0,
            weights=count_weights(model) or 0,
            model=model,
            files=tuple(files),
            run_dir=cfg.run_dir,
        )
    )


def servers_of(cfg: TrainConfig) -> dict[str, Any]:
    """Name the servers that this command asks, for `require`; an algorithm's process plays no rollouts."""
    plays = os.environ.get("AGL_CURRENT_ROLE") != "algorithm"
    return {"store": cfg.store, "scorer": cfg.reward_model} | (
        {"judge": cfg.judge, "episodes": cfg.env} if plays else {}
    )


def left_of(begun: TrainConfig | None) -> list[str]:
    return [after_a_stop(begun.run_dir, begun.trainer.resume, begun.algorithm)] if begun else []


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.debug else logging.WARNING)
    begun: TrainConfig | None = None
    try:
        require(variables=os.environ)
        trains = os.environ.get("AGL_CURRENT_ROLE", "both") != "runner"
        cfg = resolve(args)
        cfg = cfg.model_copy(update={"model": cfg.model or TINY_POLICY, "run_dir": cfg.run_dir.resolve()})
        grpo = cfg.algorithm == "grpo"
        filled = {"store": with_address(cfg.store)} | ({"cluster": with_ray(cfg.cluster)} if grpo else {})
        cfg = cfg.model_copy(update=filled)
        # made before reward functions, so that a user's file that imports agent-lightning gets it without LiteLLM
        environment = make_taskset(cfg.environment)
        require(rewards=cfg, environment=environment)
        if trains:  # a runner gets its tasks from the store
            require(files=cfg.data.expected(cfg.env.type))
            check_own_tasks(cfg.env, cfg.data, cfg.seed, environment)
        several = cfg.cluster.ray_address is not None or cfg.cluster.nodes > 1
        joins = several and trains and grpo and not args.dry_run
        network = inspect_cluster(cfg) if joins else Network(cfg.cluster.ray_address)
        cpu = (
            planned_on_cpu(cfg.engine, cfg.cluster) if args.dry_run else use_cpu(cfg.engine, cfg.cluster, network.gpus)
        )
        if args.dry_run and not grpo:
            selection, split, held_out = choose_tasks(cfg, environment)
            plan = "\n".join(describe_search(cfg, len(selection), split, held_out))
            print(f"# settings\n{dump_config(cfg)}\n# plan\n{plan}")
            return 0
        if args.dry_run:
            cfg = with_model_here(cfg, environment, cpu=cpu)
            files = Files(cfg.model or TINY_POLICY, Path("train.parquet"), Path("val.parquet"))
            chosen, tasks = planned(cfg, environment, cpu=cpu)
            weights = count_weights(files.model)
            optim, rate = with_learning_rate(cfg.optim, weights, lora=cfg.lora.rank > 0)
            chosen = chosen.model_copy(update={"optim": optim})
            overrides = to_verl(chosen, files, cpu=cpu, network=network)
            composed = compose(overrides)
            if not cpu:
                validate(composed)
            plan = "\n".join([*tasks, *describe_plan(chosen, weights, rate, gpus=gpus_of(cpu=cpu))])
            print(f"# settings\n{dump_config(cfg)}\n# verl's keys\n{json.dumps(overrides, indent=2)}\n\n# plan\n{plan}")
            return 0
        if trains:  # runners need neither verl nor vLLM
            require(run_dir=cfg.run_dir, **({"on_cpu": cpu} if grpo else {}))
        with claim(cfg.run_dir) if trains else nullcontext():
            checkpoint = go_on_from(cfg, cpu=cpu) if trains and grpo else None
            begun = cfg if trains else None
            run(cfg, environment, checkpoint, network, cpu=cpu, debug=args.debug)
    except ValidationError as error:
        for words in describe_faults(error, TrainConfig):
            print(masked(f"config: {words}"), file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {masked(str(error))}", file=sys.stderr)
        return 2
    except (TrainingFailedError, OSError) as error:  # e.g. the store is gone, or the disk is full
        print("\n".join([f"error: {masked(in_words(error))}", *left_of(begun)]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("; ".join(["stopped", *left_of(begun)]), file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    execute(main)
