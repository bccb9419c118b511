"""The look at two real nodes with a Ray of their own: one start for all tests; only the last one changes it."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from agentgrpo.machine import ROOT
from sql_agent.cluster.inspect_nodes import OUR_PACKAGES
from sql_agent.cluster.tests import nodes as made
from sql_agent.names import TINY_POLICY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not made.can_be_made(), reason="nodes of their own need root, ip, nsenter and unshare"),
]
LOOK = """
import sys
sys.path.remove("")  # PYTHONPATH says whose code it is
from agentgrpo.checks import UsageError
from sql_agent.cluster.inspect_nodes import ClusterRequest, inspect_nodes
try:
    print(inspect_nodes(ClusterRequest.model_validate_json(open(sys.argv[1]).read())))
except UsageError as error:
    sys.exit(str(error))
"""
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
        for change in ONLY_ON_ONE:
            both[0].ip(*change)
        made.start_ray(*both, gpus=(1, 1))
        yield both


def look(node, folder, token=made.TOKEN, python=ROOT, run_dir=None, files=(), **cluster):
    """What the command prints on a node, standard error last."""
    asked = folder / "asked.json"
    request = {
        "cluster": {"ray_address": "10.77.0.1:6379", "nodes": 2} | cluster,
        "engine": {"device": "cpu"},
        "n_runners": 4,
        "weights": 918_400,
        "model": str(TINY_POLICY),
        "files": list(map(str, files)),
        "run_dir": str(run_dir or folder / "run"),
        "join_s": 0,
    }
    asked.write_text(json.dumps(request))
    environment = {"RAY_AUTH_TOKEN": token, "PYTHONPATH": str(python)}
    done = node.run(sys.executable, "-c", LOOK, asked, timeout_s=280, **environment)
    return (done.stdout + done.stderr).strip().splitlines()


def test_every_node_is_looked_at_and_shown(cluster, folder):
    *shown, network = look(cluster[1], folder)
    assert [line.partition(":")[0] for line in shown] == [ONE, TWO, "2 nodes of the Ray cluster at 10.77.0.1"]
    assert shown[0] == f"{ONE}: 0 GPUs by nvidia-smi, 1 GPUs and 8 CPUs in Ray"
    assert network.startswith("Network(ray_address='10.77.0.1:6379', host='10.77.0.2', interface=None, nodes=['")
    assert network.endswith("'], gpus=0, gpus_of_nodes=[])") and network.count("', '") == 1
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
    has = "of Ray's resource GPU, also on a CPU, and"
    assert look(cluster[0], folder, nodes=3, workers_per_node=2) == [
        "waiting for 3 nodes that train, at most 0 s",
        f"0 of 3 nodes that train have joined the Ray cluster at 10.77.0.1:6379; each needs 2 {has} {ONE} has 1, {TWO} "
        "has 1; there `ray stop`, then on every node `ray start --address=10.77.0.1:6379 --num-gpus=2`",
    ]


def test_no_cluster_at_the_address(cluster, folder):
    (said,) = look(cluster[0], folder, ray_address="10.77.0.2:7000")
    assert said.startswith("no Ray cluster answers at 10.77.0.2:7000 (UNAVAILABLE: ")


def test_code_a_file_an_interface_and_a_run_folder_that_are_others_on_the_second_node(cluster, folder):
    private, code = folder / "private", folder / "private" / "code"
    for node in cluster:
        assert node.run("mkdir", "-p", code / "scripts").returncode == 0
        assert node.run("touch", code / "scripts" / "setup.sh").returncode == 0  # makes it a clone
        assert node.run("cp", "-r", *(ROOT / package for package in OUR_PACKAGES), code).returncode == 0
    with (code / "sql_agent" / "names.py").open("a") as changed:
        changed.write("# changed\n")
    (private / "reward.py").write_text("def mine(record): return 1.0\n")
    *shown, other_code, unshared, interface = look(
        cluster[0], folder, python=code, run_dir=private / "run", files=[private / "reward.py"], interface="only0"
    )
    assert len(shown) == 2
    assert other_code.startswith(f"{TWO} has this project's code ") and f"or share the folder {code}" in other_code
    assert unshared == (
        f"{TWO} does not share the command's folders: {private}/reward.py is not there, the run's folder {private}/run "
        "cannot be written (No such file or directory); use a file system that every node has mounted under the same "
        "path, for the same user"
    )
    assert interface == (
        f"{TWO} has no network interface 'only0' that other nodes reach (cluster.interface); it has eth-ag 10.77.0.2; "
        "name one that all nodes have, or leave the setting out"
    )


def test_what_an_ended_job_left_behind(cluster, folder):
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": made.TOKEN}
    assert cluster[0].run(sys.executable, "-c", LEAVE_BEHIND, **access).returncode == 0
    said = look(cluster[0], folder)[-1]
    assert cluster[0].run(sys.executable, "-c", TAKE_AWAY, **access).returncode == 0
    assert said.startswith(
        "1 of 2 nodes have 1 GPUs and 3 CPUs of Ray's resources free for their workers: "
        f"{ONE} has 1 GPUs and 8 CPUs, {TWO} has 0 GPUs and 7 CPUs; end the run that holds them, or on every node "
        "`ray stop` and `ray start`"
    )


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
