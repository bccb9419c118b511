"""Improve a model on your database by fine-tuning and GRPO: `agentgrpo improve --model MODEL --database FILE`.

The stages are commands that you can give yourself; each line is printed before it runs, and each has a folder in
--run-dir:

  questions/     questions made from the database, and your own (--train-file), without the held-out ones
  before.jsonl   the model's answers to the held-out questions at the start
  1-sft/         the model after fine-tuning on the questions
  2-grpo/        the model after GRPO from there, with its curve, trajectories and report

No stage trains on the held-out questions. A stopped command resumes where it stopped when it is given again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from agentgrpo.checks import UsageError, require
from agentgrpo.flags import Parser
from agentgrpo.hub import model_folder
from agentgrpo.machine import count_gpus, free_port
from agentgrpo.model_kinds import count_weights
from agentgrpo.outputs import written
from agentgrpo.passwords import VARIABLE, revealed
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.processes import end_with_parent, ends_in_order
from agentgrpo.run_folder import claim
from dbbench_adapter.splits import draw_by_kind
from sql_agent.interface import command, read_rows
from sql_agent.learning_rates import BILLION, usual_learning_rate
from sql_agent.report.reading import (
    ASKED_BEFORE,
    GRPO,
    IMPROVED,
    Row,
    ValidationChange,
    read_run,
    solved,
)
from sql_agent.serve_commands import HOST, serve_command
from sql_agent.settings.flags import add_flags, read_flags
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.improve import ImproveConfig
from sql_agent.settings.load import config_flag
from sql_agent.startup.evaluate_flags import evaluate_flags
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.success_rate import Rate, rate
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.load import hold_out
from sql_agent.verl_side.config import precision

FINE_TUNING_SHARE = 0.7
"""Share of the minutes that are left after the first measurement. More updates of fine-tuning brought the most."""
MOST_STEPS = 200
"""Steps of GRPO, of which as many are made as fit into the minutes."""
BATCH = 16
"""Questions of an update of fine-tuning: their schema is computed once, so eight more cost little."""
OWN_SHARE = 0.25
"""Least share of what fine-tuning learns that are questions of yours: people word theirs otherwise than made ones."""
SERVER_START_S = 600.0
MOST_HELD_OUT = 200
"""Held-out questions that are asked, so that each measurement takes minutes."""
LEAST_HELD_OUT = 30
"""Questions that are held out, unless these were more than a half. With twelve, a policy that solved none has to solve
six for a gain that is clear by its test."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo improve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser, ImproveConfig)
    cfg = read_flags(parser, ImproveConfig, parser.parse_args(argv))
    try:
        cfg.run_dir.mkdir(parents=True, exist_ok=True)
        with ends_in_order(), claim(cfg.run_dir):
            Improvement(cfg).run()
    except (ValueError, RuntimeError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    return 0


class Improvement:
    """The stages of one command, each of which is left out if it was done before."""

    def __init__(self, cfg: ImproveConfig) -> None:
        require(files=[cfg.train_file, cfg.val_file], place=cfg.database)
        self._cfg, self._folder = cfg, cfg.run_dir.resolve()
        self._model = model_folder(cfg.model).resolve()
        self._weights = count_weights(self._model)
        _pass_password_on(str(cfg.database))
        self._record = self._folder / IMPROVED
        # the settings, and the stages that are done with their minutes
        kept = json.loads(self._record.read_text()) if self._record.is_file() else {"minutes": {}}
        self._settings = cfg.model_dump(mode="json", exclude={"minutes", "run_dir"})
        if kept.get("settings", self._settings) != self._settings:
            changed = [name for name, value in self._settings.items() if kept["settings"].get(name) != value]
            raise UsageError(
                f"{cfg.run_dir} holds a run with another {', '.join(changed)}; give the same, or another --run-dir"
            )
        self._done: dict[str, float] = kept["minutes"]
        self._began = time.monotonic() - 60 * sum(self._done.values())
        self._questions = self._folder / "questions"
        names = ("train", "grpo", "held_out")
        self._train_file, self._sampled_file, self._held_out = (self._questions / f"{name}.jsonl" for name in names)
        adapter = self._weights is None or self._weights >= BILLION
        self._tuned = self._folder / ("1-sft-merged" if adapter else "1-sft")
        self._rank = 16 if adapter else 0

    def run(self) -> None:
        stages = [("questions", self._write_questions), ("before", self._measure), ("fine-tuning", self._fine_tune)]
        stages += [("merge", self._merge)] if self._rank else []
        stages += [("GRPO", self._train), ("report", self._report)]
        for number, (name, stage) in enumerate(stages, 1):
            if name in self._done:
                continue
            left = self._minutes_left()
            print(
                f"\n[{number}/{len(stages)}] {name}; {max(left, 0):.0f} of {self._cfg.minutes:g} minutes left",
                flush=True,
            )
            began = time.monotonic()
            stage()
            self._done[name] = (time.monotonic() - began) / 60
            with written(self._record) as part:
                part.write_text(json.dumps({"settings": self._settings, "minutes": self._done}))
        print("\n".join(["", *self._summary()]))

    def _minutes_left(self) -> float:
        return self._cfg.minutes - (time.monotonic() - self._began) / 60

    @property
    def _database(self) -> list[str]:
        return ["--database", str(self._cfg.database), "--schema-form", self._cfg.schema_form]

    def _run(self, name: str, *words: str | Path) -> None:
        print(agentgrpo_command(name, *words), flush=True)
        command(name, *words)

    # Stages -----------------------------------------------------------------------------------------------------------

    def _write_questions(self) -> None:
        cfg, made_file = self._cfg, self._questions / "made.jsonl"
        self._questions.mkdir(exist_ok=True)
        made: list[Question] = []
        if cfg.num_questions:
            count = ("--num-questions", str(cfg.num_questions), "--seed", str(cfg.seed), "--overwrite")
            self._run("tasks from-database", "--database", str(cfg.database), "--output", made_file, *count)
            with TextToSql(cfg.database) as environment:
                made = environment.read_tasks(made_file)
        with TextToSql(cfg.database, columns=cfg.columns) as environment:
            own = environment.read_tasks(cfg.train_file) if cfg.train_file else []
            if cfg.val_file is not None:
                held_out = environment.read_tasks(cfg.val_file)
            elif own or made:
                wanted = max(LEAST_HELD_OUT, math.ceil(DataConfig().held_out_fraction * len(own or made)))
                split, held_out = hold_out(own or made, wanted)
                made, own = (made, split) if own else (split, [])
            if not (made or own):
                raise UsageError("there is no question to learn: give --train-file, or a --num-questions above 0")
            held_out = draw_by_kind(held_out, MOST_HELD_OUT, cfg.seed)
            known = {key for task in held_out for key in _keys(task)}
            made, own = ([task for task in each if not known.intersection(_keys(task))] for each in (made, own))
            learnt = [*made, *own]
            if not (learnt and held_out):
                raise UsageError(f"{len(learnt)} questions are left to learn and {len(held_out)} held out; give more")
            times = repeated(len(made), len(own))
            files = {
                self._train_file: [*made, *(task for task in own for _ in range(times))],
                self._sampled_file: learnt,
                self._held_out: held_out,
            }
            for file, tasks in files.items():
                with written(file) as part:
                    part.write_text("".join(json.dumps(environment.row(task)) + "\n" for task in tasks), "utf-8")
        own_words = f"; fine-tuning learns yours {times} times an epoch" if times > 1 else ""
        print(f"{len(learnt)} questions to learn, {len(held_out)} held out{own_words}: {self._questions}")

    def _measure(self) -> None:
        flags = evaluate_flags(resolve(parse_train_args(self._train_words(self._model))))
        assert flags is not None
        part = self._folder / "before.part.jsonl"
        part.unlink(missing_ok=True)  # of a start that was stopped
        with self._served() as url:
            self._run("evaluate", "--base-url", url, "--model", "policy", *flags, "--output", part)
        part.rename(self._folder / ASKED_BEFORE)

    def _fine_tune(self) -> None:
        folder = self._folder / "1-sft"
        if (folder / "sft.json").is_file():  # finished by a start that was stopped then
            return
        learning_rate = usual_learning_rate(self._weights, method="sft", lora=self._rank > 0)
        minutes = max(FINE_TUNING_SHARE * self._minutes_left(), 1.0)
        self._run(
            *("sft", "--model", self._model, *self._database, "--train-file", self._train_file),
            *("--val-file", self._held_out, "--lora-rank", str(self._rank), "--learning-rate", f"{learning_rate:g}"),
            *("--num-epochs", "3", "--batch-size", str(BATCH), "--minutes", f"{minutes:.1f}"),
            *("--seed", str(self._cfg.seed), "--run-dir", folder),
            *(["--resume"] if (folder / "checkpoints").is_dir() else []),
        )

    def _merge(self) -> None:
        if not self._tuned.is_dir():
            self._run("merge", "--adapter", self._folder / "1-sft", "--output", self._tuned)

    def _train(self) -> None:
        minutes = max(self._minutes_left(), 1.0)
        self._run("train", *self._train_words(self._tuned), "--minutes", f"{minutes:.1f}")

    def _report(self) -> None:
        self._run("report", self._folder / GRPO)

    def _train_words(self, model: Path) -> list[str]:
        settings = [f"trainer.steps={MOST_STEPS}", f"trainer.val_every={MOST_STEPS}", f"seed={self._cfg.seed}"]
        settings += ["trainer.val_before_train=true", f"data.val_limit={MOST_HELD_OUT}"]
        return [
            *("--model", str(model), *self._database, "--train-file", str(self._sampled_file)),
            *("--val-file", str(self._held_out), *config_flag(self._weights), "--set", *settings),
            *("--run-dir", str(self._folder / GRPO)),
        ]

    @contextlib.contextmanager
    def _served(self) -> Iterator[str]:
        """Serve the model as it was, and yield the address.

        Raises:
            RuntimeError: the server has ended, or does not answer in time.
        """
        cfg, cpu = resolve(parse_train_args(self._train_words(self._model))), count_gpus() == 0
        line = serve_command(self._model, "policy", cpu=cpu, dtype=precision(cfg.engine, self._model, cpu=cpu))
        port, log = free_port(), self._folder / "before.server.log"
        print(f"{line} --port {port}", flush=True)
        words = ["env", *shlex.split(line), "--port", str(port), "--max-model-len", str(cfg.data.row_tokens)]
        with log.open("w") as out:
            server = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True, preexec_fn=end_with_parent)
        try:
            url, deadline = f"http://{HOST}:{port}/v1", time.monotonic() + SERVER_START_S
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    httpx.get(f"{url}/models", timeout=5).raise_for_status()
                    break
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the model server ended or did not answer in {SERVER_START_S:.0f} s: {log}")
                time.sleep(1.0)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)

    # Report -----------------------------------------------------------------------------------------------------------

    def _summary(self) -> list[str]:
        stages, run = stages_of(self._folder), read_run(self._folder / GRPO)
        lines = [f"held-out success {name:<24} {success_of(rows)}" for name, rows in stages.items()]
        before, tuned, trained = stages.values()
        if change := compared(before, trained):
            lines.append(f"change in all: {change}")
        better = sum(solved(row) is True for row in trained) >= sum(solved(row) is True for row in tuned)
        model = run.checkpoints[-1] if better else self._tuned
        talk = agentgrpo_command("interactive", "--model", model, *self._database, "--tasks", self._held_out)
        return [*lines, f"minutes: {sum(self._done.values()):.0f}", f"next, with the better of the two: {talk}"]


