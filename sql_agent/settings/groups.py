"""Defines the settings of a rollout, of its tasks and its reward: what every way to train has.

Importing this module is instant.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from agentgrpo.flags import FlagName
from agentgrpo.settings import Settings, VerlKey
from dbbench_adapter.engines import DatabaseSpec
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import ProtocolName
from sql_agent.names import ENVIRONMENTS, check_name


def address(secret: str) -> AfterValidator:
    """Make a setting's check of the address of a service, whose secret is read from the environment variable `secret`.

    The check raises ValueError where the URL is not an http:// or https:// address, or has a login.
    """

    def checked(url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # the port or an IPv6 address is invalid
            usable = False
        if "@" in url:
            raise ValueError(f"the address holds a user or a password; leave it out, a key is read from {secret}")
        if not usable:
            raise ValueError(f"{url!r} is no address, expected http://HOST:PORT with a port from 1 to 65535")
        return url.rstrip("/")

    return AfterValidator(checked)


Judge = Literal[JudgeName, "spider", "bird"]
"""Judges of all environments; each environment knows its own."""
PrecisionName = Literal["auto", "float32", "bfloat16"]
SharedPrompts = Literal["flex_attention"]
MAX_RETRIES = 2
"""Retries of one model call, by the OpenAI client, with its exponential backoff."""


def check_deadlines(statement_s: float, turn_s: float, rollout_s: float) -> None:
    """Raises ValueError: the deadlines do not nest."""
    tries = 1 + MAX_RETRIES
    if not statement_s <= turn_s or not tries * turn_s <= rollout_s:
        raise ValueError(
            f"deadlines have to nest: statement_timeout_s <= turn_timeout_s, and {tries} tries of a turn have to "
            f"fit into the rollout, {tries} x turn_timeout_s <= rollout_timeout_s; "
            f"got {statement_s:g}, {turn_s:g} and {rollout_s:g}"
        )


class AgentConfig(Settings):
    """Limits and sampling of one rollout. Deadlines nest: statement <= turn, all tries of a turn <= rollout."""

    protocol: ProtocolName = "fc"
    """How the agent acts: by tool calls (`fc`), or by patterns in plain text, as the originals of DB-Bench do."""
    instructions: Annotated[Path | None, FlagName("instructions")] = None
    """Text file that replaces what the first prompt says about how to act (dbbench, text2sql); it has to name the tools
    or the forms of a reply. None: the environment's own."""
    max_turns: int | None = Field(default=None, ge=1)
    """Model replies per rollout; null: the protocol's own (fc and text 15, lab 3 as its rules say), gsm8k 10."""
    max_tokens: int = Field(default=512, ge=1)
    """Sampled tokens per reply; a reply cut there ends the rollout under `max_tokens`."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """1 samples from all tokens, the only value that can be trained on: the update's log-probs are those of all."""
    statement_timeout_s: float = Field(default=5.0, gt=0)
    """Limit of one SQL statement, in CPU seconds, on a server in seconds of wall clock. All statements of a rollout may
    take three times as long together; then it ends as `max_sql_time`."""
    turn_timeout_s: float = Field(default=90.0, gt=0)
    """Wall clock of one call of the model, in seconds; tried again twice before the model counts as unavailable."""
    rollout_timeout_s: float = Field(default=300.0, gt=0)
    """Wall clock of the whole rollout, in seconds; one that runs into it is lost, whatever it was doing."""

    @model_validator(mode="after")
    def _deadlines_nest(self) -> AgentConfig:
        check_deadlines(self.statement_timeout_s, self.turn_timeout_s, self.rollout_timeout_s)
        return self


SPLIT_SEED = 0
"""Seed of the split of a file into tasks to train on and held-out ones. It is no setting: a run's own seed draws orders
and samples, and a command with another seed must not train on what this one holds out."""
NO_SPLIT = "give more, or held-out tasks in a file, --val-file FILE"
"""What to do about a file that cannot be split."""
UNKNOWN_PROMPT_TOKENS = 1024
"""Room for what is not known before a rollout: the first prompt of a user's own agent, or an episode's opening."""


