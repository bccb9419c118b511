"""The preflight on two real nodes with a Ray of their own: one start for all tests; only the last one changes it."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from agentgrpo.machine import ROOT
from sql_agent.cluster.facts import OUR_PACKAGES
from sql_agent.cluster.tests import nodes as made
from sql_agent.names import TINY_POLICY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not made.can_be_made(), reason="nodes of their own need root, ip, nsenter and unshare"),
]
LOOK = """
import json, sys
sys.path.remove("")  # PYTHONPATH says whose code it is
from agentgrpo.checks import UsageError
from sql_agent.cluster.preflight import look
from sql_agent.settings.train import TrainConfig
asked = json.load(open(sys.argv[1]))
try:
    print(look(TrainConfig.model_validate(asked["config"]), asked["own_files"], join_s=0))
except UsageError as error:
    sys.exit(str(error))
"""
# What a container engine leaves on every machine: a network of its own, with the same address on each.
BRIDGE = (
    ("link", "add", "docker0", "type", "veth", "peer", "name", "docker0p"),
    ("addr", "add", "172.17.0.1/16", "dev", "docker0"),
    ("link", "set", "docker0", "up"),
    ("link", "set", "docker0p", "up"),
)
ONLY_ON_ONE = (
    ("link", "add", "only0", "type", "veth", "peer", "name", "only0p"),
    ("addr", "add", "10.88.0.1/24", "dev", "only0"),
)
LEAVE_BEHIND = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(address="auto", namespace="left", log_to_driver=False)
class Left:
    def there(self): return True
node = next(each["NodeID"] for each in ray.nodes() if each["NodeManagerHostname"] == "node2")
there = NodeAffinitySchedulingStrategy(node, soft=False)
left = ray.remote(Left).options(name="left", lifetime="detached", num_gpus=1, scheduling_strategy=there).remote()
ray.get(left.there.remote())
"""
TAKE_AWAY = """
import ray
ray.init(address="auto", namespace="left", log_to_driver=False)
ray.kill(ray.get_actor("left"))
"""
ONE, TWO = "node node1 (10.77.0.1)", "node node2 (10.77.0.2)"


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # the nodes have a /tmp each
        yield Path(name)


@pytest.fixture(scope="module")
def cluster(folder):
    (folder / "private").mkdir()
    with made.two_nodes(folder, own=[str(folder / "private")]) as both:
        for node in both:
            for change in BRIDGE:
                node.ip(*change)
        for change in ONLY_ON_ONE:
            both[0].ip(*change)
        made.start_ray(*both, gpus=(1, 1))
        yield both


def look(node, folder, own_files=(), token=made.TOKEN, python=ROOT, **settings):
    """What the command prints on a node, standard error last; settings replace those of a run that starts."""
    config = {"model": str(TINY_POLICY), "run_dir": str(folder / "run"), "engine": {"device": "cpu"}}
    config |= {"cluster": {"ray_address": "10.77.0.1:6379", "nodes": 2} | settings.pop("cluster", {})} | settings
    asked = folder / "asked.json"
    asked.write_text(json.dumps({"config": config, "own_files": dict(own_files)}))
    environment = {"RAY_AUTH_TOKEN": token, "PYTHONPATH": str(python)}
    done = node.run(sys.executable, "-c", LOOK, asked, timeout_s=280, **environment)
    return (done.stdout + done.stderr).strip().splitlines()


def test_every_node_is_looked_at_and_shown(cluster, folder):
    *shown, network = look(cluster[1], folder)
    assert [line.partition(":")[0] for line in shown] == [ONE, TWO, "2 nodes of the Ray cluster at 10.77.0.1"]
    assert "0 GPUs of NVIDIA's, 1 GPUs and 8 CPUs of Ray's" in shown[0]
    assert (shown[0].endswith("the command is here"), shown[1].endswith("the command is here")) == (False, True)
    assert network.startswith("Network(ray_address='10.77.0.1:6379', host='10.77.0.2', interface=None, nodes=['")
    assert network.endswith("'], gpus=0, cards=[])") and network.count("', '") == 1
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (
            "another" * 5,
            "the Ray cluster at 10.77.0.1:6379 does not take the token that node1 has in RAY_AUTH_TOKEN; give the one "
            "that the cluster was started with, RAY_AUTH_TOKEN=TOKEN before the command",
        ),
        (
            "",
            "the Ray cluster at 10.77.0.1:6379 asks for a token, and node1 has none (looked at ~/.ray/auth_token); "
            "give the one that the cluster was started with, RAY_AUTH_TOKEN=TOKEN before the command",
        ),
    ],
)
def test_a_wrong_or_missing_token(cluster, folder, token, said):
    assert look(cluster[0], folder, token=token) == [said]


