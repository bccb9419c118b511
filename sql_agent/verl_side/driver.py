"""Runs verl's trainer in a process of its own: `python -m sql_agent.verl_side.driver`.

`sql_agent.lightning.algorithm` starts it. It runs verl's own `TaskRunner.run` in this process; upstream uses a Ray
actor, one more process that imports everything. It exchanges JSON lines with its parent: it reads its order and then
the address of the LLM proxy from standard input, and writes events to standard output. The output of verl and Ray goes
to the log.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from agentgrpo.checkpoints import CheckpointError, prune
from agentgrpo.imports import uncollected
from agentgrpo.processes import RUN_ID, Events, end_run, end_with_parent, run_folder
from sql_agent.cluster.join import NodeWatch, join, nodes_in_use
from sql_agent.cluster.network import Network
from sql_agent.lightning.runner_processes import start_runners
from sql_agent.settings.load import load_config
from sql_agent.source.run_context import NEWEST, OPEN_GROUPS, RunContext, enter
from sql_agent.trained_on import FILE as TRAINED_ON
from sql_agent.verl_side import checkpoints, worker_forks
from sql_agent.verl_side.planned_steps import PlannedSteps


def main() -> None:
    events = Events()
    end_with_parent()
    events.emit({"event": "phase", "name": "importing verl"})
    forks = worker_forks.wanted()
    with uncollected():
        if forks:
            worker_forks.import_ray()

        import ray
        from omegaconf import OmegaConf
        from ray._private import node, services
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
        from verl.trainer.main_ppo_v0 import TaskRunner
        from verl.trainer.ppo import ray_trainer
        from verl.utils import tracking
        from verl.utils.debug import metrics as debug_metrics

        from agentgrpo.run_folder import usable_trackers
        from sql_agent import upstream_patches as patches
        from sql_agent.verl_side.tracking import make_tracking

        if forks:
            worker_forks.import_all()

    if forks and (work := worker_forks.start_fork_server(run_folder(os.environ[RUN_ID]) / "forks")):
        work()  # this is a worker now
        return

    line = sys.stdin.readline()
    if not line:
        return  # the parent process found a fault in the settings
    order = json.loads(line)
    # the file holds the settings as they were given, so that a resumed run can be compared with them
    cfg = load_config(Path(order["config"]), [f"data.max_prompt_tokens={order['max_prompt_tokens']}"])

    def publish(servers: dict[str, Any]) -> str | None:
        if watch:
            watch.needs(nodes_in_use() | {network.host})
            # now, since workers and servers have found their CPUs
            context.kept += start_runners(order, network.nodes, give_up)
        events.emit({"event": "servers", **servers})
        return json.loads(sys.stdin.readline())["proxy_url"]

    usable_trackers(cfg.trainer.loggers, cfg.run_dir)  # sets where this process writes
    context = RunContext(cfg, order["run_id"], order["store_url"], order["pad_id"], publish, events.emit)
    enter(context)
    keeper = CheckpointKeeper(
        cfg.run_dir / "checkpoints",
        {"run_id": order["run_id"], "commit": order["commit"]},
        keep=cfg.trainer.keep_checkpoints,
        trained_on=cfg.run_dir / "data" / TRAINED_ON,
        open_groups=lambda: context.open_groups(),
    )
    planned = PlannedSteps(cfg.run_dir, cfg.trainer, psutil.Process(os.getppid()).create_time())

    def change_trainer(module: Any) -> None:
        keeper.install(module.RayPPOTrainer)
        planned.install(module.RayPPOTrainer)

    patches.change(ray_trainer, change_trainer)

    def logged(event: dict[str, Any]) -> None:
        keeper.seal()
        planned.take(event["step"], event["metrics"])
        context.steps = planned.steps
        events.emit(event | {"steps": planned.steps})

    run_tracking = make_tracking(context, logged)
    patches.change(tracking, lambda module: setattr(module, "Tracking", run_tracking))
    patches.change(debug_metrics, compare_newest)

    verl_config = OmegaConf.create(order["verl"])
    network = Network(**order["network"])
    events.emit({"event": "phase", "name": "starting Ray" if network.is_loopback else "joining Ray"})
    runtime_env: Any = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(verl_config)))
    assert isinstance(runtime_env, dict)
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **order["environment"]}
    patches.change(node, _change_start)
    patches.change(services, _wait_longer)
    patches.require_patched("driver")
    watch, code = None, 1
    failing = threading.Lock()

    def fail(error: str) -> None:
        if failing.acquire(blocking=False):  # what was noticed first is said
            events.emit({"event": "failed", "error": error})

    def give_up(error: str) -> None:
        fail(error)
        _exit(1)

    try:
        if network.is_loopback:
            ray_init = OmegaConf.to_container(verl_config.ray_kwargs.ray_init)
            assert isinstance(ray_init, dict)
            start_ray(ray.init, {**ray_init, "runtime_env": runtime_env, "_temp_dir": order["ray_dir"]})
        else:
            context.kept = join(network, runtime_env)
            watch = NodeWatch(
                str(network.ray_address),
                ray.nodes,
                network.nodes,
                give_up,
                lambda text: events.emit({"event": "phase", "name": text}),
            )
        signal.signal(signal.SIGTERM, _stop)  # after ray.init, which sets a handler of its own
        events.emit({"event": "phase", "name": "loading the policy"})
        TaskRunner.__ray_metadata__.modified_class().run(verl_config)  # type: ignore[attr-defined]
        events.emit({"event": "finished"})
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # the outermost code of the process: the command says what verl raised
        fail((watch.fatal() if watch else None) or error_line(error))
        with contextlib.suppress(OSError):  # the error may be that the log's disk is full
            traceback.print_exc()
    if watch:
        watch.end()
    ray.shutdown()
    _exit(code)


class CheckpointKeeper:
    """Seals the checkpoints of verl's trainer, and resumes it exactly where one was written.

    A checkpoint is sealed after its step's metrics, validation included, are logged. A run that is killed in between
    repeats the step instead of losing its metrics.

    Args:
        folder: the folder of the run's checkpoints.
        facts: facts of the run, for the manifest.
        keep: number of whole checkpoints that stay.
        trained_on: the record of what the run trains on, which every checkpoint's model gets beside it.
        open_groups: see `RunContext`.
    """

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        *,
        keep: int,
        trained_on: Path,
        open_groups: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        self._folder, self._facts, self._keep, self._trained_on = folder, facts, keep, trained_on
        self._open_groups = open_groups
        self._unsealed: tuple[Path, dict[str, Any]] | None = None

    def install(self, trainer: type[Any]) -> None:
        save, load = trainer._save_checkpoint, trainer._load_checkpoint

        def save_checkpoint(self_: Any) -> None:
            self.save(self_.global_steps, functools.partial(save, self_))

        def load_checkpoint(self_: Any) -> None:
            load(self_)
            if self_.global_steps:
                self.restore_order(self_.global_steps, self_.train_dataloader)

        trainer._save_checkpoint, trainer._load_checkpoint = save_checkpoint, load_checkpoint

    def save(self, step: int, write: Callable[[], None]) -> None:
        """The manifest is made from the files that verl wrote, and kept until the step is logged.

        Raises:
            CheckpointError: the checkpoint could not be written.
        """
        checkpoint = self._folder / f"{checkpoints.PREFIX}{step}"
        try:
            shutil.rmtree(checkpoint, ignore_errors=True)  # a killed run may have left an incomplete one
            write()
            checkpoints.name_dtype(checkpoint / "actor" / "huggingface")
            shutil.copyfile(self._trained_on, checkpoint / "actor" / "huggingface" / TRAINED_ON)
            if (groups := self._open_groups()) is not None:
                (checkpoint / OPEN_GROUPS).write_text(json.dumps(groups))
            self._unsealed = checkpoint, checkpoints.describe_checkpoint(checkpoint, self._facts)
        except CheckpointError:
            raise
        except Exception as error:  # verl writes with torch, safetensors and pickle, each with its own errors
            raise self._write_error(checkpoint, error) from error

    def seal(self) -> None:
        """Raises CheckpointError: the manifest could not be written."""
        if self._unsealed is None:
            return
        (checkpoint, manifest), self._unsealed = self._unsealed, None
        try:
            checkpoints.write_manifest(checkpoint, manifest)
        except OSError as error:
            raise self._write_error(checkpoint, error) from error
        prune(checkpoint, self._keep)

    def restore_order(self, step: int, loader: Any) -> None:
        """Restore the order of the tasks when the checkpoint is at the end of a pass over them.

        verl restores it only within a pass. At the end of one it restarts the generator of the order, and the order of
        the first pass would come again.
        """
        import torch

        if step % len(loader) == 0:
            loader.load_state_dict(torch.load(self._folder / f"global_step_{step}" / "data.pt", weights_only=False))
            for _ in loader:  # yields nothing, since the restored pass has ended
                raise CheckpointError(f"data.pt of step {step} is not at the end of a pass over {len(loader)} batches")

    def _write_error(self, checkpoint: Path, error: Exception) -> CheckpointError:
        free = shutil.disk_usage(self._folder).free
        full = "its disk is full" if free < 2**20 else f"its disk has {free / 2**20:,.0f} MiB left"
        return CheckpointError(
            f"{checkpoint} could not be written, {full} ({error_line(error)}); earlier checkpoints are untouched: make "
            "room and start the same command again"
        )


def compare_newest(module: Any) -> None:
    """Let verl compare the probabilities of sampler and trainer on rows of the newest weights; older ones differ."""
    upstream = module.calculate_debug_metrics

    def calculate_debug_metrics(data: Any) -> dict[str, Any]:
        newest = data.non_tensor_batch.get(NEWEST)
        return upstream(data if newest is None else data.select_idxs(newest)) if newest is None or any(newest) else {}

    module.calculate_debug_metrics = calculate_debug_metrics


def _change_start(module: ModuleType) -> None:
    worker_forks.fork_workers(module)
    # Start neither Ray's dashboard, which runs even where none is asked for and queries the metadata servers of three
    # clouds, nor its autoscaler, which has nothing to do on one node and serves metrics to everybody.
    module.Node.start_api_server = module.Node.start_monitor = lambda *_, **__: None


RAY_START_S = 300
"""Seconds that Ray's own processes have to come up. Its own 30 are too few beside other work, and so were 120."""


