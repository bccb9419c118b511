"""Defines the records of `sql_agent`: the agent's settings, the record of a rollout, and its reward.

Importing this module is instant. Leaves out the records of a train step (`sql_agent.rollouts.datatypes`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agentgrpo.settings import Settings
from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import Stop
from dbbench_adapter.protocols import ProtocolName
from sql_agent.comparison import Comparison

OWN_REWARD = "own_reward"
"""The verdict's reason if an environment gives the reward itself: its value is the reward and may be any finite number.
`parts["correctness"]`, 1 or 0, says whether the task is solved, if the environment tells it."""

MAX_RETRIES = 2
"""Retries of one model call, by the OpenAI client, with its exponential backoff."""


ROW_END = "row_end"
"""Argument of a request to verl's vLLM (`vllm_xargs`): the number of tokens, prompt and reply together, at which the
rollout's row is full (`sql_agent.verl_side.plugin.row_end`)."""


class AgentConfig(Settings):
    """Holds limits and sampling of one rollout. Deadlines nest: statement <= turn, all tries of a turn <= rollout."""

    protocol: ProtocolName = "fc"
    """How the agent acts: DB-Bench's tools (`fc`), or patterns in plain text (`text`, `lab`)."""
    instructions: Path | None = None
    """Text file that replaces what the first prompt says about how to act (dbbench, text2sql); it has to name the tools
    or, with `text` and `lab`, the forms of a reply. None: the environment's own."""
    max_turns: int | None = Field(default=None, ge=1)
    """Model replies per rollout; null: the protocol's own (fc and text 15, lab 3 as its rules say), medical 8, gsm8k
    10."""
    max_tokens: int = Field(default=512, ge=1)
    """Sampled tokens per reply; a reply cut there ends the rollout under `max_tokens`."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """1 samples from all tokens, the only value that can be trained on: the update's log-probs are those of all."""
    statement_timeout_s: float = Field(default=5.0, gt=0)
    """Wall clock of one SQL statement, in seconds."""
    turn_timeout_s: float = Field(default=90.0, gt=0)
    """Wall clock of one call of the model, in seconds; tried again twice before the model counts as unavailable."""
    rollout_timeout_s: float = Field(default=300.0, gt=0)
    """Wall clock of the whole rollout, in seconds; one that runs into it is lost, whatever it was doing."""

    @model_validator(mode="after")
    def _deadlines_nest(self) -> AgentConfig:
        statement_s, turn_s, rollout_s = self.statement_timeout_s, self.turn_timeout_s, self.rollout_timeout_s
        tries = 1 + MAX_RETRIES
        if not statement_s <= turn_s or not tries * turn_s <= rollout_s:
            raise ValueError(
                f"deadlines have to nest: statement_timeout_s <= turn_timeout_s, and {tries} tries of a turn have to "
                f"fit into the rollout, {tries} x turn_timeout_s <= rollout_timeout_s; "
                f"got {statement_s:g}, {turn_s:g} and {rollout_s:g}"
            )
        return self


SPLIT_SEED = 0
"""Seed of the split of a file into tasks to train on and held-out ones. It is no setting: a run's own seed draws orders
and samples, and a command with another seed must not train on what this one holds out."""
NO_SPLIT = (
    "give held-out tasks in a file, --val-file FILE; fine-tuning and the local trainers can also learn every row, "
    "--held-out-fraction 0"
)
"""What to do about a file that cannot be split."""
UNKNOWN_PROMPT_TOKENS = 1024
"""Room for what is not known before a rollout: the first prompt of a user's own agent, or an episode's opening."""


