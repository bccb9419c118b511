import time

import pytest

from sql_agent.cluster import watch
from sql_agent.cluster.watch import NodeWatch


class FakeRay:
    """What Ray says of three nodes, some of which have left."""

    def __init__(self):
        self.left = set()

    def nodes(self):
        return [
            {"NodeManagerAddress": f"10.0.0.{n}", "NodeManagerHostname": f"host{n}", "Alive": n not in self.left}
            for n in (1, 2, 3)
        ]


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
    watched = NodeWatch(ray.nodes, lambda text: said.append(("lost", text)), lambda text: said.append(("left", text)))
    watched.trains({"10.0.0.1", "10.0.0.2"})
    ray.left = {3}
    wait(lambda: said)
    assert said == [
        ("left", "node host3 (10.0.0.3) has left the cluster; its runners and their rollouts go on elsewhere")
    ]
    assert watched.fatal(wait_s=0) is None
    ray.left = {2, 3}
    wait(lambda: len(said) == 2)
    assert said[1:] == [("lost", LOST)]
    assert watched.fatal(wait_s=0) == LOST


def test_before_it_is_known_who_trains_every_node_counts(ray):
    said: list[str] = []
    NodeWatch(ray.nodes, said.append, pytest.fail)
    ray.left = {2}
    wait(lambda: said)
    assert said == [LOST]


def test_an_error_of_verl_waits_until_ray_has_noticed_that_a_node_is_dead(ray, monkeypatch):
    monkeypatch.setattr(watch, "LOOK_S", 60)
    watched = NodeWatch(ray.nodes, pytest.fail, pytest.fail)
    asked = iter([set(), set(), {2}])
    monkeypatch.setattr(watched, "_nodes", lambda: (ray.__dict__.update(left=next(asked)), ray.nodes())[1])
    assert watched.fatal(wait_s=30) == LOST


def wait(until, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)  # nothing is said twice
