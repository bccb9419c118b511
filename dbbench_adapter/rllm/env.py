"""One DB-Bench task as an environment of rLLM: one reply per step, its reward when the episode ends.

Replies are read as the protocol reads them (`Action: Operation`, `Action: Answer`), three rounds by default. Leaves out
the function-calling protocol, since rLLM's engine hands over the reply's text only. rLLM has no reward for what nobody
could judge: such a step raises, and the engine plays the episode again.
"""

from __future__ import annotations

import atexit
import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from dbbench_adapter.backends import Backend, open_backend
from dbbench_adapter.backends.base import STATEMENT_TIMEOUT_S
from dbbench_adapter.datatypes import Score, Task
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import PROTOCOLS, Episode, open_episode
from dbbench_adapter.rllm.interfaces import BaseEnv

MAX_ROUNDS = 3
SETTINGS = ("backend", "protocol", "judge", "max_rounds", "statement_timeout_s")
"""What `env_args` may name."""
NESTED = ("tables", "gold", "skills")
"""Fields of `Task.to_dict()` that a row holds as JSON text."""
Observation = list[dict[str, str]]


@dataclass(frozen=True)
class Rewards:
    """One value per end of an episode, a verdict between 0 and 1 as far between them; every step before the last one
    gets 0."""

    correct: float = 1.0
    """A right end counts as such however the episode ended, where the judge says so (`lab` judges the state alone)."""
    wrong: float = -1.0
    out_of_rounds: float = -0.8
    illegal: float = -0.2
    """A reply that the protocol cannot read."""

    def of(self, score: Score, status: str) -> float:
        """Statuses are the protocol's own; AgentBench writes them with blanks, LifelongAgentBench with underscores."""
        assert score.value is not None
        named = {"task_limit_reached": self.out_of_rounds, "agent_validation_failed": self.illegal}
        wrong = named.get(status.replace(" ", "_"), self.wrong)
        return (1.0 - score.value) * wrong + score.value * self.correct


REWARDS = Rewards()


class UnjudgedError(RuntimeError):
    """Nobody could judge the end of an episode; the message says why."""


class DBBenchEnv(BaseEnv):
    """Every method may be called from any thread; they wait for each other.

    Args:
        backend: what `open_backend` takes; environments of one process share it.
        protocol: `lab` or `text`.
        judge: a name of `JUDGES`.
        max_rounds: how often the model may reply.
        statement_timeout_s: wall-clock budget of one statement, in seconds.
    Raises:
        ValueError: another protocol.
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
            raise ValueError(f"protocol {protocol!r}, expected lab or text: rLLM's engine hands over texts, not calls")
        self.task = task
        self.protocol: Literal["lab", "text"] = protocol
        self.judge: JudgeName = judge
        self._open: Callable[[], Episode] = lambda: open_episode(
            task, _shared(backend), protocol, max_rounds=max_rounds, statement_timeout_s=statement_timeout_s
        )
        self._episode: Episode | None = None
        self._lock = threading.RLock()

    def reset(self) -> tuple[Observation, dict[str, Any]]:
        """The first prompt over a fresh database; an episode under way is given up.

        Raises:
            TableError, BackendUnavailable: there can be no episode.
        """
        with self._lock:
            self.close()
            self._episode = self._open()
            return PROTOCOLS[self.protocol].messages(self.task), {"task_id": self.task.id}

    def step(self, action: str) -> tuple[Observation, float, bool, dict[str, Any]]:
        """Take one reply.

        Returns:
            The messages shown to the model (none after the last reply), reward, done, and `status`, `reason` and
            `num_statements` as info. The database is gone once the episode has ended.
        Raises:
            RuntimeError: there is no episode under way; call `reset`.
            UnjudgedError, BackendUnavailable: the episode has no verdict; it is closed.
        """
        with self._lock:
            if self._episode is None:
                raise RuntimeError(f"task {self.task.id!r}: no episode under way; call reset first")
            episode = self._episode
            try:
                shown = episode.step(action)
                if not episode.done:
                    return shown, 0.0, False, _info(episode, "")
                score = episode.judge(self.judge)
            except BaseException:
                self.close()
                raise
            self.close()
        if score.value is None:
            raise UnjudgedError(
                f"task {self.task.id!r} could not be judged by {self.judge!r}: {score.reason}; "
                "`python -m dbbench_adapter.validate --replay` finds such tasks, leave them out"
            )
        return [], REWARDS.of(score, episode.status), True, _info(episode, score.reason)

    def close(self) -> None:
        """Drop the database; calling it again does nothing."""
        with self._lock:
            episode, self._episode = self._episode, None
            if episode is not None:
                episode.close()

    @staticmethod
    def from_dict(info: dict[str, Any]) -> DBBenchEnv:
        """The environment of a row.

        Args:
            info: a row of `dbbench_adapter.rllm.data.rllm_rows`, merged with `env_args`.
        Raises:
            ValueError: a field is missing, unknown or of another form.
        """
        settings = {name: info[name] for name in SETTINGS if name in info}
        return DBBenchEnv(task_of(info), **settings)

    @staticmethod
    def is_multithread_safe() -> bool:
        return True


def task_of(row: dict[str, Any]) -> Task:
    """The task of a row; nested fields are JSON text or plain values.

    Raises:
        ValueError: see `DBBenchEnv.from_dict`.
    """
    fields = {name: value for name, value in row.items() if name not in SETTINGS}
    nested = {name: json.loads(fields[name]) for name in NESTED if isinstance(fields.get(name), str)}
    return Task.from_dict(fields | nested)


def _info(episode: Episode, reason: str) -> dict[str, Any]:
    return {"status": episode.status, "reason": reason, "num_statements": len(episode.sql_run)}


_backends: dict[str, Backend] = {}
_backends_lock = threading.Lock()
_open_backends = ExitStack()
atexit.register(_open_backends.close)


def _shared(spec: str) -> Backend:
    """The backend of this process by its spec, opened once and closed when the process ends."""
    with _backends_lock:
        if spec not in _backends:
            _backends[spec] = _open_backends.enter_context(open_backend(spec))
        return _backends[spec]
