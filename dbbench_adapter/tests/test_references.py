"""The benchmark's own references, run on either backend and read as their original reads them."""

from dbbench_adapter.judges import lab
from dbbench_adapter.protocols.base import format_result
from dbbench_adapter.protocols.lab import MAX_SHOWN_CHARS
from dbbench_adapter.tasks.load import load_tasks

TIED = ["entry_dict-41", "entry_dict-225", "entry_dict-228", "entry_dict-273"]


def test_lifelong_references_print_the_gold_rows_in_mysqls_order(data_file, backend):
    """Under LifelongAgentBench's judge, which heeds the order of rows. What ORDER BY leaves tied comes as the server
    likes: MySQL's own order of ties is missed in 4 of 350 on SQLite and in 6 to 9 on MariaDB, which chooses anew from
    run to run."""
    missed = []
    for task in load_tasks(data_file("lifelong/entry_dict.json")):
        if task.changes_state:
            continue
        with backend.open(task.tables, typed=True) as database:
            if not lab.same_rows(format_result(database.run(task.gold.sql), MAX_SHOWN_CHARS), task.gold.rows):
                missed.append(task)
    assert all("ORDER BY" in task.gold.sql for task in missed)
    assert len(missed) <= 12
    if type(backend).__name__ == "SqliteBackend":
        assert [task.id for task in missed] == TIED
