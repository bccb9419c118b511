"""Defines the settings of `agentgrpo improve`. Importing this module is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from agentgrpo.flags import FlagName
from sql_agent.settings.groups import DatabaseSpec, QuestionsConfig


class ImproveConfig(QuestionsConfig):
    """The flags of `agentgrpo improve` with their defaults."""

    model: Annotated[Path, FlagName("model")]
    """A Hugging Face folder of a chat model, or its id on the hub (ORG/NAME)."""
    database: Annotated[DatabaseSpec, FlagName("database")]
    """Your own SQLite or DuckDB file, a folder with DB_ID/DB_ID.sqlite, or
    mysql:// or postgresql://user:password@host:port/database. It is only read."""
    train_file: Path | None = None
    """Your questions with their SQL, rows of `question` and `query`. A fifth is held out and never trained on: at least
    30 questions, at most half. None: only questions that are made from the database, split in the same way."""
    val_file: Path | None = None
    """Held-out questions. None: a part of `train_file`."""
    num_questions: int = Field(default=500, ge=0)
    """Questions to make from the database and to learn beside your own; 0 makes none."""
    minutes: float = Field(default=120, gt=0)
    """About how many minutes the whole command may take. It plans as many updates and steps as fit, beside start-up and
    measuring. It always makes two steps, which may take longer."""
    run_dir: Path = Path("runs/improve")
    """Folder for questions, models, measurements and the report, with a folder per stage. The same command resumes
    after a stop."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the made questions, of orders and samples."""