class TaskFiles(Settings):
    train_file: Annotated[Path | None, FlagName("train-file")] = None
    """Tasks to train on, in the form that the environment reads: for dbbench AgentBench JSONL, LifelongAgentBench
    entry_dict.json or generated JSONL; or rows on the hub, hf://ORG/SET:SPLIT. None: generated, if the environment
    makes tasks."""
    val_file: Annotated[Path | None, FlagName("val-file")] = None
    """Held-out tasks. None: split off `train_file`, or generated with words and tables that training never uses."""
    held_out_fraction: float = Field(default=0.2, ge=0, lt=1)
    """Share of `train_file` that is held out when it comes without `val_file`, the same tasks in every command and for
    every seed; in dbbench of its tables, of which none is in both. 0 trains on every row."""

    @property
    def files(self) -> dict[str, Any]:
        """What says which tasks of which files are trained on."""
        return {name: getattr(self, name) for name in TaskFiles.model_fields}

    def expected(self, environment: str) -> list[Path | None]:
        """The files that have to be there; gsm8k knows other sources too, and so may a class of the user's."""
        known = environment in ENVIRONMENTS and environment != "gsm8k"
        return [self.train_file, self.val_file] if known else []


class DataConfig(TaskFiles):
    generate: int = Field(default=512, ge=1)
    """Tasks to generate for training when there is no `train_file`."""
    skills: tuple[str, ...] = ()
    """Keep tasks that show one of these skills, to train on and held out; empty keeps all. dbbench only."""
    val_limit: int = Field(default=64, ge=1)
    """Held-out tasks evaluated at each validation, of every kind the same number; the seed draws them, once for a
    run."""
    train_batch_size: Annotated[int, VerlKey("data.train_batch_size")] = Field(default=8, ge=1)
    """Tasks per train step."""
    max_prompt_tokens: Annotated[int | None, VerlKey("data.max_prompt_length")] = Field(default=None, ge=16)
    """Longest first prompt; the schema of a longer one is shortened, other tasks are left out and counted. None: what
    the model's context leaves beside the response."""
    max_response_tokens: Annotated[int, VerlKey("data.max_response_length")] = Field(default=2048, ge=16)
    """Everything after the first prompt of a conversation: sampled turns and tool results; a reply is cut where it is
    full."""

    @property
    def prompt_tokens(self) -> int:
        """The tokens that a row keeps for its first prompt, or a guess before the prompts are known."""
        return self.max_prompt_tokens or UNKNOWN_PROMPT_TOKENS

    @property
    def row_tokens(self) -> int:
        """The tokens of the longest row."""
        return self.prompt_tokens + self.max_response_tokens


SchemaForm = Literal["compact", "ddl", "linked", "qualified"]


class QuestionsConfig(Settings):
    """How questions about a database are read and asked, in every command."""

    columns: Annotated[str | None, FlagName("columns")] = None
    """For text2sql: your names of the columns, question=COLUMN,query=COLUMN,..., also of db_id, evidence, answer; the
    texts of COLUMN+COLUMN are joined. Only these are read then. None: Spider's and BIRD's names, in any case."""
    schema_form: Annotated[SchemaForm, FlagName("schema-form")] = "compact"
    """For text2sql: how the prompt shows the database. compact: one line a table; qualified: the same with
    table.column, as fine-tuning writes columns; linked: only the tables that the question's words lead to, so a large
    database takes few tokens; ddl: CREATE statements with example values."""


