"""The start of a run that has been checked: verl's driver with its tasks and its order, then agent-lightning's trainer,
which forks the runners.
"""

from __future__ import annotations

import logging
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgrpo.checkpoints import step_of
from agentgrpo.checks import UsageError, require
from agentgrpo.imports import uncollected
from agentgrpo.machine import free_port
from agentgrpo.model_kinds import count_weights
from agentgrpo.run_folder import begin, start_of
from sql_agent.cluster.network import LOOPBACK, Network
from sql_agent.environments.base import Taskset
from sql_agent.settings.main_job import RolloutConfig, StoreConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.evaluate_flags import evaluate_flags
from sql_agent.startup.pace import Work, kind_of
from sql_agent.startup.plan import (
    check_run_disk,
    choose_tasks,
    disk_need,
    trained_of,
    with_learning_rate,
    with_prompts,
)
from sql_agent.startup.preflight import gpus_of, protocol_of, require_model
from sql_agent.startup.resume import archive_files, hash_user_files, refuse_other_tasks
from sql_agent.trained_on import write_trained_on
from sql_agent.verl_side.checkpoints import point_verl_at
from sql_agent.verl_side.config import Files, compose, precision, to_verl, worker_environment


def run_role(
    cfg: TrainConfig, environment: Taskset, checkpoint: Path | None, network: Network, *, cpu: bool, debug: bool
) -> None:
    """Run in the role that `AGL_CURRENT_ROLE` names: `algorithm`, `runner`, or both in one command.

    Args:
        environment: of this process; a runner makes its own, because a connection to a database survives no fork.
    """
    from agentgrpo.processes import ends_in_order, own_run
    from sql_agent.lightning.child_processes import start_driver

    role = os.environ.get("AGL_CURRENT_ROLE", "both")
    with ends_in_order(), own_run() as (run_id, folder):
        algorithm = None
        if role == "runner":
            cfg = checked(cfg, environment, cpu=cpu)
        else:
            if network.is_loopback or network.gpus_of_nodes:
                # before verl's process takes what the estimate counts
                require(memory_of=cfg, gpus=gpus_of(cpu=cpu, of_nodes=network.gpus_of_nodes))
            driver = start_driver(cfg.run_dir, worker_environment(cfg, cpu=cpu, network=network), network)
            cfg = checked(cfg, environment, cpu=cpu)  # verl's process imports meanwhile
            ray_dir = folder / "ray"
            algorithm = make_algorithm(cfg, environment, checkpoint, driver, run_id, ray_dir, network, cpu=cpu)
        with uncollected():
            from sql_agent.lightning.agent import SqlLitAgent

        logs = cfg.run_dir / "logs"
        start_agl_trainer(cfg.rollout, cfg.store, logs, algorithm, SqlLitAgent(cfg), network, debug=debug)
        if algorithm is not None and not algorithm.finished:
            raise KeyboardInterrupt  # again, because agent-lightning's trainer swallows it


def checked(cfg: TrainConfig, environment: Taskset, *, cpu: bool) -> TrainConfig:
    """Check what takes seconds, and fill in the learning rate.

    Raises:
        UsageError: the model cannot be trained here.
        OutputError: the disk has no room for a checkpoint.
    """
    assert cfg.model is not None
    require_model(cfg.model, protocol_of(cfg.agent, environment), cfg.engine, cfg.data, cpu=cpu)
    weights = count_weights(cfg.model)
    optim, line = with_learning_rate(cfg.optim, weights, lora=cfg.lora.rank > 0)
    print(line)
    if weights is not None:
        check_run_disk(cfg.run_dir, disk_need(cfg, weights))
    return cfg.model_copy(update={"optim": optim})


def make_algorithm(
    cfg: TrainConfig,
    environment: Taskset,
    checkpoint: Path | None,
    driver: subprocess.Popen[str],
    run_id: str,
    ray_dir: Path,
    network: Network,
    *,
    cpu: bool,
) -> Any:
    """
    Args:
        driver: verl's process, which imports meanwhile.
    """
    with uncollected():  # agent-lightning
        from sql_agent.lightning.algorithm import VerlGrpo
    from sql_agent.startup.console import Console

    order, work = prepare_run(cfg, environment, checkpoint, network, cpu=cpu)
    assert cfg.model is not None
    facts = {"device": "cpu" if cpu else "gpu", "precision": precision(cfg.engine, cfg.model, cpu=cpu)}
    facts |= {"tasks": order.pop("tasks")}  # by kind
    facts |= {"own_files": files} if (files := hash_user_files(cfg)) else {}
    start = start_of("train", run_id=run_id, evaluate=evaluate_flags(cfg), **facts)
    order |= {"run_id": run_id, "ray_dir": str(ray_dir), "commit": start["commit"]}
    # no file is moved before every check of the settings has passed
    aside = archive_files(cfg.run_dir, after=None if checkpoint is None else step_of(checkpoint))
    if aside is not None:
        print(f"files of an earlier start that this one does not continue are in {aside}")
    if checkpoint is not None:
        point_verl_at(checkpoint)
    begin(cfg.run_dir, cfg.model_dump(mode="json"), start, resumed=checkpoint is not None)
    done = 0 if checkpoint is None else step_of(checkpoint)
    proxy = ["--timeout-s", str(cfg.agent.turn_timeout_s), "--context-tokens", str(cfg.data.row_tokens)]
    proxy_of_run = proxy if cfg.llm_proxy else None
    updates = work.tasks // (cfg.optim.mini_batch_size or work.tasks)
    weights = count_weights(cfg.model)
    trained = trained_of(cfg.lora)
    kind = kind_of(cfg.model, weights, trained, cfg.engine, cfg.cluster, cpu=cpu) if weights else None
    show = Console(cfg.run_dir, cfg.trainer, run_id, done, updates=updates, work=work, kind=kind).show
    return VerlGrpo(cfg.run_dir, cfg.trainer.startup_timeout_s, proxy_of_run, order, driver, show)


