import time

import pytest

from sql_agent.cluster import join
from sql_agent.cluster.join import NodeWatch

HEAD, SECOND = ("10.0.0.1", 6379), ("10.0.0.2", 6380)
LOST = (
    "node host2 (10.0.0.2) has left the cluster, and the run cannot go on without it; bring it back, and give the same "
    "command again"
)
HEADLESS = "Ray's head at 10.0.0.1:6379 is gone; start Ray again on every node, and give the same command again"


class FakeRay:
    """Three nodes, what Ray says of them, and what their ports do."""

    def __init__(self):
        self.left: set[str] = set()
        self.listed = {"a": 1, "b": 2, "c": 3}
        self.fails: dict[tuple[str, int], OSError] = {}
        self.said: list[tuple[str, str]] = []

    def nodes(self):
        assert HEAD not in self.fails, "Ray's own call waits for the head"
        return [
            {
                "NodeID": node,
                "NodeManagerAddress": f"10.0.0.{n}",
                "NodeManagerPort": 6380,
                "NodeManagerHostname": f"host{n}",
                "Alive": node not in self.left,
            }
            for node, n in self.listed.items()
        ]

    def connect(self, place):
        if place in self.fails:
            raise self.fails[place]

    def watched(self) -> NodeWatch:
        return NodeWatch(
            "10.0.0.1:6379",
            self.nodes,
            ["a", "b", "c"],
            lambda text: self.said.append(("lost", text)),
            lambda text: self.said.append(("say", text)),
            self.connect,
        )


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr(join, "LOOK_S", 0.01)
    return FakeRay()


def wait(until, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)  # nothing is said twice


def test_a_node_that_is_needed_ends_the_run_and_another_does_not(ray):
    watched = ray.watched()
    watched.needs({"10.0.0.1", "10.0.0.2"})
    ray.left = {"c"}
    wait(lambda: ray.said)
    left = ("say", "node host3 (10.0.0.3) has left the cluster; its runners start again where CPUs are free")
    assert ray.said == [left]
    assert watched.fatal() is None
    ray.left = {"b", "c"}
    wait(lambda: len(ray.said) == 2)
    assert ray.said == [left, ("lost", LOST)]
    assert watched.fatal() == LOST


def test_a_node_that_joins_is_said_once_and_is_none_of_the_run(ray):
    watched = ray.watched()
    watched.needs({"10.0.0.1", "10.0.0.2"})
    ray.listed = {**ray.listed, "d": 4}
    wait(lambda: ray.said)
    unused = "this run leaves it unused, since it looks at nodes before it starts; the next command uses it"
    joined = ("say", f"node host4 (10.0.0.4) has joined the cluster; {unused}")
    assert ray.said == [joined]
    ray.left = {"d"}
    wait(lambda: ray.said[1:], 0.1)  # ten looks
    assert ray.said == [joined]


def test_a_node_that_comes_back_with_the_same_address_is_another(ray):
    ray.watched().needs({"10.0.0.1"})
    ray.left, ray.listed = {"c"}, {**ray.listed, "e": 3}
    wait(lambda: len(ray.said) == 2)
    assert [text.partition("; ")[0] for _, text in ray.said] == [
        "node host3 (10.0.0.3) has left the cluster",
        "node host3 (10.0.0.3) has joined the cluster",
    ]


def test_a_raylet_that_refuses_connections_is_gone_before_ray_says_so(ray):
    ray.watched().needs({"10.0.0.2"})
    ray.fails = {SECOND: ConnectionRefusedError()}
    wait(lambda: ray.said)
    assert ray.said == [("lost", LOST)]


def test_a_node_that_is_slow_to_answer_counts_as_gone_only_once_verl_has_failed(ray):
    watched = ray.watched()
    watched.needs({"10.0.0.2"})
    ray.fails = {SECOND: TimeoutError()}
    wait(lambda: ray.said, 0.1)  # ten looks
    assert ray.said == []
    assert watched.fatal() == LOST


def test_before_anything_is_needed_verl_has_to_fail_first(ray):
    watched = ray.watched()
    ray.left = {"b"}
    wait(lambda: ray.said, 0.1)
    assert ray.said == []
    assert watched.fatal() == LOST
    watched.needs({"10.0.0.2"})
    wait(lambda: ray.said)
    assert ray.said == [("lost", LOST)]


def test_a_head_that_is_gone_is_said_without_asking_ray(ray):
    watched = ray.watched()
    ray.fails = {HEAD: ConnectionRefusedError()}
    wait(lambda: ray.said)
    assert ray.said == [("lost", HEADLESS)]
    assert watched.fatal() == HEADLESS


def test_a_head_that_is_cut_off_is_waited_for_and_then_gone(ray, monkeypatch):
    ray.watched()
    ray.fails = {HEAD: TimeoutError()}
    wait(lambda: ray.said, 0.1)  # ten looks
    assert ray.said == []
    monkeypatch.setattr(join, "SILENT_S", 0.0)
    wait(lambda: ray.said)
    assert ray.said == [("lost", HEADLESS)]
