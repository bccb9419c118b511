"""Sentences on facts of nodes that were written by hand; no Ray."""

from dataclasses import replace

import pytest

from sql_agent.cluster import problems
from sql_agent.cluster.facts import Facts
from sql_agent.cluster.gcs import Node
from sql_agent.cluster.problems import Free, Holder, Wanted

ONE, TWO = Node("a1", "one", "10.0.0.1", 1, 8.0), Node("b2", "two", "10.0.0.2", 1, 8.0)
GIB = 2**30
FACTS = Facts(
    python="3.11.7",
    packages={"ray": "2.60.0", "torch": "2.13.0", "verl": "0.9.1", "vllm": "0.28.0"},
    code="c" * 64,
    gpus=0,
    gpu_bytes=(),
    fast_bfloat16=True,
    cores=8,
    memory_gib=31.2,
    files={"the model": "d" * 64},
    servers={},
    interfaces={"127.0.0.1": "lo", "10.0.0.2": "eth0"},
    free_bytes={"/dev/shm": 4 * GIB, "/tmp": 4 * GIB},
    unread="",
    unwritten="",
    echo="echo",
)
WANTED = Wanted(nodes=2, per_node=1, cpu=True, n_runners=4, runner_cpus=1.0, bfloat16_is_open=True, shm_bytes=2 * GIB)


def test_nodes_that_have_not_joined_are_counted_and_those_that_have_are_named():
    assert problems.too_few([ONE, TWO], 2, 1, "10.0.0.1:6379", 60.0) is None
    assert problems.too_few([ONE], 2, 1, "10.0.0.1:6379", 60.0) == (
        "1 of 2 nodes that train have joined the Ray cluster at 10.0.0.1:6379 in 60 s (one 10.0.0.1); on each machine "
        "that is missing `ray start --address=10.0.0.1:6379 --num-gpus=1`; or --set cluster.nodes=1"
    )


def test_a_node_that_names_too_few_gpus_does_not_count_as_one_that_trains():
    assert problems.trainers([ONE, replace(TWO, gpus=2)], 2) == [replace(TWO, gpus=2)]
    assert problems.too_few([ONE, replace(TWO, gpus=0)], 2, 1, "10.0.0.1:6379", 60.0) == (
        "1 of 2 nodes that train have joined the Ray cluster at 10.0.0.1:6379 in 60 s (one 10.0.0.1), and node two "
        "(10.0.0.2) has 0 of Ray's resource GPU, expected 1; there `ray stop`, then `ray start` with --num-gpus=1, "
        "which a CPU needs too; or --set cluster.nodes=1"
    )


@pytest.mark.parametrize(
    ("device", "counts", "n_gpus", "said"),
    [
        pytest.param("cpu", (0, 0), 1, [], id="a_cpu_needs_none"),
        pytest.param("auto", (0, 0), 1, [], id="auto_is_a_cpu_where_there_are_none"),
        pytest.param("auto", (8, 8), 8, [], id="auto_is_gpus_where_all_have_them"),
        pytest.param("gpu", (4, 2), 2, [], id="more_than_asked_for"),
        pytest.param(
            "auto",
            (8, 0),
            1,
            [
                "node two (10.0.0.2) has no GPU that nvidia-smi lists, and node one (10.0.0.1) has 8; give --device "
                "cpu, or start Ray only on nodes with GPUs, elsewhere with --num-gpus=0"
            ],
            id="auto_cannot_be_both",
        ),
        pytest.param(
            "gpu",
            (8, 0),
            8,
            [
                "nvidia-smi finds no GPU on node two (10.0.0.2), expected 8 (engine.n_gpus); mend its driver, give "
                "--device cpu, or start Ray there with --num-gpus=0 so that it does not train"
            ],
            id="a_node_without",
        ),
        pytest.param(
            "auto",
            (8, 4),
            8,
            [
                "nvidia-smi lists 4 GPUs on node two (10.0.0.2), expected 8 (engine.n_gpus); --set engine.n_gpus=4, or "
                "start Ray there with --num-gpus=0 so that it does not train"
            ],
            id="a_node_with_fewer",
        ),
    ],
)
def test_gpus_of_the_nodes_that_train(device, counts, n_gpus, said):
    facts = {node: replace(FACTS, gpus=count) for node, count in zip((ONE, TWO), counts, strict=True)}
    assert problems.wrong_gpus(facts, device, n_gpus) == said


LARGE, SMALL = "node one (10.0.0.1)", "node two (10.0.0.2)"


