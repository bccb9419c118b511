"""The doctor says what keeps a run from starting, and the line that mends it."""

import json
import re
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentgrpo.checks import Finding, Problem, examine, format_findings, show
from sql_agent.commands import doctor
from sql_agent.startup import machine
from sql_agent.startup.input_checks import check_database, check_model

SETUP_AND_LOOK = "bash scripts/setup.sh && .venv/bin/agentgrpo doctor"
SETUP_AGAIN = f"rm -f .venv/.setup-stamp && {SETUP_AND_LOOK}"


@pytest.mark.parametrize("minor", [11, 12])
def test_python_3_11_and_3_12_pass(minor):
    assert machine.check_python((3, minor, 7), "/usr/bin/python") == Finding(f"3.{minor}.7 (/usr/bin/python)")


def test_another_python_is_a_problem():
    problem = Problem("expected Python 3.11 or 3.12", SETUP_AND_LOOK)
    assert machine.check_python((3, 13, 1), "python3") == Finding("3.13.1 (python3)", (problem,))


def test_pins_are_read_without_comments_extras_or_ranges():
    text = "# a comment==1\ntorch==2.13.0+cpu\npyright[nodejs]==1.1.414\nloose>=3\npy-spy==0.4.3  # why\n"
    assert machine.read_pins(text) == {"torch": "2.13.0+cpu", "pyright": "1.1.414", "py-spy": "0.4.3"}


def test_packages_as_pinned_pass():
    pins = {"torch": "2.13.0+cpu", "verl": "0.9.1"}
    found = machine.check_packages(pins, {**pins, "something-else": "1"}, remedy="mend it")
    assert found == Finding("2 as pinned")


def test_a_wrong_and_a_missing_package_are_named():
    pins = {"torch": "2.13.0+cpu", "transformers": "5.10.4", "verl": "0.9.1"}
    installed = {"torch": "2.13.0+cpu", "transformers": "5.11.0"}
    what = "transformers 5.10.4 is pinned, 5.11.0 is installed; verl 0.9.1 is pinned, none is installed"
    assert machine.check_packages(pins, installed, remedy="mend it") == Finding(
        "2 of 3 differ", (Problem(what, "mend it"),)
    )


def test_another_version_of_a_package_that_is_no_engine_and_a_missing_tool_stop_no_run():
    pins = {"certifi": "2026.1", "httpx": "1.0", "ruff": "0.17", "torch": "2.13.0+cpu"}
    what = "certifi 2026.1 is pinned, 2026.2 is installed; ruff 0.17 is pinned, none is installed"
    moved = {"certifi": "2026.2", "httpx": "1.0", "torch": "2.13.0+cpu"}
    assert machine.check_packages(pins, moved, remedy="mend it") == Finding(
        "2 of 4 differ", (Problem(what, "mend it", blocks=False),)
    )
    gone = "httpx 1.0 is pinned, none is installed"
    assert machine.check_packages(pins, {"certifi": "2026.2", "torch": "2.13.0+cpu"}, remedy="mend it") == Finding(
        "3 of 4 differ", (Problem(gone, "mend it"), Problem(what, "mend it", blocks=False))
    )


def test_every_engine_and_tool_is_pinned():
    pins, _ = machine.wanted_packages({})
    assert {*machine.ENGINES, *machine.TOOLS} <= set(pins)


def test_of_many_wrong_packages_five_are_named():
    pins = {f"p{i}": "1" for i in range(7)}
    (problem,) = machine.check_packages(pins, {}, remedy="mend it").problems
    named = "; ".join(f"p{i} 1 is pinned, none is installed" for i in range(5))
    assert problem == Problem(f"{named}; and 2 more", "mend it")


