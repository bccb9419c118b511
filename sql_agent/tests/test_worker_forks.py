"""Ray's workers are forks of a process that has imported everything, and are to everybody else what Ray would start."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sql_agent.settings.load import load_config
from sql_agent.verl_side import setup_worker
from sql_agent.verl_side.config import worker_environment
from sql_agent.verl_side.driver import RayStartError, start_ray

# `colorsys` stands for what takes seconds to import
DRIVER = """
import colorsys, sys
from pathlib import Path
from sql_agent.verl_side import worker_forks
if work := worker_forks.start_fork_server(Path(sys.argv[1])):
    work()
    sys.exit()
print("up", flush=True)
sys.stdin.read()
"""
WORKER = """
import json, os, sys, time
found = {"argv": sys.argv[1:], "name": __name__, "imported": "colorsys" in sys.modules, "folder": os.getcwd()}
found |= {"pid": os.getpid(), "given": os.environ["GIVEN"], "driver": "DRIVERS" in os.environ}
print(json.dumps(found), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


@pytest.fixture
def driver(tmp_path):
    """A process that forks; at `tmp_path` are a worker's code and, beside it, what Ray would start instead."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "setup_worker.py").write_text("import sys\nprint('as Ray does', sys.argv[1:])\n")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "DRIVERS": "1"}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "forks")]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def asks(folder: Path, *arguments: str, job: str = "01000000", given: str = "g", **context: object) -> subprocess.Popen:
    """What raylet starts for a worker."""
    context = {"env_vars": {"GIVEN": given}, "command_prefix": [], "override_worker_entrypoint": None} | context
    options = [f"--serialized-runtime-env-context={json.dumps(context)}", "--language=PYTHON"]
    environment = {"PATH": os.environ["PATH"], "RAY_JOB_ID": job, setup_worker.ADDRESS: str(folder / "forks")}
    command = [sys.executable, setup_worker.__file__, *options, str(folder / "worker.py"), *arguments]
    return subprocess.Popen(command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True)


def report(asker: subprocess.Popen) -> dict:
    assert asker.stdout is not None
    return json.loads(asker.stdout.readline())


def ended(pid: int, patience_s: float = 10.0) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_worker_has_its_own_arguments_environment_folder_and_output_and_what_was_imported(driver, tmp_path):
    asker = asks(tmp_path, "0", "--node-id=1", given="${HOME}x")
    found = report(asker)
    assert found.pop("pid") not in (asker.pid, driver.pid)
    # HOME is not in its environment: Ray takes such a name out
    assert found == {"argv": ["0", "--node-id=1"], "name": "__main__", "imported": True, "folder": "/", "given": "x",
                     "driver": False}  # fmt: skip
    assert asker.wait(10) == 7  # what the worker ended with


def test_a_worker_that_is_killed_is_seen_to_be(driver, tmp_path):
    asker = asks(tmp_path, "60")
    os.kill(report(asker)["pid"], signal.SIGKILL)
    assert asker.wait(10) == -signal.SIGKILL


def test_a_worker_ends_with_the_process_that_raylet_started(driver, tmp_path):
    first, second = asks(tmp_path, "60"), asks(tmp_path, "60")
    ends, stays = report(first)["pid"], report(second)["pid"]
    first.kill()
    assert ended(ends)
    first.wait()
    assert not ended(stays, patience_s=0.5)
    second.kill()
    assert ended(stays)
    second.wait()


def test_workers_end_with_the_driver_however_it_ends(driver, tmp_path):
    asker = asks(tmp_path, "60")
    worker = report(asker)["pid"]
    driver.kill()
    driver.wait()
    assert ended(worker)
    # what stands for it says so, and does not start what Ray would: the worker has lived
    out, _ = asker.communicate(timeout=10)
    assert (asker.returncode, out) == (-signal.SIGKILL, "")


def test_whoever_asks_badly_ends_nobody_else(driver, tmp_path):
    asker = asks(tmp_path, "60")
    worker = report(asker)["pid"]
    for said in (b"", b"\0\0\0\7no JSON"):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(tmp_path / "forks"))
            if said:
                socket.send_fds(other, [said], [0, 1, 2])
    with socket.socket(socket.AF_UNIX) as silent:  # it holds the others up no longer than its limit
        silent.connect(str(tmp_path / "forks"))
        last = asks(tmp_path, "0")
        assert report(last)["imported"]
    assert last.wait(10) == 7
    assert not ended(worker, patience_s=0.0)
    asker.kill()
    asker.wait()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"job": "ffffffff"}, id="before_ray_knows_for_whom"),
        pytest.param({"command_prefix": ["nice"]}, id="with_a_prefix"),
        pytest.param({"override_worker_entrypoint": "/other.py"}, id="with_other_code"),
    ],
)
def test_any_other_worker_is_started_as_ray_does(driver, tmp_path, other):
    asker = asks(tmp_path, "0", **other)
    out, _ = asker.communicate(timeout=10)
    assert out.startswith("as Ray does ['--serialized-runtime-env-context=")
    assert out.endswith(f"'--language=PYTHON', '{tmp_path / 'worker.py'}', '0']\n")


def test_a_process_with_threads_is_not_forked(tmp_path):
    threaded = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n" + DRIVER
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", threaded, str(tmp_path / "forks")],
        env=environment,
        input="",
        capture_output=True,
        text=True,
    )
    assert found.stdout == "up\n"
    assert "import everything themselves, since this process has threads" in found.stderr
    assert not (tmp_path / "forks").exists()


@pytest.mark.slow
def test_what_workers_import_starts_no_thread_and_leaves_ray_as_a_worker_needs_it(tmp_path):
    """Ray's library says which job it read; a second import of the workers' modules adds none."""
    code = """
import os, sys
from sql_agent.verl_side import worker_forks
worker_forks.import_ray()
import verl.trainer.main_ppo_v0
worker_forks.import_all()
print(len(os.listdir("/proc/self/task")), [name for name in os.environ if name in ("RAY_JOB_ID", "RAY_RAYLET_PID")])
print(os.environ["VLLM_LOGGING_LEVEL"])
"""
    environment = {**os.environ, **worker_environment(load_config(None), cpu=True), "TMPDIR": str(tmp_path)}
    environment.pop("VLLM_LOGGING_LEVEL", None)  # which vLLM's server sets where another test has imported it
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-2:] == ["1 []", "WARN"]


@pytest.mark.slow
def test_a_worker_of_a_real_ray_is_such_a_fork_and_ends_with_its_driver(tmp_path):
    code = """
import os, sys, tempfile
from pathlib import Path
from sql_agent.verl_side import worker_forks
worker_forks.import_ray()
import ray
from ray._private import node
folder = Path(sys.argv[1])
if work := worker_forks.start_fork_server(folder / "forks"):
    work()
    sys.exit()
worker_forks.fork_workers(node)
ray.init(num_cpus=1, include_dashboard=False, _temp_dir=str(folder), runtime_env={"env_vars": {"GIVEN": "g"}})
@ray.remote
class Actor:
    def look(self):
        return os.getpid(), Path(f"/proc/{os.getppid()}/cmdline").read_bytes(), os.environ["GIVEN"]
actor = Actor.remote()
pid, parent, given = ray.get(actor.look.remote())
print(pid, parent == Path("/proc/self/cmdline").read_bytes(), given, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = os.environ | worker_environment(load_config(None), cpu=True) | {"RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="forks-", ignore_cleanup_errors=True) as folder:  # a short path
        found = subprocess.run([sys.executable, "-c", code, folder], env=environment, stdout=subprocess.PIPE, text=True)
        pid, parent, given = found.stdout.splitlines()[-1].split()
        assert (parent, given) == ("True", "g")
        assert ended(int(pid))
        for other in of(folder):  # Ray's own, which a run's guard ends
            os.kill(other, signal.SIGKILL)
            ended(other)


@pytest.mark.slow
def test_a_ray_whose_raylet_is_late_comes_up():
    """On a busy machine a run ended because Ray waits for 30 s, a number that no setting of it changes."""
    code = """
import os, sys, threading, time
from pathlib import Path
import ray
from ray._private import services
from sql_agent.verl_side import driver
driver._wait_longer(services)
def raylets():
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, *others = (process / "cmdline").read_bytes().split(b"\\0")
        except OSError:
            continue
        if name.endswith(b"raylet/raylet") and sys.argv[1].encode() in b" ".join(others):
            yield int(process.name)
def delay():
    while not (found := list(raylets())):
        time.sleep(0.02)
    os.kill(found[0], 19)
    time.sleep(40)
    os.kill(found[0], 18)
threading.Thread(target=delay).start()
driver.start_ray(ray.init, {"num_cpus": 1, "include_dashboard": False, "_temp_dir": sys.argv[1]})
print(len(ray.nodes()))
ray.shutdown()
"""
    environment = os.environ | worker_environment(load_config(None), cpu=True) | {"RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="late-", ignore_cleanup_errors=True) as folder:
        found = subprocess.run([sys.executable, "-c", code, folder], env=environment, capture_output=True, text=True)
        for other in of(folder):
            os.kill(other, signal.SIGKILL)
            ended(other)
    assert found.stdout.splitlines()[-1:] == ["1"], found.stderr[-3000:]


def test_a_ray_that_does_not_come_up_says_what_to_do(monkeypatch):
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "1")  # set here, it does not outlive the test

    def init(**_settings):
        raise Exception("The current node timed out during startup.")  # as `Node.__init__` does

    words = "timed out during startup.*; the machine is too busy, or short of memory: end other work there and start"
    with pytest.raises(RayStartError, match=words):
        start_ray(init, {})


def of(folder: str) -> list[int]:
    """Pids of the processes whose command names the folder."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and folder.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found
