"""References are learnt in the prompt's spelling. Of Spider's training queries 60 % spell a name in another case."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dbbench_adapter.engines.engine import ColumnInfo, TableInfo
from dbbench_adapter.engines.mysql import MYSQL
from dbbench_adapter.engines.sqlite import SQLITE
from sql_agent.sft.data import reference_demonstrations
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.shown_names import as_shown

SPIDER = Path(__file__).parents[3] / "shared/text2sql/spider"


def table(name, *columns):
    return TableInfo(name, tuple(ColumnInfo(column, "TEXT") for column in columns))


TABLES = [
    table("EMPLOYEES", "EMP_ID", "Salary", "Hired", "end"),
    table("Year", "year", "Order", "COUNT"),
    table("visits", "emp_id", "salary"),
]


@pytest.mark.parametrize(("query", "expected"), [
    pytest.param("select salary from employees", "select Salary from EMPLOYEES", id="tables_and_columns"),
    pytest.param(
        "SELECT max(salary) ,  min( salary ) FROM employees WHERE hired  =  'A  b' ;",
        "SELECT max(Salary), min(Salary) FROM EMPLOYEES WHERE Hired = 'A  b'", id="even_blanks_but_not_in_a_text"),
    pytest.param(
        "SELECT t1.SALARY FROM employees AS t1 JOIN visits t2 ON t1.Emp_Id=t2.emp_id",
        "SELECT T1.Salary FROM EMPLOYEES AS T1 JOIN visits t2 ON T1.EMP_ID=t2.emp_id", id="the_first_tables_of_two"),
    pytest.param(
        "SELECT VISITSalias1.EMP_ID FROM employees AS t2 , VISITS AS VISITSalias1 WHERE T2.hired = (SELECT 1)",
        "SELECT T2.EMP_ID FROM EMPLOYEES AS T1, visits AS T2 WHERE T1.Hired = (SELECT 1)", id="aliases_in_their_order"),
    pytest.param("SELECT t1, x.salary AS total FROM visits AS x", "SELECT t1, x.salary AS total FROM visits AS x",
                 id="a_taken_alias_stays"),
    pytest.param("SELECT SALARY FROM visits", "SELECT salary FROM visits", id="of_tables_that_are_read"),
    pytest.param('SELECT "salary" FROM visits', 'SELECT "salary" FROM visits', id="a_quoted_name_stays"),
    pytest.param("SELECT salary, `salary` FROM `employees`", "SELECT Salary, `salary` FROM `employees`",
                 id="a_quoted_table"),
    pytest.param("WITH salary(x) AS (SELECT 1 FROM employees) SELECT x FROM salary",
                 "WITH salary(x) AS (SELECT 1 FROM employees) SELECT x FROM salary", id="tables_of_its_own"),
    pytest.param("SELECT salary FROM elsewhere", "SELECT salary FROM elsewhere", id="unknown_tables"),
    pytest.param("SELECT count(*), count FROM year ORDER BY year",
                 "SELECT count(*), COUNT FROM year ORDER BY year", id="a_call_is_no_column"),
    pytest.param("SELECT CASE 1 WHEN 1 THEN salary END FROM employees",
                 "SELECT CASE 1 WHEN 1 THEN Salary END FROM EMPLOYEES", id="words_of_clauses"),
    pytest.param("SELECT\n  salary -- what they earn\nFROM visits", "SELECT salary FROM visits", id="comments"),
    pytest.param("SELECT a->>'$.b' , 1.5 FROM visits WHERE x != 1", "SELECT a->>'$.b', 1.5 FROM visits WHERE x != 1",
                 id="signs_stay"),
])  # fmt: skip
def test_names_are_spelled_as_the_prompt_shows_them(query, expected):
    assert as_shown(query, TABLES, SQLITE) == expected


@pytest.mark.parametrize(("engine", "query", "tables"), [
    pytest.param(MYSQL, "SELECT id FROM users", [table("Users", "id"), table("users", "id")], id="two_tables"),
    pytest.param(MYSQL, "SELECT c.id FROM Address a JOIN city c ON a.City = c.id",
                 [table("Address", "City"), table("city", "id")], id="a_table_and_a_column"),
    pytest.param(SQLITE, "SELECT ä FROM t", [table("t", "Ä", "ä")], id="letters_whose_case_counts"),
])  # fmt: skip
def test_a_name_that_is_right_as_it_stands_stays(engine, query, tables):
    """On a server of Linux the case of a table's name counts."""
    assert as_shown(query, tables, engine) == query


def test_a_server_is_asked_with_its_own_names():
    query = "SELECT `Salary`, SALARY, COUNT( * ) FROM visits WHERE salary > 3 AND emp_id = 'EMP_ID'"
    expected = "SELECT `Salary`, salary, COUNT(*) FROM visits WHERE salary > 3 AND emp_id = 'EMP_ID'"
    assert as_shown(query, TABLES, MYSQL) == expected


def test_a_task_that_changes_data_is_learnt_as_it_is_written(tmp_path):
    with closing(sqlite3.connect(tmp_path / "fish.db")) as connection:
        connection.execute("CREATE TABLE Fish (Name TEXT)")
    queries = ["SELECT NAME FROM fish", "UPDATE fish SET NAME = 'x'"]
    (tmp_path / "rows.json").write_text(json.dumps([{"question": f"{query}?", "query": query} for query in queries]))
    with TextToSql(tmp_path / "fish.db") as environment:
        replies = [environment.reference_replies(task) for task in environment.read_tasks(tmp_path / "rows.json")]
    learnt = [json.loads(reply["tool_calls"][0]["function"]["arguments"])["sql"] for (reply,) in replies]
    assert learnt == ["SELECT Name FROM Fish", "UPDATE fish SET NAME = 'x'"]


@pytest.mark.slow  # plays 691 references
def test_spiders_training_queries_find_what_they_found(tmp_path):
    """Each is played and judged; those alone are left out whose reference fails as it is written."""
    if not SPIDER.is_dir():
        pytest.skip(f"{SPIDER} is not there")
    rows = json.loads((SPIDER / "train.json").read_text())[::10]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    with TextToSql(SPIDER / "database") as environment:
        tasks = environment.read_tasks(tmp_path / "rows.json")
        found = reference_demonstrations(tasks, environment)
        faults = [fault for task in tasks if (fault := environment.reference_fault(task))]
    learnt = [json.loads(each.messages[-1]["tool_calls"][0]["function"]["arguments"])["sql"] for each in found.kept]
    assert len(found.kept) == len(rows) - len(faults) == len(rows) - found.left_out.total()
    said = {" ".join(row["query"].split()).replace(" ,", ",") for row in rows}
    assert sum(sql not in said for sql in learnt) > 0.5 * len(learnt)
