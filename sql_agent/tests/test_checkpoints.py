"""A checkpoint counts once it is sealed, and is loaded only as it was written. Real files, a real disk that is full."""

import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentgrpo.checkpoints import CheckpointError, check_checkpoint, checkpoints, prune
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.signed_checkpoints import NotOursError
from sql_agent.verl_side.checkpoints import (
    describe_checkpoint,
    name_dtype,
    newest_verl_checkpoint,
    point_verl_at,
    write_manifest,
)
from sql_agent.verl_side.driver import CheckpointKeeper

FACTS = {"run_id": "r", "commit": "c"}


def write_checkpoint(folder: Path, step: int, *, weights: bytes = b"weights", sealed: bool = True) -> Path:
    checkpoint = folder / f"global_step_{step}"
    (checkpoint / "actor" / "huggingface").mkdir(parents=True)
    (checkpoint / "actor" / "model.pt").write_bytes(weights)
    (checkpoint / "actor" / "huggingface" / "config.json").write_text("{}")
    (checkpoint / "data.pt").write_bytes(b"order")
    if sealed:
        write_manifest(checkpoint, describe_checkpoint(checkpoint, FACTS))
    return checkpoint


# which one is loaded ------------------------------------------------------------------------------------------------


def test_the_manifest_holds_the_step_the_run_and_every_file(tmp_path):
    manifest = json.loads((write_checkpoint(tmp_path, 4) / "manifest.json").read_text())
    assert (manifest["train_step"], manifest["run_id"], manifest["commit"]) == (4, "r", "c")
    assert manifest["versions"]["verl"] == "0.9.1"
    # printf weights | sha256sum
    weights = {"bytes": 7, "sha256": "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"}
    assert set(manifest["files"]) == {"actor/model.pt", "actor/huggingface/config.json", "data.pt"}
    assert manifest["files"]["actor/model.pt"] == weights


def test_the_newest_whole_checkpoint_is_taken_by_number_and_not_by_name(tmp_path):
    for step in (9, 10):
        write_checkpoint(tmp_path, step)
    assert newest_verl_checkpoint(tmp_path, print) == tmp_path / "global_step_10"
    assert newest_verl_checkpoint(tmp_path / "none", print) is None


def cut(checkpoint: Path) -> None:
    os.truncate(checkpoint / "actor" / "model.pt", 3)


def change(checkpoint: Path) -> None:
    (checkpoint / "actor" / "model.pt").write_bytes(b"WEIGHTS")


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        pytest.param(cut, "actor/model.pt has 3 bytes, expected 7", id="cut_short"),
        pytest.param(change, "actor/model.pt holds something else than was written", id="changed_in_place"),
        pytest.param(lambda c: (c / "data.pt").unlink(), "data.pt is missing", id="a_file_is_gone"),
        pytest.param(
            lambda c: (c / "manifest.json").unlink(),
            "manifest.json is missing, so it was not written to its end",
            id="never_sealed",
        ),
        pytest.param(
            lambda c: os.truncate(c / "manifest.json", 20), "cannot be read (JSONDecodeError", id="torn_manifest"
        ),
        pytest.param(
            lambda c: (c / "manifest.json").write_text("[]"), "cannot be read (AttributeError", id="other_manifest"
        ),
    ],
)
def test_one_that_is_not_as_it_was_written_is_passed_over_aloud(tmp_path, damage, fault):
    write_checkpoint(tmp_path, 2)
    damage(write_checkpoint(tmp_path, 4))
    said = []
    assert newest_verl_checkpoint(tmp_path, said.append) == tmp_path / "global_step_2"
    (line,) = said
    assert line.startswith(f"checkpoint {tmp_path / 'global_step_4'} is skipped: ")
    assert fault in line


def test_one_that_another_user_wrote_is_refused_and_not_passed_over(tmp_path):
    """verl unpickles it; and what is skipped would in the end be removed for a newer one."""
    write_checkpoint(tmp_path, 2)
    manifest = write_checkpoint(tmp_path, 4) / "manifest.json"
    record = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({name: value for name, value in record.items() if name != "signature"}))
    accept = re.escape(agentgrpo_command("accept", tmp_path.parent))
    with pytest.raises(NotOursError, match=f"global_step_4/manifest.json is not signed.*`{accept}` signs it"):
        newest_verl_checkpoint(tmp_path, print)


