"""`bench.compare_with_evaluator`: our judges beside the published code, imported or by the verdicts it once gave."""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bench.compare_with_evaluator import main, ours, question_pairs
from sql_agent.text_to_sql.environment import TextToSql

GEOGRAPHY = Path(__file__).resolve().parents[3] / "shared" / "text2sql" / "geography"
VERDICTS = Path(__file__).parent / "geoquery_verdicts.json"
"""These are of taoyds/test-suite-sql-eval at e97acc5 with sqlparse 0.6.1, and of mini_dev's `evaluation_ex.py`."""
EVALUATOR = """
def execute_sql(predicted_sql, ground_truth, db_path, dialect, calculate):
    import sqlite3
    rows = [sqlite3.connect(db_path).execute(sql).fetchall() for sql in (predicted_sql, ground_truth)]
    return calculate(*rows)

def calculate_ex(predicted, expected):
    return {equal}
"""


def started(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["compare_with_evaluator", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


@pytest.mark.parametrize(("equal", "code"), [("set(predicted) == set(expected)", 0), ("predicted == expected", 1)])
def test_an_evaluator_is_imported_and_asked_about_the_same_pairs(tmp_path, monkeypatch, capsys, equal, code):
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "evaluation_ex", raising=False)
    (tmp_path / "evaluation_ex.py").write_text(EVALUATOR.format(equal=equal))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2), (2);")
    rows = [{"question": "?", "query": query} for query in ("SELECT a FROM t", "SELECT a FROM t ORDER BY a DESC")]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    words = tmp_path, "--pairs", 60, "--database", tmp_path / "shop.db", "--questions", tmp_path / "q.json"
    assert started(monkeypatch, *words, "--save", tmp_path / "saved.json") == code
    said = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("bird, ")]
    assert said == ["bird, random results", "bird, generated queries", "bird, changed references"]
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert saved.keys() == {"bird"} and len(saved["bird"]) == 60 and set(saved["bird"]) <= set("10-")


def test_a_folder_without_an_evaluator_is_named(tmp_path, monkeypatch, capsys):
    assert started(monkeypatch, tmp_path) == 2
    assert "holds neither exec_eval.py nor evaluation_ex.py" in capsys.readouterr().err


@pytest.mark.skipif(not GEOGRAPHY.is_dir(), reason="../shared/text2sql/geography is not there")
@pytest.mark.parametrize("judge", ["spider", "bird"])
@pytest.mark.full("judges 4,000 pairs: minutes")
def test_4000_verdicts_on_geoquery_are_those_of_the_published_code(judge):
    recorded = json.loads(VERDICTS.read_text("utf-8"))[judge]
    pairs = question_pairs(GEOGRAPHY, [GEOGRAPHY / "train.json", GEOGRAPHY / "test.json"], 4_000)
    with TextToSql(GEOGRAPHY, judge) as environment:
        found = [ours(environment, pair) for pair in pairs]
    unlike = [
        pair
        for pair, theirs, our in zip(pairs, recorded, found, strict=True)
        if theirs != "-" and our is not None and our != (theirs == "1")
    ]
    assert unlike == []
