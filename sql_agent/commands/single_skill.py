"""Train a model on one SQL skill at a time with REINFORCE, in this process, with the settings of a YAML file.

    agentgrpo single-skill --config sql_agent/configs/single_skill/experiments/tiny_cpu.yaml

Each episode draws a skill, then a task of it; all skills share one LoRA adapter. The command writes
sessions/episodes.jsonl, logs/metrics.jsonl, logs/success.png and checkpoints/ into
outputs/rl_training/<model>/db_bench/<timestamp>. doc/guides/local.md has the settings.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.checks import Finding, Problem, UsageError, examine, require, show
from agentgrpo.commands import say
from agentgrpo.disk_errors import format_disk_error
from agentgrpo.flags import Parser
from agentgrpo.json_text import parse_json
from agentgrpo.printed_commands import shipped_settings
from agentgrpo.processes import ends_in_order
from sql_agent.local.model_files import check_device
from sql_agent.local.start import load_libraries, report_failures, trained_here
from sql_agent.reward_functions.load import judges_of
from sql_agent.settings.single_skill import ExperimentConfig, LanguageModelConfig, load_experiment, said_here
from sql_agent.startup.machine import this_machine
from sql_agent.success_rate import Rate


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="agentgrpo single-skill",
        description=(__doc__ or "").replace("sql_agent/configs", shipped_settings()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        "--config-path",
        type=Path,
        required=True,
        metavar="FILE",
        help="experiment file; its imports are relative to it",
    )
    parser.add_set("training.grad_accum=8 seed=1")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN_DIR",
        help="resume this run from its last checkpoint, with the same settings",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--dry-run", action="store_true", help="print the settings and stop")
    only.add_argument(
        "--prepare",
        action="store_true",
        help="check packages, database, model and data, make missing data, and stop; the exit status is 1 "
        "if a run cannot start",
    )
    args = parser.parse_args(argv)
    try:
        cfg = load_experiment(args.config, args.overrides)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {said_here(format_disk_error(error))}") from error
    run_dir = args.resume or new_run_dir(cfg)
    with report_failures(run_dir, f"the same command with --resume {run_dir}", said_here):
        if args.dry_run:
            print(yaml.safe_dump(json.loads(cfg.model_dump_json()), sort_keys=False), end="")
            return 0
        if args.prepare:
            return check_experiment(cfg)
        require(run_dir=run_dir)
        require(**trained_here(cfg.language_model))
        require(scorer=cfg.task.reward_model, **judges_of(cfg.task.rollout, cfg.task.llm_judge))
        load_libraries()
        with ends_in_order():
            run(cfg, run_dir, resumed=args.resume is not None)
    return 0


def run(cfg: ExperimentConfig, run_dir: Path, *, resumed: bool) -> None:
    from agentgrpo.run_folder import claim
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.single_skill import OTHER_TASKS, SingleSkill, trained_on
    from sql_agent.local.tasks import describe_user_files, entered
    from sql_agent.local.trainer import start_trainer
    from sql_agent.trained_on import check_not_learnt

    with entered(cfg.trained().environment, backend_setting="task.backend") as environment:
        cfg = cfg.model_copy(update={"language_model": for_this_machine(cfg.language_model)})
        used = describe_user_files(cfg.task, "dbbench", run_dir)
        folder = RunFolder(run_dir, cfg, resumed=resumed, kind="single-skill", own_files=used)
        preset = SingleSkill(cfg)
        notes = check_not_learnt(cfg.language_model.model_path, environment, preset.held_out, OTHER_TASKS)
        folder.trained_on = trained_on(cfg, preset.held_out)
        with claim(run_dir):
            opening = [f"run: {run_dir}", *notes]
            trainer = start_trainer(preset, environment, folder, opening)
            try:
                trainer.train()
            finally:
                _report(folder.metrics)
    say(f"adapter: {folder.finish(trainer.policy, 'checkpoints/adapter')}")


def for_this_machine(model: LanguageModelConfig) -> LanguageModelConfig:
    """The settings with `load_in_4bit` as the GPU's memory needs it, if `four_bit_below_gib` leaves it open."""
    gib = gpu_gib()
    if model.four_bit_below_gib is None or model.device == "cpu" or gib is None:
        return model
    return model.model_copy(update={"load_in_4bit": gib < model.four_bit_below_gib})