@pytest.mark.parametrize(
    ("gpus", "wanted", "cards"),
    [
        pytest.param(
            (3, 2),
            {"nodes": 2},
            [(80, 70, LARGE, ""), (40, 39, SMALL, "")],
            id="trainer_and_sampler_share_the_emptiest_of_each_node",
        ),
        pytest.param(
            (3, 2),
            {"nodes": 1, "per_node": 3, "sampler_gpus": 1},
            # all three of the first train, so the server is on the second
            [
                (80, 70, LARGE, "trains"),
                (80, 60, LARGE, "trains"),
                (80, 5, LARGE, "trains"),
                (40, 39, SMALL, "samples"),
            ],
            id="a_node_that_cannot_train_samples",
        ),
        pytest.param(
            (1, 1),
            {"nodes": 1, "sampler_gpus": 1},
            [
                (80, 70, LARGE, "trains"),
                (80, 70, LARGE, "samples"),
                (40, 39, SMALL, "trains"),
                (40, 39, SMALL, "samples"),
            ],
            id="either_may_train_and_either_may_sample",
        ),
        pytest.param(
            (2, 1),
            {"nodes": 2, "sampler_gpus": 1},
            # each trains with one; the first has one left, and Ray says which is whose
            [
                *[(80, 70, LARGE, "trains"), (80, 60, LARGE, "trains"), (80, 70, LARGE, "samples")],
                *[(80, 60, LARGE, "samples"), (40, 39, SMALL, "trains")],
            ],
            id="a_node_that_does_both",
        ),
        pytest.param(
            (2, 2),
            {"nodes": 2, "sampler_gpus": 2, "server_gpus": 2},
            [(80, 70, LARGE, "trains"), (40, 39, SMALL, "trains")],
            id="one_gpu_left_holds_no_server_of_two",
        ),
    ],
)
def test_the_gpus_that_a_run_may_take_and_what_they_do(gpus, wanted, cards):
    facts = {
        replace(ONE, gpus=gpus[0]): replace(FACTS, gpu_bytes=((80, 5), (80, 70), (80, 60))),
        replace(TWO, gpus=gpus[1]): replace(FACTS, gpu_bytes=((40, 39),) * 2),
    }
    assert problems.cards_of(facts, replace(WANTED, cpu=False, **wanted)) == cards


def test_a_node_whose_driver_says_nothing_has_no_gpu_to_check():
    assert problems.cards_of({ONE: FACTS}, replace(WANTED, nodes=1)) == []


def test_cpus_for_workers_and_runners_are_counted_node_by_node():
    # a worker takes 3 of 8 on each node, which leaves room for 5 runners on each
    assert problems.no_room({ONE: Free(1, 8), TWO: Free(1, 8)}, replace(WANTED, n_runners=10)) == []
    # 11 runners do not fit, nor do 7 of 1.5 CPUs: int(5 / 1.5) is 3 on each node
    assert problems.no_room({ONE: Free(1, 8), TWO: Free(1, 8)}, replace(WANTED, n_runners=7, runner_cpus=1.5)) == [
        "rollout.n_runners is 7, each with 1.5 CPUs (cluster.runner_cpus), and 6 of them fit: beside the workers node "
        "one (10.0.0.1) has 5, node two (10.0.0.2) has 5; lower one of the two settings, or start Ray with more "
        "--num-cpus"
    ]
    assert len(problems.no_room({ONE: Free(1, 8), TWO: Free(1, 8)}, replace(WANTED, n_runners=11))) == 1
    # runners that another command starts take none of Ray's
    assert problems.no_room({ONE: Free(1, 3), TWO: Free(1, 3)}, replace(WANTED, n_runners=0)) == []


def test_gpus_of_model_servers_are_counted_server_by_server_beside_the_nodes_that_train():
    eight, four = Node("a1", "one", "10.0.0.1", 8, 64.0), Node("b2", "two", "10.0.0.2", 4, 64.0)
    wanted = replace(WANTED, nodes=1, per_node=4, cpu=False, sampler_gpus=8, server_gpus=2)
    free = {eight: Free(8, 64), four: Free(4, 64)}
    # the node of four trains, so the eight of the other are left
    assert problems.no_room(free, wanted) == []
    # or ten are wanted, or a server is on one node with three GPUs left, or there are CPUs for six GPUs alone
    said = (
        "cluster.sampler_gpus is {}, 2 for each model server, all on one node, and 2 CPUs for each GPU, and {} servers "
        "fit: beside the workers node one (10.0.0.1) has {} GPUs and {} CPUs, node two (10.0.0.2) has 0 GPUs and 52 "
        "CPUs; lower the setting, or add a node with GPUs"
    )
    assert problems.no_room(free, replace(wanted, sampler_gpus=10)) == [said.format(10, 4, 8, 64)]
    assert problems.no_room(free | {eight: Free(7, 64)}, wanted) == [said.format(8, 3, 7, 64)]
    assert problems.no_room(free | {eight: Free(8, 13)}, wanted) == [said.format(8, 3, 8, 13)]


