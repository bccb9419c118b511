"""DB-Bench as an agent and an environment of rLLM 0.2.1.post1: one reply per step, and a reward when the episode ends.

rLLM's engine calls the model and passes the reply's text alone, so the protocols are those that write their actions as
text (`lab`, `text`). rLLM has no reward for an episode that could not be judged: such a step raises, and the engine
plays the episode again, three times at most.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from rllm.agents.agent import Action, BaseAgent, Step, Trajectory  # pyright: ignore[reportMissingImports]
from rllm.environments.base.base_env import BaseEnv  # pyright: ignore[reportMissingImports]

from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.datatypes import Task
from dbbench_adapter.engines import Backend, open_backend
from dbbench_adapter.interaction import ENDS, STOPS, Status
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import PROTOCOLS, DatabaseEpisode, open_episode
from sql_agent.rewards import REWARDS

# 1 for a right end, -1 for a wrong one, -0.8 out of rounds, -0.2 for a reply that the protocol cannot read.
PAID = REWARDS["rllm"]
MAX_ROUNDS = 3
# `env_args` may have these names.
SETTINGS = ("backend", "protocol", "judge", "max_rounds")
Observation = list[dict[str, str]]


class DBBenchAgent(BaseAgent):
    """Keeps the conversation; its action is the model's reply. It knows neither SQL nor the protocol: the first prompt
    and every answer come from the environment as messages."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._messages: Observation = []
        self._trajectory = Trajectory()
        self._observation: Any = None

    @property
    def chat_completions(self) -> Observation:
        return self._messages

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory

    def update_from_env(
        self, observation: Observation, reward: float, done: bool, info: dict[str, Any], **kwargs: Any
    ) -> None:
        """The engine itself writes reward, done and info into the current step."""
        self._messages = self._messages + observation
        self._observation = observation

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self._messages = [*self._messages, {"role": "assistant", "content": response}]
        said, seen = list(self._messages), self._observation
        step = Step(chat_completions=said, observation=seen, action=response, model_response=response)
        self._trajectory.steps.append(step)
        return Action(response)


