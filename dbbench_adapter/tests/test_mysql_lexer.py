"""Splitting a text into statements by MySQL's lexical rules."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.dialect.lexer import split_statements


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1"]),
        (" SELECT 1 ;\n DELETE FROM t ; ", ["SELECT 1", "DELETE FROM t"]),
        ("", []),
        (" ;; ; ", []),
        pytest.param("SELECT ';'; SELECT 2", ["SELECT ';'", "SELECT 2"], id="single_quotes"),
        pytest.param('SELECT ";"; SELECT 2', ['SELECT ";"', "SELECT 2"], id="double_quotes"),
        pytest.param("SELECT `;`; SELECT 2", ["SELECT `;`", "SELECT 2"], id="backquotes"),
        pytest.param(r"SELECT 'it\'s; x'; SELECT 2", [r"SELECT 'it\'s; x'", "SELECT 2"], id="backslash_escape"),
        pytest.param(r"SELECT 'x\\'; SELECT 2", [r"SELECT 'x\\'", "SELECT 2"], id="escaped_backslash_ends_the_text"),
        pytest.param("SELECT 'it''s; x'; SELECT 2", ["SELECT 'it''s; x'", "SELECT 2"], id="doubled_quote"),
        pytest.param("SELECT `a``;`; SELECT 2", ["SELECT `a``;`", "SELECT 2"], id="doubled_backquote"),
        pytest.param("SELECT `a\\`; SELECT 2", ["SELECT `a\\`", "SELECT 2"], id="no_escapes_between_backquotes"),
        pytest.param("SELECT 1 -- a; b\n; SELECT 2", ["SELECT 1 -- a; b", "SELECT 2"], id="dash_comment"),
        pytest.param("SELECT 5--1; SELECT 2", ["SELECT 5--1", "SELECT 2"], id="two_minuses_are_no_comment"),
        pytest.param("SELECT 1 # a; b\n; SELECT 2", ["SELECT 1 # a; b", "SELECT 2"], id="hash_comment"),
        pytest.param("SELECT /* ; ' */ 1; SELECT 2", ["SELECT /* ; ' */ 1", "SELECT 2"], id="block_comment"),
        pytest.param("SELECT 4 / 2; SELECT 2 - 1", ["SELECT 4 / 2", "SELECT 2 - 1"], id="slash_and_minus"),
        pytest.param("/*!50000 SELECT ';*/' */; SELECT 2", ["/*!50000 SELECT ';*/' */", "SELECT 2"], id="versioned"),
        pytest.param("/*M! SELECT 1 */", ["/*M! SELECT 1 */"], id="versioned_for_mariadb"),
        pytest.param("SELECT 1; -- done", ["SELECT 1"], id="a_comment_alone_is_no_statement"),
        pytest.param("SELECT 1; SELECT 'a; b", ["SELECT 1", "SELECT 'a; b"], id="unclosed_quote"),
        pytest.param("SELECT 1; SELECT 2 /* a; b", ["SELECT 1", "SELECT 2 /* a; b"], id="unclosed_comment"),
    ],
)
def test_statements_end_at_top_level_semicolons(sql, statements):
    assert split_statements(sql) == statements


@given(st.text("ab '\"`;#-/*!\\\n", max_size=40))
def test_no_text_is_lost_or_made_up(sql):
    statements = split_statements(sql)
    place = 0
    for statement in statements:
        assert statement and statement == statement.strip()
        place = sql.index(statement, place) + len(statement)


@pytest.mark.parametrize("unit", ["'", "/*", "/*!", "\\'", "'a", ";", "- ", "--\n", "`"])
def test_the_time_grows_with_the_length_alone(unit):
    started = time.process_time()
    split_statements(unit * (200_000 // len(unit)))
    assert time.process_time() - started < seconds_here(2.0)
