"""The pages name what the code has."""

from pathlib import Path

from pydantic import BaseModel

from sql_agent.config import TrainConfig
from sql_agent.tracking import RENAMED
from sql_agent.train_sql_agent import parse_args

DOC = Path(__file__).parents[2] / "doc"


def settings(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        nested = isinstance(kind, type) and issubclass(kind, BaseModel)
        names += settings(kind, f"{prefix}{name}.") if nested else [prefix + name]  # type: ignore[arg-type]
    return names


def test_every_setting_is_in_the_training_page():
    page = (DOC / "training.md").read_text()
    assert [name for name in settings(TrainConfig) if f"| `{name}` |" not in page] == []


def test_every_flag_is_in_the_training_page():
    page = (DOC / "training.md").read_text()
    flags = ["--" + name.replace("_", "-") for name in vars(parse_args([])) if name != "overrides"]
    assert [flag for flag in flags if f"`{flag}" not in page] == []


def test_every_renamed_metric_is_in_the_metrics_page():
    page = (DOC / "metrics.md").read_text()
    assert [name for name in RENAMED.values() if f"`{name}`" not in page] == []
