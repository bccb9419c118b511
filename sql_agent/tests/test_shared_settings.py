"""What several commands have means the same in each."""

import importlib
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from agentgrpo.flags import FlagName
from agentgrpo.settings import VerlKey
from sql_agent.credit.registry import ESTIMATORS, LOSSES, CreditSettings
from sql_agent.settings import local, main_job
from sql_agent.settings.evaluation import EvaluateConfig
from sql_agent.settings.groups import DataConfig, EnvironmentSettings
from sql_agent.settings.local import GreedyGrpoConfig, LocalGrpoConfig
from sql_agent.settings.single_skill import ExperimentConfig
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.run import data_of

FILES = {"train_file": "a.jsonl", "val_file": "b.jsonl", "held_out_fraction": 0.1}


def test_the_files_of_a_command_are_those_that_its_tasks_are_read_from():
    paths = {"train_file": Path("a.jsonl"), "val_file": Path("b.jsonl"), "held_out_fraction": 0.1}
    assert GreedyGrpoConfig(**FILES).data == DataConfig(**paths)
    found = LocalGrpoConfig(**FILES, num_tasks=7, eval_tasks=9).data
    assert found == DataConfig(**paths, generate=7, val_limit=9)
    assert data_of(SftConfig(**FILES)) == DataConfig(**paths, generate=512, val_limit=1)
    gsm8k = SftConfig(dataset="gsm8k:rows.jsonl", num_tasks=5)
    assert data_of(gsm8k) == DataConfig(train_file=Path("rows.jsonl"), generate=5, val_limit=1)


def test_evaluate_plays_the_environment_of_its_flags_or_the_agent():
    where = {"base_url": "http://h/v1", "model": "m", "tasks": "t.jsonl", "instructions": "p.txt", "call_timeout_s": 3}
    asked = {"protocol": "text", "judge": "lab", "backend": "mariadb"}
    found = EvaluateConfig(**where, **asked).environment
    assert found == EnvironmentSettings("dbbench", "text", "lab", "mariadb", None, 3.0, None, Path("p.txt"))
    agent = EvaluateConfig(**where, agent="a.py:a").environment
    assert agent == EnvironmentSettings("agent", "fc", "strict", "sqlite", None, 3.0, "a.py:a", Path("p.txt"))


@pytest.mark.parametrize("updates", [0, 5])
def test_a_run_of_single_skill_is_measured_without_a_number_of_tasks(updates):
    cfg = ExperimentConfig(language_model={"model_path": "m"}, training_callback={"evaluate_every": updates})
    assert (cfg.trained().eval_every, cfg.trained().eval_tasks, cfg.trained().group_size) == (updates, 0, 1)


def test_a_service_has_an_address_without_a_login():
    url = main_job.ApoConfig(base_url="http://h:1/v1/").base_url
    assert (url, main_job.ApoConfig(base_url=None).base_url) == ("http://h:1/v1", None)
    with pytest.raises(ValidationError, match="leave it out, a key is read from OPENAI_API_KEY"):
        main_job.ApoConfig(base_url="http://key@h:1/v1")


def own_settings(row: str) -> type[BaseModel]:
    module, _, name = row.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("row", [*ESTIMATORS.values(), *LOSSES.values()])
def test_what_an_estimator_or_a_loss_reads_is_a_setting_of_both_trainers(row):
    assert own_settings(row).model_fields.keys() - {"float64"} <= CreditSettings.model_fields.keys()


@pytest.mark.parametrize("name", CreditSettings.model_fields)
@pytest.mark.parametrize("trainer", [main_job.LossConfig, local.LossConfig])
def test_both_trainers_take_the_same_values_of_it(trainer, name):
    def taken(field):
        ranges = [each for each in field.metadata if not isinstance(each, VerlKey | FlagName)]
        return field.annotation, field.default, field.description, ranges

    assert taken(trainer.model_fields[name]) == taken(CreditSettings.model_fields[name])