def test_where_none_is_whole_the_error_says_how_to_start_anew(tmp_path):
    cut(write_checkpoint(tmp_path, 2))
    write_checkpoint(tmp_path, 4, sealed=False)
    with pytest.raises(
        CheckpointError, match=r"global_step_4: manifest.*; global_step_2: .*start again with `--resume never`"
    ):
        newest_verl_checkpoint(tmp_path, print)


def test_a_run_that_never_finished_a_checkpoint_starts_anew(tmp_path):
    write_checkpoint(tmp_path, 2, sealed=False)
    said = []
    assert newest_verl_checkpoint(tmp_path, said.append) is None
    assert said[1:] == ["no checkpoint was finished yet: the run starts again"]


def test_verls_own_pointer_is_put_right(tmp_path):
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("")  # as a full disk leaves it
    point_verl_at(write_checkpoint(tmp_path, 12))
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "12"


# which ones stay ----------------------------------------------------------------------------------------------------


def test_the_newest_whole_ones_stay_and_torn_ones_do_not_count(tmp_path):
    for step in (2, 4, 6):
        write_checkpoint(tmp_path, step)
    cut(write_checkpoint(tmp_path, 8))
    removed = prune(write_checkpoint(tmp_path, 10), keep=2)
    assert [path.name for path in removed] == ["global_step_8", "global_step_4", "global_step_2"]
    assert [path.name for path in checkpoints(tmp_path)] == ["global_step_10", "global_step_6"]


def test_one_that_was_passed_over_does_not_push_out_the_one_that_is_whole(tmp_path):
    """Of equal size and other content: only a hash sees it, and only a start reads hashes."""
    write_checkpoint(tmp_path, 20)
    changed = next(path for path in write_checkpoint(tmp_path, 40).rglob("*.pt"))
    changed.write_bytes(bytes(len(changed.read_bytes())))
    assert newest_verl_checkpoint(tmp_path, lambda _: None) == tmp_path / "global_step_20"
    sealed = write_checkpoint(tmp_path, 25)
    assert [path.name for path in prune(sealed, keep=1)] == ["global_step_40", "global_step_20"]
    assert newest_verl_checkpoint(tmp_path, lambda _: None) == sealed


# writing ------------------------------------------------------------------------------------------------------------


class Trainer:
    """Verl's trainer as the keeper sees it; writes what it is told to."""

    def __init__(self, folder: Path, write=write_checkpoint) -> None:
        self.folder, self.write, self.global_steps = folder, write, 0

    def _save_checkpoint(self):
        self.write(self.folder, self.global_steps, sealed=False)

    def _load_checkpoint(self): ...


