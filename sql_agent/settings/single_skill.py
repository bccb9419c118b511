"""Reads the settings of single-skill REINFORCE from YAML files that import and override one another.

A mapping may have `import: other.yaml`, or a list of files, with paths relative to its own file, and `overwrite:
{...}`. Imports come first, in order, then the mapping's own keys, then `overwrite`. Mappings are merged key by key;
other values are replaced. An import at the top level adds whole settings, one below `agent:` those of the agent.
Importing this module is instant.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from agentgrpo.passwords import BackendSpec, masked
from agentgrpo.settings import Settings, did_you_mean_setting, parse_yaml, read_settings
from dbbench_adapter.judges import JudgeName
from dbbench_adapter.protocols import ProtocolName
from sql_agent.names import RANKING
from sql_agent.settings.flags import message_formatter
from sql_agent.settings.local import (
    AdapterConfig,
    DbBenchTrainingConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    RewardSettings,
    SamplingConfig,
    check_skills,
    renamed_field,
)

# Settings -------------------------------------------------------------------------------------------------------------


class AttentionAdapterConfig(AdapterConfig):
    target_modules: str | tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")


class LanguageModelConfig(ModelConfig):
    model_path: str = Field(...)
    """A Hugging Face model, or an adapter on one: a folder, or its id on the hub, ORG/NAME."""
    four_bit_below_gib: float | None = Field(default=None, gt=0)
    """On a GPU with less memory than this the base model is loaded in 4 bits; null: `load_in_4bit` decides."""
    adapter: AttentionAdapterConfig = AttentionAdapterConfig()


class SamplingAgentConfig(SamplingConfig):
    protocol: ProtocolName = "fc"
    """How the agent acts: by tool calls (fc), or in plain text as AgentBench (text) and LifelongAgentBench (lab)."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature of the episodes that are trained on; evaluation is greedy."""


class RewardsConfig(Settings):
    """The reward of an episode by its outcome; the defaults are the preset `agent_peft`."""

    correct: float = 1.0
    incorrect: float = -0.1
    out_of_limits: float = renamed_field("out_of_rounds", -0.3)
    """Turns or tokens ran out without an answer."""
    malformed: float = -0.1
    """The policy wrote something with which the conversation could not continue."""


class TaskConfig(RewardSettings):
    """The tasks of a run and what their episodes are worth: `rewards`, or what `reward` names."""

    data: Path | None = None
    """Task file in any known form, also one from agentgrpo tasks single-skill; null: tasks are generated."""
    held_out_data: Path | None = None
    """Task file for the evaluation, whose tasks are never trained on; null: a share of the tables of `data`."""
    generate_missing: int = Field(default=0, ge=0)
    """Tasks that --prepare makes for `data`, and a quarter of them for `held_out_data`, if the file is missing."""
    generator: Literal["plain", "synthesis"] = "plain"
    """Without `data`: dbbench_adapter.generator (seven skills over small tables) or dbbench_adapter.generate (22)."""
    skills: dict[str, float] | None = None
    """Relative probability of each skill; null: all skills that have tasks, with equal probability."""
    backend: BackendSpec = "sqlite"
    """Database of the episodes: sqlite, mariadb (a private server) or mysql://user:password@host:port."""
    judge: JudgeName = "strict"
    rewards: RewardsConfig = RewardsConfig()

    @field_validator("skills")
    @classmethod
    def _known_skills(cls, skills: dict[str, float] | None) -> dict[str, float] | None:
        if skills is None:
            return None
        check_skills(skills)
        if not skills or not all(0 < weight < math.inf for weight in skills.values()):
            raise ValueError(f"expected one skill or more, each with a weight above 0, got {skills}")
        return skills


SUM_OVER_TOKENS = LossConfig(
    name="reinforce", estimator="reinforce", kl_coef=0.0, aggregation="seq-mean-token-sum-norm", max_tokens=1
)
"""REINFORCE's loss: a sum over the tokens of an episode, and a mean over the episodes of an update."""


class ReinforceConfig(OptimConfig):
    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    gradient_accumulation_steps: int = renamed_field("grad_accum", 8, ge=1, le=1024)
    """Episodes whose gradients are averaged into one update. The policy does not change among them, so they run side by
    side."""
    baseline: Literal["none", "running_mean"] = "none"
    """Baseline that is subtracted from a reward: none (plain REINFORCE), or its skill's mean over earlier episodes."""
    baseline_decay: float = Field(default=0.9, ge=0, lt=1)
    """Weight of the old running mean against one new reward."""


