import json

import pytest

from agentgrpo.checks import UsageError
from sql_agent.cluster.network import LOOPBACK, Network, interface_of
from sql_agent.settings.load import load_config
from sql_agent.settings.main_job import ClusterConfig
from sql_agent.startup.command import ROLES, inspect_cluster
from sql_agent.startup.preflight import with_ray
from sql_agent.verl_side.config import Files, to_verl, worker_environment

CLUSTER = Network("10.77.0.1:6379", "10.77.0.1", None)


def ray_init(settings: list[str], tmp_path, *, cpu: bool, network: Network):
    return to_verl(load_config(None, settings), Files(tmp_path, tmp_path, tmp_path), cpu=cpu, network=network)


def test_a_run_without_a_cluster_starts_a_ray_of_its_own_on_loopback(tmp_path):
    tree = ray_init(["cluster.workers_per_node=2"], tmp_path, cpu=True, network=LOOPBACK)
    assert tree["ray_kwargs"]["ray_init"] == {"include_dashboard": False, "num_cpus": 8, "num_gpus": 2}
    assert tree["trainer"]["nnodes"] == 1
    assert LOOPBACK.environment() == {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def test_a_cluster_is_told_nothing_about_its_resources_because_ray_refuses_it(tmp_path):
    settings = ["cluster.nodes=2", "engine.n_gpus=8", "engine.tensor_parallel_size=2"]
    tree = ray_init(settings, tmp_path, cpu=False, network=CLUSTER)
    assert tree["ray_kwargs"]["ray_init"] == {"address": "10.77.0.1:6379", "num_cpus": None}
    assert (tree["trainer"]["nnodes"], tree["trainer"]["n_gpus_per_node"]) == (2, 8)


def test_actors_on_a_cluster_find_their_interface_themselves(tmp_path):
    environment = worker_environment(load_config(None), cpu=True, network=CLUSTER)
    assert json.loads(environment["AGENTGRPO_NETWORK"]) == {"interface": None}
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"} & set(environment)


def test_the_interface_is_the_one_that_has_the_address():
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(
        UsageError, match=r"no network interface of .* has the address 192\.0\.2\.7 .* --node-ip-address"
    ):
        interface_of("192.0.2.7")


def test_ray_address_of_the_environment_is_joined_unless_a_setting_names_another(monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    assert with_ray(ClusterConfig()).ray_address == "10.0.0.9:6379"
    assert capsys.readouterr().err == "RAY_ADDRESS is set: joining the Ray cluster at 10.0.0.9:6379\n"
    assert with_ray(ClusterConfig(ray_address="auto")).ray_address == "auto"
    monkeypatch.delenv("RAY_ADDRESS")
    assert with_ray(ClusterConfig()).ray_address is None


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("local", ""),
        (
            "http://10.0.0.9:8265",
            "RAY_ADDRESS=http://10.0.0.9:8265 is for `ray job`; to join its cluster, give --ray-address\n",
        ),
    ],
)
def test_a_ray_address_that_is_no_cluster_is_not_joined(monkeypatch, capsys, address, said):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert with_ray(ClusterConfig()).ray_address is None
    assert capsys.readouterr().err == said


def test_a_password_that_only_this_process_has_is_refused(monkeypatch):
    monkeypatch.delenv("AGENTGRPO_DB_PASSWORD", raising=False)
    cfg = load_config(None, ["cluster.ray_address=auto", "rollout.backend=mysql://user:secret@db:3306"])
    with pytest.raises(
        UsageError, match=r"rollout\.backend: the password in mysql://user:\*\*\*@db.* set AGENTGRPO_DB_PASSWORD"
    ):
        inspect_cluster(cfg, ROLES["both"])


def test_the_rows_of_a_mini_batch_are_shared_among_the_workers_of_all_nodes():
    four = ["data.train_batch_size=1", "rollout.group_size=4", "cluster.workers_per_node=2"]
    assert load_config(None, [*four, "cluster.nodes=2"]).workers(cpu=True) == 4
    with pytest.raises(ValueError, match=r"cluster\.nodes \(3\) times engine\.n_gpus \(1\) has to divide"):
        load_config(None, [*four, "cluster.nodes=3"])
