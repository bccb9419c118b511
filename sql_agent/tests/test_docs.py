"""The pages name what the code has."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentgrpo.settings import verl_keys_of
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.flags import parse_train_args
from sql_agent.verl_side.tracking import RENAMED

DOC = Path(__file__).parents[2] / "doc"


def rows(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Lines of the page's table of settings, from the fields, their defaults and the docstrings below them."""
    lines: list[str] = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            lines += rows(kind, f"{prefix}{name}.")
            continue
        meaning, key = " ".join((field.description or "").split()), ", ".join(verl_keys_of(field))
        cells = [f"`{prefix}{name}`", shown(field.default), meaning, f"`{key}`" if key else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def shown(default: Any) -> str:
    if default is None:
        return ""
    if default == ():
        return "none"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_every_setting_is_in_the_training_page_with_its_default_and_its_meaning():
    page = (DOC / "training.md").read_text().splitlines()
    assert [row for row in rows(TrainConfig) if row not in page] == []


def test_every_flag_is_in_the_training_page():
    page = (DOC / "training.md").read_text()
    flags = ["--" + name.replace("_", "-") for name in vars(parse_train_args([])) if name != "overrides"]
    assert [flag for flag in flags if f"`{flag}" not in page] == []


def test_every_renamed_metric_is_in_the_metrics_page():
    page = (DOC / "metrics.md").read_text()
    assert [name for name in RENAMED.values() if f"`{name}`" not in page] == []


PROGRAM = r"\.venv/bin/\S+|python3?|make|bash|accelerate|agl|vllm|docker|\.|curl|pytest|uv|export"
COMMAND = re.compile(rf"(\$ )?(\w+=\S* )*({PROGRAM})( |$)")
PAGES = [*sorted(DOC.glob("*.md")), *sorted(DOC.parent.glob("*.md"))]


def blocks_of_commands(page: str) -> list[list[str]]:
    """Return the lines of the code blocks without a language in which a command begins a line."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    blocks = [text.splitlines() for language, text in fenced if not language]
    return [lines for lines in blocks if any(map(COMMAND.match, lines))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_can_be_pasted_into_a_shell_that_knows_no_comments(page):
    """zsh reads a # that is typed as a word: behind a command it is an argument, and a quote or `;` after it counts."""
    lines = [line for block in blocks_of_commands(page.read_text()) for line in block]
    assert [line for line in lines if re.search(r"\S\s+#", line)] == []
    assert [line for line in lines if line.startswith("#") and not re.fullmatch(r"# [\w ,.:%/=+-]+", line)] == []


def test_the_first_page_has_the_same_commands_in_both_languages():
    english, chinese = (
        blocks_of_commands((DOC.parent / name).read_text()) for name in ("README.md", "README.zh-CN.md")
    )
    assert english == chinese
    assert len(english) > 8
