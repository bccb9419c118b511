"""Outputs are checked before the work: what is there stays, what cannot be written is said."""

import pytest

from agentgrpo.outputs import OutputError, check_output


def test_a_file_in_folders_still_to_be_made_is_fine_and_none_is_made(tmp_path):
    check_output(tmp_path / "new" / "folder" / "a.json", "--output")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overwrite", "words"),
    [
        pytest.param(None, "is there already; name another --output$", id="cannot_replace"),
        pytest.param(False, "is there already; give --overwrite or another --output$", id="not_told_to"),
    ],
)
def test_what_is_there_is_kept(tmp_path, overwrite, words):
    (tmp_path / "a.json").write_text("mine")
    with pytest.raises(OutputError, match=words):
        check_output(tmp_path / "a.json", "--output", overwrite=overwrite)
    check_output(tmp_path / "a.json", "--output", overwrite=True)
    assert (tmp_path / "a.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param(
            "/proc/x/a.json", r"/proc/x/a.json cannot be written \(No such file or directory\); name", id="proc"
        ),
        pytest.param("file/a.json", r"cannot be written \(Not a directory\)", id="below_a_file"),
        pytest.param("x" * 300 + ".json", r"cannot be written \(File name too long\)", id="name"),
        pytest.param("folder", "folder is a folder, expected a file to write", id="folder"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path, path, words):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=words):
        check_output(tmp_path / path, "--output", overwrite=True)
