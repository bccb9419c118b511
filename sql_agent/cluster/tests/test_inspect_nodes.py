"""What is said about nodes whose facts were written by hand; no Ray."""

from dataclasses import replace
from pathlib import Path

import pytest

from agentgrpo.checks import UsageError
from agentgrpo.machine import ROOT
from sql_agent.cluster import inspect_nodes as room
from sql_agent.cluster.gcs import RayNode, own_node
from sql_agent.cluster.inspect_nodes import ClusterRequest, NodeFacts
from sql_agent.settings.main_job import ClusterConfig, EngineConfig

ONE, TWO = RayNode("a1", "one", "10.0.0.1", 1, 8.0), RayNode("b2", "two", "10.0.0.2", 1, 8.0)
FIRST, SECOND = "node one (10.0.0.1)", "node two (10.0.0.2)"
GIB = 2**30
VERSIONS = {"Python": "3.11.7", "torch": "2.13.0", "verl": "0.9.1", "this project's code": "c0de"}
FACTS = NodeFacts(VERSIONS, 0, (), (), "", 4 * GIB, {"127.0.0.1": "lo", "10.0.0.2": "eth0"})
RUN_DIR = Path("/runs/a")
SHARE = "use a file system that every node has mounted under the same path, for the same user"
NEEDS = "of Ray's resource GPU, also on a CPU, and"
START = "there `ray stop`, then on every node `ray start --address=10.0.0.1:6379 --num-gpus=1`"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(room.check_joined([ONE, TWO], 2, 1, "10.0.0.1:6379"), [], id="all_have_joined"),
        pytest.param(
            room.check_joined([ONE, replace(TWO, gpus=0)], 2, 1, "10.0.0.1:6379"),
            [
                "1 of 2 nodes that train have joined the Ray cluster at 10.0.0.1:6379; each needs 1 "
                f"{NEEDS} {FIRST} has 1, {SECOND} has 0; {START}, or --set cluster.nodes=1"
            ],
            id="one_names_no_gpu",
        ),
        pytest.param(
            room.check_joined([replace(ONE, gpus=0)], 1, 1, "10.0.0.1:6379"),
            [
                "0 of 1 nodes that train have joined the Ray cluster at 10.0.0.1:6379; each needs 1 "
                f"{NEEDS} {FIRST} has 0; {START}"
            ],
            id="none_can_train",
        ),
        pytest.param(room.check_versions(TWO, VERSIONS, VERSIONS), [], id="same_versions"),
        pytest.param(
            room.check_versions(TWO, {**VERSIONS, "torch": "2.12.0", "this project's code": "abba"}, VERSIONS),
            [
                f"{SECOND} has this project's code abba (expected c0de), torch 2.12.0 (expected 2.13.0); make the "
                f"command's environment and code there, or share the folder {ROOT}"
            ],
            id="other_code_and_versions",
        ),
        pytest.param(
            room.check_versions(TWO, {"Python": "3.11.7", "vllm": "0.28.0"}, {"Python": "3.11.7", "verl": "0.9.1"}),
            [
                f"{SECOND} has verl missing (expected 0.9.1), vllm 0.28.0 (expected none); make the command's "
                f"environment and code there, or share the folder {ROOT}"
            ],
            id="packages_that_one_of_them_lacks",
        ),
        pytest.param(room.check_shared(TWO, FACTS, RUN_DIR), [], id="shared"),
        pytest.param(
            room.check_shared(TWO, replace(FACTS, missing=("/models/m",), unshared="Permission denied"), RUN_DIR),
            [
                f"{SECOND} does not share the command's folders: /models/m is not there, the run's folder /runs/a "
                f"cannot be written (Permission denied); {SHARE}"
            ],
            id="neither_the_model_nor_the_runs_folder_is_shared",
        ),
        pytest.param(room.check_shared_memory(TWO, 2 * GIB, 2 * GIB), [], id="room_in_shared_memory"),
        pytest.param(
            room.check_shared_memory(TWO, 64 * 2**20, 2 * GIB),
            [
                f"/dev/shm of {SECOND} has 64 MiB free, expected 2,048 for the push of weights; give its container "
                "more --shm-size"
            ],
            id="a_containers_shared_memory",
        ),
        pytest.param(room.check_interface(TWO, FACTS.interfaces, None), [], id="rays_own_interface"),
        pytest.param(room.check_interface(TWO, FACTS.interfaces, "eth0"), [], id="an_interface"),
        *(
            pytest.param(
                room.check_interface(TWO, FACTS.interfaces, name),
                [
                    f"{SECOND} has no network interface '{name}' that other nodes reach (cluster.interface); it has "
                    "eth0 10.0.0.2; name one that all nodes have, or leave the setting out"
                ],
                id=f"interface_{name}",
            )
            for name in ("ib0", "lo")
        ),
    ],
)
def test_what_is_said_of_a_node(found, said):
    assert list(found) == said


