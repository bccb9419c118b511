from bench.translation_parts import print_parts
from dbbench_adapter.tasks.load import write_tasks
from dbbench_adapter.tests import agent_sql
from sql_agent.commands.tests.test_replay_references import CHEAP, RAISE


def test_a_part_of_the_translation_is_worth_what_changes_without_it(tmp_path, capsys, monkeypatch):
    path = tmp_path / "one.jsonl"
    write_tasks(path, [CHEAP, RAISE])
    statements = ["SHOW TABLES", "SELECT YEAR(Day) FROM Sales", "SELECT 1"]
    monkeypatch.setattr(agent_sql, "STATEMENTS", statements)
    print_parts([path])
    changed = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert {row[1].strip(" `"): row[3:5] for row in changed if row[4].strip() != "0"} == {
        "engines/sqlite/catalogue": [" 0 ", " 1 "],
        "dialect/sql_types": [" 1 ", " 2 "],  # what has no known type is refused
        "dialect/functions/dates": [" 0 ", " 1 "],
    }
