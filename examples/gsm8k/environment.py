"""Offers GSM8K's word problems as an environment that judges the final number."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

from dbbench_adapter.datatypes import Score
from dbbench_adapter.protocols import Message
from examples.gsm8k.datatypes import WordProblem, final_number
from examples.gsm8k.episode import MAX_ROUNDS, TOOL, Gsm8kEpisode, messages
from examples.gsm8k.load import load_problems, read_problems
from sql_agent.datatypes import AgentConfig, DataConfig, EnvironmentSettings
from sql_agent.environments.base import Environment, Split


class Gsm8k(Environment):
    name: ClassVar[str] = "gsm8k"

    def __init__(self) -> None:
        self.tools = [TOOL]

    @classmethod
    def from_settings(cls, settings: EnvironmentSettings) -> Self:
        return cls()

    def messages(self, task: WordProblem) -> list[Message]:
        return messages(task)

    def open(self, task: WordProblem, limits: AgentConfig) -> Gsm8kEpisode:
        return Gsm8kEpisode(task, self.max_replies(limits))

    def judge(self, episode: Gsm8kEpisode) -> Score:
        """Compare the final numbers by value (72, 72.0 and $72 are equal); every ended episode gets a verdict.

        Returns:
            1.0 with the reason `match`, or 0.0 with `wrong_answer`, `no_final_number` (no single number follows the
            last `####`) or `no_answer` (out of rounds or tokens, or an empty reply).
        """
        if not (episode.answer or "").strip():
            return Score(0.0, "no_answer")
        number = final_number(episode.answer or "")
        if number is None:
            return Score(0.0, "no_final_number")
        right = number == Decimal(episode.problem.answer)
        return Score(1.0, "match") if right else Score(0.0, "wrong_answer")

    def max_replies(self, limits: AgentConfig) -> int:
        return limits.max_turns or MAX_ROUNDS

    def load_split(self, data: DataConfig, seed: int) -> Split:
        """Load the problems; `data.train_file` is a file, or `gsm8k` for the hub's, or None for generated ones."""
        if data.train_file is not None and data.val_file is not None:
            return Split(read_problems(data.train_file), read_problems(data.val_file))
        source, made = str(data.train_file or "generated"), data.train_file is None
        fraction = data.held_out_fraction
        train = load_problems(source, limit=data.generate if made else None, seed=seed, held_out_fraction=fraction)
        if data.val_file is not None:
            return Split(train, read_problems(data.val_file))
        limit = data.val_limit if made else None
        return Split(train, load_problems(source, split="test", limit=limit, seed=seed, held_out_fraction=fraction))

    def read_tasks(self, file: Path) -> list[WordProblem]:
        return read_problems(file)

    def reference_replies(self, task: WordProblem) -> list[Message]:
        from examples.gsm8k.expert import expert_messages  # imports a web server, which nothing else here needs

        try:
            return [message for message in expert_messages(task) if message["role"] == "assistant"]
        except ValueError:  # no solution, or one that the calculator does not confirm
            return []

    def task(self, fields: dict[str, Any]) -> WordProblem:
        return WordProblem.from_dict(fields)