@pytest.mark.parametrize(
    ("installed", "torch", "vllm", "remedy"),
    [
        pytest.param({}, "2.13.0+cpu", "0.28.0+cpu", SETUP_AGAIN, id="nothing_installed_means_the_cpu_set"),
        pytest.param({"vllm": "0.28.0+cpu"}, "2.13.0+cpu", "0.28.0+cpu", SETUP_AGAIN, id="cpu"),
        pytest.param(
            {"vllm": "0.24.0"},
            "2.11.0",
            "0.24.0",
            "uv pip install --python .venv/bin/python --no-deps -r requirements-gpu.txt"
            " && uv pip install --python .venv/bin/python --no-deps --editable .",
            id="a_real_vllm_means_the_gpu_set",
        ),
    ],
)
def test_the_pins_follow_the_kind_of_environment(installed: dict[str, str], torch: str, vllm: str, remedy: str):
    pins, line = machine.wanted_packages(installed)
    assert (pins["torch"], pins["vllm"], line) == (torch, vllm, remedy)


@pytest.mark.parametrize(
    ("architecture", "flags", "cores", "expected"),
    [
        pytest.param("x86_64", {"avx2"}, 2, Finding("2 cores, x86_64, AVX2"), id="avx2_is_enough"),
        pytest.param("x86_64", {"avx2", "avx512f"}, 8, Finding("8 cores, x86_64, AVX2, AVX-512"), id="avx512"),
        pytest.param(
            "x86_64",
            {"sse4_2"},
            2,
            Finding(
                "2 cores, x86_64, no AVX2",
                (Problem("vLLM's CPU build needs AVX2", "take a machine from 2015 or later"),),
            ),
            id="too_old",
        ),
        pytest.param(
            "x86_64",
            {"avx2"},
            1,
            Finding(
                "1 core, x86_64, AVX2",
                (Problem("one core works, but slowly", "give the machine or container two cores", blocks=False),),
            ),
            id="one_core_is_a_warning",
        ),
        pytest.param(
            "aarch64",
            {"asimd"},
            4,
            Finding(
                "4 cores, aarch64, no AVX2",
                (Problem("only x86_64 was tried", "expect to adapt requirements.txt", blocks=False),),
            ),
            id="another_architecture_is_a_warning",
        ),
    ],
)
def test_cpu(architecture: str, flags: set[str], cores: int, expected: Finding):
    assert machine.check_cpu(architecture, flags, cores) == expected


def test_too_little_memory_is_a_problem():
    problem = Problem("a run needs 8 GiB", "end other programs (ps aux --sort=-rss | head) or add memory")
    assert machine.check_memory(7.94) == Finding("7.9 GiB available", (problem,))
    assert machine.check_memory(8.0) == Finding("8.0 GiB available")


def test_a_free_port_passes():
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    assert machine.check_port(port) == Finding(f"{port} is free")


@pytest.fixture
def busy_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_a_problem(busy_port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "store_answers", lambda port: False)
    remedy = (
        f"see who has it with `ss -ltnp 'sport = :{busy_port}'`, or take another: `agl store --port {busy_port + 1}`"
    )
    assert machine.check_port(busy_port) == Finding(
        f"{busy_port}: Address already in use", (Problem("no store can listen there", remedy),)
    )


def test_a_port_that_nobody_asked_for_stops_no_run(busy_port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "store_answers", lambda port: False)
    (problem,) = machine.check_port(busy_port, asked=False).problems
    assert (problem.blocks, problem.what) == (
        False, "no store can listen there; a run that keeps its own store takes another port"
    )  # fmt: skip


def test_a_store_on_the_port_is_a_warning(busy_port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "store_answers", lambda port: port == busy_port)
    use = f"use it: AGL_MANAGED_STORE=0 and --external-store-address http://127.0.0.1:{busy_port}; or end it"
    assert machine.check_port(busy_port) == Finding(
        f"{busy_port}: a store answers", (Problem("it may be another run's", use, blocks=False),)
    )