class DataConfig(Settings):
    train_file: Path | None = None
    """Tasks to train on: AgentBench JSONL, LifelongAgentBench entry_dict.json or generated JSONL; None generates."""
    val_file: Path | None = None
    """Held-out tasks. None: generated with words and tables that training never uses, or split off `train_file`."""
    held_out_fraction: float = Field(default=0.2, ge=0, lt=1)
    """Share of `train_file` that is held out when it comes without `val_file`, the same tasks in every command and for
    every seed; in dbbench of its tables, of which none is in both. 0 trains on every row."""
    generate: int = Field(default=512, ge=1)
    """Tasks to generate for training when there is no `train_file`."""
    skills: tuple[str, ...] = ()
    """Keep tasks that show one of these skills, to train on and held out; empty keeps all. dbbench only."""
    val_limit: int = Field(default=64, ge=1)
    """Held-out tasks evaluated at each validation, of every kind the same number; the seed draws them, once for a
    run."""
    train_batch_size: int = Field(default=8, ge=1)
    """Tasks per train step. verl: data.train_batch_size"""
    max_prompt_tokens: int | None = Field(default=None, ge=16)
    """Longest first prompt; the schema of a longer one is shortened, other tasks are left out and counted. None: what
    the model's context leaves beside the response. verl: data.max_prompt_length"""
    max_response_tokens: int = Field(default=2048, ge=16)
    """Everything after the first prompt of a conversation: sampled turns and tool results; a reply is cut where it is
    full. verl: data.max_response_length"""

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens that a row keeps for its first prompt, or a guess before the prompts are known."""
        return self.max_prompt_tokens or UNKNOWN_PROMPT_TOKENS


@dataclass(frozen=True)
class EnvironmentSettings:
    """Holds the settings for `sql_agent.environments.base.make_taskset`; each environment reads its own."""

    type: str = "dbbench"
    """A key of `sql_agent.names.ENVIRONMENTS`, or the name of a user's own environment."""
    protocol: ProtocolName = "fc"
    judge: str = "strict"
    """A judge of that environment."""
    backend: str = "sqlite"
    database: Path | str | None = None
    """A path, or the address of a database on a server, whose password is hidden."""
    call_timeout_s: float = 30.0
    agent: str | None = None
    instructions: Path | None = None
    """Text file; None: the environment's own."""


class RewardModelConfig(Settings):
    """Configures the reward model in the reward; without a URL there is none."""

    url: str | None = None
    """Scoring service (`agentgrpo reward serve`); its token, where it wants one, is read from the environment,
    REWARD_API_TOKEN. None: no reward model."""
    weight: float = Field(default=0.2, ge=0, le=0.2)
    """Most that the score adds to the reward of a correct rollout, or takes from it; 0 only logs it."""
    center: float = 0.0
    """Score that counts as neither good nor bad; `agentgrpo reward evaluate` prints it."""
    scale: float = Field(default=1.0, gt=0)
    """Distance from the centre at which tanh has 76 % of its bound; `agentgrpo reward evaluate` prints it."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long a rollout waits for its score, retries included."""
    give_up_s: float = Field(default=120.0, gt=0)
    """A service that has given no score for so long stops the step."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else address(url, "leave it out, a token is read from REWARD_API_TOKEN")

    @model_validator(mode="after")
    def _deadlines_nest(self) -> RewardModelConfig:
        if self.timeout_s > self.give_up_s:
            raise ValueError(
                f"timeout_s ({self.timeout_s:g}) is longer than give_up_s ({self.give_up_s:g}); "
                "a score has to be late before the service counts as gone: lower the first, or raise the second"
            )
        return self


class JudgeConfig(Settings):
    """Configures an LLM as judge behind an OpenAI-compatible address; without a URL there is none."""

    url: str | None = None
    """Address up to /v1. Its key, where it wants one, is read from the environment, JUDGE_API_KEY. None: no judge."""
    model: str | None = None
    """The judge's name at that address."""
    rubric: Path | None = None
    """Text file that tells the judge what to score, from 0 to 1."""
    timeout_s: float = Field(default=120.0, gt=0)
    """How long a rollout waits for its score, the wait for a free place and retries included."""
    attempts: int = Field(default=3, ge=1)
    """Tries of one score; each counts as a call."""
    concurrency: int = Field(default=8, ge=1)
    """Calls in flight at once, of all runner processes together."""
    max_calls: int = Field(default=10_000, ge=1)
    """Calls of the whole run, of all its starts; what is answered from `judge/` in the run's folder is no call."""
    max_chars: int = Field(default=30_000, ge=1_000)
    """Characters of a conversation that are sent; of a longer one the middle is left out and the judge is told."""
    max_tokens: int = Field(default=512, ge=16)
    """Tokens of one answer of the judge."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        return None if url is None else address(url, "a key is read from JUDGE_API_KEY").rstrip("/")

    @model_validator(mode="after")
    def _is_whole(self) -> JudgeConfig:
        given = {name: getattr(self, name) for name in ("url", "model", "rubric")}
        absent = [f"--judge-{name}" for name, value in given.items() if value is None]
        if 0 < len(absent) < len(given):
            raise ValueError(f"an LLM as judge needs an address, a model and a rubric; missing: {', '.join(absent)}")
        return self


def address(url: str, instead: str) -> str:
    """Check and return the address of a service.

    Raises:
        ValueError: the URL is not an http:// or https:// address, or has a login; `instead` says where a secret goes.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port or an IPv6 address is invalid
        usable = False
    if "@" in url:
        raise ValueError(f"the address holds a user or a password; {instead}")
    if not usable:
        raise ValueError(f"{url!r} is no address, expected http://HOST:PORT with a port from 1 to 65535")
    return url


