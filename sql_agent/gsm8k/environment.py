"""Word problems as something an agent can be played on: what `sql_agent.environments.base.Environment` asks for on
the agent's side. Leaves out tasks of a run of the main job, which has no entry for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from dbbench_adapter.datatypes import Score
from dbbench_adapter.protocols import Message
from sql_agent.datatypes import AgentConfig
from sql_agent.gsm8k.datatypes import Problem, final_number
from sql_agent.gsm8k.episode import MAX_ROUNDS, TOOL, Gsm8kEpisode, messages


class Gsm8k:
    def __init__(self) -> None:
        self.tools = [TOOL]

    def messages(self, task: Problem) -> list[Message]:
        return messages(task)

    def history(self, messages: Sequence[Message]) -> list[Message]:
        return list(messages)

    def open(self, task: Problem, limits: AgentConfig) -> Gsm8kEpisode:
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
