import pytest

from dbbench_adapter.datatypes import Gold, Task
from dbbench_adapter.skills import SKILLS, Agreement, NotOneStatementError, agreement, main, recognise_skills
from dbbench_adapter.tasks.load import load_tasks


@pytest.mark.parametrize(
    ("sql", "skills"),
    [
        pytest.param("SELECT a FROM t", {"select"}, id="plain"),
        pytest.param("INSERT INTO t (a) VALUES (1);", {"insert"}, id="values_are_no_query"),
        pytest.param(
            "INSERT INTO t SELECT a FROM t ORDER BY a LIMIT 1", {"insert", "select"}, id="order_inside_insert"
        ),
        pytest.param("UPDATE t SET a = 1", {"update"}, id="update"),
        pytest.param("DELETE FROM t WHERE a = 1", {"delete", "where_single_condition"}, id="one_condition"),
        pytest.param("SELECT a FROM t WHERE a BETWEEN 1 AND 2", {"select", "where_single_condition"}, id="between"),
        pytest.param("SELECT a FROM t WHERE a = 1 OR b = 2", {"select", "where_multiple_conditions"}, id="two"),
        pytest.param(
            "SELECT a FROM t WHERE a = 1 AND b = 2 AND c = 3", {"select", "where_nested_conditions"}, id="three"
        ),
        pytest.param("SELECT a FROM t WHERE (a = 1 OR b = 2)", {"select", "where_single_condition"}, id="parentheses"),
        pytest.param("SELECT a FROM t GROUP BY a", {"select", "group_by_single_column"}, id="one_group"),
        pytest.param(
            "SELECT a FROM t GROUP BY a, b HAVING COUNT(*) > 1",
            {"select", "group_by_multiple_columns", "having_single_condition_with_aggregate"},
            id="having",
        ),
        pytest.param(
            "SELECT a FROM t GROUP BY a HAVING MAX(b) - MIN(b) > 1 AND COUNT(*) > 1",
            {
                *("select", "group_by_single_column"),
                *("having_multiple_conditions_with_aggregate", "having_aggregate_calculation"),
            },
            id="having_a_calculation",
        ),
        pytest.param(
            "SELECT a, SUM(b) AS s FROM t GROUP BY a HAVING s > 1",
            {"select", "column_alias", "group_by_single_column"},
            id="having_without_a_function_does_not_count",
        ),
        pytest.param("SELECT a FROM t ORDER BY a", {"select", "order_by_single_column"}, id="order"),
        pytest.param(
            "SELECT a FROM t ORDER BY a DESC, b DESC",
            {"select", "order_by_multiple_columns_same_direction"},
            id="both_down",
        ),
        pytest.param(
            "SELECT a FROM t ORDER BY a, b DESC LIMIT 3",
            {"select", "order_by_multiple_columns_different_directions", "limit_only"},
            id="up_and_down",
        ),
        pytest.param("SELECT a FROM t LIMIT 2 OFFSET 1", {"select", "limit_and_offset"}, id="offset"),
        pytest.param("SELECT x.a FROM t AS x", {"select", "table_alias"}, id="table_alias"),
        pytest.param(
            "SELECT a FROM t WHERE a > (SELECT AVG(a) FROM t)",
            {"select", "where_single_condition", "subquery_single"},
            id="subquery",
        ),
        pytest.param(
            "SELECT a FROM t WHERE a > (SELECT MIN(a) FROM t) AND a < (SELECT MAX(a) FROM t)",
            {"select", "where_multiple_conditions", "subquery_multiple"},
            id="two_subqueries",
        ),
        pytest.param(
            "SELECT a FROM t WHERE a > (SELECT AVG(d.s) FROM (SELECT SUM(a) AS s FROM t GROUP BY b) AS d)",
            {"select", "where_single_condition", "subquery_nested"},
            id="a_subquery_with_another_inside_is_not_single_as_well",
        ),
        pytest.param(
            "DELETE FROM t WHERE a = (SELECT d.m FROM (SELECT MAX(a) AS m FROM t) AS d)",
            {"select", "delete", "where_single_condition", "table_alias", "subquery_nested"},
            id="a_change_that_reads_its_own_table",
        ),
    ],
)
def test_a_statement_shows_these_skills(sql, skills):
    assert recognise_skills(sql) == tuple(skill for skill in SKILLS if skill in skills)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        pytest.param("", "0 statements", id="empty"),
        pytest.param("SELECT 1; SELECT 2", "2 statements", id="two"),
        pytest.param("SELECT FROM WHERE (", "cannot read", id="no_sql"),
    ],
)
def test_what_is_not_one_statement_is_refused(sql, message):
    with pytest.raises(NotOneStatementError, match=message):
        recognise_skills(sql)


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