class TrainingCallbackConfig(Settings):
    """Checkpoints, evaluation and length of a run, which may change when it is resumed."""

    save_every: int | None = Field(default=None, ge=1)
    """Updates between checkpoints; a killed run loses the work after its last one. None: a checkpoint every five
    minutes."""
    evaluate_every: int = Field(default=0, ge=0)
    """Updates between greedy evaluations on held-out tasks, which also run before the first update and after the last;
    0: none at all."""
    evaluate_tasks_per_skill: int = Field(default=16, ge=1)
    stop_after_episodes: int = Field(default=1000, ge=1)
    """A multiple of `training.grad_accum`."""


class ExperimentConfig(Settings):
    """The settings of `agentgrpo single-skill` in the form of its files: one file, most of it imported from others."""

    language_model: LanguageModelConfig
    agent: SamplingAgentConfig = SamplingAgentConfig()
    task: TaskConfig = TaskConfig()
    training: ReinforceConfig = ReinforceConfig()
    training_callback: TrainingCallbackConfig = TrainingCallbackConfig()
    seed: int = Field(default=0, ge=0)
    """Seed of the draws, the adapter's first weights, sampling and dropout."""
    output_dir: Path = Path("outputs/rl_training")
    """The run's folder is <output_dir>/<model>/db_bench/<timestamp>."""

    def trained(self) -> DbBenchTrainingConfig:
        """The same settings as those of every local trainer; the episodes of an update are one batch."""
        task, callback = self.task, self.training_callback
        of_rewards = {name: getattr(task, name) for name in RewardSettings.model_fields}
        return DbBenchTrainingConfig(
            **dict(self.agent),
            **of_rewards,
            backend=task.backend,
            judge=task.judge,
            model=self.language_model,
            adapter=self.language_model.adapter,
            batch_size=self.training.gradient_accumulation_steps,
            optim=self.training.model_copy(update={"gradient_accumulation_steps": 1}),
            loss=SUM_OVER_TOKENS,
            save_every=callback.save_every,
            run_dir=self.output_dir,
            seed=self.seed,
        ).model_copy(update={"group_size": 1, "eval_every": callback.evaluate_every})

    @model_validator(mode="after")
    def _ranks_nothing(self) -> Self:
        if RANKING in self.task.rollout.weights:
            raise ValueError("task.reward names ranking, and these episodes have no groups to rank; name judge instead")
        return self

    @model_validator(mode="after")
    def _ends_with_a_whole_update(self) -> Self:
        episodes, batch = self.training_callback.stop_after_episodes, self.training.gradient_accumulation_steps
        if episodes % batch:
            raise ValueError(
                f"training_callback.stop_after_episodes ({episodes}) is no multiple of training.grad_accum ({batch}); "
                f"take {math.ceil(episodes / batch) * batch}"
            )
        return self


# Files ----------------------------------------------------------------------------------------------------------------


Leaves = dict[tuple[str, ...], tuple[Any, str]]
"""The leaves of a tree of settings: paths to pairs of a value and the file or flag that it comes from."""


