"""One table of checks: a command says what it is about to use, and the checks that need no more are made."""

import inspect
from importlib import import_module

import pytest

from agentgrpo import checks
from agentgrpo.checks import CHECKS, Check, Finding, Problem, UsageError, examine, require

SLOW = Problem("one core", "give two", blocks=False)
HERE = "agentgrpo.tests.test_checks"


def look_at_cores(cores):
    return Finding(f"{cores}", (SLOW,) if cores < 2 else ())


def look_at_folder(folder):
    return Finding(folder, (Problem(f"{folder} is a file", "name another"), Problem("it is full", "make room")))


async def ask(server):
    raise ValueError(f"{server} is silent; start it")


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", (
        Check("CPU", ("cores",), "no time", f"{HERE}:look_at_cores", "it"),
        Check("folder", ("folder",), "no time", f"{HERE}:look_at_folder", "it"),
        Check("server", ("server",), "5 s", f"{HERE}:ask", "it"),
        Check("both", ("server", "folder"), "5 s", f"{HERE}:gone", "it"),
    ))  # fmt: skip


def test_what_does_not_keep_a_run_from_starting_is_said(table):
    said: list[str] = []
    require(said.append, cores=1)
    assert said == ["warning: one core; give two"]


def test_all_problems_of_the_first_check_that_has_any_are_named_and_nothing_later_is_looked_at(table):
    with pytest.raises(UsageError) as refused:
        require(cores=2, folder="a", server="b")
    assert str(refused.value) == "a is a file; name another\nit is full; make room"
    with pytest.raises(ValueError, match="b is silent; start it"):
        require(server="b")


def test_a_report_has_every_finding_and_an_error_is_a_problem_with_its_remedy(table):
    assert examine(cores=2, server="b") == [
        ("CPU", Finding("2")),
        ("server", Finding("b", (Problem("b is silent", "start it"),))),
    ]


def test_a_package_that_cannot_be_imported_is_a_problem_of_the_report(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", (Check("model", ("model",), "2 s", "agentgrpo.not_there:check", "it"),))
    [(name, finding)] = examine(model="m")
    [problem] = finding.problems
    assert (name, finding.found, problem.what) == (
        "model", "m", "a package cannot be imported (No module named 'agentgrpo.not_there')"
    )  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.name}-{'-'.join(check.needs)}")
def test_every_check_is_there_and_takes_what_it_needs(check):
    module, _, name = check.run.partition(":")
    inspect.signature(getattr(import_module(module), name)).bind(*check.needs)
    assert check.cost and check.looks_at
