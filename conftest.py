"""What tests of every package use; it has to stand here to be known wherever pytest is started from.

Nothing asks the hub of Hugging Face: a test that wants one serves it on loopback.
"""

import gc
import logging
import os
import signal
from pathlib import Path

import certifi
import psutil
import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from agentgrpo.machine import memory_limits

pytest_plugins = ["dbbench_adapter.tests.engine_worlds"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Where other processes have the cores, two threads wait for each other by spinning: six train steps of the small policy
# took 15.3 s of CPU with two threads and 0.8 s with one (torch 2.13, two busy cores).
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Ray gives its workers a nice value of 15. Beside other tests, which have 0, a step took 476 s.
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / ".pytest_cache" / "settings")
"""Where the key is that signs the checkpoints of tests; not in /tmp, where tests look for what runs leave behind."""


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="tests that are marked so, and long tests at full size: "
                     "hostile statements, fuzzing, 1,000 rollouts; hours")  # fmt: skip


ONE_CERTIFICATE = Path(__file__).parent / ".pytest_cache" / "one_certificate.pem"


def pytest_configure(config):
    """Every client of HTTP reads all certificates of the machine, 18 ms of CPU, and hundreds of tests make several.
    They ask loopback without TLS, so one certificate is enough; `--full` alone downloads packages."""
    if config.getoption("--full") or "SSL_CERT_FILE" in os.environ:
        return
    end = "-----END CERTIFICATE-----\n"
    if not ONE_CERTIFICATE.is_file():
        ONE_CERTIFICATE.parent.mkdir(exist_ok=True)
        made = ONE_CERTIFICATE.with_suffix(f".{os.getpid()}")
        made.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
        made.replace(ONE_CERTIFICATE)
    os.environ["SSL_CERT_FILE"] = str(ONE_CERTIFICATE)


CHAINS = (
    "test_own_database_recipe.py",
    "test_typed_pages.py",
    "test_end_to_end.py",
    "test_improve.py",
    "test_two_nodes.py",
    "test_preflight_nodes.py",
    "test_workers_end_to_end.py",
    "test_examples_end_to_end.py",
    "test_apo.py",
    "test_interface.py",
    "test_user_environment_end_to_end.py",
    "test_medical_end_to_end.py",
    "test_user_agent_end_to_end.py",
    "test_served_templates.py",
    "test_faithful.py",
    "test_merge_policy.py",
    "test_caged_runs.py",
    "test_weight_sync.py",
    "test_vllm_stands_in.py",
)
"""Test files that start whole runs or vLLM servers, which takes most of `make test`; those that start most come first,
so that what is left at the end is short."""
TOGETHER = {
    "test_own_database_recipe.py": "same ports",  # they type commands of the pages as they stand
    "test_typed_pages.py": "same ports",
    "test_end_to_end.py": "first run",  # both compare with it
    "test_workers_end_to_end.py": "first run",
}
"""Files that one pytest worker gets, by what they share."""


CHAINS_AT_ONCE = 2 if min([psutil.virtual_memory().total, *memory_limits()]) > 20 * 2**30 else 1
"""A chain takes 4.3 GiB, and a pytest worker up to 2. Most of a chain is the start of one process after the other, so
two leave each other room on two cores."""


class FewChainsAtOnce(LoadScopeScheduling):
    """Gives whole files to the pytest workers. A file that starts chains waits while others have as many as there may
    be; once nothing else is left, it does not, so that the last minutes keep all workers busy."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return TOGETHER.get(Path(file).name, file)

    def _assign_work_unit(self, node):
        others = [work for other, work in self.assigned_work.items() if other is not node]
        chains = sum(is_chain(scope) and not all(work[scope].values()) for work in others for scope in work)
        taken = chains >= CHAINS_AT_ONCE
        first = next((scope for scope in self.workqueue if is_chain(scope) is not taken), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def is_chain(scope):
    return scope in TOGETHER.values() or Path(scope).name in CHAINS


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return FewChainsAtOnce(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Modules and tests, a million objects, stay until the end: looking through them took 8 s of the 26 s of CPU that
    collecting takes, and up to 0.9 s wherever it fell into a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish():
    gc.unfreeze()  # libraries made with nanobind report what outlasts the interpreter as a leak


def pytest_collection_modifyitems(config, items):
    """What takes longest begins first: chains, then files with slow tests, so that no worker ends with one alone."""
    for item in [] if config.getoption("--full") else items:
        if (mark := item.get_closest_marker("full")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"with --full: {mark.args[0]}"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    place = {name: number for number, name in enumerate(CHAINS)}
    items.sort(key=lambda item: (place.get(item.path.name, len(CHAINS)), item.path not in slow))


@pytest.fixture(scope="session")
def small_policy() -> Path:
    """The folder of the small policy, which is made once a checkout."""
    from sql_agent.tiny_policy.make import make_tiny_policy

    folder = Path(__file__).parent / "models" / "tiny-sql"
    make_tiny_policy(folder)
    return folder


@pytest.fixture(autouse=True)
def root_log_levels():
    """Every test leaves the levels of the root logger and its handlers as they were.

    vLLM's server sets them to ERROR when it is imported, pytest's own handlers included.
    """
    levels = [(each, each.level) for each in (logging.root, *logging.root.handlers)]
    yield
    for each, level in levels:
        each.setLevel(level)


@pytest.fixture
def few_objects():
    """Collections of garbage look only at what the test makes, as in a young process.

    With the objects of all earlier tests a test that times something short may fail.
    """
    gc.collect()  # what is garbage now would stay for good
    gc.freeze()


@pytest.fixture
def heard_signals():
    """Here, and in the processes that a test starts, SIGINT and SIGHUP do what they do by default.

    `nohup make test &` in a script starts all of it deaf to both, and children inherit that.
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for sign, handler in before.items():
        signal.signal(sign, handler)
