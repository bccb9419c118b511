"""The address at which weights change hands, and the memory that they go through, belong to one run."""

import importlib.util
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentgrpo.processes import RUN_ID, folders_of, remove_folders, run_folder
from sql_agent.commands.clean import find_leftovers
from sql_agent.verl_side.plugin.weight_socket import _name_memory, _receive_there, _send_there, own_address

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


def test_memory_that_a_killed_run_leaves_within_a_push_goes_with_the_run(monkeypatch):
    # verl's own file; its package would import vLLM
    (verl,) = importlib.util.find_spec("verl").submodule_search_locations
    source = Path(verl, "workers/rollout/vllm_rollout/bucketed_weight_transfer.py")
    spec = importlib.util.spec_from_file_location("bucketed_weight_transfer", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _name_memory(module)
    monkeypatch.setenv(RUN_ID, "3f2a9c01b7de")
    sent = module.create_shared_memory(8, "verl_weights_77")
    resource_tracker.unregister(sent._name, "shared_memory")  # as if that process was killed too
    sent.buf[:8] = b"weights!"
    tensor, taken = module.rebuild_shared_memory("verl_weights_77", 8)
    assert bytes(tensor) == b"weights!"
    assert folders_of("3f2a9c01b7de") == [Path("/dev/shm/agentgrpo-3f2a9c01b7de-verl_weights_77")]
    assert [(left.state, left.folders) for left in find_leftovers() if left.run_id == "3f2a9c01b7de"] == [
        ("unknown", [Path("/dev/shm/agentgrpo-3f2a9c01b7de-verl_weights_77")])
    ]
    remove_folders("3f2a9c01b7de")
    assert folders_of("3f2a9c01b7de") == []
    resource_tracker.unregister(taken._name, "shared_memory")
    del tensor
    sent.close()
    taken.close()