class RayStartError(RuntimeError):
    """Ray did not come up; the message says what to do."""


def start_ray(init: Callable[..., Any], settings: Mapping[Any, Any]) -> None:
    """
    Args:
        init: `ray.init`.
    Raises:
        RayStartError: it failed.
    """
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(RAY_START_S))  # Ray's own name for one of its waits
    try:
        init(**settings)
    except Exception as error:  # Ray raises plain ones
        raise RayStartError(
            f"Ray did not come up ({error_line(error)}); the machine is too busy, or short of memory: end other work "
            "there and start the same command again"
        ) from error


def _wait_longer(module: ModuleType) -> None:
    # `Node.__init__` asks for its raylet for 30 s, a number that no setting changes; each question takes longer here.
    upstream = module.get_node

    def get_node(*args: Any) -> Any:
        until = time.monotonic() + RAY_START_S
        while True:
            try:
                return upstream(*args)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    module.get_node = get_node  # type: ignore[attr-defined]


def error_line(error: Exception) -> str:
    # Ray's message has the whole remote traceback, which is in the log.
    return str(error).strip().rsplit("\n", 1)[-1] if "ray::" in str(error) else f"{type(error).__name__}: {error}"


def _stop(*_: Any) -> None:
    # A second thread makes sure that the process ends.
    threading.Timer(10.0, _exit, args=(143,)).start()
    raise KeyboardInterrupt


def _exit(code: int) -> None:
    # The parent may have been killed.
    end_run(os.environ[RUN_ID], patience_s=2.0)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # verl and Ray leave threads that would delay the end


if __name__ == "__main__":
    main()