def gpu_gib() -> float | None:
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else None


def new_run_dir(cfg: ExperimentConfig) -> Path:
    model = Path(cfg.language_model.model_path.rstrip("/")).name
    return cfg.output_dir / model / "db_bench" / time.strftime("%Y%m%d_%H%M%S")


def _report(metrics: Path) -> None:
    """Print held-out success before and after by skill, and the picture's path, as far as the run came."""
    lines = read_metric_lines(metrics) if metrics.is_file() else []
    if not lines:
        return
    curves = held_out_curves(lines)
    for skill, curve in curves.items():
        print(f"  {skill:46} {_short(curve[0][1]):>14} -> {_short(curve[-1][1])}")
    if ALL in curves:
        print(f"held-out, before: {curves[ALL][0][1]}\nheld-out, after:  {curves[ALL][-1][1]}")
    picture = metrics.with_name("success.png")
    draw_skills(lines, picture)
    print(f"picture: {picture}")


def _short(rate: Rate) -> str:
    return "not judged" if rate.success is None else f"{rate.success:.1%} of {rate.judged}"


# Looking first --------------------------------------------------------------------------------------------------------


def check_experiment(cfg: ExperimentConfig) -> int:
    """Say line by line what is there and what to do if something is missing; return 1 if a run cannot start."""
    machine = this_machine()
    use = {name: machine[name] for name in ("python", "executable", "installed")}
    model = cfg.language_model
    use |= {"backend": cfg.task.backend, "experiment_model": model, "experiment": cfg, **trained_here(model)}
    return show(examine(**use))


def check_experiment_backend(spec: str) -> Finding:
    from dbbench_adapter.engines import BackendUnavailable, open_backend

    name = spec.split("@")[-1]
    try:
        with open_backend(spec):
            return Finding(f"{name} answers")
    except (BackendUnavailable, ValueError) as error:
        remedy = "start or install it, or take --set task.backend=sqlite, which needs nothing"
        return Finding(name, (Problem(str(error), remedy),))


def find_device(model: LanguageModelConfig) -> Finding:
    model, gib = for_this_machine(model), gpu_gib()
    on_gpu = model.device == "cuda" or (model.device == "auto" and gib is not None)
    try:
        check_device("cuda" if on_gpu else "cpu", load_in_4bit=model.load_in_4bit, has_gpu=gib is not None)
    except UsageError as error:
        remedy = "--set language_model.device=cpu --set language_model.load_in_4bit=false"
        return Finding(model.device, (Problem(said_here(str(error)), f"take a GPU, or {remedy}"),))
    how = "4 bits" if model.load_in_4bit else "bfloat16"
    return Finding(f"GPU with {gib:.0f} GiB, base in {how}" if on_gpu else "CPU, base in float32")


