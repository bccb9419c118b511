"""Finds the class of a user's own environment, and the tools of a class in TRL's form.

Every message names file, line and remedy. Leaves out the import of the file (`agentgrpo.user_files`) and the use of the
class (`user`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from agentgrpo.user_files import SourceFile, UserFileError, load_object, place
from sql_agent.names import ENVIRONMENTS, installed

# Public methods that TRL does not offer as tools (trl/trainer/grpo_trainer.py, 1.16).
NO_TOOLS = frozenset({"reset", "get_reward"})


def named(name: str) -> tuple[Any, SourceFile]:
    """What a registered name, `FILE.py:NAME`, `module:NAME` or an entry point names, and its source.

    Raises:
        UserFileError: there is no such file, module or name, or importing it raises.
    """
    return load_object(ENVIRONMENTS.get(name) or (name if ":" in name else installed(name) or name))


def tool_methods(kind: type) -> dict[str, Callable[..., Any]]:
    """The tools of a class by name: its public functions, as TRL lists them.

    Raises:
        UserFileError: the class has no `reset`.
    """
    functions = dict(inspect.getmembers(kind, predicate=inspect.isfunction))
    if "reset" not in functions:
        raise UserFileError(
            f"{place(kind)}: class {kind.__name__} has no method `reset`, which starts an episode; add "
            "`def reset(self, **row)`, or derive it from sql_agent.environments.tools.ToolEnvironment"
        )
    return {name: each for name, each in functions.items() if name not in NO_TOOLS and not name.startswith("_")}


@functools.lru_cache(maxsize=64)
def _schema(method: Callable[..., Any]) -> dict[str, Any]:
    from transformers.utils.chat_template_utils import (  # the import takes 1.4 s
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    try:
        tool = get_json_schema(method)
    except (DocstringParsingException, TypeHintParsingException, NameError) as error:
        words = str(error).rstrip(".!")
        raise UserFileError(
            f"{place(method)}: {method.__qualname__} cannot be offered as a tool: {words}. Every public method is one: "
            "give it type hints and a docstring with a line for each argument under `Args:`, or a name that begins "
            "with `_`"
        ) from None
    tool["function"].pop("return", None)  # the API has no such field
    return tool


def tool_schemas(kind: type) -> list[dict[str, Any]]:
    """The tools of a class in chat-completions form, as transformers derives them.

    A class that declares `strict_tools` also forbids arguments that a tool does not have.

    Raises:
        UserFileError: a tool has no docstring, or an argument no type hint or no description.
    """
    schemas = [_schema(method) for method in tool_methods(kind).values()]
    return [_strict(schema) for schema in schemas] if getattr(kind, "strict_tools", False) else schemas


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    parameters = {**schema["function"]["parameters"], "additionalProperties": False}
    return {**schema, "function": {**schema["function"], "parameters": parameters}}
