"""A password is in nothing that is written or printed, however its address is spelled."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from agentgrpo import passwords
from agentgrpo.flags import Parser
from agentgrpo.passwords import VARIABLE, BackendSpec, hidden, masked, revealed
from dbbench_adapter.engines import open_backend

ROOT = Path(__file__).parents[2]
SECRETS = [
    "hunter2", "p@ss", "a:b", "sl/ash", "ha#sh", "qu?ery", "p%40ss", "two words", "q'uo\"te", "[x]", "12/34", "ü",
    "$(x)", "=x=", "a,b", "http://x:y@z",
]  # fmt: skip
SCHEMES = ["mysql://", "MYSQL://", "mariadb://", "postgresql+psycopg://", "mysql:/", "mysql:///", "mysql+pymysql://"]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(passwords, "_passwords", {})
    monkeypatch.delenv(VARIABLE, raising=False)


# what is shown --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["db.example:3306", "127.0.0.1", "[::1]:3306", "h:3306/name?charset=utf8"])
def test_user_and_place_are_shown_and_no_part_of_the_password(place):
    given = [*itertools.product(SCHEMES, SECRETS)]
    shown = [hidden(f"{scheme}user:{secret}@{place}") for scheme, secret in given]
    assert shown == [f"{scheme}user:***@{place.replace('charset=utf8', '***')}" for scheme, _ in given]
    assert [*map(hidden, shown)] == shown


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("sqlite", "sqlite"),
        ("mariadb", "mariadb"),
        ("mysql://h", "mysql://h"),
        ("mysql://h:3306", "mysql://h:3306"),
        ("mysql://h:3306/", "mysql://h:3306/"),
        ("mysql://user@h:3306", "mysql://user@h:3306"),
        pytest.param("user:secret@h", ":***@h", id="scheme_forgotten"),
        pytest.param("mysql://user:secret", "mysql://user:***", id="host_forgotten"),
        pytest.param("mysql://user:12secret", "mysql://user:***", id="host_forgotten_after_a_digit"),
        pytest.param("mysql://h?user=u&password=secret", "mysql://h?***", id="in_the_query"),
    ],
)
def test_what_holds_no_password_is_shown_as_it_is(spec, shown):
    assert hidden(spec) == shown


@pytest.mark.parametrize("secret", ["hunter2", "p@ss", "a:b", "sl/ash", "ha#sh", "q'uo\"te", "http://x:y@z"])
def test_a_text_is_shown_without_the_passwords_in_it(secret):
    text = f"no server at mysql://u:{secret}@h:3306; see http://localhost:9999/v1 or http://a@b"
    assert masked(text) == "no server at mysql://u:***@h:3306; see http://localhost:9999/v1 or http://a@b"


@pytest.mark.parametrize("secret", SECRETS)
def test_a_word_of_a_command_line_is_shown_without_it(secret):
    word = f"rollout.backend=mysql://u:{secret}@h"
    assert masked(word, whole=True) == "rollout.backend=mysql://u:***@h"
    assert masked("--set", whole=True) == "--set"


def test_a_command_line_that_is_wrong_is_shown_without_it(capsys):
    with pytest.raises(SystemExit):
        Parser().parse_args(["mysql://u:two words@h"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: mysql://u:***@h\n")


# where it comes from --------------------------------------------------------------------------------------------------


class Settings(BaseModel):
    backend: BackendSpec = "sqlite"


@pytest.mark.parametrize(("secret", "place"), [*itertools.product(SECRETS, ["h", "h:1"])])
def test_a_setting_is_hidden_when_it_is_read_and_whole_where_it_is_used(secret, place):
    spec = f"mysql://u:{secret}@{place}"
    cfg = Settings(backend=spec)
    again = Settings.model_validate_json(cfg.model_dump_json())
    assert cfg == again and cfg.backend == f"mysql://u:***@{place}"
    assert secret not in repr(cfg) + cfg.model_dump_json()
    assert revealed(again.backend) == spec


@pytest.mark.parametrize("given", ["mysql://u:***@h:1", "mysql://u@h:1", "mysql://u:@h:1"])
def test_the_environment_fills_it_in(given, monkeypatch):
    monkeypatch.setenv(VARIABLE, "p@ss:/#?%")
    assert revealed(given) == "mysql://u:p%40ss%3A%2F%23%3F%25@h:1"
    assert revealed("mysql://u:other@h:1") == "mysql://u:other@h:1"
    assert [revealed(spec) for spec in ("sqlite", "mariadb", "mysql://h")] == ["sqlite", "mariadb", "mysql://h"]


def test_one_that_nobody_knows_is_asked_for():
    with pytest.raises(ValueError, match=r"password of mysql://u:\*\*\*@h is in no file.*or set AGENTGRPO_DB"):
        revealed("mysql://u:***@h")
    assert revealed("mysql://u@h") == "mysql://u@h"  # there are accounts without one


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_error_of_a_backend_shows_it(scheme):
    for secret in SECRETS:
        spec = f"{scheme}user:{secret}@127.0.0.1:notaport"
        for given in (spec, hidden(spec)):
            with pytest.raises(ValueError) as refused, open_backend(given):
                pass
            assert secret not in str(refused.value)
            assert "user:***@127.0.0.1:notaport" in str(refused.value)


@pytest.mark.parametrize("secret", ["sl/ash", "12/34", "ha#sh", "12#34", "qu?ery", "1?2", "[x]"])
def test_a_password_that_has_to_be_written_otherwise_is_not_taken_for_the_place(secret):
    """`mysql://u:12/34@h` would be port 12 of a host called u."""
    with pytest.raises(ValueError, match=r"is no address.*write %40 for @, %2F for /") as refused:
        open_backend(f"mysql://u:{secret}@127.0.0.1:1").__enter__()
    assert secret not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [
            "-m",
            "agentgrpo",
            "evaluate",
            "--base-url",
            "http://127.0.0.1:1/v1",
            "--model",
            "m",
            "--tasks",
            "x",
            "--backend",
        ],
        ["-m", "agentgrpo", "greedy-grpo", "--model_path", "nowhere", "--backend"],
        ["-m", "bench.dbbench", "--episodes", "64", "--backend"],
        ["-m", "agentgrpo", "tasks", "validate", "README.md", "--replay"],
        ["-m", "dbbench_adapter.episode", "--backend"],
        ["-m", "agentgrpo", "tasks", "replay", "README.md", "--backends"],
        ["-m", "agentgrpo", "interactive", "--model_path", "nowhere", "--backend"],
    ],
    ids=lambda command: command[1],
)
@pytest.mark.parametrize("spec", ["mysql://u:hunter2@127.0.0.1:1", "mysqll://u:hunter2@127.0.0.1:1"])
def test_no_command_prints_it(command, spec):
    done = subprocess.run([sys.executable, *command, spec], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert "hunter2" not in done.stdout + done.stderr
