"""The folder of a run: one run at a time writes to it, and a run that goes on there is what it was."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from agentgrpo.checkpoints import checkpoints
from agentgrpo.checks import UsageError
from agentgrpo.hub import ModelNotFoundError
from agentgrpo.run_folder import claim, earlier_steps, write_start
from dbbench_adapter.export import write_rows
from sql_agent.settings.load import dump_config, load_config
from sql_agent.startup.preflight import find_model
from sql_agent.startup.resume import archive_files, check_resume, hash_user_files, refuse_other_tasks
from sql_agent.tests.conftest import checkpoint_of


def test_metrics_that_are_no_text_are_passed_over_and_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'\xff\x00\n{"train_step": 1}\n[]\n{"train_step": 2, "a": null}\n7\n')
    assert earlier_steps(tmp_path / "metrics.jsonl") == [{"train_step": 1}, {"train_step": 2}]
    aside = archive_files(tmp_path, after=1)
    assert aside is not None
    assert (aside / "metrics.jsonl").read_bytes().startswith(b"\xff\x00")
    assert (tmp_path / "metrics.jsonl").read_text() == '{"train_step": 1}\n'


def test_the_id_of_a_model_means_the_same_folder_when_the_run_goes_on(tmp_path, monkeypatch, random_policy_folder):
    snapshot = tmp_path / "hub" / "models--org--policy" / "snapshots" / "abc"
    shutil.copytree(random_policy_folder, snapshot)
    (tmp_path / "hub" / "models--org--policy" / "refs").mkdir()
    (tmp_path / "hub" / "models--org--policy" / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cfg = load_config(None, ["model=org/policy", f"run_dir={tmp_path}"])
    assert find_model(cfg.model) == snapshot
    checkpoint = checkpoint_of(tmp_path, 1)
    (tmp_path / "config.yaml").write_text(dump_config(cfg.model_copy(update={"model": snapshot})))
    check_resume(cfg, checkpoint, cpu=True)
    with pytest.raises(UsageError, match=r"trained with other settings \(model;"):
        check_resume(cfg.model_copy(update={"model": random_policy_folder}), checkpoint, cpu=True)


def test_a_run_whose_model_is_gone_says_so(tmp_path, random_policy_folder):
    model, checkpoint = tmp_path / "model", checkpoint_of(tmp_path, 1)
    shutil.copytree(random_policy_folder, model)
    cfg = load_config(None, [f"model={model}", f"run_dir={tmp_path}"])
    (tmp_path / "config.yaml").write_text(dump_config(cfg))
    check_resume(cfg, checkpoint, cpu=True)
    shutil.rmtree(model)
    with pytest.raises(
        UsageError, match=rf"was trained from {model}, which is gone; put the model back there, or give"
    ):
        check_resume(cfg, checkpoint, cpu=True)
    never_there = cfg.model_copy(update={"model": tmp_path / "other"})
    with pytest.raises(ModelNotFoundError, match="other is no folder"):
        check_resume(never_there, checkpoint, cpu=True)


def test_a_run_may_go_on_with_other_wall_clock_limits_and_not_with_settings_that_are_refused(tmp_path):
    checkpoint = checkpoint_of(tmp_path, 1)
    cfg = load_config(None, [f"run_dir={tmp_path}"])
    longer = cfg.model_copy(update={"agent": cfg.agent.model_copy(update={"rollout_timeout_s": 500.0})})
    (tmp_path / "config.yaml").write_text(dump_config(longer))
    check_resume(cfg, checkpoint, cpu=True)
    hotter = cfg.model_copy(update={"agent": cfg.agent.model_copy(update={"temperature": 0.5})})
    with pytest.raises(UsageError, match=r"trained with other settings \(agent;"):
        check_resume(hotter, checkpoint, cpu=True)
    # as an earlier version wrote it
    (tmp_path / "config.yaml").write_text(dump_config(cfg).replace("turn_timeout_s: 90.0", "turn_timeout_s: 120.0"))
    with pytest.raises(UsageError, match=r"config.yaml holds settings that this version refuses \(.*deadlines"):
        check_resume(cfg, checkpoint, cpu=True)


def test_a_run_goes_on_with_the_instructions_it_had(tmp_path):
    checkpoint, file = checkpoint_of(tmp_path, 1), tmp_path / "mine.txt"
    file.write_text("Call execute_sql, then commit_final_answer.")
    cfg = load_config(None, [f"run_dir={tmp_path}", f"agent.instructions={file}"])
    (tmp_path / "config.yaml").write_text(dump_config(cfg))
    write_start(tmp_path, {"own_files": hash_user_files(cfg)}, resumed=False)
    check_resume(cfg, checkpoint, cpu=True)
    file.write_text("Call commit_final_answer, not execute_sql.")
    with pytest.raises(UsageError, match=f"trained with other settings .the content of {file};"):
        check_resume(cfg, checkpoint, cpu=True)


def test_a_run_goes_on_with_the_tasks_it_had(tmp_path):
    row, same = {"data_source": "x", "extra_info": {"task": "1"}}, tmp_path / "train.parquet"
    refuse_other_tasks([row], same)  # nothing there to compare with
    write_rows([row, row], same)
    refuse_other_tasks([row, row], same)
    for other in ([row, row | {"extra_info": {"task": "2"}}], [row]):
        with pytest.raises(UsageError, match=r"1 of 2 differ from .*train.parquet; has the task file changed"):
            refuse_other_tasks(other, same)


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    with claim(tmp_path), pytest.raises(UsageError, match="another run is writing to"), claim(tmp_path):
        pass
    with claim(tmp_path):  # the first has ended
        pass


def test_a_new_start_sets_aside_what_an_earlier_run_left(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}")
    assert archive_files(tmp_path) == next(tmp_path.glob("before-*"))
    (aside,) = tmp_path.glob("before-*/metrics.jsonl")
    assert aside.read_text() == "{}"
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_run_that_goes_on_sets_aside_what_was_logged_of_the_steps_it_takes_again(tmp_path):
    rows = [json.dumps({"train_step": step}) + "\n" for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(rows) + '{"train_st')  # killed while it wrote the fourth
    (tmp_path / "trajectories").mkdir()
    for name in ("train_000001", "val_000002", "train_000003"):
        (tmp_path / "trajectories" / f"{name}.jsonl").write_text(name)
    archive_files(tmp_path, after=2)
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(rows[:2])
    assert sorted(path.stem for path in (tmp_path / "trajectories").iterdir()) == ["train_000001", "val_000002"]
    (aside,) = tmp_path.glob("before-*")
    assert (aside / "metrics.jsonl").read_text() == "".join(rows) + '{"train_st'
    assert (aside / "trajectories" / "train_000003.jsonl").read_text() == "train_000003"
    assert archive_files(tmp_path, after=2) is None  # nothing later is left
    assert list(tmp_path.glob("before-*")) == [aside]


def test_a_checkpoint_that_was_passed_over_is_moved_and_not_removed_by_the_next_that_is_written(tmp_path):
    for step in (2, 6):
        checkpoint_of(tmp_path, step)
    (checkpoint_of(tmp_path, 4) / "manifest.json").unlink()  # never written to its end: it is written anew
    aside = archive_files(tmp_path, after=2)
    assert aside and [path.name for path in checkpoints(aside / "checkpoints")] == ["global_step_6"]
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["global_step_4", "global_step_2"]


def test_run_json_keeps_the_starts_that_a_resumed_run_goes_on_from(tmp_path):
    for run_id, resumed in (("a", False), ("b", True), ("c", True)):
        write_start(tmp_path, {"run_id": run_id}, resumed=resumed)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert (facts["run_id"], facts["earlier_starts"]) == ("c", [{"run_id": "a"}, {"run_id": "b"}])
    write_start(tmp_path, {"run_id": "d"}, resumed=False)
    assert json.loads((tmp_path / "run.json").read_text()) == {"run_id": "d", "earlier_starts": []}
    (tmp_path / "run.json").write_text("{")
    write_start(tmp_path, {"run_id": "e"}, resumed=True)
    assert json.loads((tmp_path / "run.json").read_text())["run_id"] == "e"


def test_a_refused_start_leaves_no_folder_and_no_file_of_its_own(tmp_path):
    def refused(folder, *files):
        with pytest.raises(UsageError), claim(folder):
            for name in files:
                (folder / name).touch()
            raise UsageError("no such model")
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else None

    assert refused(tmp_path / "new") is None
    (tmp_path / "of_the_user").mkdir()
    assert refused(tmp_path / "of_the_user" / "p" / "q" / "r") is None
    assert list((tmp_path / "of_the_user").iterdir()) == []
    assert refused(tmp_path / "begun", "vllm.log") == [".lock", "vllm.log"]
    (tmp_path / "mine").mkdir()
    assert refused(tmp_path / "mine") == [".lock"]  # it was there before


def test_a_folder_is_free_when_its_command_is_dead_though_a_fork_of_it_is_not(tmp_path):
    script = f"""
import os, time
from pathlib import Path
from agentgrpo.run_folder import claim
with claim(Path({str(tmp_path)!r})):
    os.fork()
    os.write(1, b"up\\n")  # each of the two, in one piece
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
        with pytest.raises(UsageError, match="another run is writing to"), claim(tmp_path):
            pass
        process.kill()
        process.wait()
        with claim(tmp_path):  # at once
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)
