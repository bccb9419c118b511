"""Only what this user wrote is loaded: whoever else wrote a checkpoint, and however, its pickles are not run."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.signed_checkpoints import (
    NotOursError,
    check_ours,
    file_sha256,
    key_file,
    read_record,
    seal,
    user_key,
    why_not_loadable,
)
from sql_agent.commands.accept import main as accept_run

RECORD = "manifest.json"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A user who has no key yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return tmp_path / "settings"


@pytest.fixture
def checkpoint(tmp_path, settings):
    folder = tmp_path / "run" / "checkpoints" / "global_step_4"
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "model.pt").write_bytes(b"weights")
    (folder / "data.pt").write_bytes(b"order")
    seal(folder, RECORD, {"train_step": 4, "commit": "c"})
    return folder


def look(checkpoint: Path) -> str | None:
    return why_not_loadable(checkpoint, RECORD, run_dir=checkpoint.parents[1])


def record_of(checkpoint: Path) -> dict:
    return json.loads((checkpoint / RECORD).read_text())


def write(checkpoint: Path, record: dict) -> None:
    (checkpoint / RECORD).write_text(json.dumps(record))


# what is loaded -------------------------------------------------------------------------------------------------------


def test_what_this_user_wrote_is_loaded(checkpoint):
    assert look(checkpoint) is None
    # printf weights | sha256sum
    weights = {"bytes": 7, "sha256": "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"}
    record = record_of(checkpoint)
    assert (record["train_step"], record["files"]["actor/model.pt"]) == (4, weights)
    write(checkpoint, dict(reversed(record.items())))  # another layout of the same JSON
    assert look(checkpoint) is None


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        pytest.param(lambda c: os.truncate(c / "data.pt", 3), "data.pt has 3 bytes, expected 5", id="cut"),
        pytest.param(
            lambda c: (c / "data.pt").write_bytes(b"ORDER"), "data.pt holds something else than was written",
            id="changed",
        ),
        pytest.param(lambda c: (c / "actor" / "model.pt").unlink(), "actor/model.pt is missing", id="gone"),
        pytest.param(
            lambda c: (c / RECORD).unlink(), f"{RECORD} is missing, so it was not written to its end", id="torn"
        ),
    ],
)  # fmt: skip
def test_what_is_not_as_it_was_written_is_told(checkpoint, damage, fault):
    damage(checkpoint)
    assert look(checkpoint) == fault


# what is refused ------------------------------------------------------------------------------------------------------


def forged(checkpoint, change):
    """As whoever changes a file would write the record, without the key."""
    record = record_of(checkpoint)
    change(record)
    write(checkpoint, record)


def replace_weights(checkpoint):
    (checkpoint / "data.pt").write_bytes(b"a pickle of somebody else")
    forged(
        checkpoint,
        lambda record: record["files"]["data.pt"].update(bytes=25, sha256=file_sha256(checkpoint / "data.pt")),
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(replace_weights, "bears another signature than this user's", id="a_file_and_its_hash"),
        pytest.param(lambda c: forged(c, lambda r: r.pop("signature")), "is not signed", id="no_signature"),
        pytest.param(lambda c: forged(c, lambda r: r.update(signature="")), "is not signed", id="an_empty_one"),
        pytest.param(lambda c: forged(c, lambda r: r.update(signature=None)), "another signature", id="none"),
        pytest.param(lambda c: forged(c, lambda r: r.update(signature="ä" * 64)), "another signature", id="no_ascii"),
        pytest.param(lambda c: forged(c, lambda r: r["files"].pop("data.pt")), "another signature", id="one_file_less"),
        pytest.param(lambda c: forged(c, lambda r: r.update(train_step=5)), "another signature", id="another_step"),
        pytest.param(lambda c: key_file().unlink(), "another signature", id="another_key"),
    ],
)  # fmt: skip
def test_what_this_user_did_not_sign_is_refused_with_the_ways_to_accept_it(checkpoint, change, said):
    change(checkpoint)
    with pytest.raises(NotOursError) as refused:
        look(checkpoint)
    words = str(refused.value)
    assert said in words and f"copy {key_file()} from there" in words
    assert f"`{agentgrpo_command('accept', checkpoint.parents[1])}`" in words


@pytest.mark.parametrize("name", ["extra.pt", "actor/extra.pt", ".hidden", "actor/.metadata", "new/deep/x.pt"])
def test_a_file_that_the_record_does_not_name_is_refused(checkpoint, name):
    (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
    (checkpoint / name).touch()
    with pytest.raises(NotOursError, match=f"holds what manifest.json does not name: {name}; move it away"):
        look(checkpoint)


def link_to_a_copy(path: Path) -> None:
    copy = path.parents[2] / f"copy of {path.name}"
    path.rename(copy)
    path.symlink_to(copy)


@pytest.mark.parametrize("name", ["data.pt", "actor/model.pt", "actor"])
def test_a_link_out_of_the_checkpoint_is_refused(checkpoint, name):
    """What it leads to may change after it was looked at."""
    link_to_a_copy(checkpoint / name)
    with pytest.raises(NotOursError, match=f"{name} is no plain file"):
        look(checkpoint)


def test_a_pipe_is_refused_and_not_waited_for(checkpoint):
    (checkpoint / "data.pt").unlink()
    os.mkfifo(checkpoint / "data.pt")
    with pytest.raises(NotOursError, match=r"data.pt is no plain file"):
        look(checkpoint)


PLACES = ["data.pt", "actor", "actor/model.pt", ".", "..", "../..", RECORD]


@pytest.mark.parametrize("place", PLACES)
def test_what_everybody_may_write_is_refused(checkpoint, place):
    path = checkpoint / place
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    with pytest.raises(NotOursError, match="may be written by everybody"):
        look(checkpoint)


@pytest.mark.parametrize("place", ["..", "../.."])
def test_a_folder_in_which_everybody_may_write_and_nobody_move_what_is_ours_is_no_reason(checkpoint, place):
    (checkpoint / place).chmod(0o1777)
    assert look(checkpoint) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("place", PLACES)
def test_what_another_user_wrote_is_refused_though_it_is_signed(checkpoint, place):
    os.chown(checkpoint / place, 12345, -1)
    with pytest.raises(NotOursError) as refused:
        look(checkpoint)
    assert f"belongs to user 12345, not to you ({os.geteuid()})" in str(refused.value)
    accept = agentgrpo_command("accept", "COPY")
    assert f"`cp -rL {checkpoint.parents[1]} COPY`, then `{accept}`" in str(refused.value)


def test_where_a_file_system_gives_everything_to_one_user_the_signature_decides(checkpoint, monkeypatch):
    """As a share that is mounted for another user: what we write there is not ours by its owner either."""
    monkeypatch.setattr("agentgrpo.signed_checkpoints.os.geteuid", lambda: 54321)
    assert look(checkpoint) is None
    forged(checkpoint, lambda record: record.pop("signature"))
    with pytest.raises(NotOursError, match="is not signed"):
        look(checkpoint)


# the key --------------------------------------------------------------------------------------------------------------


def test_the_key_is_made_once_and_read_by_its_user_alone(settings):
    key = user_key()
    assert (len(key), user_key()) == (32, key)
    assert key_file() == settings / "agentgrpo" / "key"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (key_file(), key_file().parent)] == [0o600, 0o700]
    assert os.listdir(key_file().parent) == ["key"]


def test_it_stands_in_the_home_folder_where_nothing_else_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for said in ("", "relative/path"):  # the XDG specification: relative ones are ignored
        monkeypatch.setenv("XDG_CONFIG_HOME", said)
        assert key_file() == tmp_path / ".config" / "agentgrpo" / "key"


def test_of_many_processes_that_make_it_at_once_all_have_the_same(settings):
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert len(set(pool.starmap(user_key, [()] * 64))) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o644])
def test_a_key_that_others_may_read_signs_nothing(settings, mode):
    user_key()
    key_file().chmod(mode)
    with pytest.raises(NotOursError, match="hexadecimal digits that nobody else can read; remove it"):
        user_key()


@pytest.mark.parametrize("text", ["", "00", "no hexadecimal", "00" * 31, "00" * 33])
def test_a_torn_key_signs_nothing(settings, text):
    user_key()
    key_file().write_text(text)
    with pytest.raises(NotOursError, match=r"agentgrpo/key, (has to be 64 hexadecimal digits|cannot be made or read)"):
        user_key()


def test_where_it_cannot_be_written_the_message_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(
        NotOursError, match=r"cannot be made or read \(NotADirectoryError.*set XDG_CONFIG_HOME to a folder"
    ):
        user_key()


# what somebody trusts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["run", "run/checkpoints", "run/checkpoints/global_step_4"])
def test_a_folder_that_its_user_accepts_is_loaded(checkpoint, tmp_path, capsys, where):
    key_file().unlink()  # another machine
    assert accept_run([str(tmp_path / where)]) == 0
    assert capsys.readouterr().out == f"{checkpoint}: signed\n"
    assert look(checkpoint) is None


def test_one_that_an_earlier_version_wrote_is_accepted_as_it_is(checkpoint, tmp_path):
    write(checkpoint, {"train_step": 4})
    assert accept_run([str(tmp_path / "run")]) == 0
    assert look(checkpoint) is None
    assert set(record_of(checkpoint)["files"]) == {"actor/model.pt", "data.pt"}


@pytest.mark.parametrize("record", ["reward_model.json", "dpo.json"])
def test_checkpoints_of_trls_trainers_are_accepted(tmp_path, settings, capsys, record):
    folder = tmp_path / "checkpoint-4"
    folder.mkdir()
    seal(folder, record, {"train_step": 4})
    key_file().unlink()  # another machine
    assert accept_run([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{folder}: signed\n"


def test_what_is_torn_is_not_signed(checkpoint, tmp_path, capsys):
    key_file().unlink()
    os.truncate(checkpoint / "data.pt", 3)
    assert accept_run([str(tmp_path / "run")]) == 1
    assert capsys.readouterr().out == f"{checkpoint}: data.pt has 3 bytes, expected 5\n"
    with pytest.raises(NotOursError):
        check_ours(checkpoint, RECORD, read_record(checkpoint, RECORD), run_dir=tmp_path / "run")


def test_what_everybody_may_write_is_not_signed(checkpoint, tmp_path, capsys):
    (checkpoint / "data.pt").chmod(0o666)
    assert accept_run([str(tmp_path / "run")]) == 1
    assert "may be written by everybody" in capsys.readouterr().out


def test_a_folder_without_checkpoints_is_told(tmp_path, capsys):
    assert accept_run([str(tmp_path)]) == 1
    assert "holds no checkpoint with one of manifest.json, reward_model.json, dpo.json" in capsys.readouterr().err
