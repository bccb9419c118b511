import pytest

from dbbench_adapter.sql_skills import SKILLS, NotOneStatementError, recognise_skills


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
