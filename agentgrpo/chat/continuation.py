"""Continues a conversation from the sampled token ids.

A template may rewrite what it wrote earlier; trainers that render whole conversations ask for one that does not
(`agentgrpo.chat.replies`). vLLM's chat server continues conversations with this
(`sql_agent.verl_side.plugin.exact_prompts`); whether a template allows it is tried by `agentgrpo.chat.continuity`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentgrpo.chat.template import Message

# The text of `another_reply`. A reply with exactly this text is not continued exactly and counts as a break.
OTHER = "Another reply."


def another_reply(reply: Mapping[str, Any]) -> Message:
    """The calls keep their ids and names, because templates write these beside a call's result."""
    arguments = json.dumps({"other": OTHER})
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments}} for call in reply.get("tool_calls") or []
    ]
    said: Message = {"content": "", "tool_calls": calls} if calls else {"content": OTHER}
    return {"role": "assistant", **said}


def continue_exactly(
    known: Sequence[int], rendered: Sequence[int], otherwise: Sequence[int], ends: Collection[int]
) -> list[int] | None:
    """Join a prompt to `known`, so that nothing sampled is tokenised again; None if there is no place to join at.

    The conversation is rendered twice, the second time with another reply instead of this one. The common suffix of
    both is the text after the reply, and it begins with the token that ends the reply. So it does not matter how a
    template writes the reply and everything before it. Qwen3's, for example, adds an empty thought to a reply while it
    is the last one and drops the thoughts of earlier replies, so a rendering without the later messages is never a
    prefix of the one with them.

    Args:
        known: prompt and sampled ids up to the end of the reply.
        rendered: the template's ids of the whole request.
        otherwise: the same with `another_reply` instead of the reply.
        ends: tokens that may end an assistant turn.
    """
    seam = end_of_reply(rendered, otherwise, ends)
    if seam is None:
        return None
    closed = list(known) if known[-1] == rendered[seam] else [*known, rendered[seam]]
    return closed + list(rendered[seam + 1 :])


def end_of_reply(rendered: Sequence[int], otherwise: Sequence[int], ends: Collection[int]) -> int | None:
    """Position in `rendered` of the token that ends the reply; None without one."""
    shortest, common = min(len(rendered), len(otherwise)), 0
    while common < shortest and rendered[-1 - common] == otherwise[-1 - common]:
        common += 1
    if common == shortest:  # the template leaves the reply out
        return None
    return next((i for i in range(len(rendered) - common, len(rendered)) if rendered[i] in ends), None)
