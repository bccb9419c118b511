"""GSM8K's word problems as an environment, judged by their final number."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self

from dbbench_adapter.datatypes import Score
from dbbench_adapter.protocols import Message
from sql_agent.config import DataConfig
from sql_agent.datatypes import AgentConfig, EnvironmentSettings
from sql_agent.environments.base import Environment, Split
from sql_agent.gsm8k.datatypes import WordProblem, final_number
from sql_agent.gsm8k.episode import MAX_ROUNDS, TOOL, Gsm8kEpisode, messages
from sql_agent.gsm8k.load import load_problems, read_problems


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
        """Right is the same number, however it is written (72, 72.0, $72); every end is judged.

        Returns:
            1.0 under `match`, or 0.0 under `wrong_answer`, `no_final_number` (nothing behind a last `####` that is one
            number) or `no_answer` (out of rounds or tokens, or an empty reply).
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
        """`data.train_file` is a file of problems, or `gsm8k` for the hub's; None makes problems up."""
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
        from sql_agent.gsm8k.expert import expert_messages  # brings a web server, which nothing else here needs

        try:
            return [message for message in expert_messages(task) if message["role"] == "assistant"]
        except ValueError:  # no solution, or one that the calculator does not confirm
            return []

    def task(self, fields: dict[str, Any]) -> WordProblem:
        return WordProblem.from_dict(fields)