def stages_of(folder: Path) -> dict[str, list[Row]]:
    """The held-out rollouts before, after fine-tuning and after GRPO."""
    played = [row for row in read_run(folder / GRPO).trajectories if row.get("validate")]
    first, last = (find(row["train_step"] for row in played) for find in (min, max))
    after = {"after fine-tuning": first, f"after GRPO, step {last}": last}
    return {"before": read_rows(folder / ASKED_BEFORE)} | {
        name: [row for row in played if row["train_step"] == step] for name, step in after.items()
    }


def repeated(made: int, own: int) -> int:
    """How often fine-tuning learns one's own questions in an epoch, so that they have their share."""
    return max(1, round(OWN_SHARE / (1 - OWN_SHARE) * made / own)) if own else 1


def _keys(task: Question) -> Iterator[tuple[str, str]]:
    """What makes two questions about one database the same: their words, or their query."""
    yield task.db_id, " ".join(task.question.casefold().split())
    if task.query is not None:
        yield task.db_id, " ".join(task.query.split())


def _pass_password_on(address: str) -> None:
    """Let the commands of the stages have the password of a server, which no command line shows."""
    if (password := urlsplit(revealed(address)).password) is not None:
        os.environ[VARIABLE] = unquote(password)


def success_of(rows: Sequence[Row]) -> Rate:
    return rate([(row["task_id"], solved(row)) for row in rows])


def compared(before: Sequence[Row], after: Sequence[Row]) -> ValidationChange | None:
    results = {row["task_id"]: solved(row) for row in after}
    return ValidationChange.between((solved(row), results.get(row["task_id"])) for row in before)
