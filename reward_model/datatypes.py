"""The records of `reward_model`. Importing this module is instant."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from agentgrpo.chat.conversations import short_repr
from agentgrpo.chat.messages import Message, Record, why_rendered

# This file beside an adapter, a checkpoint or a merged model says how it was made: max_length, base, versions.
RECORD = "reward_model.json"
# The service and the client's command read their bearer token from this environment variable.
TOKEN_VARIABLE = "REWARD_API_TOKEN"
# The metadata of a pair of rollouts, which `pairs_from_rollouts` writes. Its texts are the policy's own.
ROLLOUTS = frozenset({"task_id", "kind", "sources"})


class Preference(Record):
    prompt: tuple[Message, ...] = Field(min_length=1, strict=False)
    chosen: tuple[Message, ...] = Field(min_length=1, strict=False)
    """The messages after `prompt`; the last message is the assistant's."""
    rejected: tuple[Message, ...] = Field(min_length=1, strict=False)
    tools: str | None = None
    """The tools' schemas as the text of a JSON list, the form that TRL reads back from any file."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """The origin of the row. It is not scored."""

    @model_validator(mode="after")
    def _assistant_speaks_last(self) -> Preference:
        for name in ("chosen", "rejected"):
            role = getattr(self, name)[-1].role
            if role != "assistant":
                raise ValueError(f"{name} ends with a {role} message; what is scored has to end with the assistant")
        return self

    @property
    def rendered_part(self) -> tuple[str, str] | None:
        """A part with a text that a chat template has written, and what to do; a policy may write any text."""
        parts = {"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected}
        return None if self.metadata.keys() == ROLLOUTS else rendered_part(**parts)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values. Arguments of calls are objects, because chat templates write `arguments | tojson`: TRL
        would train a text as a text in quotes. `Preference.model_validate` is the inverse, but for white space in
        arguments.
        """
        sides: dict[str, object] = {
            side: [m.to_dict(objects=True) for m in getattr(self, side)] for side in ("prompt", "chosen", "rejected")
        }
        return sides | {name: value for name in ("tools", "metadata") if (value := getattr(self, name))}


def rendered_part(**parts: Sequence[Message]) -> tuple[str, str] | None:
    """The first of some parts of a row with a text that a chat template has written, and what to do."""
    found = ((name, why_rendered(message)) for name, messages in parts.items() for message in messages)
    return next(((name, why) for name, why in found if why is not None), None)


def prompt_key(row: Preference) -> str:
    # Equal for equal prompts, however arguments of calls are written.
    return json.dumps([message.to_dict(objects=True) for message in row.prompt], ensure_ascii=False, sort_keys=True)


def place_of(row: Preference, source: str) -> str:
    # A pair is named by its prompt, since its number in the file is lost once it is split.
    return f"{source}, pair with the prompt {short_repr(row.prompt[-1].content)}"


@dataclass(frozen=True)
class EncodedConversation:
    ids: tuple[int, ...]
    truncated: bool = False
    """Whether the conversation was longer than the model's limit, so that its first tokens were cut."""


@dataclass(frozen=True)
class RewardScore:
    value: float
    truncated: bool = False
    """Whether the conversation was cut before it was scored."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"the reward model gave {self.value}; its weights hold NaN or overflow")


def compare_scores(chosen: RewardScore, rejected: RewardScore) -> dict[str, object]:
    # The client's command prints the same as `/score-pair` answers.
    difference = chosen.value - rejected.value
    answer = {
        "chosen_score": chosen.value,
        "rejected_score": rejected.value,
        "preference": "chosen" if difference > 0 else "rejected" if difference < 0 else "tie",
        "score_diff": difference,
    }
    return with_truncated(answer, chosen, rejected)


def with_truncated(answer: dict[str, object], *scores: RewardScore) -> dict[str, object]:
    return answer | {"truncated": True} if any(score.truncated for score in scores) else answer
