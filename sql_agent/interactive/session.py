"""A person's conversation with a trained agent: typed questions, or the tasks of a file.

The agent's turns are those of training, with the same `Conversation` and `LocalPlay`, and the sampled ids are continued
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from agentgrpo.chat.replies import Conversation
from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.protocols import Message
from dbbench_adapter.protocols.base import DatabaseEpisode
from sql_agent.comparison import Comparison
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import Environment, World
from sql_agent.environments.dbbench import DbBench
from sql_agent.local.datatypes import Sample, Sampling
from sql_agent.local.policy import LocalPolicy
from sql_agent.local.rollouts import LocalPlay
from sql_agent.prompts.fit import Fitted, PromptLimit, fit_tasks
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import AgentConfig

# Id of a typed question, whose answer cannot be judged.
OWN = "own question"
UNJUDGED = Score(None, NO_JUDGE)


class InteractiveEnv(World, Protocol):
    """An environment whose questions may also come from a person."""

    tasks: Sequence[Any]

    def own(self, question: str) -> object:
        """Raises ValueError: the environment takes no typed questions."""
        ...

    def question(self, task: Any) -> str: ...

    def prompt_source(self) -> Environment: ...

    def choose(self, task: Any) -> None: ...

    def renew(self) -> None:
        """Restore the tables to their first state."""
        ...

    def tables(self) -> list[Table]:
        """[] if there is no database."""
        ...


class Tasks:
    """Asks the tasks of an environment, each in an episode of its own, and typed questions if it takes them.

    Args:
        environment: the environment, entered.
        tasks: tasks that can be asked by number.
    """

    def __init__(self, environment: Environment, tasks: Sequence[object]) -> None:
        self.tools, self.messages, self.history = environment.tools, environment.messages, environment.history
        self.max_replies = environment.max_replies
        self.tasks, self._environment = tasks, environment
        self._chosen: Any = None
        self._asked: Any = None
        self._episode: Any = None

    def own(self, question: str) -> object:
        return self._environment.typed(OWN, question, self._chosen)

    def question(self, task: object) -> str:
        return str(self.messages(task)[-1]["content"])

    def prompt_source(self) -> Environment:
        return self._environment

    def choose(self, task: object) -> None:
        self._chosen = task

    def renew(self) -> None:
        if self._episode is not None:
            self._episode.close()
        self._episode = None

    def tables(self) -> list[Table]:
        return []

    def open(self, task: object, limits: AgentConfig) -> object:
        self.renew()
        self._asked, self._episode = task, self._environment.open(task, limits)
        return self._episode

    def judge(self, episode: object) -> Score:
        return UNJUDGED if self._asked.id == OWN else self._environment.judge(episode)

    def comparison(self, episode: object) -> Comparison | None:
        return self._environment.comparison(episode)


class OneDatabase:
    """Answers questions about one database, a copy of a task's; changes of one question stay for the next.

    Args:
        bench: the environment, entered.
        tasks: tasks that can be asked by number.
        first: the task whose tables are used until `choose`.
    """

    def __init__(self, bench: DbBench, tasks: Sequence[Task], first: Task) -> None:
        self.tools, self.messages, self.history = bench.tools, bench.messages, bench.history
        self.max_replies = bench.max_replies
        self.tasks, self._bench, self._chosen = tasks, bench, first
        self._episode: Any = None

    def own(self, question: str) -> Task:
        return replace(self._chosen, id=OWN, question=question, kind="other", evidence="", gold=Gold())

    def question(self, task: Task) -> str:
        return task.question

    def prompt_source(self) -> Environment:
        return self._bench

    def choose(self, task: Task) -> None:
        self.renew()
        self._chosen = task

    def renew(self) -> None:
        if self._episode is not None:
            self._episode.close()
        self._episode = None

    def tables(self) -> list[Table]:
        if self._episode is None:
            return list(self._chosen.tables)
        snapshot = self._episode.snapshot()
        return [Table(name, tuple(map(Column, state.columns)), state.rows) for name, state in snapshot.items()]

    def open(self, task: Task, limits: AgentConfig) -> DatabaseEpisode:
        if self._episode is None:
            self._episode = self._bench.open(task, limits)
        else:  # the database stays, and the episode's counts start at 0 again
            self._episode.task, self._episode.status, self._episode.answers = task, "running", None
            self._episode.replies_used, self._episode.malformed_calls, self._episode.sql_run = 0, 0, []
        return self._episode

    def judge(self, episode: DatabaseEpisode) -> Score:
        return UNJUDGED if episode.task.id == OWN else self._bench.judge(episode)

    def comparison(self, episode: DatabaseEpisode) -> Comparison | None:
        return self._bench.comparison(episode)


class Watcher(Protocol):
    def writing(self, text: str) -> None: ...

    def reply(self, message: Message) -> None: ...

    def answers(self, messages: Sequence[Message]) -> None: ...


@dataclass(frozen=True)
class Answered:
    record: RolloutRecord
    stopped: bool
    """Whether the person stopped it during a reply."""
    cut: bool
    """Whether the last reply reached the token limit."""


class Chat:
    """
    Args:
        limits: turns and tokens of one question; without `max_turns`, the environment's own limit of turns.
        limit: the longest first prompt, as in training; the environment shortens a longer one if it can.
    Raises:
        ChatTemplateError: the model's template cannot be used.
    """

    def __init__(
        self,
        policy: LocalPolicy,
        subject: InteractiveEnv,
        limits: AgentConfig,
        sampling: Sampling,
        watcher: Watcher,
        limit: PromptLimit,
    ) -> None:
        self._policy, self._subject, self._limits, self._sampling = policy, subject, limits, sampling
        self._watcher, self._limit = watcher, limit
        self._conversation = Conversation(policy.tokenizer, subject.tools)
        self._last: LocalPlay | None = None
        self._stop = _Stop()

    def new(self) -> None:
        self._last = None
        self._subject.renew()

    def stop(self) -> None:
        """A second call during one question ends it at once.

        Raises:
            KeyboardInterrupt: on the second call.
        """
        if self._stop.wanted:
            raise KeyboardInterrupt
        self._stop.wanted = True

    def fitted(self, tasks: Sequence[object]) -> Fitted:
        return fit_tasks(tasks, self._subject.prompt_source(), self._prompt_tokens, self._limit)

    def ask(self, task: object) -> Answered:
        """Raises ChatTemplateError: the model's template cannot write this conversation."""
        self._stop.wanted = False
        [task] = self.fitted([task]).tasks
        rollout = LocalPlay(task, self._subject, self._conversation, self._limits, after=self._last)
        rollout.start()
        sample: Sample | None = None
        while rollout.may_go_on(self._policy.max_positions):
            sample = self._sample(rollout.ids)
            seen = len(rollout.messages) + 1
            self._watcher.reply(self._conversation.read_reply(sample.ids))
            rollout.step_sample(sample)
            self._watcher.answers(rollout.messages[seen:])
        if sample is not None:
            self._last = rollout
        cut = sample is not None and sample.finish_reason == "length"
        return Answered(rollout.finish()[0], self._stop.wanted and cut, cut)

    def _prompt_tokens(self, task: object) -> int:
        return len(self._conversation.first_prompt(self._subject.messages(task)))

    def _sample(self, ids: list[int]) -> Sample:
        return self._policy.generate(
            [ids],
            [self._sampling],
            max_new_tokens=self._limits.max_tokens,
            streamer=_Streamer(self._policy.tokenizer, self._watcher.writing),
            stopping_criteria=StoppingCriteriaList([self._stop]),
        )[0]


