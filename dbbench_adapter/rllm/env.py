"""Plays one DB-Bench task as an environment of rLLM: one reply per step, and a reward when the episode ends.

The protocol reads the replies (`Action: Operation`, `Action: Answer`); there are three rounds by default. The
function-calling protocol is left out, since rLLM's engine passes only the reply's text. rLLM has no reward for an
episode that could not be judged: such a step raises, and the engine plays the episode again, three times at most.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.datatypes import Task
from dbbench_adapter.engines import Backend, open_backend
from dbbench_adapter.engines.base import STATEMENT_TIMEOUT_S
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import PROTOCOLS, DatabaseEpisode, open_episode
from dbbench_adapter.rllm.interfaces import BaseEnv

MAX_ROUNDS = 3
# `env_args` may have these names.
SETTINGS = ("backend", "protocol", "judge", "max_rounds", "statement_timeout_s")
# The reward of each end of an episode; earlier steps get 0. A reply is illegal if the protocol cannot read it.
CORRECT, WRONG, OUT_OF_ROUNDS, ILLEGAL = 1.0, -1.0, -0.8, -0.2
Observation = list[dict[str, str]]


def reward_of(verdict: float, status: str) -> float:
    """The reward of an episode that ended with this status; a verdict between 0 and 1 interpolates.

    A right end gets `CORRECT` whatever the status is, since `lab` judges the state alone. AgentBench writes the
    statuses with blanks, LifelongAgentBench with underscores.
    """
    failed = {"task_limit_reached": OUT_OF_ROUNDS, "agent_validation_failed": ILLEGAL}
    wrong = failed.get(status.replace(" ", "_"), WRONG)
    return (1.0 - verdict) * wrong + verdict * CORRECT


class UnjudgedError(RuntimeError):
    """The end of an episode could not be judged; `reason` is the judge's, the message says what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DBBenchEnv(BaseEnv):
    """One episode. Every method may be called from any thread; the calls wait for each other.

    Args:
        backend: a spec for `open_backend`; environments of one process share the backend.
        protocol: `lab` or `text`.
        judge: a name of `JUDGES`.
        max_rounds: the number of replies that the model may give.
        statement_timeout_s: limit of one statement (`Backend.open`).
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
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
    ) -> None:
        if protocol not in ("lab", "text"):
            raise ValueError(f"protocol {protocol!r}, expected lab or text: rLLM's engine passes texts, not tool calls")
        self.task = task
        self.protocol: Literal["lab", "text"] = protocol
        self.judge: JudgeName = judge
        self._open = lambda: open_episode(
            task, _shared(backend), protocol, max_rounds=max_rounds, statement_timeout_s=statement_timeout_s
        )
        self._episode: DatabaseEpisode | None = None
        self._final_reward: float | None = OUT_OF_ROUNDS
        self._lock = threading.RLock()

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """The first prompt over a fresh database; an unfinished episode is dropped.

        Raises:
            TableError, BackendUnavailable: the database cannot be made.
        """
        with self._lock:
            self.close()
            self._final_reward = OUT_OF_ROUNDS
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
        or `trajectory_timeout`, gets `OUT_OF_ROUNDS`, and one that its last reply ended keeps its own reward.

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
        """Make the environment of a row.

        Args:
            info: a row of `dbbench_adapter.rllm.env.rllm_rows`, merged with `env_args`.
        Raises:
            ValueError: a field is missing, unknown or of another form.
        """
        settings = {name: info[name] for name in SETTINGS if name in info}
        return DBBenchEnv(task_of({name: info[name] for name in info if name not in SETTINGS}), **settings)

    @staticmethod
    def is_multithread_safe() -> bool:
        return True


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


# Rows of rLLM's data sets ---------------------------------------------------------------------------------------------


# A row holds these fields of `Task.to_dict()` as JSON text, since lists of mixed types do not fit parquet.
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