class EnvConfig(QuestionsConfig):
    type: Annotated[str, FlagName("env")] = "dbbench"
    """What the policy is trained on: dbbench, text2sql or gsm8k; an environment of your own, FILE.py:NAME,
    module:NAME or an installed package's entry point (`doc/own_environment.md`); or agent, which `agent` implies."""
    agent: Annotated[str | None, FlagName("agent", "FILE.py:NAME")] = None
    """An agent of your own, FILE.py:NAME or module:NAME, that plays the rows of `data.train_file` itself, whatever
    their shape: one of openai-agents, of LangGraph or of agent-lightning; or FILE.json, which names MCP servers. Give
    --reward too, unless it is agent-lightning's, which says its own (`doc/own_agent.md`)."""
    database: Annotated[DatabaseSpec | None, FlagName("database")] = None
    """Your own database, for text2sql: a SQLite or DuckDB file, a folder with DB_ID/DB_ID.sqlite as Spider and BIRD
    have, or mysql:// or postgresql://user:password@host:port/database; `data.train_file` has rows of `question` and
    `query`."""
    call_timeout_s: float = Field(default=30.0, gt=0)
    """Wall clock of one call of an own environment's code (a tool, reset, get_reward), in seconds; a call that takes
    longer loses its rollout."""

    @model_validator(mode="after")
    def _known_type(self) -> EnvConfig:
        check_name(self.type)
        if (self.type == "agent") != (self.agent is not None):
            raise ValueError(
                "env.agent and env.type=agent belong together, and --agent FILE.py:NAME sets both; leave --env out, or "
                "--agent"
            )
        for name in ("columns", "schema_form", "database"):
            if getattr(self, name) != EnvConfig.model_fields[name].default and self.type != "text2sql":
                raise ValueError(f"env.{name} belongs to env.type=text2sql, this run's is {self.type}; leave it out")
        return self


@dataclass(frozen=True)
class EnvironmentSettings:
    """The settings for `sql_agent.environments.base.make_taskset`; each environment reads its own."""

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
    columns: str | None = None
    """The user's names of the columns of questions."""
    schema_form: SchemaForm = "compact"

    @classmethod
    def of(cls, type: str, *groups: Settings) -> Self:
        """Fill in what a command has flags for, each field from the group that has a setting of its name."""
        names = {field.name for field in fields(cls)} - {"type"}
        given = {name: getattr(each, name) for each in groups for name in names & set(each.__class__.model_fields)}
        return cls(type, **given)


class RewardModelConfig(Settings):
    """Configures the reward model in the reward; without a URL there is none."""

    url: Annotated[str | None, FlagName("reward-model-url"), address("REWARD_API_TOKEN")] = None
    """Scoring service (`agentgrpo reward serve`), whose score joins the reward; its token, where it wants
    one, is read from the environment, REWARD_API_TOKEN. None: no reward model."""
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

    @model_validator(mode="after")
    def _deadlines_nest(self) -> RewardModelConfig:
        if self.timeout_s > self.give_up_s:
            raise ValueError(
                f"reward_model.timeout_s ({self.timeout_s:g}) is longer than reward_model.give_up_s "
                f"({self.give_up_s:g}); "
                "a score has to be late before the service counts as gone: lower the first, or raise the second"
            )
        return self


class JudgeConfig(Settings):
    """Configures an LLM as judge behind an OpenAI-compatible address; without a URL there is none."""

    url: Annotated[str | None, FlagName("judge-url"), address("JUDGE_API_KEY")] = None
    """Address up to /v1 of an LLM as judge, which `--reward judge` asks. Its key, where it wants one, is read from the
    environment, JUDGE_API_KEY. None: no judge."""
    model: Annotated[str | None, FlagName("judge-model")] = None
    """The judge's name at that address."""
    rubric: Annotated[Path | None, FlagName("judge-rubric")] = None
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

    @model_validator(mode="after")
    def _is_whole(self) -> JudgeConfig:
        given = {name: getattr(self, name) for name in ("url", "model", "rubric")}
        absent = [f"--judge-{name}" for name, value in given.items() if value is None]
        if 0 < len(absent) < len(given):
            raise ValueError(f"an LLM as judge needs an address, a model and a rubric; missing: {', '.join(absent)}")
        return self
