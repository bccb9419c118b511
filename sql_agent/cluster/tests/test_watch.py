import time

import pytest

from sql_agent.cluster import watch
from sql_agent.cluster.watch import NodeWatch


class FakeRay:
    """What Ray says of three nodes, some of which have left."""

    def __init__(self):
        self.left = set()
        self.fails: dict[tuple[str, int], OSError] = {}

    def nodes(self):
        return [
            {
                "NodeManagerAddress": f"10.0.0.{n}",
                "NodeManagerPort": 6380,
                "NodeManagerHostname": f"host{n}",
                "Alive": n not in self.left,
            }
            for n in (1, 2, 3)
        ]

    def connect(self, raylet):
        if raylet in self.fails:
            raise self.fails[raylet]


LOST = (
    "node host2 (10.0.0.2), which trains, has left the cluster; bring it back, and give the same command again: it "
    "goes on from the newest checkpoint"
)


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    return FakeRay()


def test_a_node_that_trains_ends_the_run_and_another_does_not(ray):
    said: list[tuple[str, str]] = []
    watched = NodeWatch(
        ray.nodes, lambda text: said.append(("lost", text)), lambda text: said.append(("left", text)), ray.connect
    )
    watched.trains({"10.0.0.1", "10.0.0.2"})
    ray.left = {3}
    wait(lambda: said)
    assert said == [
        ("left", "node host3 (10.0.0.3) has left the cluster; its runners and their rollouts go on elsewhere")
    ]
    assert watched.fatal() is None
    ray.left = {2, 3}
    wait(lambda: len(said) == 2)
    assert said[1:] == [("lost", LOST)]
    assert watched.fatal() == LOST


def test_before_it_is_known_who_trains_every_node_counts(ray):
    said: list[str] = []
    NodeWatch(ray.nodes, said.append, pytest.fail, ray.connect)
    ray.left = {2}
    wait(lambda: said)
    assert said == [LOST]


def test_a_raylet_that_refuses_connections_is_gone_before_ray_says_so(ray):
    said: list[str] = []
    NodeWatch(ray.nodes, said.append, pytest.fail, ray.connect)
    ray.fails = {("10.0.0.2", 6380): ConnectionRefusedError()}
    wait(lambda: said)
    assert said == [LOST]


def test_a_node_that_is_slow_to_answer_counts_as_gone_only_once_verl_has_failed(ray):
    watched = NodeWatch(ray.nodes, pytest.fail, pytest.fail, ray.connect)
    ray.fails = {("10.0.0.2", 6380): TimeoutError()}
    time.sleep(0.1)  # ten looks, which end nothing
    assert watched.fatal() == LOST


def wait(until, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)  # nothing is said twice