@pytest.mark.parametrize(
    ("device", "counts", "n_gpus", "short"),
    [
        pytest.param("cpu", (0, 0), 1, [], id="a_cpu_needs_none"),
        pytest.param("auto", (0, 0), 1, [], id="auto_is_a_cpu_where_there_are_none"),
        pytest.param("auto", (8, 8), 8, [], id="auto_is_gpus_where_all_have_them"),
        pytest.param("gpu", (4, 2), 2, [], id="more_than_asked_for"),
        pytest.param("auto", (8, 0), 1, [(SECOND, 0)], id="auto_cannot_be_both"),
        pytest.param("gpu", (0, 0), 1, [(FIRST, 0), (SECOND, 0)], id="no_node_has_any"),
        pytest.param("auto", (8, 4), 8, [(SECOND, 4)], id="a_node_with_fewer"),
    ],
)
def test_gpus_of_the_nodes_that_train(device, counts, n_gpus, short):
    assert list(room.check_gpus(dict(zip((ONE, TWO), counts, strict=True)), device, n_gpus)) == [
        f"nvidia-smi lists {count} GPUs on {node}, expected {n_gpus} (engine.n_gpus); mend its driver, lower the "
        "setting, give --device cpu, or start Ray there with --num-gpus=0 so that it does not train"
        for node, count in short
    ]


def request(n_runners=0, tensor_parallel=1, n_gpus=1, **cluster) -> ClusterRequest:
    engine = EngineConfig(n_gpus=n_gpus, tensor_parallel_size=tensor_parallel)
    where = {"weights": 0, "model": Path("/m"), "files": (), "run_dir": RUN_DIR}
    return ClusterRequest(cluster=ClusterConfig(**cluster), engine=engine, n_runners=n_runners, **where)


@pytest.mark.parametrize(
    ("free", "asked", "said"),
    [
        # a worker takes 3 of 8 on each node, which leaves room for 5 runners on each
        pytest.param([(1, 8), (1, 8)], {"nodes": 2, "n_runners": 10}, [], id="room_for_all"),
        pytest.param([(1, 3), (1, 3)], {"nodes": 2}, [], id="runners_that_another_command_starts"),
        # two on each node, though ten CPUs together would be enough for five
        pytest.param(
            [(1, 8), (1, 8)],
            {"nodes": 2, "n_runners": 5, "runner_cpus": 2},
            [
                "4 runners of 2 CPUs (cluster.runner_cpus) fit beside the workers, expected 5 (rollout.n_runners): "
                f"{FIRST} has 0 GPUs and 5 CPUs, {SECOND} has 0 GPUs and 5 CPUs; lower one of the two, or start Ray "
                "with more --num-cpus"
            ],
            id="too_many_runners",
        ),
        pytest.param(
            [(1, 8), (0, 4)],
            {"nodes": 2},
            [
                "1 of 2 nodes have 1 GPUs and 3 CPUs of Ray's resources free for their workers: "
                f"{FIRST} has 1 GPUs and 8 CPUs, {SECOND} has 0 GPUs and 4 CPUs; end the run that holds them, or on "
                "every node `ray stop` and `ray start`, with --num-cpus=3 or more on a CPU"
            ],
            id="another_run_holds_a_node",
        ),
        pytest.param([(0, 4), (1, 8)], {"nodes": 1}, [], id="another_node_has_room"),
        # the node of four trains; beside workers the other would have six CPUs for its four GPUs, so one server of two
        pytest.param(
            [(8, 18), (4, 16)],
            {"nodes": 1, "n_gpus": 4, "sampler_gpus": 8, "tensor_parallel": 2},
            [],
            id="servers_on_the_larger_node",
        ),
        pytest.param(
            [(7, 64), (4, 64)],
            {"nodes": 1, "n_gpus": 4, "sampler_gpus": 8, "tensor_parallel": 2},
            [
                "3 model servers of 2 GPUs and 4 CPUs fit beside the workers, expected 8 GPUs (cluster.sampler_gpus): "
                f"{FIRST} has 7 GPUs and 64 CPUs, {SECOND} has 0 GPUs and 52 CPUs; lower the setting, or add a node"
            ],
            id="a_server_is_on_one_node",
        ),
    ],
)
def test_room_is_counted_node_by_node(free, asked, said):
    asked = request(**asked)
    assert list(room.check_room(dict(zip((ONE, TWO), free, strict=True)), asked, cpu=asked.engine.n_gpus == 1)) == said


def test_the_gpus_whose_memory_counts_are_the_emptiest_of_nodes_that_train():
    facts = {
        replace(ONE, gpus=3): replace(FACTS, gpu_bytes=((80, 5), (80, 70), (80, 60))),
        replace(TWO, gpus=1): replace(FACTS, gpu_bytes=((40, 39),)),
    }
    assert room.emptiest_gpus(facts, 2) == [(80, 70, FIRST), (80, 60, FIRST)]


def test_the_code_is_its_modules_without_tests(tmp_path):
    for package in room.OUR_PACKAGES:
        (tmp_path / package / "tests").mkdir(parents=True)
        (tmp_path / package / "a.py").write_text("1")
    before = room.versions(tmp_path)
    (tmp_path / "sql_agent" / "tests" / "test_a.py").write_text("2")
    assert room.versions(tmp_path) == before
    (tmp_path / "sql_agent" / "a.py").write_text("2")
    assert {name for name, now in room.versions(tmp_path).items() if now != before[name]} == {"this project's code"}


def test_a_folder_that_the_command_made_elsewhere_is_not_shared(tmp_path):
    assert room.why_unshared(tmp_path, 0) == ""
    assert room.why_unshared(tmp_path / "none", 0) == "No such file or directory"


def test_a_command_on_no_node_is_told_which_nodes_there_are():
    here, elsewhere = RayNode("a", "one", "127.0.0.1", 0, 1), RayNode("b", "two", "203.0.113.9", 0, 1)
    assert own_node([elsewhere, here], "203.0.113.9:6379") == here
    with pytest.raises(UsageError, match=r"is no node of the Ray cluster at 203\.0\.113\.9:6379, whose nodes are two"):
        own_node([elsewhere], "203.0.113.9:6379")
