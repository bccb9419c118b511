"""Runners as Ray actors: which of them play again, and when the run is told that one cannot."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, os, sys, time
import ray
from sql_agent.lightning.runner_processes import _follow

class Ends:
    def __init__(self, folder): self.folder = folder
    def play(self):
        count = len(os.listdir(self.folder))
        open(os.path.join(self.folder, str(count)), "w").close()
        if count == 1:
            raise OSError("the store did not answer")
        if count == 2:
            time.sleep(3600)

class Dies:
    def play(self):
        os.kill(os.getpid(), 9)

class CannotStart:
    def __init__(self): raise ValueError("no such agent")
    def play(self): ...

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[2])
import threading
said = {}
def follow(name, kind, *arguments):
    actor = ray.remote(kind).options(max_restarts=-1, num_cpus=1).remote(*arguments)
    thread = threading.Thread(target=_follow, args=([actor], lambda text: said.update({name: text})), daemon=True)
    thread.start()
    return actor, thread
kept = {"ends": follow("ends", Ends, sys.argv[1]), "dies": follow("dies", Dies), "none": follow("none", CannotStart)}
kept["dies"][1].join(60); kept["none"][1].join(60)
deadline = time.monotonic() + 60
while len(os.listdir(sys.argv[1])) < 3 and time.monotonic() < deadline: time.sleep(0.1)
found = {"said": said, "plays": len(os.listdir(sys.argv[1])), "goes on": kept["ends"][1].is_alive()}
print(json.dumps(found), flush=True)
ray.shutdown()
os._exit(0)  # as verl's driver: a thread still waits for the runner that plays
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_runner_plays_again_until_it_cannot_be_started_or_ends_again_and_again(tmp_path):
    # paths of Ray's sockets are limited to 107 characters
    with tempfile.TemporaryDirectory(prefix="ag-", dir="/tmp") as ray_dir:
        found = followed(tmp_path, ray_dir)
    assert found["said"].pop("dies").startswith("runner 0 ended 5 times within 60 s: ")
    assert found["said"].pop("none").endswith("ValueError: no such agent")
    assert found == {"said": {}, "plays": 3, "goes on": True}


def followed(tmp_path, ray_dir):
    (plays := tmp_path / "plays").mkdir()
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2, "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"PYTHONPATH": str(ROOT), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    command = [sys.executable, "-c", SCRIPT, str(plays), ray_dir]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=200)
    # The exit status says nothing: if the thread that waits for the runner asks Ray during the shutdown, Ray ends the
    # process with 1.
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray prints too
    assert len(lines) == 1, done.stderr
    return json.loads(lines[0])
