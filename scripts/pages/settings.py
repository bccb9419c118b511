"""The settings of `agentgrpo train` and of `agentgrpo single-skill`, from their models and docstrings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from agentgrpo.settings import verl_keys_of
from scripts.pages.tables import code, table
from sql_agent.settings.single_skill import ExperimentConfig
from sql_agent.settings.train import TrainConfig

HEAD = """# Settings

A setting is given in a YAML file (`--config FILE`), or on the command line, which wins:

```
.venv/bin/agentgrpo train --set optim.learning_rate=3e-5 trainer.steps=40 --dry-run
```

`--dry-run` prints all settings as the run would have them, and verl's. Some have a flag of their own:
[commands](commands.md#train). Commands other than `train` and `single-skill` take flags only.
"""
SINGLE_SKILL = """## Files of single-skill

`agentgrpo single-skill --config FILE` reads these. A file may `import` others, and `overwrite` settings of theirs.
"""


def page() -> str:
    groups = by_group(TrainConfig)
    verls = ("setting", "default", "meaning", "verl key")
    parts = [f"## {name or 'The run'}\n\n{table(verls, rows)}\n" for name, rows in groups.items()]
    own = [row[:3] for rows in by_group(ExperimentConfig).values() for row in rows]
    return "\n".join([HEAD, *parts, SINGLE_SKILL, table(verls[:3], own)])


def by_group(model: type[BaseModel]) -> dict[str, list[tuple[str, str, str, str]]]:
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    for row in rows_of(model):
        group = row[0].strip("`").rpartition(".")[0].partition(".")[0]
        found.setdefault(group, []).append(row)
    return found


def rows_of(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str, str]]:
    """Name, default, meaning and verl's keys of every setting, in the order of the fields."""
    rows: list[tuple[str, str, str, str]] = []
    for name, field in model.model_fields.items():
        kind, shown = field.annotation, field.serialization_alias or name
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows += rows_of(kind, f"{prefix}{shown}.")
        else:
            default = "required" if field.is_required() else default_of(field.default)
            rows.append((f"`{prefix}{shown}`", default, field.description or "", code(*verl_keys_of(field))))
    return rows


def default_of(default: Any) -> str:
    if default is None:
        return ""
    if default in ((), {}):
        return "none"
    if isinstance(default, tuple):
        return code(*map(str, default))
    return code(str(default).lower() if isinstance(default, bool) else str(default))