def test_a_node_that_was_started_with_too_few_cpus():
    small = replace(TWO, cpus=2.0)
    assert problems.no_room({ONE: Free(1, 8), small: Free(1, 2)}, WANTED) == [
        "node two (10.0.0.2) has 2 of 2 CPUs of Ray free, expected 3, 3 for each of 1 workers; there `ray stop`, then "
        "`ray start` with --num-cpus=3 or more"
    ]


def test_what_another_run_holds_is_named_with_its_driver():
    short = "node two (10.0.0.2) has 0 of 1 GPUs of Ray free, expected 1 (cluster.workers_per_node); "
    ended, running = Holder("process 7 on 10.0.0.1 (a.py)", True), Holder("process 8 on 10.0.0.1 (b.py)", False)
    assert problems.no_room({ONE: Free(1, 8), TWO: Free(0, 4, (ended,))}, WANTED) == [
        f"{short}left behind by process 7 on 10.0.0.1 (a.py), which has ended; on every node `ray stop` and `ray "
        "start` as before"
    ]
    held = Free(0, 4, (ended, running))
    assert problems.no_room({ONE: Free(1, 8), TWO: held}, WANTED) == [
        f"{short}held by process 8 on 10.0.0.1 (b.py); end that run first"
    ]
    # a third node has room for the second that trains
    three = Node("c3", "three", "10.0.0.3", 1, 8.0)
    assert problems.no_room({ONE: Free(1, 8), TWO: held, three: Free(1, 8)}, WANTED) == []


def test_a_node_must_have_the_commands_python_packages_and_code():
    assert list(problems.other_than_here(TWO, FACTS, FACTS, "/ours")) == []
    there = replace(FACTS, python="3.12.1", packages={"ray": "2.60.0", "torch": "2.12.0", "vllm": "0.28.0"}, code="e")
    assert list(problems.other_than_here(TWO, there, FACTS, "/ours")) == [
        "node two (10.0.0.2) has Python 3.12.1, expected the command's 3.11.7; make the same environment there",
        "node two (10.0.0.2) has torch 2.12.0 (expected 2.13.0), verl missing (expected 0.9.1), other packages than "
        "the command; make the same environment there",
        "node two (10.0.0.2) has other code of this project in /ours than the command; bring it to the same commit and "
        "changes, share the folder, or send it along with `ray job submit --working-dir`",
    ]


def test_files_and_servers_that_a_node_cannot_use():
    paths = {"the model": "/models/m", "env.agent": "/data/me/agent.py"}
    here = replace(FACTS, files={"the model": "d" * 64, "env.agent": "e" * 64})
    assert list(problems.other_files(TWO, here, here, paths)) == []
    there = replace(
        here,
        files={"the model": "is not there", "env.agent": "f" * 64},
        servers={"mysql://me:***@db/x": "no answer within 5 s"},
    )
    copy = "copy it there under the same path, or use a folder that all nodes share"
    assert list(problems.other_files(TWO, there, here, paths)) == [
        f"the model at /models/m is not there on node two (10.0.0.2), expected as on the command's; {copy}",
        f"env.agent at /data/me/agent.py is another on node two (10.0.0.2) than on the command's; {copy}",
        "mysql://me:***@db/x cannot be used from node two (10.0.0.2): no answer within 5 s",
    ]


