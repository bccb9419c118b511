"""Checks of a training run's settings and servers (`agentgrpo.checks.CHECKS`), and what fills in those left open."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentgrpo.checks import Finding, Problem, UsageError, require
from agentgrpo.hub import ModelNotFoundError, may_be_id, model_folder
from agentgrpo.machine import count_gpus
from agentgrpo.printed_commands import agentgrpo_command, program_command, python_command
from dbbench_adapter.protocols import ProtocolName
from sql_agent.architectures import Trainer
from sql_agent.cluster.network import RAY_ADDRESS
from sql_agent.environments.base import Taskset
from sql_agent.lightning.heartbeats import HEARTBEAT_S, TRAINER_WORKER, look
from sql_agent.names import ENVIRONMENTS, TINY_POLICY, functions
from sql_agent.prompts.fit import MIN_PROMPT_TOKENS
from sql_agent.reward_functions.load import load_functions
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvConfig
from sql_agent.settings.main_job import ClusterConfig, EngineConfig, StoreConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.memory_check import Gpu, gpus_here

# The address of `agl store --port 9999`, used for AGL_MANAGED_STORE=0 without an address.
USUAL_STORE = "http://localhost:9999"
ROLES = ("algorithm", "runner", "both")
# The values of AGL_MANAGED_STORE that agent-lightning knows (agentlightning/env_var.py).
UNMANAGED, MANAGED = ("0", "false", "no", "off"), ("1", "true", "yes", "on")
# A run sends its next heartbeat within so many seconds: its pause, and the longest that one takes to arrive.
NEXT_HEARTBEAT_S = 2 * HEARTBEAT_S
INSTALL_CUPY = "uv pip install --python .venv/bin/python --no-deps cupy-cuda13x==14.2.0"
LOOK_S = 0.2


def check_variables(variables: Mapping[str, str]) -> None:
    """Check the environment variables of agent-lightning.

    Raises:
        UsageError: a variable has a value that agent-lightning does not know.
    """
    role = variables.get("AGL_CURRENT_ROLE", "both")
    if role not in ROLES:
        raise UsageError(f"AGL_CURRENT_ROLE is {role!r}, expected {', '.join(ROLES)}; or unset it")
    managed = variables.get("AGL_MANAGED_STORE", "1")
    if managed.strip().lower() not in (*UNMANAGED, *MANAGED):
        raise UsageError(f"AGL_MANAGED_STORE is {managed!r}, expected 0 (the store is kept outside) or 1; or unset it")


def store_is_managed() -> bool:
    return os.environ.get("AGL_MANAGED_STORE", "1").strip().lower() not in UNMANAGED


def check_reward_source(cfg: TrainConfig, environment: Taskset) -> None:
    """Check that a reward model or a reward function is configured if the environment has no judge, and load functions.

    Raises:
        UsageError: there is none; the message names the command that starts a scoring service.
        ValueError: see `load_functions`.
    """
    if not environment.judged and cfg.reward_model.url is None and not functions(cfg.rollout.weights):
        if cfg.env.agent is not None:
            raise UsageError(
                f"nobody can tell what a rollout of {cfg.env.agent} is worth: give a function of its record, --reward "
                "FILE.py:NAME, or an LLM as judge, --judge-url (doc/guides/agent.md)"
            )
        serve = agentgrpo_command("reward serve", "--model", "MERGED", "--port", "8008")
        raise UsageError(
            f"nobody can tell right from wrong in environment {cfg.env.type}: the reward is a reward model's score. "
            f"Start one with `{serve}` and give its "
            "address, --reward-model-url http://127.0.0.1:8008; or give a function of your own, --reward FILE.py:NAME"
            + ("; or give the class a `get_reward` (doc/guides/environment.md)" if ":" in cfg.env.type else "")
        )
    load_functions(cfg.rollout, cfg.judge, cfg.run_dir)


def check_user_tasks(env: EnvConfig, data: DataConfig, seed: int, environment: Taskset) -> None:
    """Check that the rows fit the user's own environment or agent; a dry run checks this too.

    Those of an environment of this project are read when the model is here.

    Raises:
        ValueError: they do not; the message names the row, or the place in the class, and the remedy.
    """
    if env.type not in ENVIRONMENTS or env.agent is not None:
        environment.load_split(data, seed)


def check_store(store: StoreConfig) -> Finding | None:
    """Check that an external store answers, that the environment asks for one, and that no other run uses it.

    Raises:
        UsageError: a check fails; the message names the setting or the command that helps.
    """
    role = os.environ.get("AGL_CURRENT_ROLE", "both")
    if store.address is None:
        _check_port(store.port)
        return None
    if store_is_managed():
        raise UsageError(
            "--external-store-address needs AGL_MANAGED_STORE=0 in the environment, or agent-lightning starts a store "
            "of its own beside it; write AGL_MANAGED_STORE=0 before the command"
        )
    import requests

    from sql_agent.model_address.request_guard import STORE_TOKEN, authorization
    from sql_agent.store_server import BoundedStore

    port = store.address.rsplit(":", 1)[-1].strip("/")

    def ask(path: str) -> requests.Response:
        return requests.get(f"{store.address}/v1/agl/{path}", timeout=5, headers=authorization(STORE_TOKEN))

    def ask_for_trainer() -> dict[str, Any]:
        answer = ask(f"workers/{TRAINER_WORKER}")
        if answer.status_code == 401:
            raise UsageError(
                f"the store at {store.address} asks for a token: set {STORE_TOKEN} to what it was started with"
            )
        return answer.json() or {} if answer.ok else {}

    try:
        ask("health").raise_for_status()
        trainer = ask_for_trainer()
        taken = role != "runner" and _is_going(trainer, ask_for_trainer)
    except requests.RequestException as error:
        raise UsageError(
            f"no agent-lightning store answers at {store.address} ({type(error).__name__}); "
            f"start one with `{program_command('agl', 'store', '--host', '127.0.0.1', '--port', port)}`"
        ) from None
    if taken:
        raise UsageError(
            f"the store at {store.address} belongs to run {trainer['heartbeat_stats'].get('run_id')}, which is still "
            "going; start another store on another port"
        )
    statistics = ask("statistics")
    if role == "runner" or not statistics.ok or statistics.json().get("name") == BoundedStore.__name__:
        return Finding(store.address)
    what = (
        f"the store at {store.address} keeps every span of every rollout, so it grows with each step, and it answers "
        "every client, even web pages"
    )
    remedy = (
        f"a store that is started with `{python_command('sql_agent.store_server', '--port', port)}` frees what has "
        f"been read and answers no page, and no other user if {STORE_TOKEN} is set there and here"
    )
    return Finding(store.address, (Problem(what, remedy, blocks=False),))


def _is_going(trainer: dict[str, Any], ask: Callable[[], dict[str, Any]]) -> bool:
    """Whether the run of a trainer that a store knows is still going.

    On this host its process tells. Elsewhere only its next heartbeat does, which is waited for: the times of heartbeats
    are those of the store's clock, and that of this machine may show another time.
    """
    import psutil

    def stats() -> dict[str, Any]:
        return trainer.get("heartbeat_stats") or {}

    if stats().get("state") != "running":
        return False
    if stats().get("host") == socket.gethostname():
        return psutil.pid_exists(stats()["pid"])
    until = time.monotonic() + NEXT_HEARTBEAT_S
    heartbeat = look(None, trainer.get("last_heartbeat_time"), time.monotonic())
    while not heartbeat.seen and time.monotonic() < until:
        time.sleep(LOOK_S)
        trainer = ask()
        heartbeat = look(heartbeat, trainer.get("last_heartbeat_time"), time.monotonic())
    return heartbeat.seen and stats().get("state") == "running"


def check_episodes(env: EnvConfig, environment: Taskset) -> None:
    """Raises UsageError: episodes cannot be opened on this machine; the message says why and what to do."""
    from dbbench_adapter.engines import BackendUnavailable

    try:
        environment.check_episodes()
    except BackendUnavailable as error:
        setting = "env.database" if env.database is not None else "rollout.backend"
        raise UsageError(f"{setting}: {error}") from None


def _check_port(port: int) -> None:
    # 0 takes a free port.
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UsageError(
            f"port {port} is taken ({error.strerror}); choose another with --set store.port=N, 0 takes a free one"
        ) from None


# What the settings leave open -----------------------------------------------------------------------------------------


def use_cpu(engine: EngineConfig, cluster: ClusterConfig, gpus: int | None = None) -> bool:
    """Whether the run uses a CPU; `auto` is a GPU if the NVIDIA driver answers, else the CPU.

    Args:
        gpus: those of each node that trains, in a cluster; None: this machine's.
    Raises:
        UsageError: there are fewer GPUs than the run wants, or the number of workers is given for the other device.
    """
    here = gpus is None
    if engine.device == "cpu":
        gpus = 0
    elif gpus is None:
        gpus = count_gpus()
    if engine.device == "gpu" and not gpus:
        raise UsageError(
            "engine.device is gpu, but nvidia-smi finds none; use --device cpu, or look at CUDA_VISIBLE_DEVICES"
        )
    if engine.n_gpus > max(gpus, 1):
        there = f"{gpus} can be used here" if gpus else "this run is on a CPU, whose workers are another setting"
        remedy = f"engine.n_gpus={gpus}" if gpus else f"engine.n_gpus=1 cluster.workers_per_node={engine.n_gpus}"
        raise UsageError(f"engine.n_gpus is {engine.n_gpus}, but {there}; use --set {remedy}")
    if cluster.sampler_gpus:
        _check_samplers(engine, cluster, gpus, here=here)
    if gpus and cluster.workers_per_node > 1:
        raise UsageError(
            f"cluster.workers_per_node is {cluster.workers_per_node}, the workers of a CPU, and this run is on a GPU; "
            f"use --device cpu, or one worker a GPU: --set engine.n_gpus={cluster.workers_per_node}"
        )
    return not gpus


def _check_samplers(engine: EngineConfig, cluster: ClusterConfig, gpus: int, *, here: bool) -> None:
    """
    Args:
        here: whether all GPUs of the run are this machine's.
    """
    asked = f"cluster.sampler_gpus is {cluster.sampler_gpus}"
    if not gpus:
        raise UsageError(
            f"{asked}, and this run is on a CPU, where each training worker has a model server beside it; leave it out"
        )
    if here and engine.n_gpus + cluster.sampler_gpus > gpus:
        raise UsageError(
            f"{asked}, beside {engine.n_gpus} that train (engine.n_gpus), and {gpus} can be used here; lower one of "
            "the two, or leave cluster.sampler_gpus out, so that trainer and model servers share GPUs"
        )
    if find_spec("cupy") is None:
        raise UsageError(
            f"{asked}, and verl sends weights to other GPUs with CuPy, which is not installed; `{INSTALL_CUPY}`"
        )


def planned_on_cpu(engine: EngineConfig, cluster: ClusterConfig) -> bool:
    """As `use_cpu`, for a dry run: GPUs that are asked for by name need not be here."""
    return engine.device != "gpu" and use_cpu(engine, cluster)


def gpus_of(*, cpu: bool, of_nodes: Sequence[tuple[int, int, str]] = ()) -> list[Gpu] | None:
    """The GPUs of a run, as `check_run_memory` takes them.

    Args:
        of_nodes: `Network.gpus_of_nodes`.
    """
    if of_nodes:
        return [Gpu(total, free, where=f" on {node}") for total, free, node in of_nodes]
    return None if cpu else gpus_here() if count_gpus() else []


def with_address(store: StoreConfig) -> StoreConfig:
    """Fill in, and print, the usual address if the store is external and no address was given."""
    if store.address is not None or store_is_managed():
        return store
    print(f"AGL_MANAGED_STORE=0 and no --external-store-address: using the store at {USUAL_STORE}", file=sys.stderr)
    return store.model_copy(update={"address": USUAL_STORE})


def with_ray(cluster: ClusterConfig) -> ClusterConfig:
    """Fill in, and print, the Ray cluster of the environment if none was given."""
    address = os.environ.get(RAY_ADDRESS)
    if cluster.ray_address is not None or not address or address == "local":
        return cluster
    if "://" in address:  # of the dashboard, which takes jobs
        print(f"{RAY_ADDRESS}={address} is for `ray job`; to join its cluster, give --ray-address", file=sys.stderr)
        return cluster
    print(f"{RAY_ADDRESS} is set: joining the Ray cluster at {address}", file=sys.stderr)
    return cluster.model_copy(update={"ray_address": address})


def find_model(model: Path) -> Path:
    """The model's folder; for a model id on the hub it is the folder in the cache.

    Raises:
        ModelNotFoundError: see `agentgrpo.hub.model_folder`.
    """
    return model if model == TINY_POLICY else model_folder(model)


def find_model_here(model: Path) -> Path | None:
    """The model's folder without asking the hub; None for an id that is not on this machine, ORG/NAME.

    Raises:
        ModelNotFoundError: the name can only be that of a folder, and there is none.
    """
    try:
        return model if model == TINY_POLICY else model_folder(model, fetch=False)
    except ModelNotFoundError:
        if len(model.parts) == 2 and may_be_id(str(model)):
            return None
        raise


def trainable_model_here(
    model: Path, protocol: ProtocolName, engine: EngineConfig, data: DataConfig, *, cpu: bool
) -> Path:
    """The model's folder, checked, for a dry run; a model that is not on this machine stays as it is named.

    Raises:
        ValueError: there is no such folder, or it holds no model that can be trained.
    """
    here = find_model_here(model)
    if here is None or not here.is_dir():  # the run fetches it, or makes it
        return model
    require_model(here, protocol, engine, data, cpu=cpu)
    return here


def require_model(model: Path, protocol: ProtocolName, engine: EngineConfig, data: DataConfig, *, cpu: bool) -> None:
    """Raises UsageError: the run cannot train the model; the message lists every problem of its files, or why models of
    its type or size cannot be trained so.
    """
    trained = {"trained": model, **training_of(engine, data, cpu=cpu)}
    require(model=model, protocol=protocol, tensor_parallel=engine.tensor_parallel_size, **trained)


def training_of(engine: EngineConfig, data: DataConfig, *, cpu: bool) -> dict[str, Any]:
    """What trains the run, and how long its rows may be; before the prompts are known, how long they are at least."""
    trainer: Trainer = "packed" if cpu or engine.shared_prompts is not None else "verl"
    return {"trainer": trainer, "row_tokens": (data.max_prompt_tokens or MIN_PROMPT_TOKENS) + data.max_response_tokens}


def protocol_of(agent: AgentConfig, environment: Taskset) -> ProtocolName:
    """The protocol that the model has to support; `fc` in every environment that offers tools."""
    return "fc" if environment.tools else agent.protocol
