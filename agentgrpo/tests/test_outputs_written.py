"""What cannot be written whole is not written at all, and is said in a line."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.disk_errors import OutputError, format_disk_error
from agentgrpo.outputs import append_line, written

ROOT = Path(__file__).parents[2]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_a_file_and_a_folder_take_the_place_of_what_was_there(tmp_path):
    (tmp_path / "a").write_text("old")
    with written(tmp_path / "a") as part:
        part.write_text("new")
        assert (tmp_path / "a").read_text() == "old"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "old").write_text("")
    with written(tmp_path / "b") as part:
        part.mkdir()
        (part / "new").write_text("1")
    with written(tmp_path / "deep" / "c") as part:
        part.write_text("2")
    assert tree(tmp_path) == {"a": b"new", "b/new": b"1", "deep/c": b"2"}


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; make room on its disk, then"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded; make room on its disk, then"),
        (OSError(errno.EROFS, "Read-only file system"), ": Read-only file system; name a path that you may"),
        (PermissionError(errno.EACCES, "Permission denied"), ": Permission denied; name a path that you may"),
        (OSError(errno.EIO, "Input/output error"), ": Input/output error; name a path"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "No space left on device; make room"),
        (Exception("Error while serializing: I/O error: File too large (os error 27)"), "File too large; make room"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos"), "Input/output error"),
        (KeyboardInterrupt(), None),
        (ValueError("a row is no row"), None),
        (ZeroDivisionError("ours"), None),
    ],
)
def test_whatever_ends_the_writing_nothing_of_it_stays(tmp_path, error, words, kind):
    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
    before = tree(tmp_path)
    with pytest.raises(OutputError if words else type(error), match=words), written(tmp_path / "a") as part:
        if kind == "folder":
            part.mkdir()
            (part / "x").write_text("half")
        else:
            part.write_text("half")
        raise error
    assert tree(tmp_path) == before


def test_a_path_that_cannot_be_is_said(tmp_path):
    (tmp_path / "a").write_text("a file")
    with pytest.raises(OutputError, match="look at the path and name another"), written(tmp_path / "a" / "b"):
        pass
    with pytest.raises(OutputError, match=r"/proc.*name"), written(Path("/proc/nothing/here")):
        pass


def test_a_line_is_added_whole_or_not_at_all(tmp_path):
    file = tmp_path / "m.jsonl"
    append_line(file, "é")
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from pathlib import Path
from agentgrpo.outputs import OutputError, append_line
append_line(Path({str(file)!r}), "b")
try:
    append_line(Path({str(file)!r}), "c" * 200)
except OutputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout == (
        f"{file} could not be written: File too large; make room on its disk, then start the same command again\n"
    ), done.stderr
    assert file.read_text() == "é\nb\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileExistsError(errno.EEXIST, "File exists", "a"), "a: File exists; look at the path and name another"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; make room on the disk, then star"),
        (OSError("a store that is gone"), "a store that is gone"),
        (ValueError("words"), "words"),
    ],
)
def test_errors_in_words(error, words):
    assert format_disk_error(error).startswith(words)
