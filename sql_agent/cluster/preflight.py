"""Looks at a Ray cluster before anything loads: `python -m sql_agent.cluster.preflight`, a process of its own.

The command forks its runners later, which no process that has talked to Ray may do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from agentgrpo.checks import UsageError
from agentgrpo.processes import Events, end_with_parent
from sql_agent.cluster.network import LOOPBACK, TOKEN_MODE, Network
from sql_agent.settings.train import TrainConfig

LOOK_S = 180.0


def look(cfg: TrainConfig) -> Network:
    """Where the run's processes listen and which Ray they join, after a look at every node.

    Raises:
        UsageError: the run cannot start on the cluster; the message names the node and the remedy.
    """
    if cfg.cluster.ray_address is None:
        return LOOPBACK
    command = [sys.executable, "-m", "sql_agent.cluster.preflight"]
    asked = cfg.model_dump_json()
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, timeout=LOOK_S, env=os.environ | TOKEN_MODE
    )
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"problem": done.stderr[-500:]}
    if "problem" in answer:
        raise UsageError(answer["problem"])
    return Network(**answer)


def main() -> None:
    events = Events()
    end_with_parent()
    cfg = TrainConfig.model_validate_json(sys.stdin.read())
    import ray

    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    ray.init(address=cfg.cluster.ray_address, log_to_driver=False)
    host = ray.util.get_node_ip_address()
    events.emit({"ray_address": cfg.cluster.ray_address, "host": host, "interface": cfg.cluster.interface})


if __name__ == "__main__":
    main()
