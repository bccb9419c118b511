"""wandb, SwanLab, TensorBoard and trackio really write: by verl's Tracking, as in the main job, and by TRL's trainers.

They write in a process of their own: they keep threads, and read the environment when they are imported.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentgrpo.printed_commands import install_command
from agentgrpo.run_folder import usable_trackers

ROOT = Path(__file__).parents[2]
FILES = {
    "wandb": "wandb/offline-run-*/run-*.wandb",
    "swanlab": "swanlab/run-*/backup.swanlab",
    "trackio": "trackio/*.db",
}
"""What each tracker writes below the run's folder. TensorBoard's file is read in `logged`."""
VARIABLES = ("WANDB_", "SWANLAB_", "TENSORBOARD_", "TRACKIO_")
BY_VERL = """
import sys
from pathlib import Path
from agentgrpo.run_folder import usable_trackers
from verl.utils.tracking import Tracking
folder, *trackers = sys.argv[1:]
tracking = Tracking("agentgrpo", "run", usable_trackers(trackers, Path(folder)), {"trainer": {"steps": 1}})
tracking.log({"reward/mean": 0.5}, step=1)
tracking.finish()
"""
BY_TRANSFORMERS = """
import sys
import torch
from transformers import TrainerControl, TrainerState
from transformers.integrations import get_reporting_integration_callbacks
from reward_model.arguments import TrainingArguments
folder, *trackers = sys.argv[1:]
args = TrainingArguments(output_dir=folder, report_to=trackers, use_cpu=True)
state, control, model = TrainerState(global_step=1), TrainerControl(), torch.nn.Linear(1, 1)
for callback in [each() for each in get_reporting_integration_callbacks(args.report_to)]:
    callback.on_train_begin(args, state, control, model=model)
    callback.on_log(args, state, control, model=model, logs={"reward/mean": 0.5})
    callback.on_train_end(args, state, control, model=model, processing_class=None)
for tracker in {"wandb", "swanlab"} & {*trackers}:
    __import__(tracker).finish()
"""


def write(program, trackers, folder):
    """Log `reward/mean` 0.5 at step 1 in a process that has none of these variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), *trackers],
        cwd=folder,
        env=clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr


def logged(tracker, folder):
    """Whether the metric is on disk: TensorBoard's with its value, that of the others by its name in their files."""
    if tracker == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        (name,) = (tag for tag in events.Tags()["scalars"] if tag.endswith("reward/mean"))
        return [event.value for event in events.Scalars(name)] == [0.5]
    (file,) = folder.glob(FILES[tracker])
    return b"reward/mean" in file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [pytest.param(BY_VERL, id="verl"), pytest.param(BY_TRANSFORMERS, id="transformers")]
)
def test_the_trackers_write_into_the_runs_folder_without_an_account(program, tmp_path):
    installed = [tracker for tracker in ("wandb", "swanlab", "tensorboard", "trackio") if find_spec(tracker)]
    write(program, installed, tmp_path)
    assert [tracker for tracker in installed if not logged(tracker, tmp_path)] == []
    assert {each.name for each in tmp_path.iterdir()} == {*installed}
    if len(installed) < 4:
        pytest.skip(f"only {', '.join(installed)} are installed: uv pip install -r pyproject.toml --extra trackers")


def test_a_tracker_that_is_not_installed_is_left_out_aloud(tmp_path, caplog):
    before = dict(os.environ)
    assert usable_trackers(["no_such_tracker"], tmp_path) == []
    assert (
        f"no_such_tracker is not installed; continuing without it. To add it: {install_command('no_such_tracker')}"
        in caplog.text
    )
    assert dict(os.environ) == before


def test_what_the_environment_says_stays(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.update(WANDB_API_KEY="k", WANDB_DIR="elsewhere", SWANLAB_MODE="online")
    assert usable_trackers(["tensorboard"], tmp_path) == ["tensorboard"]
    assert {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)} == {
        "WANDB_API_KEY": "k",
        "WANDB_DIR": "elsewhere",
        "SWANLAB_MODE": "online",
        "SWANLAB_LOG_DIR": f"{tmp_path}/swanlab",
        "TRACKIO_DIR": f"{tmp_path}/trackio",
        "TENSORBOARD_DIR": f"{tmp_path}/tensorboard",
        "TENSORBOARD_LOGGING_DIR": f"{tmp_path}/tensorboard",
    }
