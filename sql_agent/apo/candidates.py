"""Every text of instructions that a search has made, with its results, in RUN/candidates.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from agentgrpo.outputs import written
from sql_agent.source.datatypes import Rollout
from sql_agent.success_rate import Rate

Purpose = Literal["gradient", "selection", "held-out"]


class Candidates:
    """v0 are the instructions that the search begins with.

    Args:
        file: is written anew after each change, so that a killed run leaves what it had.
    """

    def __init__(self, file: Path, seed: str) -> None:
        self._file = file
        self._parents: dict[str, str | None] = {seed: None}
        self._played: dict[str, dict[str, Any]] = {}
        self._rejected: list[dict[str, Any]] = []

    @property
    def rejected(self) -> Counter[str]:
        return Counter(each["reason"] for each in self._rejected)

    def __contains__(self, text: str) -> bool:
        return text in self._parents

    def add(self, text: str, parent: str) -> None:
        self._parents[text] = parent

    def parent(self, text: str) -> str | None:
        return self._parents[text]

    def reject(self, text: str | None, parent: str, reason: str, error: str) -> None:
        self._rejected.append({"parent": parent, "reason": reason, "error": error, "instructions": text})
        self._write()

    def add_result(self, version: str, text: str, purpose: Purpose, results: Sequence[Rollout]) -> None:
        entry = {"version": version, "parent": self._parents[text], "instructions": text, "results": []}
        self._played.setdefault(version, entry)["results"].append({"tasks": purpose, **summarize_results(results)})
        self._write()

    def _write(self) -> None:
        with written(self._file) as part:
            content = {"candidates": [*self._played.values()], "rejected": self._rejected}
            part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def summarize_results(results: Sequence[Rollout]) -> dict[str, Any]:
    """Rollouts without a reward are in no mean, and counted by reason."""
    rewards = [result.reward for result in results if result.reward is not None]
    success = success_rate_of(results)
    return {
        "n": len(results),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "judged": success.judged,
        "solved": success.correct,
        "lost": dict(Counter(result.lost for result in results if result.lost)),
    }


def success_rate_of(results: Sequence[Rollout]) -> Rate:
    return Rate.of([None if result.lost else result.success for result in results])
