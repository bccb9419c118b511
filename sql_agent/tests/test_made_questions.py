"""Questions made from a database alone: `agentgrpo tasks from-database`."""

import json
import random
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import islice

import pytest

from dbbench_adapter.engines import open_databases
from sql_agent.commands.from_database import main, questions_of
from sql_agent.settings.groups import DataConfig
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.made_questions import SKILLS, made_questions
from sql_agent.text_to_sql.question_conditions import Scene, after, condition, predicate
from sql_agent.text_to_sql.question_tables import Column, Table, read_tables

GUESTS = [("Ann", "Ulm", 31, "2024-03-01"), ("Bo", "Kiel", 45, "2025-01-09"), ("Cy", "Ulm", 28, "2023-07-30")]


@pytest.fixture
def hotel(tmp_path):
    file = tmp_path / "hotel.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("""
            CREATE TABLE Guests (
                guest_id INTEGER PRIMARY KEY, guestName TEXT, town TEXT, age INTEGER, first_visit TEXT);
            CREATE TABLE booking (
                id INTEGER PRIMARY KEY, guest_id INTEGER REFERENCES Guests, nights INTEGER, "order" TEXT);
            CREATE TABLE empty_table (id INTEGER PRIMARY KEY, name TEXT);
            CREATE VIEW long_stays AS SELECT * FROM booking WHERE nights > 3;
        """)
        guests = [(n, f"{name} {n}", town, age + n, day) for n in range(6) for name, town, age, day in [GUESTS[n % 3]]]
        connection.executemany("INSERT INTO Guests VALUES (?, ?, ?, ?, ?)", guests)
        bookings = [(n, n % 4, n + 1, "yes" if n % 2 else "no") for n in range(10)]
        connection.executemany("INSERT INTO booking VALUES (?, ?, ?, ?)", bookings)
        connection.commit()
    return file


@pytest.fixture
def tables(hotel):
    databases = open_databases(hotel)
    with closing(databases.open("hotel", statement_timeout_s=5.0)) as session:
        yield read_tables(databases.schema("hotel"), session), session
    databases.close()


class First(random.Random):
    """Draws the first of everything."""

    def choice(self, seq):
        return seq[0]

    def random(self):
        return 0.0

    def randint(self, a, b):
        return a

    def sample(self, population, k, **_):
        return population[:k]


def test_columns_have_the_role_that_their_keys_and_values_give_them(tables):
    guests, booking = tables[0]  # neither the view nor the empty table
    assert (guests.singular, guests.plural, booking.plural) == ("guest", "guests", "bookings")
    assert {column.words: column.role for column in guests.columns} == {
        "id": "key", "name": "label", "town": "category", "age": "number", "first visit": "date",
    }  # fmt: skip
    assert {column.words: column.role for column in booking.columns} == {
        "id": "key", "guest id": "key", "nights": "number", "order": "category",
    }  # fmt: skip


@pytest.mark.parametrize(("skill", "table", "question", "query"), [
    ("count", 0, "How many guests are there?", "SELECT count(*) FROM Guests"),
    ("count_where", 0, "How many guests whose town is Ulm are there?",
     "SELECT count(*) FROM Guests WHERE town = 'Ulm'"),
    ("filter", 0, "What are the names of the guests whose town is Ulm?",
     "SELECT guestName FROM Guests WHERE town = 'Ulm'"),
    ("count_distinct", 0, "How many different towns do the guests have?", "SELECT count(DISTINCT town) FROM Guests"),
    ("look_up", 0, "What is the town of the guest Ann 0?", "SELECT town FROM Guests WHERE guestName = 'Ann 0'"),
    ("most_common", 0, "Which town has the most guests?",
     "SELECT town FROM Guests GROUP BY town ORDER BY count(*) DESC LIMIT 1"),
    ("join_aggregate", 1, "What is the average nights of the bookings of each guest?",
     "SELECT Guests.guestName, avg(booking.nights) FROM Guests JOIN booking ON booking.guest_id = Guests.guest_id "
     "GROUP BY Guests.guestName"),
    ("columns", 0, "Show the name and the town of every guest.", "SELECT guestName, town FROM Guests"),
    ("distinct", 1, "What are the different orders of bookings?", 'SELECT DISTINCT "order" FROM booking'),
    ("superlative", 0, "Which guest has the highest age?",
     "SELECT guestName FROM Guests WHERE age IS NOT NULL ORDER BY age DESC LIMIT 1"),
    ("order", 0, "List the names of all guests in descending order of age.",
     "SELECT guestName FROM Guests ORDER BY age DESC"),
    ("group", 0, "What is the average age of the guests for each town?",
     "SELECT town, avg(age) FROM Guests GROUP BY town"),
    ("having", 0, "Which towns have at least 2 guests?",
     "SELECT town FROM Guests GROUP BY town HAVING count(*) >= 2"),
    ("above_average", 0, "Which guests have an age above the average?",
     "SELECT guestName FROM Guests WHERE age > (SELECT avg(age) FROM Guests)"),
    ("join", 1, "How many bookings belong to a guest whose name is Ann 0?",
     "SELECT count(*) FROM booking JOIN Guests ON booking.guest_id = Guests.guest_id "
     "WHERE Guests.guestName = 'Ann 0'"),
    ("join_group", 1, "How many bookings does each guest have?",
     "SELECT Guests.guestName, count(*) FROM Guests JOIN booking ON booking.guest_id = Guests.guest_id "
     "GROUP BY Guests.guestName"),
    ("without", 1, "How many guests have no booking?",
     "SELECT count(*) FROM Guests WHERE Guests.guest_id NOT IN "
     "(SELECT booking.guest_id FROM booking WHERE booking.guest_id IS NOT NULL)"),
])  # fmt: skip
def test_each_skill_asks_in_the_words_of_the_names(tables, skill, table, question, query):
    found, session = tables
    asked = SKILLS[skill].ask(Scene(First(), found[table], {each.name: each for each in found}))
    assert (asked.question, asked.query) == (question, query)
    assert session.run(query).rows


def column(name, role, values, *, has_nulls=False):
    return Column(name, name, f"t.{name}", name.replace("_", " "), values, role, has_nulls)


@pytest.mark.parametrize(("asked", "said"), [
    (column("city", "category", ("Ulm",)),
     {("from Ulm", "city = 'Ulm'"), ("in Ulm", "city = 'Ulm'"), ("with city Ulm", "city = 'Ulm'"),
      ("whose city is Ulm", "city = 'Ulm'")}),
    (column("status", "category", ("late",)),
     {("that are late", "status = 'late'"), ("with status late", "status = 'late'"),
      ("whose status is late", "status = 'late'")}),
    (column("closed_on", "date", ("2024-05-01",), has_nulls=True),
     {("not closed yet", "closed_on IS NULL"), ("closed after 2024-05-01", "closed_on > '2024-05-01'"),
      ("closed in 2024", "closed_on LIKE '2024%'")}),
    (column("discontinued", "flag", (0, 1)),
     {("that are discontinued", "discontinued = 1"), ("that are not discontinued", "discontinued = 0")}),
    (column("newsletter", "flag", (0, 1)),
     {("with newsletter", "newsletter = 1"), ("without newsletter", "newsletter = 0")}),
])  # fmt: skip
def test_a_condition_is_said_as_people_say_it(asked, said):
    table = Table("t", "t", "thing", "things", 9, (asked,), ())
    rng = random.Random(0)
    drawn = {condition(Scene(rng, table, {}), table)[:2] for _ in range(200)}
    assert drawn == said


def test_prices_are_cheap_and_ages_old(tables):
    prices = Table("t", "t", "thing", "things", 9, (column("price", "number", (5,)),), ())
    rng = random.Random(0)
    drawn = {condition(Scene(rng, prices, {}), prices)[:2] for _ in range(200)}
    assert {("that cost more than 5", "price > 5"), ("that cost less than 5", "price < 5")} < drawn
    guests = next(table for table in tables[0] if table.name == "Guests")
    asked = {SKILLS["superlative"].ask(Scene(rng, guests, {})).question for _ in range(200)}
    assert {"Which guest is the oldest?", "What is the youngest guest?"} < asked


@pytest.mark.parametrize(("condition_words", "said"), [
    ("that cost more than 5", "cost more than 5"),
    ("with an age above 5", "have an age above 5"),
    ("without newsletter", "do not have newsletter"),
    ("whose country is France", "have country France"),
    ("whose born is in 2024", "have born in 2024"),
    ("whose title is this is it", "have title this is it"),
    ("from Ulm", "are from Ulm"),
])  # fmt: skip
def test_a_condition_becomes_what_is_said_of_the_rows(condition_words, said):
    assert predicate(condition_words) == said


def test_dates_of_events_and_units_are_not_read_out(tmp_path):
    """A shop's columns were asked for as "the latest opened on" and "the area m 2"."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE stores (name TEXT, opened_on TEXT, area_m2 INTEGER, g INTEGER)")
        rows = [(f"Shop {n}", f"2020-01-0{n}", 100 * n, n) for n in range(1, 6)]
        connection.executemany("INSERT INTO stores VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    databases = open_databases(tmp_path / "shop.db")
    with closing(databases), closing(databases.open("shop", statement_timeout_s=5.0)) as session:
        (table,) = read_tables(databases.schema("shop"), session)
    assert [column.noun for column in table.columns] == ["name", "opened date", "area", "g"]
    asked = {SKILLS["superlative"].ask(Scene(random.Random(n), table, {})).question for n in range(200)}
    assert {"Which store was opened last?", "Which store was opened first?", "Which store is the largest?"} < asked


def said_of(*columns):
    """Every condition on a table of these columns, in words and SQL."""
    table = Table("t", "t", "thing", "things", 9, columns, ())
    rng = random.Random(0)
    return {condition(Scene(rng, table, {}), table)[:2] for _ in range(400)}


def test_words_that_could_mean_another_column_are_not_said():
    """Flights "from Oslo" were those to Oslo, and of two prices either was "cheaper"."""
    cities = said_of(column("departure_city", "category", ("Oslo",)), column("destination_city", "category", ("Oslo",)))
    assert not any(words.startswith(("from", "in ")) for words, _ in cities)
    born = said_of(column("city", "category", ("Oslo",)), column("birth_city", "category", ("Oslo",)))
    assert not any(words.startswith(("from", "in ")) for words, _ in born)
    assert not any("from" in words for words, _ in said_of(column("state", "category", ("open",))))
    prices = said_of(column("price", "number", (5,)), column("cost", "number", (9,)))
    assert {words.partition(" ")[0] for words, _ in prices} == {"with"}
    stays = said_of(column("length_of_stay", "number", (3,)))
    assert not any("longer" in words for words, _ in stays)


def test_after_a_day_is_after_its_last_hour():
    assert after("2024-02-28") == "> '2024-02-28'"
    assert after("2024-02-28 18:00") == ">= '2024-02-29'"
    assert after("2024-02-30 18:00") == "> '2024-02-30 18:00'"


@pytest.mark.parametrize(("name", "event"), [
    ("opened_on", "opened"), ("sold_at", "sold"), ("last_login_at", None), ("expires_at", None), ("birthday", None),
])  # fmt: skip
def test_an_event_is_a_participle(name, event):
    assert column(name, "date", ("2024-01-01",)).event == event


def test_what_has_two_meanings_or_none_is_not_asked(tmp_path):
    """Weights in two units, a name of two tables, groups without a name, sums of years."""
    with closing(sqlite3.connect(tmp_path / "odd.db")) as connection:
        connection.executescript("""
            CREATE TABLE parcel (name TEXT, weight_g INTEGER, weight_kg REAL, kind TEXT, year INTEGER);
            CREATE TABLE box (name TEXT, size_cm INTEGER);
        """)
        for n in range(12):
            row = (f"P{n}", 1000 * n, float(n), ["big", "small", None][n % 3], 2000 + n)
            connection.execute("INSERT INTO parcel VALUES (?, ?, ?, ?, ?)", row)
            connection.execute("INSERT INTO box VALUES (?, ?)", (f"P{n}", n))
        connection.commit()
    databases = open_databases(tmp_path / "odd.db")
    with closing(databases), closing(databases.open("odd", statement_timeout_s=5.0)) as session:
        found = read_tables(databases.schema("odd"), session)
        words = {table.name: [column.words for column in table.columns] for table in found}
        made = list(made_questions(found, session, random.Random(1)))
        assert words == {"parcel": ["name", "weight g", "weight kg", "kind", "year"], "box": ["name", "size"]}
        for one in made:
            rows = session.run(one.query).rows
            assert one.skill not in ("group", "having", "distinct", "most_common") or (None,) not in rows
            assert not any(f"{function}(year)" in one.query for function in ("sum", "avg"))
            assert one.skill != "look_up" or {"parcel", "box"} & {*one.question.replace("?", "").split()}


def test_columns_that_a_question_could_not_mean_are_asked_about_in_none(tmp_path):
    """Names without letters, texts among numbers, keys of several columns, two keys to one table."""
    with closing(sqlite3.connect(tmp_path / "odd.db")) as connection:
        connection.executescript("""
            CREATE TABLE Team (id INTEGER PRIMARY KEY, name TEXT);
            CREATE TABLE game (" " TEXT, home INTEGER REFERENCES TEAM, away INTEGER REFERENCES team, title TEXT);
            CREATE TABLE course (year INTEGER, num INTEGER, name TEXT, PRIMARY KEY (year, num));
            CREATE TABLE exam (
                title TEXT, price INTEGER, y INTEGER, n INTEGER, FOREIGN KEY (y, n) REFERENCES course(year, num));
            CREATE TABLE player (name TEXT, team_id INTEGER REFERENCES TEAM);
            CREATE TABLE "--" (x INTEGER);
            INSERT INTO "--" VALUES (1);
        """)
        for n in range(300):
            connection.execute("INSERT INTO Team VALUES (?, ?)", (n, f"team {n}"))
            connection.execute("INSERT INTO game VALUES ('x', ?, ?, ?)", (n, n + 1, f"game {n}"))
            connection.execute("INSERT INTO course VALUES (?, ?, ?)", (2000 + n // 10, n, f"course {n}"))
            connection.execute("INSERT INTO exam VALUES (?, ?, 2000, 1)", (f"exam {n}", n if n < 299 else "N/A"))
            connection.execute("INSERT INTO player VALUES (?, ?)", (f"player {n % 290}", n))
        connection.commit()
    databases = open_databases(tmp_path / "odd.db")
    with closing(databases), closing(databases.open("odd", statement_timeout_s=5.0)) as session:
        found = {table.name: table for table in read_tables(databases.schema("odd"), session)}
        assert {*found} == {"Team", "game", "course", "exam", "player"}
        assert not found["game"].references and not found["exam"].references
        assert [other for _, _, other in found["player"].references] == ["Team"]  # whatever the case of its name
        roles = {column.name: column.role for table in found.values() for column in table.columns}
        assert roles["price"] == "other" and " " not in roles
        assert found["player"].columns[0].role == "other"  # ten names are those of two players
        made = islice(made_questions([*found.values()], session, random.Random(0)), 80)
        assert all(session.run(one.query).rows for one in made)


def test_no_question_asks_for_the_first_of_ties(tmp_path):
    with closing(sqlite3.connect(tmp_path / "ties.db")) as connection:
        connection.execute("CREATE TABLE player (name TEXT, points INTEGER)")
        connection.executemany("INSERT INTO player VALUES (?, ?)", [*zip("abcde", (1, 1, 5, 5, 3), strict=True)])
        connection.commit()
    databases = open_databases(tmp_path / "ties.db")
    with closing(databases), closing(databases.open("ties", statement_timeout_s=5.0)) as session:
        tables = read_tables(databases.schema("ties"), session)
        skills = {one.skill for one in made_questions(tables, session, random.Random(0))}
    assert "order" in skills and "superlative" not in skills


def test_words_that_are_not_english_keep_their_letters_and_their_number(tmp_path):
    with closing(sqlite3.connect(tmp_path / "de.db")) as connection:
        connection.execute("CREATE TABLE Gebäude (Größe INTEGER, 金额 INTEGER)")
        connection.executemany("INSERT INTO Gebäude VALUES (?, ?)", [(n, n) for n in range(5)])
        connection.commit()
    databases = open_databases(tmp_path / "de.db")
    with closing(databases), closing(databases.open("de", statement_timeout_s=5.0)) as session:
        (table,) = read_tables(databases.schema("de"), session)
    assert (table.plural, [column.words for column in table.columns]) == ("gebäude", ["größe", "金额"])


def test_of_several_databases_each_gets_questions_and_an_empty_one_is_named(tmp_path, hotel, capsys):
    for name in ("a", "b", "c"):
        (tmp_path / "many" / name).mkdir(parents=True)
        shutil.copy(hotel, tmp_path / "many" / name / f"{name}.sqlite")
    (tmp_path / "many" / "d").mkdir()
    sqlite3.connect(tmp_path / "many" / "d" / "d.sqlite").close()
    file = tmp_path / "made.jsonl"
    assert main(["--database", str(tmp_path / "many"), "--num-questions", "5", "--output", str(file)]) == 0
    assert "d: " in capsys.readouterr().err
    assert Counter(json.loads(line)["db_id"] for line in file.read_text().splitlines()) == {"a": 2, "b": 2, "c": 1}
    shutil.rmtree(tmp_path / "many" / "d")
    again = ["--database", str(tmp_path / "many"), "--num-questions", "4", "--output", str(file), "--overwrite"]
    assert main(again) == 0  # the last database is not cut off
    assert Counter(json.loads(line)["db_id"] for line in file.read_text().splitlines()) == {"a": 2, "b": 1, "c": 1}


def test_every_question_was_run_and_its_answer_says_something(tables):
    found, session = tables
    made = list(made_questions(found, session, random.Random(3)))
    assert len(made) > 100 and len({one.question for one in made}) == len(made)
    assert {*Counter(one.query for one in made).values()} == {1, 2}  # wordings
    for one in made:
        rows = session.run(one.query).rows
        assert rows and rows not in (((0,),), ((None,),))
    # two guests book most often, and no question asks for the first of ties
    assert not any("the most bookings" in one.question for one in made)


def test_a_small_request_has_every_skill_that_the_database_gives(hotel):
    with closing(open_databases(hotel)) as databases:
        made = questions_of(databases, "hotel", 30, seed=0)
        assert made == questions_of(databases, "hotel", 30, seed=0) != questions_of(databases, "hotel", 30, seed=1)
        skills = Counter(one.skill for one in questions_of(databases, "hotel", 60, seed=0))
    assert {one.skill for one in made} >= {"count", "filter", "aggregate", "group", "join", "having", "without"}
    assert skills["filter"] > 2 * skills["having"]  # as people ask
    assert {one.difficulty for one in made} == {"easy", "medium", "hard"}


def test_one_column_does_not_take_all_the_questions(tmp_path):
    """Of 428 questions about a stranger's documents 368 were about two dates, and little else was learnt."""
    with closing(sqlite3.connect(tmp_path / "papers.db")) as connection:
        connection.execute("CREATE TABLE paper (id INTEGER PRIMARY KEY, code TEXT, written_on TEXT)")
        days = [(n, f"k{n % 3}", f"20{n % 25:02}-0{n % 9 + 1}-1{n % 10}") for n in range(200)]
        connection.executemany("INSERT INTO paper VALUES (?, ?, ?)", days)
        connection.commit()
    with closing(open_databases(tmp_path / "papers.db")) as databases:
        made = questions_of(databases, "papers", 300, seed=0)
    shapes = Counter(re.sub(r"'[^']*'|\b\d+\b", "?", one.query) for one in made)
    assert max(shapes.values()) == 10, shapes.most_common(3)


def test_the_command_writes_rows_that_training_reads(hotel, tmp_path, capsys):
    file = tmp_path / "made.jsonl"
    flags = ["--database", str(hotel), "--output", str(file)]
    assert main([*flags, "--num-questions", "40"]) == 0
    said = capsys.readouterr().out
    assert "40 questions in " in said and "easy " in said
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {*rows[0]} == {"question", "query", "skill", "difficulty", "db_id"}
    with TextToSql(hotel) as environment:
        split = environment.read_split(DataConfig(train_file=file), seed=0)
    assert len(split.train) + len(split.val) == 40 and not split.left_out
    assert {task.kind for task in split.train} == {"easy", "medium", "hard"}
    assert main([*flags, "--num-questions", "40"]) == 1 and "is there already" in capsys.readouterr().err
    assert main([*flags, "--num-questions", "100000", "--overwrite"]) == 0
    assert "the database yields no more questions" in capsys.readouterr().out


def test_a_database_without_rows_makes_no_questions(tmp_path, capsys):
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER)")
    flags = ["--database", str(tmp_path / "new.db"), "--output", str(tmp_path / "made.jsonl")]
    assert main(flags) == 1 and not (tmp_path / "made.jsonl").exists()
    assert "has no table with rows" in capsys.readouterr().err
