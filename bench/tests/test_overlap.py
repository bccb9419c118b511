"""Held-out questions and learnt ones: what they share, counted by hand."""

import json

import pytest

from bench.overlap import ALIKE, Row, Shared, form_of, main, overlap

TRAIN = [
    Row("shop", "How many items cost 3?", "SELECT count(*) FROM item WHERE price = 3"),
    Row("zoo", "Which animals are old?", 'SELECT name FROM animal WHERE kind = "old"'),
]
HELD_OUT = [
    Row("shop", "how many items cost 3", "select count(*)  from item where price = 3"),  # the same but for its signs
    Row("shop", "How many items cost 4?", "SELECT count(*) FROM item WHERE price = 4"),
    Row("bank", "Which clients are rich?", "SELECT id FROM client WHERE kind = 'rich'"),
    Row("bank", "Clients by age?", "SELECT id FROM client ORDER BY age"),
    Row("store", "How many items?", "SELECT count(*) FROM Item"),  # the shop under another name
]


def test_a_sceptics_counts_by_hand():
    assert overlap(TRAIN, HELD_OUT) == [
        Shared("databases", 3, 1, 2),
        Shared("questions, without case and signs", 5, 1, 1),
        Shared("queries", 5, 1, 1),
        Shared("queries without values", 4, 1, 2),  # both of the shop
        Shared("queries without values and names", 4, 2, 3),  # that of the bank's first has the zoo's form
        Shared(ALIKE, 3, 2, 3),
    ]


@pytest.mark.parametrize(
    ("query", "form"),
    [
        ("SELECT T1.Name FROM city AS T1 LIMIT 5", "SELECT _._ FROM _ AS _ LIMIT ?"),
        ('SELECT a FROM t WHERE a = "x"', "SELECT _ FROM _ WHERE _ = ?"),  # SQLite reads "x" as a text
        ("SELECT (  a", "select ( a"),  # as it is
    ],
)
def test_forms(query, form):
    assert form_of(query, names=False) == form


def test_the_table(tmp_path, capsys):
    paths = []
    for name, rows in (("train", TRAIN), ("dev", HELD_OUT)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps([{"db_id": row[0], "question": row[1], "query": row[2]} for row in rows]))
    main(list(map(str, paths)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| of 5 held-out questions |")
    assert lines[2] == "| databases | 3 | 1 | 2 (40.0%) |"
