"""Names of what a run used, as strangers may read them: no path of this machine, no address, no password."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from agentgrpo.hub_address import HubRows, hub_address, is_hub_rows
from agentgrpo.json_text import parse_json
from agentgrpo.passwords import masked
from sql_agent.report.page import model_name
from sql_agent.report.reading import ADAPTER_CONFIG, Run

_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")
# An address, alone or as the value of a flag or setting; one of rows on the hub is shown.
_ADDRESS = re.compile(r"(.*?=)?(?!hf:)([\w+.-]+)://")


def public_name(value: str) -> str:
    """An id on the hub or the name of a file or folder; of an address its scheme."""
    if found := _CACHED.search(value):
        return f"{found[1]}/{found[2]}"
    if (rows := hub_address(value)) is not None:
        return rows
    if is_hub_rows(value):
        return str(HubRows.parse(value))
    if "://" in value:
        return f"{value.partition('://')[0]}://..."
    return Path(value).name if "/" in value else value


def base_of(run: Run) -> str:
    """What the model was trained from, without the adapter: an id on the hub, or a path of this machine."""
    try:
        assert run.model is not None
        return str(parse_json((run.model / ADAPTER_CONFIG).read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError):
        return str(model_name(run) or "unknown")


def hub_id(model: str) -> str | None:
    """The id of a model that the hub has; None for a folder of this machine."""
    from agentgrpo.hub import may_be_id

    found = _CACHED.search(model)
    if found:
        return f"{found[1]}/{found[2]}"
    return model if "/" in model and may_be_id(model) and not Path(model).exists() else None


def shown_base(run: Run) -> str:
    base = base_of(run)
    return hub_id(base) or public_name(base)


def command_of(run: Run) -> str:
    program, *words = [masked(str(word), whole=True) for word in run.facts.get("argv") or [""]]
    own = {str(model_name(run)), base_of(run)}
    shown = [(hub_id(word) if word in own else None) or _public_word(word) for word in words]
    return " ".join([Path(program).name, *map(shlex.quote, shown)])


def _public_word(word: str) -> str:
    if (found := _ADDRESS.match(word)) is not None:
        return f"{found[1] or ''}{found[2]}://..."
    # a reward is FILE.py:NAME=WEIGHT, a setting or a flag NAME=VALUE
    return "=".join(public_name(part) for part in word.split("="))