def prepare_run(
    cfg: TrainConfig, environment: Taskset, checkpoint: Path | None, network: Network, *, cpu: bool
) -> tuple[dict[str, Any], Work]:
    """Everything that can fail early: model, tasks, parquet, verl's config.

    Returns:
        verl's order, and the work of a step.
    """
    from omegaconf import OmegaConf

    from agentgrpo.run_folder import usable_trackers
    from dbbench_adapter.export import write_rows
    from sql_agent.model_check import chat_template
    from sql_agent.startup.data import describe_out_of_reach, kinds_of

    assert cfg.model is not None
    tasks = choose_tasks(cfg, environment)
    template, split, fitted = tasks.template, tasks.split, with_prompts(cfg, tasks, cpu=cpu)
    if len(split.train) < cfg.data.train_batch_size:
        raise UsageError(
            f"{len(split.train)} training tasks are fewer than data.train_batch_size={cfg.data.train_batch_size}; "
            "lower it, or give more tasks"
        )
    data = cfg.run_dir / "data"
    files = Files(
        cfg.model.resolve(),
        (data / "train.parquet").resolve(),
        (data / "val.parquet").resolve(),
        checkpoint,
        None if template == chat_template(cfg.model, protocol_of(cfg.agent, environment)) else template,
    )
    for rows, file in ((split.train, files.train), (split.val, files.val)):
        rows = environment.verl_rows(rows)
        if checkpoint is not None:
            refuse_other_tasks(rows, file)
        write_rows(rows, file)
    write_trained_on(data, tasks.trained_on)  # every checkpoint gets a copy
    overrides = to_verl(fitted, files, cpu=cpu, network=network)
    overrides["trainer"]["logger"] = usable_trackers(cfg.trainer.loggers, cfg.run_dir)
    if files.chat_template is not None:
        print(
            f"the chat template of {cfg.model} rewrites earlier turns; TRL's version of it for training, which does "
            "not, is used and saved with every checkpoint"
        )
    limits = cfg.agent.max_tokens, cfg.data.max_response_tokens
    said = tasks.describe() + tasks.describe_prompts()
    said += describe_out_of_reach(split, tasks.tokenizer.reply_tokens, *limits)
    print("\n".join(said))
    order = {
        "config": str((cfg.run_dir / "config.yaml").resolve()),
        "verl": OmegaConf.to_container(compose(overrides), resolve=False),
        "environment": worker_environment(cfg, cpu=cpu, network=network),  # of verl's Ray actors
        "network": asdict(network),
        "n_runners": cfg.rollout.n_runners if runs_actors(network) else 0,
        "runner_cpus": cfg.cluster.runner_cpus,
        "cwd": os.getcwd(),
        "pad_id": tasks.tokenizer.pad_id,
        "max_prompt_tokens": tasks.max_prompt_tokens,
        "tasks": kinds_of(split),
    }
    return order, tasks.work(cfg.data, cfg.rollout.group_size)


def runs_actors(network: Network) -> bool:
    """Whether the runners are Ray actors on the nodes of a cluster, which verl's driver starts."""
    return not network.is_loopback and os.environ.get("AGL_CURRENT_ROLE", "both") == "both"


def start_agl_trainer(
    rollout: RolloutConfig,
    store: StoreConfig,
    logs: Path,
    algorithm: Any,
    agent: Any,
    network: Network = LOOPBACK,
    *,
    debug: bool,
) -> None:
    """Start agent-lightning's trainer, which forks the runners of `agent` and runs the algorithm in this process."""
    from agentgrpo.agl_without_litellm import agl
    from sql_agent.lightning.runner import ConcurrentRunner
    from sql_agent.lightning.runner_processes import SupervisedRunners
    from sql_agent.lightning.store import RetryingStore
    from sql_agent.store_server import BoundedStore

    agl.setup_logging("DEBUG" if debug else "CRITICAL")  # `main` prints a failure itself
    logging.getLogger("uvicorn.error").addFilter(lambda record: debug or record.levelno >= logging.WARNING)
    port = store.port or free_port(network.host)
    runner = ConcurrentRunner.of_run(rollout, store.address or f"http://{network.host}:{port}")
    trainer = agl.Trainer(
        algorithm=algorithm,
        runner=runner,
        n_runners=rollout.n_runners,
        store=RetryingStore(store.address) if store.address else BoundedStore(),
        tracer=runner.tracer,
        adapter=agl.LlmProxyTraceToTriplet(),
        strategy=SupervisedRunners(
            logs=logs,
            n_runners=rollout.n_runners,
            elsewhere=runs_actors(network),
            server_host=network.host,
            server_port=port,
            graceful_timeout=5.0,
        ),
    )
    trainer.fit(agent, [{}])
