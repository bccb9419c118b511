"""verl's trainer in a process of its own: `python -m sql_agent.verl_driver`.

Started by `sql_agent.algorithm`. It runs verl's own `TaskRunner.run` in this process (upstream puts it into a Ray
actor, one more process that imports everything). Talks to its parent in JSON lines: its order and then the address of
the LLM proxy on standard input, events on standard output. verl's and Ray's chatter goes to the log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from sql_agent.config import load_config
from sql_agent.processes import RUN_ID, Events, end_run, end_with_parent
from sql_agent.run_context import RunContext, enter


def main() -> None:
    events = Events()
    end_with_parent()
    events.emit({"event": "phase", "name": "importing verl"})

    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.main_ppo_v0 import TaskRunner
    from verl.utils import tracking

    from sql_agent.tracking import make_tracking, usable_loggers

    line = sys.stdin.readline()
    if not line:
        return  # whoever started us found something wrong with what was asked for
    order = json.loads(line)
    cfg = load_config(Path(order["config"]))

    def publish(servers: dict[str, Any]) -> str | None:
        events.emit({"event": "servers", **servers})
        return json.loads(sys.stdin.readline())["proxy_url"]

    for name in ("TENSORBOARD_DIR", "WANDB_DIR", "SWANLAB_LOG_DIR"):
        os.environ.setdefault(name, str(cfg.run_dir))
    usable_loggers(cfg.trainer.loggers)  # sets those without a key to write to disk
    context = RunContext(cfg, order["run_id"], order["store_url"], order["pad_id"], publish)
    enter(context)
    tracking.Tracking = make_tracking(context, events.emit)  # type: ignore[misc]

    verl_config = OmegaConf.create(order["verl"])
    events.emit({"event": "phase", "name": "starting Ray"})
    runtime_env = OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env(verl_config)))
    assert isinstance(runtime_env, dict)
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **order["environment"]}
    ray_init = OmegaConf.to_container(verl_config.ray_kwargs.ray_init)
    assert isinstance(ray_init, dict)
    ray.init(**{**ray_init, "runtime_env": runtime_env, "_temp_dir": order["ray_dir"]})  # type: ignore[arg-type]
    signal.signal(signal.SIGTERM, _stop)  # after ray.init, which sets a handler of its own
    events.emit({"event": "phase", "name": "loading the policy"})
    code = 1
    try:
        TaskRunner.__ray_metadata__.modified_class().run(verl_config)  # type: ignore[attr-defined]
        events.emit({"event": "finished"})
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        events.emit({"event": "failed", "error": last_line(error)})
        traceback.print_exc()
    ray.shutdown()
    _exit(code)


def last_line(error: Exception) -> str:
    """What went wrong, in a line; Ray wraps it in the whole remote traceback, which the log has."""
    return str(error).strip().rsplit("\n", 1)[-1] if "ray::" in str(error) else f"{type(error).__name__}: {error}"


def _stop(*_: Any) -> None:
    """End verl's blocking calls where they are; a second thread makes sure that the process ends."""
    threading.Timer(10.0, _exit, args=(143,)).start()
    raise KeyboardInterrupt


def _exit(code: int) -> None:
    """Leave nothing of the run behind: whoever started it may have been killed."""
    end_run(os.environ[RUN_ID], patience_s=2.0)
    sys.stderr.flush()
    os._exit(code)  # verl and Ray leave threads behind that would hold up the end


if __name__ == "__main__":
    main()
