from dbbench_adapter.datatypes import Gold, Task
from dbbench_adapter.skills import Agreement, agreement, main
from dbbench_adapter.sql_skills import SKILLS
from dbbench_adapter.tasks.load import load_tasks


def test_agreement_counts_labels_and_what_is_recognised():
    tasks = [
        Task("a", "", "SELECT", (), Gold(sql="SELECT a FROM t"), skills=("select", "limit_only")),
        Task("b", "", "SELECT", (), Gold(sql="SELECT a FROM t LIMIT 1"), skills=("select",)),
        Task("c", "", "SELECT", (), Gold(sql="SELECT a FROM t LIMIT 1"), skills=("select", "limit_only")),
    ]
    found = {entry.skill: entry for entry in agreement(tasks)}
    assert found["select"] == Agreement("select", labelled=3, recognised=3, both=3)
    # labelled in a and c, recognised in b and c, both in c alone
    assert found["limit_only"] == Agreement("limit_only", labelled=2, recognised=2, both=1)
    assert (found["limit_only"].precision, found["limit_only"].recall) == (0.5, 0.5)
    assert (found["delete"].precision, found["delete"].recall) == (None, None)


def test_all_labels_of_lifelong_agent_bench_are_recognised_and_nothing_else(data_file):
    tasks = load_tasks(data_file("lifelong/entry_dict.json"))
    found = agreement(tasks)
    assert len(tasks) == 500
    assert {entry.skill: entry.labelled for entry in found} == {
        **{"select": 423, "insert": 42, "update": 52, "delete": 56},
        **{"where_single_condition": 127, "where_multiple_conditions": 89, "where_nested_conditions": 59},
        **{"group_by_single_column": 117, "group_by_multiple_columns": 83},
        "having_single_condition_with_aggregate": 100,
        "having_multiple_conditions_with_aggregate": 59,
        "having_aggregate_calculation": 47,
        **{"order_by_single_column": 52, "order_by_multiple_columns_same_direction": 57},
        "order_by_multiple_columns_different_directions": 61,
        **{"limit_only": 59, "limit_and_offset": 47, "column_alias": 218, "table_alias": 109},
        **{"subquery_single": 44, "subquery_multiple": 57, "subquery_nested": 77},
    }
    assert all(entry.precision == entry.recall == 1.0 for entry in found)


def test_the_command_prints_a_line_per_skill(data_file, capsys):
    assert main([str(data_file("lifelong/entry_dict.json"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["skill", "labelled", "recognised", "precision", "recall"]
    assert [line.split()[0] for line in lines[1:23]] == list(SKILLS)
    assert lines[1].split() == ["select", "423", "423", "1.000", "1.000"]


def test_the_command_says_what_it_needs(tmp_path, capsys):
    assert main([str(tmp_path / "none.json")]) == 1
    assert "no such file" in capsys.readouterr().err