@pytest.mark.parametrize(
    ("mariadbd", "install_db", "missing"),
    [
        pytest.param(None, None, "no mariadbd", id="no_server"),
        pytest.param("/usr/sbin/mariadbd", None, "no mariadb-install-db", id="server_without_its_installer"),
    ],
)
def test_without_mariadb_a_run_can_start_all_the_same(mariadbd: str | None, install_db: str | None, missing: str):
    remedy = "sudo apt-get install -y --no-install-recommends mariadb-server"
    problem = Problem("--backend mariadb will not work, SQLite will", remedy, blocks=False)
    assert machine.check_databases(mariadbd, install_db) == Finding(
        f"SQLite {machine.sqlite3.sqlite_version}, {missing}", (problem,)
    )


def test_the_report_reads_without_colours():
    findings = [
        ("Python", Finding("3.11.7")),
        ("databases", Finding("SQLite", (Problem("no server", "apt-get [it]", blocks=False),))),
        ("memory", Finding("1.0 GiB available", (Problem("a run needs 8 GiB", "add memory"),))),
    ]
    assert [text for text, _ in format_findings(findings)] == [
        "ok       Python      3.11.7",
        "warning  databases   SQLite",
        "                     no server",
        "                     -> apt-get [it]",
        "problem  memory      1.0 GiB available",
        "                     a run needs 8 GiB",
        "                     -> add memory",
        "1 to mend before a run can start",
    ]


def test_brackets_reach_the_terminal(capsys: pytest.CaptureFixture[str]):
    assert show([("packages", Finding("install pyright[nodejs]"))]) == 0
    assert capsys.readouterr().out == "ok       packages    install pyright[nodejs]\na run can start\n"


@pytest.mark.parametrize(
    ("problems", "status"),
    [
        pytest.param((), 0, id="nothing"),
        pytest.param((Problem("no MariaDB", "install it", blocks=False),), 0, id="a_warning"),
        pytest.param((Problem("no AVX2", "another machine"),), 1, id="a_problem"),
    ],
)
def test_the_exit_status_says_whether_a_run_can_start(
    problems: tuple[Problem, ...], status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor, "examine", lambda **_: [("thing", Finding("found", problems))])
    assert doctor.main([]) == status


def test_a_model_may_be_named_by_its_id_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "models--org--small"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    snapshot = place / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = check_model(Path("org/small"), "fc")
    assert found.found == str(snapshot)
    assert f"{snapshot} has no chat template" in " ".join(problem.what for problem in found.problems)


def test_a_missing_model_folder_keeps_a_run_from_starting(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert doctor.main(["--model", str(tmp_path / "nothing")]) == 1
    assert f"{tmp_path}/nothing is no folder" in capsys.readouterr().out


ORDERS = Path(__file__).parents[3] / "examples" / "own_environment"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env", "dbench"], "-> known: agent, dbbench,"),
        (["--env", f"{ORDERS}/orders.py:Order"], "it defines Orders"),
        (["--env", f"{ORDERS}/orders.py:Orders", "--train-file", "rowz.jsonl"], "rowz.jsonl: no such file"),
        (["--train-file", "none.jsonl"], "none.jsonl: no such file"),
    ],
)
def test_tasks_that_a_run_could_not_read_keep_it_from_starting(flags, words, capsys: pytest.CaptureFixture[str]):
    assert doctor.main(flags) == 1
    assert words in capsys.readouterr().out


