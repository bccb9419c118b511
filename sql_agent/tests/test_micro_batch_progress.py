"""Micro-batches of a training worker, as the command reads them while the worker goes over them; test_packed_engine.py
reads those of verl's worker.
"""

import pytest

from agentgrpo.processes import RUN_ID, run_folder
from sql_agent.verl_side.micro_batch_file import MicroBatches, read_progress, write_progress


def test_what_is_written_is_read_and_before_that_nothing(run_id):
    assert read_progress(run_id) is None
    write_progress(MicroBatches(False, 3, 1, 7))
    assert read_progress(run_id) == MicroBatches(False, 3, 1, 7)
    assert [file.name for file in run_folder(run_id).iterdir()] == ["micro_batches"]


def test_a_process_outside_a_run_writes_nothing(monkeypatch, run_id):
    monkeypatch.delenv(RUN_ID)
    write_progress(MicroBatches(False, 3, 1, 7))
    assert read_progress(run_id) is None


@pytest.mark.slow
def test_a_list_of_micro_batches_reports_each_one_as_it_is_gone_over(run_id):
    from sql_agent.verl_side.plugin.training_worker import Reported

    seen = [read_progress(run_id) for _ in Reported(["a", "b"], MicroBatches(True, 4, 0, 2))]
    assert seen == [MicroBatches(True, 4, 0, 2), MicroBatches(True, 4, 1, 2)]
    assert read_progress(run_id) == MicroBatches(True, 4, 2, 2)