class UnjudgedError(RuntimeError):
    """The end of an episode could not be judged; `reason` is the judge's, the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DBBenchEnv(BaseEnv):
    """One episode. Every method may be called from any thread; the calls wait for each other.

    Args:
        backend: a spec for `open_backend`; environments of one process share the backend.
        judge: a name of `JUDGES`.
        max_rounds: with `lab` a round is a reply, with `text` a statement, after which one more reply may answer.
    Raises:
        ValueError: the protocol is another one.
    """

    def __init__(
        self,
        task: Task,
        *,
        backend: str = "sqlite",
        protocol: Literal["lab", "text"] = "lab",
        judge: JudgeName = "strict",
        max_rounds: int = MAX_ROUNDS,
    ) -> None:
        if protocol not in ("lab", "text"):
            raise ValueError(f"protocol {protocol!r}, expected lab or text: rLLM's engine passes texts, not tool calls")
        self.task = task
        self.protocol: Literal["lab", "text"] = protocol
        self.judge: JudgeName = judge
        self._open = lambda: open_episode(task, _shared(backend), protocol, max_rounds=max_rounds)
        self._episode: DatabaseEpisode | None = None
        self._final_reward: float | None = PAID.out_of_limits
        self._lock = threading.RLock()

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """The first prompt over a fresh database; an unfinished episode is dropped.

        Raises:
            TableError, BackendUnavailable: the database cannot be made.
        """
        with self._lock:
            self.close()
            self._final_reward = PAID.out_of_limits
            self._episode = self._open()
            return PROTOCOLS[self.protocol].messages(self.task), {"task_id": self.task.id}

    def step(self, action: str) -> tuple[Observation, float, bool, dict[str, Any]]:
        """Take one reply.

        Returns:
            The messages shown to the model (none after the last reply), reward, done, and `status`, `reason` and
            `num_statements` as info. The database is gone once the episode has ended.
        Raises:
            RuntimeError: no episode is under way; call `reset`.
            UnjudgedError, BackendUnavailable: the episode has no verdict; it is closed.
        """
        with self._lock:
            if self._episode is None:
                raise RuntimeError(f"task {self.task.id!r}: no episode under way; call reset first")
            episode = self._episode
            try:
                observation = list(episode.answer({"role": "assistant", "content": action}))
                if not episode.done:
                    return observation, 0.0, False, _info(episode, "")
                score = episode.judge(self.judge)
                if score.value is None:
                    raise UnjudgedError(
                        score.reason,
                        f"task {self.task.id!r} could not be judged by {self.judge!r}: {score.reason}; "
                        f"`{agentgrpo_command('tasks validate', 'FILE', '--replay', 'sqlite')}` finds such "
                        "tasks, leave them out",
                    )
            except BaseException:  # whatever ends the step, the episode's database goes
                self._final_reward = None
                self.close()
                raise
            self.close()
            self._final_reward = reward = reward_of(score.value, episode.status)
        return [], reward, True, _info(episode, score.reason)

    def compute_final_reward(self) -> float:
        """The reward of the last step; the engine asks for it when it stops to play, whatever the cause.

        Without this method the engine would pay 0, more than a wrong answer gets, where the tokens of a trajectory
        exceed `max_response_length`. It does not say why it stopped: an episode that it ended itself, by tokens, steps
        or `trajectory_timeout`, is out of rounds, and one that its last reply ended keeps its own reward.

        Raises:
            RuntimeError: the last step failed after the engine had given it up, so nobody knows the reward.
        """
        with self._lock:
            if self._final_reward is None:
                raise RuntimeError(f"task {self.task.id!r}: the last step failed, so the episode has no reward")
            return self._final_reward

    def close(self) -> None:
        with self._lock:
            episode, self._episode = self._episode, None
            if episode is not None:
                episode.close()

    @staticmethod
    def from_dict(info: dict[str, Any]) -> DBBenchEnv:
        """Make the environment of a row of `rllm_rows`, merged with `env_args`.

        Raises:
            ValueError: a field is missing, unknown or of another form.
        """
        settings = {name: info[name] for name in SETTINGS if name in info}
        return DBBenchEnv(task_of({name: info[name] for name in info if name not in SETTINGS}), **settings)

    @staticmethod
    def is_multithread_safe() -> bool:
        return True


def reward_of(verdict: float, status: Status) -> float:
    """The reward of an episode that ended with this status; a verdict between 0 and 1 interpolates.

    A right end is paid whatever the status is, since `lab` judges the state alone. AgentBench writes the statuses with
    blanks, LifelongAgentBench with underscores.
    """
    failed = {"agent_validation_failed": PAID.malformed}
    wrong = failed.get(status.replace(" ", "_"), PAID.incorrect)
    if (stop := STOPS[status]) is not None and ENDS[stop] == "truncated":
        wrong = PAID.out_of_limits
    return (1.0 - verdict) * wrong + verdict * PAID.correct


def _info(episode: DatabaseEpisode, reason: str) -> dict[str, Any]:
    return {"status": episode.status, "reason": reason, "num_statements": len(episode.sql_run)}


_backends: dict[str, Backend] = {}
_backends_lock = threading.Lock()
_open_backends = ExitStack()
atexit.register(_open_backends.close)


def _shared(spec: str) -> Backend:
    # It is opened once and closed when the process ends.
    with _backends_lock:
        if spec not in _backends:
            _backends[spec] = _open_backends.enter_context(open_backend(spec))
        return _backends[spec]


# A row of rLLM's data sets holds these fields of `Task.to_dict()` as JSON text, since lists of mixed types do not fit
# parquet.
_NESTED = ("tables", "gold", "skills")


def rllm_rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """One row per task; `task_of` is the inverse."""
    return [
        {name: json.dumps(value) if name in _NESTED else value for name, value in task.to_dict().items()}
        for task in tasks
    ]


def task_of(row: Mapping[str, Any]) -> Task:
    """The task of a row; nested fields are JSON text or plain values.

    Raises:
        ValueError: a field is missing, unknown or of another form.
    """
    return Task.from_dict(
        {
            name: json.loads(value) if name in _NESTED and isinstance(value, str) else value
            for name, value in row.items()
        }
    )