def test_a_limit_of_prompts_below_one_is_a_mistake_of_the_command_line(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--max-prompt-tokens", "-3"])
    assert ended.value.code == 2
    assert "--max-prompt-tokens is -3; it has to be 1 or more" in capsys.readouterr().err


def test_the_tasks_of_an_environment_of_ones_own_are_counted(capsys: pytest.CaptureFixture[str]):
    doctor.main(["--env", f"{ORDERS}/orders.py:Orders", "--train-file", f"{ORDERS}/rows.jsonl"])
    assert re.search(
        r"ok       tasks       \S+orders.py:Orders: \d+ to train on, \d+ held out", capsys.readouterr().out
    )


def test_the_references_of_questions_about_a_database_are_run(tmp_path: Path):
    database, tasks = tmp_path / "fish.db", tmp_path / "q.json"
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(
            "CREATE TABLE fish (name TEXT); INSERT INTO fish VALUES ('carp'); CREATE VIEW v AS SELECT 1;"
        )
    seen = "1 SQLite, 2 tables and views, 0.0 MiB"
    assert check_database(database, None) == Finding(seen)

    def found(*queries: str) -> Finding:
        tasks.write_text(json.dumps([{"question": "?", "query": query} for query in queries]))
        return check_database(database, tasks)

    assert found("SELECT name FROM fish") == Finding(f"{seen}; 1 questions")
    assert found("DELETE FROM fish; INSERT INTO fish VALUES ('eel')") == Finding(f"{seen}; 1 questions")
    what = "1 references fail and their questions will be left out: q-2 (?): no such column: nam"
    remedy = f"correct them in {tasks}; a reference is SQLite's SQL, one SELECT or what changes data"
    problem = Problem(what, remedy, blocks=False)
    assert found("SELECT name FROM fish", "SELECT nam FROM fish") == Finding(f"{seen}; 2 questions", (problem,))
    assert found("SELECT nam FROM fish").blocks  # nothing is left
    found("SELECT name FROM fish")
    [(_, refused)] = examine(database=database, tasks=tasks, splits=True, columns=None)
    assert refused.blocks
    assert refused.problems[0].what.startswith("1 question(s) with 1 different reference(s) are too few to hold some")
    [(_, refused)] = examine(database=tasks, tasks=None, splits=False, columns=None)
    assert refused.problems[0].what.startswith(f"{tasks} is no SQLite database")


def test_what_a_split_leaves_unmeasured_and_what_every_empty_query_solves_is_said_before_anything_is_learnt(tmp_path):
    database, tasks = tmp_path / "fish.db", tmp_path / "q.json"
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("CREATE TABLE fish (name TEXT); INSERT INTO fish VALUES ('eel');")
    plain = [f"SELECT name FROM fish WHERE name <> '{n}'" for n in range(9)]
    other = ["SELECT name FROM fish GROUP BY name", "SELECT name FROM fish WHERE 0", "UPDATE fish SET name = 'eel'"]
    tasks.write_text(json.dumps([{"question": f"{q}?", "query": q} for q in [*plain, *other]]))
    more = "give more tasks, or hold others out: --val-file FILE"
    assert [(p.what, p.remedy, p.blocks) for p in check_database(database, tasks, splits=True).problems] == [
        ("held out, but never trained on: update", more, False),
        ("trained on, but not held out, so not measured: group", more, False),
        ("3 held-out tasks: no change can be clear (McNemar's exact test, p < 0.05), which takes 6 newly solved", more,
         False),
        ("2 references give no row or change nothing, the first of q-11 (SELECT name FROM fish WHERE 0?): such a "
         "question is left out of training, and where it is held out every query that finds nothing is right",
         f"correct them in {tasks}, or leave them out", False),
    ]  # fmt: skip


def test_of_a_wheel_it_says_which_extras_are_whole():
    required = [
        "pydantic<3,>=2.13",
        'torch; extra == "local"',
        'trl==1.16.0; extra == "local"',
        'agentgrpo[local]; extra == "train"',
        'verl==0.9.1; extra == "train"',
        'poml==0.0.8; extra == "apo"',
    ]
    local, train = {"torch": "2.13", "trl": "1.16.0"}, {"torch": "2.13", "verl": "0.9.1", "vllm": "0.28"}
    found = "agentgrpo[local] is whole; agentgrpo[train] lacks verl, vllm"
    assert machine.check_extras(local, required) == Finding(found)
    found = "agentgrpo[train] is whole; agentgrpo[local] lacks trl"
    assert machine.check_extras(train, required) == Finding(found)