@pytest.mark.parametrize(
    ("there", "owner", "said"),
    [
        pytest.param(FACTS, 0, None, id="shared"),
        pytest.param(
            replace(FACTS, unread="No such file or directory"),
            None,
            "the run's folder /runs/a is not shared: node two (10.0.0.2) cannot read a file that the command wrote "
            "there (No such file or directory), and workers write checkpoints there; name one that every node has "
            "mounted, --run-dir FOLDER",
            id="not_read",
        ),
        pytest.param(
            replace(FACTS, unwritten="Read-only file system"),
            None,
            "node two (10.0.0.2) cannot write into the run's folder /runs/a (Read-only file system); name one that "
            "every node has mounted, --run-dir FOLDER",
            id="not_written",
        ),
        pytest.param(
            FACTS,
            None,
            "the run's folder /runs/a is not shared: a file that node two (10.0.0.2) wrote there did not arrive; name "
            "one that every node has mounted, --run-dir FOLDER",
            id="not_arrived",
        ),
        pytest.param(
            FACTS,
            65534,
            "a file that node two (10.0.0.2) wrote into the run's folder /runs/a belongs to user 65534, expected 0, "
            "the command's; start Ray there as the same user, or export the folder with no_root_squash",
            id="squashed",
        ),
    ],
)
def test_the_runs_folder_is_read_and_written_by_every_node_as_one_user(there, owner, said):
    assert problems.not_shared(TWO, there, "/runs/a", owner, 0) == said


def test_room_in_shared_memory_and_for_temporary_files():
    assert list(problems.no_space(TWO, FACTS, 4 * GIB)) == []
    there = replace(FACTS, free_bytes={"/dev/shm": 64 * 2**20, "/tmp": 2**20})
    assert list(problems.no_space(TWO, there, 2 * GIB)) == [
        "/dev/shm of node two (10.0.0.2) has 64 MiB free, expected 2,048; give its container more --shm-size",
        "/tmp of node two (10.0.0.2) has 1 MiB free, expected 1,024; make room there",
    ]


def test_precision_that_nodes_would_decide_differently():
    assert problems.other_precision(TWO, FACTS, FACTS) is None
    assert problems.other_precision(TWO, replace(FACTS, fast_bfloat16=False), FACTS) == (
        "the CPU of node two (10.0.0.2) does not multiply in bfloat16, and the command's multiplies in bfloat16, so "
        "engine.precision=auto is not the same on both; give --set engine.precision=float32"
    )


def test_the_interface_of_gloo_and_nccl():
    assert problems.wrong_interface(TWO, FACTS, None, alone=False) is None
    assert problems.wrong_interface(TWO, FACTS, "eth0", alone=False) is None
    assert problems.wrong_interface(TWO, FACTS, "lo", alone=True) is None
    has = "lo 127.0.0.1, eth0 10.0.0.2"
    assert problems.wrong_interface(TWO, FACTS, "ib0", alone=False) == (
        f"node two (10.0.0.2) has no network interface 'ib0' (cluster.interface), it has {has}; name one that all have"
    )
    assert problems.wrong_interface(replace(TWO, address="10.0.0.9"), FACTS, None, alone=False) == (
        f"no network interface of node two (10.0.0.9) has the address that Ray uses there, they are {has}; start Ray "
        "there with --node-ip-address=ADDRESS"
    )
    assert problems.wrong_interface(TWO, FACTS, "lo", alone=False) == (
        "interface lo of node two (10.0.0.2) is loopback, which no other node reaches, expected one of eth0 10.0.0.2; "
        "--set cluster.interface=NAME, or start Ray there with --node-ip-address=ADDRESS"
    )


def test_an_all_reduce_that_fails_names_what_each_node_said():
    interfaces = {ONE: "eth0", TWO: "eth1"}
    assert problems.no_reduce({ONE: "", TWO: ""}, interfaces) is None
    assert problems.no_reduce({ONE: "", TWO: "connect timeout"}, interfaces) == (
        "the nodes that train cannot sum over gloo (node two (10.0.0.2) on eth1: connect timeout); open all ports "
        "between node one (10.0.0.1) and node two (10.0.0.2), or name the interface that connects them, --set "
        "cluster.interface=NAME"
    )


def test_a_variable_that_does_not_arrive():
    assert problems.no_echo(TWO, FACTS, "echo") is None
    assert problems.no_echo(TWO, replace(FACTS, echo=None), "echo") == (
        "a variable of the command did not arrive on node two (10.0.0.2) (found None, expected 'echo'); look at "
        "runtime_env_agent.log in Ray's logs there"
    )


def test_a_node_is_described_in_a_line():
    assert problems.describe(TWO, FACTS, command=True) == (
        "node two (10.0.0.2): 0 GPUs of NVIDIA's, 1 GPUs and 8 CPUs of Ray's, 8 cores, 31 GiB, Python 3.11.7, ray "
        "2.60.0, torch 2.13.0, verl 0.9.1, vllm 0.28.0; the command is here"
    )