class _Stop(StoppingCriteria):
    wanted = False

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.Tensor:
        return torch.full((len(input_ids),), self.wanted, device=input_ids.device)


class _Streamer(BaseStreamer):
    # Each token comes one late, because the last one may be the end token. transformers' own streamer waits for the end
    # of each word and prints the end token.

    def __init__(self, tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]) -> None:
        self._tokenizer, self._say = tokenizer, say
        self._ids: list[int] | None = None

    def put(self, value: torch.Tensor) -> None:
        if self._ids is None:  # the prompt comes first
            self._ids = []
            return
        text = str(self._tokenizer.decode(self._ids))
        self._ids += value.tolist()
        if not text.endswith("\ufffd"):  # the bytes of a character are not complete yet
            self._say(text)

    def end(self) -> None: ...


# Commands -------------------------------------------------------------------------------------------------------------

COMMANDS = {
    ":help": "this list",
    ":new": "forget the conversation; a database is put back to what it was",
    ":tables": "the database as it is now",
    ":tasks": "the tasks at hand",
    ":task N": "start a new conversation by asking task N",
    ":quit": "end; so does Ctrl-D",
}


@dataclass(frozen=True)
class Line:
    command: str | None
    rest: str = ""
    """The question, or the command's number."""


def read_line(text: str, num_tasks: int) -> Line:
    """Raises ValueError: the command is unknown, or does not take the text after it."""
    text = text.strip()
    if not text.startswith(":"):
        return Line(None, text)
    command, _, rest = (part.strip() for part in text.partition(" "))
    known = [name.split()[0] for name in COMMANDS]
    if command not in known:
        raise ValueError(f"{command} is no command; known: {', '.join(known)}")
    if command == ":task":
        if num_tasks == 0:
            raise ValueError("there are no tasks at hand; give them by --tasks")
        if not (rest.isascii() and rest.isdigit() and 1 <= int(rest) <= num_tasks):
            raise ValueError(f"{text}: expected :task N with N from 1 to {num_tasks}; :tasks lists them")
    elif rest:
        raise ValueError(f"{text}: {command} takes nothing after it; type {command} alone")
    return Line(command, rest)
