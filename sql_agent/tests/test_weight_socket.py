"""The address at which weights change hands belongs to one run."""

from types import SimpleNamespace

import pytest

from agentgrpo.processes import RUN_ID, run_folder
from sql_agent.verl_side.plugin.weight_socket import _receive_there, _send_there, own_address

VERLS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"


@pytest.mark.parametrize("run_id", ["3f2a9c01b7de", "b7de3f2a9c01"])
def test_two_runs_whose_ray_gives_the_same_job_id_have_two_addresses(run_id, monkeypatch):
    monkeypatch.setenv(RUN_ID, run_id)
    address = own_address(VERLS)
    assert address == f"ipc://{run_folder(run_id)}/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
    assert len(address.removeprefix("ipc://")) <= 107  # what a Unix socket's path may have


@pytest.mark.parametrize(("run_id", "address"), [(None, VERLS), ("3f2a9c01b7de", "tcp://10.0.0.2:5555")])
def test_without_a_run_and_over_a_network_the_address_is_verls(run_id, address, monkeypatch):
    monkeypatch.delenv(RUN_ID, raising=False)
    if run_id:
        monkeypatch.setenv(RUN_ID, run_id)
    assert own_address(address) == address


def test_sender_and_receiver_meet_in_the_runs_folder(monkeypatch):
    """That verl's own have these attributes is checked where the plugin is loaded, and that weights arrive by every
    run of two steps (`test_end_to_end.py`)."""

    class Sender:
        def __init__(self, job_id):
            self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job_id}-replica-0-rank-0.sock"

    class Receiver:
        def _get_zmq_handle(self):
            return VERLS

    monkeypatch.setenv(RUN_ID, "3f2a9c01b7de")
    worker = SimpleNamespace(get_rollout_class=lambda rollout_name, mode="async": Sender)
    server = SimpleNamespace(vLLMColocateWorkerExtension=Receiver)
    _send_there(worker)
    _receive_there(server)
    address = f"ipc://{run_folder('3f2a9c01b7de')}/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
    assert worker.get_rollout_class("vllm")("01000000").zmq_handle == address
    assert Receiver()._get_zmq_handle() == address
