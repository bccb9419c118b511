"""Implements a multi-turn agent for rLLM's engine: it keeps the conversation, and its action is the model's reply.

It knows neither SQL nor the protocol: the first prompt and every answer come from the environment as messages, and the
environment reads the replies. rLLM's engine calls the model.
"""

from __future__ import annotations

from typing import Any

from dbbench_adapter.rllm.interfaces import Action, BaseAgent, Step, Trajectory


class DBBenchAgent(BaseAgent):
    """Records one step per reply. After `reset` the next observation is the first prompt."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._messages: list[dict[str, str]] = []
        self._trajectory = Trajectory()
        self._observation: Any = None

    @property
    def chat_completions(self) -> list[dict[str, str]]:
        return self._messages

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory

    def update_from_env(
        self, observation: list[dict[str, str]], reward: float, done: bool, info: dict[str, Any], **kwargs: Any
    ) -> None:
        """Add the environment's messages to the conversation.

        Args:
            observation: messages in chat-completions form; the first prompt after `reset`.
            reward, done, info: values that the engine writes into the current step.
        """
        self._messages = self._messages + observation
        self._observation = observation

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        """The reply itself is the action."""
        self._messages = [*self._messages, {"role": "assistant", "content": response}]
        self._trajectory.steps.append(
            Step(
                chat_completions=list(self._messages),
                observation=self._observation,
                action=response,
                model_response=response,
            )
        )
        return Action(response)
