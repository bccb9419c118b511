"""The public Python interface: signatures and docstrings of what programs and files of users may import."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

from agentgrpo import INTERFACE
from scripts.pages.tables import code, doc_of, fields_of, table

HEAD = """# Python

Everything on this page is public; the [changelog](../../CHANGELOG.md) names every change to it. Other modules may
change without notice.
"""
PARTS = {
    "Commands as functions": (
        "Keywords are the flags of the [command](commands.md) with underscores. Each call runs in a process "
        "of its own. [Train by GRPO](../guides/training.md) has examples.",
        [f"agentgrpo:{name}" for name in sorted(INTERFACE)],
    ),
    "What they return": (
        "",
        ["sql_agent.report.reading:Run", "sql_agent.interface:Evaluation", "sql_agent.success_rate:Rate"],
    ),
    "Your own environment": (
        "See [train on your own environment](../guides/environment.md).",
        ["sql_agent.environments.tools:ToolEnvironment", "sql_agent.environments.tools:Lost"],
    ),
    "Reward functions": (
        "See [rewards](../guides/rewards.md). A function takes a `RewardRecord` and returns a number.",
        ["sql_agent.reward_functions.datatypes:RewardRecord", "sql_agent.reward_functions.datatypes:RewardUnavailable"],
    ),
    "The scoring service's client": (
        "See [train and serve a reward model](../guides/reward_model.md).",
        [
            "reward_model.client:RewardClient", "reward_model.datatypes:RewardScore",
            "reward_model.client:ScorerUnavailableError", "reward_model.client:ScorerRefusedError",
        ],
    ),
}  # fmt: skip


def page() -> str:
    return "\n\n".join([HEAD.rstrip(), *(part(title, *rest) for title, rest in PARTS.items())]) + "\n"


def part(title: str, note: str, names: list[str]) -> str:
    described = (describe(name.rpartition(":")[2], name, resolve_name(name)) for name in names)
    return "\n\n".join(filter(None, [f"## {title}", note, *described]))


def describe(title: str, name: str, thing: Any) -> str:
    """One function or class, with the public methods, properties and attributes that a class itself has."""
    module = name.partition(":")[0]
    lines = [f"### {module}.{title}" if module == "agentgrpo" else f"### {title}"]
    if module != "agentgrpo":
        lines.append(f"`from {module} import {title}`")
    if not inspect.isclass(thing):
        return "\n\n".join([*lines, f"```python\n{title}{signature(thing)}\n```", *docstring(thing)])
    if not dataclasses.is_dataclass(thing) and "__init__" in vars(thing):
        lines.append(f"```python\n{title}{signature(thing)}\n```")
    if thing.__doc__ and not thing.__doc__.startswith(f"{thing.__name__}("):
        lines += docstring(thing)
    if "__init__" in vars(thing) and not dataclasses.is_dataclass(thing):
        lines += docstring(thing.__init__)
    if attributes := [row for row in attributes_of(thing) if not row[0].startswith("`_")]:
        lines.append(table(("attribute", "type", "meaning"), attributes))
    if methods := list(methods_of(thing)):
        lines.append(table(("method", "meaning"), methods))
    return "\n\n".join(lines)


def attributes_of(kind: type) -> Iterator[tuple[str, str, str]]:
    for name, typed, meaning in fields_of(kind):
        yield code(name), code(typed), meaning
    for name, found in vars(kind).items():
        if isinstance(found, property) and not name.startswith("_") and found.fget:
            yield code(name), code(annotation(found.fget.__annotations__.get("return", ""))), doc_of(found).text


def methods_of(kind: type) -> Iterator[tuple[str, str]]:
    for name, found in vars(kind).items():
        function = getattr(found, "__func__", getattr(found, "function", found))
        if inspect.isfunction(function) and not name.startswith("_"):
            said = doc_of(function)
            rest = [f"`{each}`: {text}" for each, text in said.args.items()]
            rest += [f"Raises `{each}`: {text}" for each, text in said.raises.items()]
            how = "async " if inspect.iscoroutinefunction(function) else ""
            yield code(f"{how}{name}{signature(function, method=True)}"), " ".join([said.text, *rest])


def signature(thing: Any, *, method: bool = False) -> str:
    found = inspect.signature(thing)
    parameters = list(found.parameters.values())[method:]
    return annotation(str(found.replace(parameters=parameters)))


def annotation(text: Any) -> str:
    """A type as it is written, without quotes and modules."""
    return re.sub(r"'([^']+)'", r"\1", re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", str(text)))


def docstring(thing: Any) -> Iterator[str]:
    text, args, returns, raises = doc_of(thing)
    if text:
        yield re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    items = [f"- `{name}`: {meaning}" for name, meaning in args.items()]
    items += [f"- Returns: {returns}"] if returns else []
    items += [f"- Raises `{name}`: {meaning}" for name, meaning in raises.items()]
    if items:
        yield "\n".join(items)