def record(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trained_on.json").write_text('{"env": "dbbench"}\n')
    return folder / "trained_on.json"


def training(folder: Path, *, keep=2, **kwargs):
    trainer_class = type("Trainer", (Trainer,), {"_save_checkpoint": Trainer._save_checkpoint})
    keeper = CheckpointKeeper(folder, FACTS, keep=keep, trained_on=record(folder))
    keeper.install(trainer_class)
    return keeper, trainer_class(folder, **kwargs)


def take_step(keeper, trainer, step, *, log=True):
    trainer.global_steps = step
    trainer._save_checkpoint()
    if log:
        keeper.seal()


def test_the_model_of_a_checkpoint_says_what_it_was_trained_on_and_the_manifest_covers_that(tmp_path):
    take_step(*training(tmp_path), 2)
    said = tmp_path / "global_step_2" / "actor" / "huggingface" / "trained_on.json"
    assert said.read_text() == '{"env": "dbbench"}\n'
    assert check_checkpoint(tmp_path / "global_step_2") is None
    said.write_text("{}\n")
    assert "trained_on.json" in str(check_checkpoint(tmp_path / "global_step_2"))


def test_a_checkpoint_counts_once_its_step_is_logged(tmp_path):
    keeper, trainer = training(tmp_path)
    take_step(keeper, trainer, 2, log=False)
    assert "not written to its end" in str(check_checkpoint(tmp_path / "global_step_2"))
    keeper.seal()
    assert check_checkpoint(tmp_path / "global_step_2") is None


def test_what_a_killed_run_left_is_written_anew(tmp_path):
    (write_checkpoint(tmp_path, 6, sealed=False) / "leftover").touch()
    keeper, trainer = training(tmp_path)
    take_step(keeper, trainer, 6)
    assert check_checkpoint(tmp_path / "global_step_6") is None
    assert not (tmp_path / "global_step_6" / "leftover").exists()


def test_two_stay(tmp_path):
    keeper, trainer = training(tmp_path, keep=2)
    for step in (2, 4, 6):
        take_step(keeper, trainer, step)
    keeper.seal()  # a step without a checkpoint
    assert {path.name: check_checkpoint(path) for path in checkpoints(tmp_path)} == {
        "global_step_6": None,
        "global_step_4": None,
    }


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB; skips where nobody may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)  # the error that the test looks at holds a file open


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_words_and_what_was_there_is_loaded(small_disk):
    import torch

    def write(folder, step, sealed):
        checkpoint = write_checkpoint(folder, step, sealed=sealed)
        torch.save({"weights": torch.zeros(150_000)}, checkpoint / "actor" / "model.pt")  # 0.57 MiB; two do not fit

    keeper, trainer = training(small_disk, write=write)
    take_step(keeper, trainer, 2)
    with pytest.raises(CheckpointError) as full:
        take_step(keeper, trainer, 4)
    assert f"{small_disk / 'global_step_4'} could not be written, its disk is full (RuntimeError: " in str(full.value)
    assert "make room and start the same command again" in str(full.value)
    said = []
    assert newest_verl_checkpoint(small_disk, said.append) == small_disk / "global_step_2"
    assert len(said) == 1


# going on -----------------------------------------------------------------------------------------------------------


def order_of_tasks(batches: int, *, checkpoint_after: int | None, folder: Path) -> list:
    """Batches of verl's own data loader and sampler over 10 tasks, three a batch: three batches a pass."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    def loader():
        generator = torch.Generator()
        generator.manual_seed(0)
        sampler = RandomSampler(data_source=range(10), generator=generator)  # pyright: ignore[reportArgumentType]
        return StatefulDataLoader(range(10), batch_size=3, drop_last=True, sampler=sampler, collate_fn=list)

    def upstream_load(trainer):  # trainer/ppo/ray_trainer.py, `_load_checkpoint`
        if trainer.global_steps % 3:
            trainer.train_dataloader.load_state_dict(torch.load(folder / f"global_step_{trainer.global_steps}/data.pt"))

    trainer_class = type("Trainer", (Trainer,), {"_load_checkpoint": upstream_load})
    CheckpointKeeper(folder, FACTS, keep=1, trained_on=record(folder)).install(trainer_class)
    seen, current = [], loader()
    while True:
        for batch in current:
            seen.append(batch)
            if len(seen) == batches:
                return seen
            if len(seen) == checkpoint_after:
                (folder / f"global_step_{len(seen)}").mkdir()
                torch.save(current.state_dict(), folder / f"global_step_{len(seen)}/data.pt")
                current = loader()  # the run was killed; another one goes on
                trainer = trainer_class(folder)
                trainer.__dict__ |= vars(SimpleNamespace(global_steps=len(seen), train_dataloader=current))
                trainer._load_checkpoint()
                break


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4, 6])
def test_a_resumed_run_takes_the_tasks_in_the_order_of_the_unbroken_one(tmp_path, step):
    unbroken = order_of_tasks(8, checkpoint_after=None, folder=tmp_path)
    assert unbroken[:3] != unbroken[3:6]  # each pass has an order of its own
    assert order_of_tasks(8, checkpoint_after=step, folder=tmp_path) == unbroken


def test_the_config_says_which_numbers_the_tensors_are(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16", "hidden_size": 8}))
    name_dtype(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"dtype": "float32", "hidden_size": 8}
