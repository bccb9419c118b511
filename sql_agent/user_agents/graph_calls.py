"""Watches the model calls of a graph of LangGraph, as a callback of LangChain.

A run leaves out what constrains a sampler, so a policy may answer a forced call with a text, or call a tool that it was
not offered. A node that takes such a reply apart raises, which is the policy's doing and no error of the code.
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

from agents import MaxTurnsExceeded, UserError
from langchain_core.callbacks import BaseCallbackHandler  # pyright: ignore[reportMissingImports]
from openai import APIError


class GraphCalls(BaseCallbackHandler):
    """Refuses a model that is no client of the openai package, and a call beyond the last turn.

    Args:
        max_turns: limit of the rollout's calls.
    """

    raise_error = run_inline = True  # LangChain logs what a callback raises and goes on without these

    def __init__(self, max_turns: int | None) -> None:
        self._max_turns = max_turns
        self._calls = 0
        self._asked: dict[UUID, dict[str, Any]] = {}
        # Why the last reply is not one that the graph asked for; None if it is, and while a call is open.
        self.misfit: str | None = None

    def on_chat_model_start(self, serialized: dict[str, Any], messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.misfit = None
        name = serialized["id"][-1]
        if not is_client(name):
            raise UserError(other_model(name))
        self._calls += 1
        if self._max_turns is not None and self._calls > self._max_turns:
            raise MaxTurnsExceeded(f"Max turns ({self._max_turns}) exceeded")
        self._asked[run_id] = kwargs.get("invocation_params") or {}

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.misfit = check_reply(self._asked.pop(run_id, {}), response.generations[0][0].message)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: object) -> None:
        asked = self._asked.pop(run_id, {})
        if "response_format" in asked and not isinstance(error, APIError):  # the client could not parse the reply
            self.misfit = "its reply does not have the form that was asked for"


def check_reply(asked: dict[str, Any], reply: Any) -> str | None:
    """Why a reply is not one that its request allows, in words; None if it is.

    Args:
        asked: the request's parameters, with `tools` and `tool_choice` in OpenAI's form.
        reply: LangChain's message.
    """
    offered = {tool["function"]["name"]: tool["function"] for tool in asked.get("tools") or () if "function" in tool}
    for call in reply.invalid_tool_calls:
        return f"its call of {call['name']} cannot be read: {call['args']}"
    for call in reply.tool_calls:
        if call["name"] not in offered:
            return f"it called {call['name']} and was offered {', '.join(offered) or 'no tool'}"
        missing = set(offered[call["name"]].get("parameters", {}).get("required", ())) - set(call["args"])
        if missing:
            return f"it called {call['name']} without {', '.join(sorted(missing))}"
    if not reply.tool_calls and asked.get("tool_choice") not in (None, "auto", "none"):
        return "it called no tool, and a call was asked for"
    return None


def is_client(name: str) -> bool:
    """Whether a class of this name calls its model by the openai package."""
    langchain_openai = sys.modules.get("langchain_openai.chat_models.base")
    kinds = [] if langchain_openai is None else [langchain_openai.BaseChatOpenAI]
    for kind in kinds:  # grows
        kinds.extend(kind.__subclasses__())
    return name in {kind.__name__ for kind in kinds}


def other_model(name: str) -> str:
    return (
        f"the graph asks a {name}, whose calls cannot go to the policy; use langchain_openai's ChatOpenAI, with any "
        "model's name"
    )