@dataclass(frozen=True)
class RolloutRecord:
    """Holds one run of the agent on one task, first prompt to stop, with the verdict.

    The gold answer is in `comparison` alone, which leaves the record before that enters a span.
    """

    task_id: str
    kind: str
    stop_reason: Stop
    score: Score
    num_turns: int = 0
    """Replies of the model, the last one included."""
    malformed_calls: int = 0
    """Calls, or with `text` and `lab` replies, that the protocol cannot parse."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation as it was sent, in chat-completions form: tool calls and results, never the gold answer."""
    prompt_tokens: int = 0
    """Summed over the turns, as the endpoint counts them; a shared prefix counts once per turn."""
    completion_tokens: int = 0
    seconds: float = 0.0
    error: str | None = None
    """The message of the failure that ended it, if there was one."""
    output: Any = None
    """The answer of a user's own agent as JSON values; None for the built-in agent."""
    replies: list[int] | None = None
    """Indices in `messages` of the model's replies in this rollout, in the order of the calls. None: the last
    `num_turns` assistant messages. An agent of several conversations has them one after another in `messages`."""
    tools: list[dict[str, Any]] | None = None
    """Schemas of the tools that the policy was offered, in chat-completions form; None for a user's own agent, whose
    calls may offer different ones."""
    comparison: Comparison | None = None
    """What the judge compared, solution included; None if there is no verdict or the environment does not say."""

    @property
    def tool_calls(self) -> int:
        return sum(len(message.get("tool_calls") or ()) for message in self.messages)

    @property
    def success(self) -> float | None:
        """Return 1 if the task is solved, which means a verdict of exactly 1, and 0 for a lower verdict.

        None if there is no verdict, or if the environment gives a reward without saying whether the task is solved.
        """
        return success_of(self.score)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, one line of a trajectories file."""
        return asdict(self) | {"comparison": self.comparison.to_dict() if self.comparison else None}


def success_of(score: Score) -> float | None:
    """Return what a verdict says about success, as in `RolloutRecord.success`."""
    if score.reason == OWN_REWARD:
        return score.parts.get("correctness")
    return None if score.value is None or not 0.0 <= score.value <= 1.0 else float(score.value == 1.0)


@dataclass(frozen=True)
class ScorerResult:
    """Holds the reward model's result for a rollout's conversation."""

    score: float | None
    """A logit; None if there is none."""
    reason: str = "scored"
    """`scored`; without a score `scorer_unavailable`, `scorer_refused`, or `no_answer` if it was not asked."""
    truncated: bool = False
    """The beginning of the conversation was cut."""

    @property
    def failure(self) -> str | None:
        """Return why a requested score is missing or unusable; None if there is one, or if none was requested."""
        if self.reason == "no_answer":
            return None
        if self.score is None:
            return self.reason
        return None if math.isfinite(self.score) else "score_not_finite"


@dataclass(frozen=True)
class Reward:
    """Holds a rollout's reward for training, which `sql_agent.rewards` computes from its verdict and other parts."""

    value: float | None
    """None: the rollout is lost."""
    reason: str
    """The verdict's reason, or why there is no value."""
    parts: dict[str, float] = field(default_factory=dict)
    """Its parts, logged as `reward/NAME`: `correctness`, with a reward model `base` and `shaping`, and if several
    rewards are summed the number of each one, before its weight."""
    terms: dict[str, float] = field(default_factory=dict)
    """Contribution of each entry of `rollout.reward` to the value, weight included, by its label; {} if the reward is
    one preset."""
    turn_terms: dict[str, list[float]] = field(default_factory=dict)
    """Contributions of each turn, weight included, for those terms that are sums over the turns."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Labels of the reward functions that gave no number, with the reason of each."""
    error: str | None = None
    """The traceback of the reward function that failed, or what it returned."""

    def by_turn(self, num_turns: int) -> list[float] | None:
        """Return the reward of each turn; a term that is one number belongs to the last turn. None if all terms are.

        Args:
            num_turns: replies of the model.
        """
        if self.value is None or not self.turn_terms:
            return None
        turns = [sum(term[turn] for term in self.turn_terms.values()) for turn in range(num_turns)]
        turns[-1] += sum(term for name, term in self.terms.items() if name not in self.turn_terms)
        turns[-1] += self.parts.get("shaping", 0.0)
        return turns


@dataclass(frozen=True)
class FunctionReward:
    """Holds the result of one reward function for a rollout."""

    value: float | None
    """A finite number; None: it gave no number."""
    reason: str = "rewarded"
    """Why there is no number: `reward_none`, `reward_error`, `reward_deadline`, or a reason of `RewardUnavailable`."""
    error: str | None = None
    """A traceback, or what is wrong with the returned value."""
    turns: list[float] | None = None
    """A number per turn, whose sum is the value; None where the function gave one number."""
