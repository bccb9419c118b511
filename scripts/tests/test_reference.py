"""doc/reference/ is what the code makes of it, and every metric that code can log is registered."""

import ast
import re

import pytest

from scripts.pages.__main__ import FOLDER, PAGES, page
from scripts.pages.metrics import registry
from scripts.pages.settings import rows_of
from scripts.pages.tables import ROOT
from scripts.tests.metric_names import patterns, unregistered
from sql_agent.settings.train import TrainConfig
from sql_agent.verl_side.tracking import RENAMED


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_has_it(name):
    written = (FOLDER / f"{name}.md").read_text("utf-8")
    assert written == page(name), f"doc/reference/{name}.md is not as the code has it; run `make reference`"


def test_no_other_page_stands_beside_them():
    assert sorted(file.stem for file in FOLDER.iterdir()) == sorted(PAGES)


def test_every_setting_says_what_it_means():
    assert [name for name, _, meaning, _ in rows_of(TrainConfig) if not meaning] == []


AREAS = {
    name.partition("/")[0]
    for group in registry()
    if group.title != "Under verl's own names"
    for metric in group.metrics
    for name in metric.names
    if "/" in name
} - {"data"}  # folders are called so, too
FIXED = [pattern for name, pattern in patterns().items() if not re.match(r"\w+/[A-Z]", name)]
"""Without `reward/NAME`, which any part of a reward is."""
WRITERS = [
    file
    for package in ("agentgrpo", "reward_model", "sql_agent")
    for file in sorted((ROOT / package).rglob("*.py"))
    if not {"tests", "report", "plugin"} & {*file.parts}
]


def texts(file):
    """Yield the strings of a file with their lines, and those of f-strings with `x` where a value stands."""
    tree = ast.parse(file.read_text("utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def logged(file):
    """Yield what looks like a metric, as a pattern of its names."""
    for line, text in texts(file):
        name = text.removeprefix("val/")
        if re.fullmatch(r"[a-z_]+(?:/[\w{}]+)+", name) and name.partition("/")[0] in AREAS:
            yield f"{file.relative_to(ROOT)}:{line}", name


def test_every_metric_in_the_code_is_registered():
    found = [each for file in WRITERS for each in logged(file)]
    names = [name for group in registry() for metric in group.metrics for name in metric.names]

    def known(text):
        """A name with values in it stands for a registered one with other words, or for several."""
        if "{}" not in text:
            return any(pattern.fullmatch(text) for pattern in FIXED)
        form = re.compile(re.escape(text).replace(r"\{\}", "\\w+"))
        return any(form.fullmatch(name) for name in names)

    assert [f"{place}: {name}" for place, name in found if not known(name)] == []
    assert len({name for _, name in found}) > 80


def test_the_names_that_verls_metrics_get_are_registered():
    assert unregistered(RENAMED.values()) == []


def test_a_name_that_is_not_registered_is_found():
    assert unregistered(["val/rollout/success", "rollout/lost/server_down", "rollout/sucess", "loss"]) == [
        "rollout/sucess", "loss"
    ]  # fmt: skip
