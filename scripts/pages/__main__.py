"""Writes doc/reference/ from the code: `make reference`. A test compares the pages with the code."""

from __future__ import annotations

import os

from agentgrpo.printed_commands import agentgrpo_command, shipped_settings
from scripts.pages import (
    chat_templates,
    commands,
    doctor,
    metrics,
    python,
    services,
    settings,
    stop_reasons,
    verl_keys,
)
from scripts.pages.tables import ROOT
from sql_agent.names import TINY_POLICY

FOLDER = ROOT / "doc" / "reference"
MADE = "<!-- made by make reference; do not edit -->"
PAGES = {
    "commands": commands.page,
    "settings": settings.page,
    "verl_keys": verl_keys.page,
    "metrics": metrics.page,
    "stop_reasons": stop_reasons.page,
    "doctor": doctor.page,
    "chat_templates": chat_templates.page,
    "services": services.page,
    "python": python.page,
}


def page(name: str) -> str:
    """The text of a page, with the paths of a clone wherever this Python and this shell stand."""
    text = PAGES[name]().strip()
    for here, in_clone in {
        agentgrpo_command(""): ".venv/bin/agentgrpo ",
        os.path.relpath(TINY_POLICY): "models/tiny-sql",
        shipped_settings(): "sql_agent/configs",
    }.items():
        text = text.replace(here, in_clone)
    return f"{MADE}\n\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(page(name), encoding="utf-8")
    print(f"wrote {len(PAGES)} pages into {FOLDER.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
