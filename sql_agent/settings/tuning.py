"""Defines the settings of supervised fine-tuning and of DPO. Importing this module is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from agentgrpo.flags import dashed
from dbbench_adapter.engines import DatabaseSpec
from dbbench_adapter.protocols import ProtocolName
from sql_agent.settings.groups import EnvironmentSettings, QuestionsConfig, TaskFiles
from sql_agent.settings.local import PolicyConfig, check_environment, renamed_field

DATASETS = ("dbbench", "text2sql", "gsm8k")
"""Names of data that are no file."""
GENERATED = 512
"""Number of generated demonstrations if neither a file nor `num_tasks` says how many."""


class FineTuningConfig(PolicyConfig):
    """The flags that `agentgrpo sft` and `agentgrpo dpo` share."""

    run_dir: Path = renamed_field("output_dir", ...)
    """Folder of the run, new or empty."""
    num_epochs: int = Field(default=3, ge=1)
    """Passes over the data."""
    batch_size: int = Field(default=8, ge=1)
    """Conversations of one batch."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Batches per update; its loss is the mean over all of them."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one forward and backward pass. A longer conversation has its own pass and computes activations
    twice. None: 4096. On a CPU it is 1024 for pairs (DPO). For fine-tuning on a CPU, shared parts of conversations
    count once, and it is 2048 if memory holds no more. Fine-tuning takes more if the longest conversation needs it and
    memory holds it. It changes memory use, not the result."""
    learning_rate: float = Field(gt=0, le=1)
    """Learning rate at the start; it falls linearly to 0."""
    lora_rank: int = renamed_field("lora_r", 16, ge=0, le=1024)
    """Rank of the adapter on all linear layers; 0 trains all weights and writes a whole model."""
    lora_alpha: int = Field(default=32, ge=1)
    """The adapter's output is scaled by alpha / rank."""
    max_length: int | None = Field(default=None, ge=16)
    """Largest number of tokens of a conversation; longer ones are left out and counted, never cut. None: the model's
    context."""
    columns: str | None = None
    """Your column names of a file, what=COLUMN,... For questions: question, query, answer, db_id and evidence. For
    demonstrations: messages, prompt, completion, text, system and tools. For pairs: prompt, chosen, rejected, system
    and tools. Other columns are ignored. None: the names of the form, in upper or lower case."""
    chat_template_path: Path | None = None
    """A Jinja file, or a model folder with the template to use; it is saved with the tokenizer."""
    save_every: int | None = renamed_field("save_steps", None, ge=1)
    """Updates between checkpoints; a killed run loses the work after its last one. None: a checkpoint every five
    minutes."""
    seed: int = Field(default=0, ge=0)
    """Seed of the new adapter, the order and every draw."""

    @model_validator(mode="after")
    def _adapter_is_made(self) -> Self:
        given = [name for name in ("lora_alpha", "lora_dropout") if name in self.model_fields_set]
        if given and not self.lora_rank:
            raise ValueError(
                f"--{dashed(given[0])} is for an adapter, and --lora-rank 0 trains all weights; leave one of them out"
            )
        return self


class SftConfig(FineTuningConfig, TaskFiles, QuestionsConfig):
    """The flags of `agentgrpo sft` with their defaults."""

    dataset: str | None = None
    """The data: dbbench, text2sql, gsm8k, or a JSONL file of messages. None: the references in the rows of
    --train-file, run in an environment (`env`, `database`), or else dbbench."""
    env: str | None = None
    """An environment whose rows hold references: your own, FILE.py:NAME, module:NAME or an installed package's entry
    point, or one of this project. None: text2sql if there is a database."""
    run_dir: Path = renamed_field("output_dir", Path("outputs/sft"))
    """Folder of the run, new or empty."""
    num_tasks: int | None = renamed_field("max_samples", None, ge=1)
    """Largest number of conversations, taken evenly over the kinds of a task file; none: the whole file, or 512
    generated ones."""
    renamed_copies: int = Field(default=0, ge=0)
    """For text2sql: copies of each conversation under other names of tables and columns. They teach the policy to copy
    the names of databases that it has not seen."""
    minutes: float | None = Field(default=None, gt=0)
    """Time limit of training in minutes. After two updates it plans as many as fit, and the learning rate falls to 0
    over those. None: all epochs."""
    learning_rate: float = Field(default=2e-4, gt=0, le=1)
    """Learning rate at the start; it falls linearly to 0."""
    lora_dropout: float = Field(default=0.05, ge=0, lt=1)
    """Dropout on the adapter's input during training."""
    max_prompt_tokens: int | None = Field(default=None, ge=16)
    """Most tokens of a first prompt; the schema of a longer one is shortened. None: the model's context less the
    response, as in training."""
    train_file: Path | None = renamed_field("tasks", None)
    """For dbbench: task file whose reference statements are run; none: generated tasks. For text2sql: rows with
    `question` and `query`. For your own environment: its rows, with a column `reference`."""
    val_file: Path | None = None
    """Held-out tasks, which fine-tuning neither learns nor measures. None: a share of `train_file`, the same tasks as
    in training and in `evaluate`."""
    held_out_fraction: float = Field(default=0.2, ge=0, lt=1)
    """Share of `train_file` that is held out if there is no `val_file`. 0 trains on every row, so that none is left to
    measure the model on."""
    database: DatabaseSpec | None = None
    """For text2sql: a SQLite or DuckDB file, a folder with DB_ID/DB_ID.sqlite, or
    mysql:// or postgresql://user:password@host:port/database."""
    protocol: ProtocolName = "fc"
    """For dbbench: how the demonstrations act, by tool calls (fc), or in plain text as AgentBench (text) and
    LifelongAgentBench (lab)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the new adapter, the order, dropout, generated tasks and the draw of `num_tasks`."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.dataset is not None and self.env is not None:
            raise ValueError("give --dataset or --env, not both")
        if self.source == "environment":
            check_environment(self.data_name, self.database)
        return self

    @property
    def source(self) -> Literal["dbbench", "environment", "gsm8k", "file"]:
        if self.data_name == "dbbench" and self.env is None:
            return "dbbench"
        if self.dataset is None or self.dataset == "text2sql":
            return "environment"
        return "gsm8k" if self.dataset.partition(":")[0] == "gsm8k" else "file"

    @property
    def environment(self) -> EnvironmentSettings:
        """The environment whose episodes are imitated; a file of messages has none."""
        names = {"dbbench": "dbbench", "gsm8k": "gsm8k", "environment": self.data_name}
        return EnvironmentSettings.of(names[self.source], self)

    @property
    def data_name(self) -> str:
        """The name of the data: the dataset, or the environment."""
        return self.dataset or self.env or ("text2sql" if self.database else "dbbench")


class DpoConfig(FineTuningConfig):
    """The flags of `agentgrpo dpo` with their defaults."""

    dataset: Path = Field(validation_alias="train_file")
    """Pairs to train on: a file of `agentgrpo reward pairs` or `agentgrpo reward convert`, or one that the latter
    reads."""
    val_file: Path | None = renamed_field("eval_dataset", None)
    """Held-out pairs; none: a part of the prompts of --dataset is held out."""
    held_out_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Without --val-file: the share of the pairs to hold out, whole prompts at a time; 0 for none."""
    run_dir: Path = renamed_field("output_dir", Path("outputs/dpo"))
    """Folder of the run, new or empty."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the pairs; held-out pairs are measured after each."""
    batch_size: int = Field(default=8, ge=1)
    """Pairs of one batch."""
    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate at the start; it falls linearly to 0."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the pull towards the reference policy, which is the model before training."""