def test_more_nodes_than_have_joined_and_more_workers_than_they_have_gpus(cluster, folder):
    asked = {"nodes": 3, "workers_per_node": 2}
    assert look(cluster[0], folder, cluster=asked, data={"train_batch_size": 12}) == [
        "0 of 3 nodes that train have joined; waiting for 0 s",
        "0 of 3 nodes that train have joined the Ray cluster at 10.77.0.1:6379 in 0 s, and "
        f"{ONE} has 1 of Ray's resource GPU, expected 2, {TWO} has 1 of Ray's resource GPU, expected 2; there `ray "
        "stop`, then `ray start` with --num-gpus=2, which a CPU needs too; on each machine that is missing `ray start "
        "--address=10.77.0.1:6379 --num-gpus=2`",
    ]


def test_no_cluster_at_the_address(cluster, folder):
    (said,) = look(cluster[0], folder, cluster={"ray_address": "10.77.0.2:7000"})
    assert said.startswith("no Ray cluster answers at 10.77.0.2:7000 (UNAVAILABLE: ")


def test_code_files_an_interface_and_a_run_folder_that_are_others_on_the_second_node(cluster, folder):
    private, code = folder / "private", folder / "private" / "code"
    for node in cluster:
        assert node.run("mkdir", "-p", code / "scripts").returncode == 0
        assert node.run("touch", code / "scripts" / "setup.sh").returncode == 0  # makes it a clone
        assert node.run("cp", "-r", *(ROOT / package for package in OUR_PACKAGES), code).returncode == 0
    with (code / "sql_agent" / "names.py").open("a") as changed:
        changed.write("# changed\n")
    (private / "reward.py").write_text("def mine(record): return 1.0\n")
    (private / "questions.sqlite").write_bytes(b"rows")
    *shown, other_code, other_file, database, run_dir, interface = look(
        cluster[0],
        folder,
        own_files={"mine": str(private / "reward.py")},
        python=code,
        run_dir=str(private / "run"),
        cluster={"interface": "only0"},
        env={"type": "text2sql", "database": str(private / "questions.sqlite")},
    )
    assert len(shown) == 2
    copy = "copy it there under the same path, or use a folder that all nodes share"
    assert other_code.startswith(f"{TWO} has other code of this project in {code} than the command; ")
    assert other_file == f"mine at {private}/reward.py is not there on {TWO}, expected as on the command's; {copy}"
    assert database == (
        f"env.database at {private}/questions.sqlite is not there on {TWO}, expected as on the command's; {copy}"
    )
    assert run_dir == (
        f"the run's folder {private}/run is not shared: {TWO} cannot read a file that the command wrote there (No such "
        "file or directory), and workers write checkpoints there; name one that every node has mounted, --run-dir "
        "FOLDER"
    )
    assert interface.startswith(f"{TWO} has no network interface 'only0' (cluster.interface), it has lo 127.0.0.1, ")


def test_an_interface_that_reaches_no_other_node(cluster, folder):
    for line, node in zip(look(cluster[0], folder, cluster={"interface": "lo"})[2:], (ONE, TWO), strict=True):
        assert line.startswith(f"interface lo of {node} is loopback, which no other node reaches, expected one of ")


def test_an_interface_that_every_node_has_and_that_connects_none(cluster, folder):
    said = look(cluster[0], folder, cluster={"interface": "docker0"})[-1]
    assert (
        said.startswith("the nodes that train cannot sum over gloo (") and " on docker0: Gloo connectFullMesh" in said
    )
    assert said.endswith(
        f"; open all ports between {ONE} and {TWO}, or name the interface that connects them, --set "
        "cluster.interface=NAME"
    )


def test_what_an_ended_job_left_behind(cluster, folder):
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": made.TOKEN}
    assert cluster[0].run(sys.executable, "-c", LEAVE_BEHIND, **access).returncode == 0
    said = look(cluster[0], folder)[-1]
    assert cluster[0].run(sys.executable, "-c", TAKE_AWAY, **access).returncode == 0
    assert said.startswith(
        f"{TWO} has 0 of 1 GPUs of Ray free, expected 1 (cluster.workers_per_node); left behind by process "
    )
    assert said.endswith("which has ended; on every node `ray stop` and `ray start` as before")


def test_a_cluster_that_asks_for_no_token_and_a_command_on_no_node(cluster, folder):
    head, other = cluster
    for node in cluster:
        assert node.run(made.RAY, "stop").returncode == 0
    made.start_head(head, 1)
    (elsewhere,) = look(other, folder)
    assert elsewhere.startswith("node2 (") and elsewhere.endswith(
        ") is no node of the Ray cluster at 10.77.0.1:6379, whose nodes are node1 (10.77.0.1); give the command on one "
        "of them, or make this machine one that takes no work: `ray start --address=10.77.0.1:6379 --num-cpus=0 "
        "--num-gpus=0`"
    )
    assert head.run(made.RAY, "stop").returncode == 0
    made.start_head(head, 1, token=None)
    (open_to_all,) = look(head, folder)
    assert open_to_all.startswith("the Ray cluster at 10.77.0.1:6379 asks for no token, so everybody who reaches its")
