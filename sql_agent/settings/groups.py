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
    """How the agent acts: by tool calls (`fc`), or in plain text as AgentBench (`text`) and LifelongAgentBench
    (`lab`)."""
    instructions: Annotated[Path | None, FlagName("instructions")] = None
    """Text file that replaces the instructions of the first prompt (dbbench, text2sql). It has to name the tools or the
    forms of a reply. None: the environment's own."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most model replies per rollout. None: the protocol's own limit (fc and text 15, lab 3), gsm8k 10."""
    max_tokens: int = Field(default=512, ge=1)
    """Most sampled tokens per reply. A reply that is cut at this limit ends the rollout with `max_tokens`."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p of the sampling. Training needs 1, because the update computes log-probs over all tokens."""
    statement_timeout_s: float = Field(default=5.0, gt=0)
    """Limit of one SQL statement in CPU seconds, on a database server in wall-clock seconds. All statements of a
    rollout together may take three times as long; then it ends with `max_sql_time`."""
    turn_timeout_s: float = Field(default=90.0, gt=0)
    """Wall-clock seconds of one model call. It is retried twice before the model counts as unavailable."""
    rollout_timeout_s: float = Field(default=300.0, gt=0)
    """Wall-clock seconds of a whole rollout; a rollout that takes longer is lost."""

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
    """Tasks to train on, in the environment's form, or rows on the hub, hf://ORG/SET:SPLIT. dbbench reads AgentBench
    JSONL, LifelongAgentBench entry_dict.json and generated JSONL. None: generated tasks, if the environment makes
    them."""
    val_file: Annotated[Path | None, FlagName("val-file")] = None
    """Held-out tasks. None: split off `train_file`, or generated with words and tables that training never uses."""
    held_out_fraction: float = Field(default=0.2, ge=0, lt=1)
    """Share of `train_file` that is held out if there is no `val_file`, the same tasks in every command and for every
    seed. For dbbench it is a share of the tables, so that no table is in both parts. 0 trains on every row."""

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
    """Skills of the tasks to keep, for training and validation; empty keeps all. dbbench only."""
    val_limit: int = Field(default=64, ge=1)
    """Most held-out tasks of a validation, of every kind the same number. The seed draws them once for a run."""
    train_batch_size: Annotated[int, VerlKey("data.train_batch_size")] = Field(default=8, ge=1)
    """Tasks per train step."""
    max_prompt_tokens: Annotated[int | None, VerlKey("data.max_prompt_length")] = Field(default=None, ge=16)
    """Most tokens of a first prompt. The schema of a longer one is shortened; other tasks are left out and counted.
    None: the model's context less the response."""
    max_response_tokens: Annotated[int, VerlKey("data.max_response_length")] = Field(default=2048, ge=16)
    """Most tokens after the first prompt of a conversation, sampled turns and tool results together. A reply is cut at
    this limit."""

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
    """For text2sql: your column names, question=COLUMN,query=COLUMN,..., also for db_id, evidence and answer.
    COLUMN+COLUMN joins the texts of two columns. Other columns are ignored. None: Spider's and BIRD's names, in upper
    or lower case."""
    schema_form: Annotated[SchemaForm, FlagName("schema-form")] = "compact"
    """For text2sql: how the prompt shows the database. compact: one line per table. qualified: compact with
    table.column names, as fine-tuning writes columns. linked: only the tables that the question's words lead to, so
    that a large database takes few tokens. ddl: CREATE statements with example values."""


class EnvConfig(QuestionsConfig):
    type: Annotated[str, FlagName("env")] = "dbbench"
    """Environment to train on: dbbench, text2sql or gsm8k; your own, FILE.py:NAME, module:NAME or an installed
    package's entry point (`doc/guides/environment.md`); or agent, which `agent` implies."""
    agent: Annotated[str | None, FlagName("agent", "FILE.py:NAME")] = None
    """Your own agent, FILE.py:NAME or module:NAME: one of openai-agents, LangGraph or agent-lightning; or FILE.json,
    which names MCP servers. It runs the rows of `data.train_file`, in any form. Give --reward too, unless it is an
    agent-lightning agent, which returns its own reward (`doc/guides/agent.md`)."""
    database: Annotated[DatabaseSpec | None, FlagName("database")] = None
    """Your own database, for text2sql: a SQLite or DuckDB file, a folder with DB_ID/DB_ID.sqlite as in Spider and BIRD,
    or mysql:// or postgresql://user:password@host:port/database. `data.train_file` then has rows of `question` and
    `query`."""
    call_timeout_s: float = Field(default=30.0, gt=0)
    """Wall-clock seconds of one call of your own environment's code (a tool, reset, get_reward). A rollout with a
    longer call is lost."""

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
    """Address of a scoring service (`agentgrpo reward serve`), whose score joins the reward. The environment variable
    REWARD_API_TOKEN holds its token, if it needs one. None: no reward model."""
    weight: float = Field(default=0.2, ge=0, le=0.2)
    """Most that the score adds to the reward of a correct rollout, or subtracts from it; 0 only logs it."""
    center: float = 0.0
    """Score that counts as neither good nor bad; `agentgrpo reward evaluate` prints it."""
    scale: float = Field(default=1.0, gt=0)
    """Distance from the centre at which tanh reaches 76 % of its bound; `agentgrpo reward evaluate` prints it."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a rollout waits for its score, retries included."""
    give_up_s: float = Field(default=120.0, gt=0)
    """Seconds without any score after which the run stops."""

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
    """Address up to /v1 of the LLM that judges with `--reward judge`. The environment variable JUDGE_API_KEY holds its
    key, if it needs one. None: no judge."""
    model: Annotated[str | None, FlagName("judge-model")] = None
    """The judge's name at that address."""
    rubric: Annotated[Path | None, FlagName("judge-rubric")] = None
    """Text file that tells the judge what to score, from 0 to 1."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that a rollout waits for its score, retries and the wait for a free slot included."""
    attempts: int = Field(default=3, ge=1)
    """Attempts per score; each counts as a call."""
    concurrency: int = Field(default=8, ge=1)
    """Calls in flight at once, of all runner processes together."""
    max_calls: int = Field(default=10_000, ge=1)
    """Most calls of the whole run, over all its starts. Answers from the cache, `judge/` in the run's folder, do not
    count."""
    max_chars: int = Field(default=30_000, ge=1_000)
    """Most characters of a conversation that are sent. The middle of a longer one is left out, and the judge is
    told."""
    max_tokens: int = Field(default=512, ge=16)
    """Most tokens of one answer of the judge."""

    @model_validator(mode="after")
    def _is_whole(self) -> JudgeConfig:
        given = {name: getattr(self, name) for name in ("url", "model", "rubric")}
        absent = [f"--judge-{name}" for name, value in given.items() if value is None]
        if 0 < len(absent) < len(given):
            raise ValueError(f"an LLM as judge needs an address, a model and a rubric; missing: {', '.join(absent)}")
        return self