def load_experiment(file: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a file with its imports, then apply overrides `a.b=c`, whose values are YAML and replace earlier ones.

    Raises:
        ValueError: a file is missing, is not a mapping, or imports itself; a key is unknown; a value does not fit.
    """
    leaves = _read(file, ())
    for override in overrides:
        place, separator, text = override.partition("=")
        if not separator:
            raise ValueError(
                f"--set {masked(override, whole=True)!r} has no `=`; write it as --set training.learning_rate=1e-4"
            )
        said = f"--set {masked(override, whole=True)}"
        path = _spelt(tuple(place.strip().split(".")))
        others = {own: value for own, value in leaves.items() if own[: len(path)] != path}
        leaves = _merge(others, _leaves(parse_yaml(text, said), path, said))
    try:
        return ExperimentConfig.model_validate(_tree(leaves))
    except ValidationError as error:
        raise ValueError("\n".join(_describe_fault(fault, leaves, file) for fault in error.errors())) from None


def _read(file: Path, importing: tuple[Path, ...]) -> Leaves:
    file = Path(os.path.normpath(file))
    if file in importing:
        chain = " -> ".join(map(str, [*importing[importing.index(file) :], file]))
        raise ValueError(f"{importing[-1]}: import goes in a circle: {chain}; take one of these imports out")
    return _resolved(read_settings(file), (), file, (*importing, file))


def _resolved(mapping: Mapping[Any, Any], place: tuple[str, ...], file: Path, importing: tuple[Path, ...]) -> Leaves:
    """Resolve one mapping of a file: its imports, its own keys over them, and `overwrite` over both."""
    leaves: Leaves = {}
    imports = mapping.get("import", [])
    for name in imports if isinstance(imports, list) else [imports]:
        key = ".".join((*place, "import"))
        if not isinstance(name, str):
            raise ValueError(f"{file}: {key} is {name!r}, expected the path of a YAML file or a list of them")
        target = file.parent / name
        if not target.is_file():
            raise ValueError(
                f"{file}: {key} names {name}, but there is no {os.path.normpath(target)}; "
                "a relative path begins at the folder of this file"
            )
        imported = _read(target, importing)
        leaves = _merge(leaves, {_spelt((*place, *path)): said for path, said in imported.items()})
    own_keys = {key: value for key, value in mapping.items() if key not in ("import", "overwrite")}
    for inner, value in _named_once(own_keys, place, str(file)):
        own = _resolved(value, inner, file, importing) if isinstance(value, dict) else {inner: (value, str(file))}
        leaves = _merge(leaves, own)
    overwrite = mapping.get("overwrite", {})
    if not isinstance(overwrite, dict):
        key = ".".join((*place, "overwrite"))
        raise ValueError(f"{file}: {key} is {overwrite!r}, expected a mapping of settings")
    return _merge(leaves, _leaves(overwrite, place, str(file)))


def _spelt(path: tuple[str, ...]) -> tuple[str, ...]:
    """A setting's path as these files spell it; the names that the main job and flags have for it are read too."""
    found: list[str] = []
    model: Any = ExperimentConfig
    for name in path:
        field = getattr(model, "model_fields", {}).get(name)
        found.append((field and field.serialization_alias) or name)
        model = field and field.annotation
    return tuple(found)


def _leaves(value: Any, place: tuple[str, ...], said: str) -> Leaves:
    if not isinstance(value, dict):
        return {place: (value, said)}
    found: Leaves = {}
    for inner, each in _named_once(value, place, said):
        found |= _leaves(each, inner, said)
    return found


def _named_once(mapping: Mapping[Any, Any], place: tuple[str, ...], said: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of each entry, with its value.

    Raises:
        ValueError: two entries name one setting.
    """
    keys: dict[tuple[str, ...], Any] = {}
    for key, value in mapping.items():
        path = _spelt((*place, str(key)))
        if (other := keys.setdefault(path, key)) != key:
            raise ValueError(f"{said}: {other} and {key} are names of one setting; keep one of them")
        yield path, value


def _merge(under: Leaves, over: Leaves) -> Leaves:
    """Merge two sets of leaves; `over` has precedence, and a value may replace a mapping and a mapping a value."""

    def replaced(path: tuple[str, ...]) -> bool:
        return any(path[: len(new)] == new or new[: len(path)] == path for new in over)

    return {path: said for path, said in under.items() if not replaced(path)} | over


def _tree(leaves: Leaves) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, (value, _) in leaves.items():
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return tree


def _describe_fault(fault: Any, leaves: Leaves, file: Path) -> str:
    place, text = tuple(str(part) for part in fault["loc"]), said_here(fault["msg"])
    key, where = ".".join(place), ", ".join(_places(place, text, leaves)) or str(file)
    if fault["type"] == "extra_forbidden":
        meant = did_you_mean_setting(key, ExperimentConfig)
        return f"{where}: {key}: unknown setting; known beside it: {', '.join(_known(place[:-1]))}{meant}"
    if fault["type"] == "missing":
        return f"{file}: {key} is missing; write or import it"
    text = text.removeprefix("Value error, ").replace("Input should be", "expected")
    found = "" if isinstance(fault["input"], dict | Settings) else f", got {masked(repr(fault['input']), whole=True)}"
    named = not key or f"{key}." in text  # what is wrong with a group may name its settings itself
    return f"{where}: {text}{found}" if named else f"{where}: {key}: {text}{found}"


def _places(place: tuple[str, ...], text: str, leaves: Leaves) -> list[str]:
    """The files and flags that a fault comes from: of the settings at its place those that the message names, if any.

    Args:
        place: a setting, a group, or () for all.
    """
    there = {
        path: where for path, (_, where) in leaves.items() if place[: len(path)] == path or path[: len(place)] == place
    }
    words = set(re.findall(r"[\w.]*\w", text))
    named = [where for path, where in there.items() if ".".join(path) in words or f"'{path[-1]}'" in text]
    return [*dict.fromkeys(named or (there.values() if place else ()))]


def _known(place: tuple[str, ...]) -> list[str]:
    model: Any = ExperimentConfig
    for name in place:
        model = model.model_fields[name].annotation
    return [field.serialization_alias or name for name, field in model.model_fields.items()]


said_here = message_formatter(ExperimentConfig, lambda flag: ".".join(_spelt(flag.place)))
"""Rewrites a message in the names that these files have for settings."""
