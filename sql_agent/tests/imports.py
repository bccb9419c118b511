"""What each process of a run on a CPU imports, as packages and a number of modules: `python -m sql_agent.tests.imports`
writes `imports.json` anew, with which `test_imports.py` compares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import worker_environment

KEPT = Path(__file__).with_name("imports.json")
PROCESSES = {
    "command, until verl's process starts": "import sql_agent.train_sql_agent",
    "LLM proxy": "import sql_agent.lightning.llm_proxy",
    "runner, forked from the command": "import sql_agent.lightning.runner",
    "verl's process, from which workers are forked": (
        "from sql_agent.verl_side import driver, worker_forks\n"
        "worker_forks.import_ray()\n"
        "from verl.trainer import main_ppo_v0\n"
        "worker_forks.import_all()"
    ),
}
_SAY = """
import json, sys
names = [name for name, module in sys.modules.items() if module is not None]
packages = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
print("\\n" + json.dumps({"modules": len(names), "packages": sorted(packages)}))
"""


def imported(process: str) -> dict[str, Any]:
    environment = os.environ | worker_environment(load_config(None), cpu=True)
    command = [sys.executable, "-c", PROCESSES[process] + _SAY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    KEPT.write_text(json.dumps({process: imported(process) for process in PROCESSES}, indent=1) + "\n")