def check_data(cfg: ExperimentConfig) -> Finding:
    """Check the data; missing files are made first, if the settings say how many tasks."""
    from dbbench_adapter.generate import Split
    from sql_agent.local.single_skill import draws, held_out_tasks, trained_skills, write_generated

    task = cfg.task
    missing: list[tuple[Path | None, int, Split]] = [
        (task.data, task.generate_missing, "train"),
        (task.held_out_data, task.generate_missing // 4, "held_out"),
    ]
    made = []
    for file, count, split in missing:
        if file and count and not file.exists():
            write_generated(file, count, split)
            made.append(f", {file} made now")
    source = str(task.data or f"generated while training ({task.generator})")
    try:
        draws(task, seed=cfg.seed)
        if cfg.training_callback.evaluate_every:
            held_out_tasks(task, 1)
        return Finding(f"{source}: {len(trained_skills(task))} skills{''.join(made)}")
    except ValueError as error:
        remedy = (
            "give others with --set task.data=FILE --set task.held_out_data=FILE, or have files that are missing made"
        )
        return Finding(source, (Problem(str(error), f"{remedy}: --set task.generate_missing=4400"),))


# The picture ----------------------------------------------------------------------------------------------------------

BINS = 10
"""Points of the training curve; a single update has too few episodes of a skill for its own point."""
ALL = "all skills"
Curve = list[tuple[float, Rate]]
"""Pairs of the number of episodes and the success rate."""


def read_metric_lines(metrics: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in metrics.read_text("utf-8").splitlines()]


def held_out_curves(lines: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Held-out success by skill, all skills together first; {} without an evaluation."""
    found: dict[str, Curve] = {}
    for line in lines:
        if "held_out" in line:
            for skill, rate in {ALL: line["held_out"], **line["held_out/skill"]}.items():
                found.setdefault(skill, []).append((line["episodes"], Rate(**rate)))
    return found


def training_curves(lines: Sequence[Mapping[str, Any]], bins: int = BINS) -> dict[str, Curve]:
    """Sampled success, summed over equal parts of the run; each point is in the middle of its part."""
    updates = [line for line in lines if "success" in line]
    found: dict[str, Curve] = {}
    size = math.ceil(len(updates) / bins)
    for first in range(0, len(updates), size or 1):
        part = updates[first : first + size]
        middle = (part[0]["episodes"] + part[-1]["episodes"]) / 2
        for skill in (ALL, *sorted({skill for line in part for skill in line["success/skill"]})):
            own = [line["success"] if skill == ALL else line["success/skill"].get(skill) for line in part]
            found.setdefault(skill, []).append((middle, _sum([rate for rate in own if rate is not None])))
    return found


def _sum(rates: Sequence[Mapping[str, int]]) -> Rate:
    return Rate(*(sum(rate[name] for rate in rates) for name in ("n", "judged", "correct")))


def draw_skills(lines: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw one panel per skill.

    A line shows sampled success during training, dots show greedy success on held-out tasks with 95 % intervals.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    training, held_out = training_curves(lines), held_out_curves(lines)
    skills = [ALL, *sorted((training.keys() | held_out.keys()) - {ALL})]
    columns = min(4, len(skills))
    rows = math.ceil(len(skills) / columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.3 * rows + 0.6), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel, skill in zip(panels.flat, skills, strict=False):
        points = [(at, rate.success) for at, rate in training.get(skill, ()) if rate.success is not None]
        panel.plot([at for at, _ in points], [s for _, s in points], color="tab:gray", label="training, sampled")
        _dots(panel, held_out.get(skill, []))
        panel.set_title(skill.replace("_", " "), fontsize=8)
        panel.grid(alpha=0.3)
    for panel in panels.flat[len(skills) :]:
        panel.set_visible(False)
    for panel in panels.flat[max(0, len(skills) - columns) : len(skills)]:  # nothing visible below them
        panel.tick_params(labelbottom=True)
    panels[0, 0].set_ylim(-0.03, 1.03)
    panels[0, 0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.supxlabel("episodes", fontsize=9)
    figure.supylabel("success", fontsize=9)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _dots(panel: Any, curve: Curve) -> None:
    known = [(at, rate.success, *rate.interval) for at, rate in curve if rate.interval and rate.success is not None]
    if known:
        at, success, low, high = zip(*known, strict=True)
        below = [s - a for s, a in zip(success, low, strict=True)]
        above = [b - s for s, b in zip(success, high, strict=True)]
        panel.errorbar(at, success, yerr=[below, above], fmt="o", ms=4, capsize=3, label="held-out, greedy")
