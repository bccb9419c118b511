"""What a node gathers of its files, without Ray."""

import pytest

from agentgrpo.checks import UsageError
from sql_agent.cluster.facts import EDGE_BYTES, OUR_PACKAGES, code_digest, digest, why_unread, why_unwritten
from sql_agent.cluster.gcs import Node, own_node


def written(folder, **files):
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_bytes(text)
    return folder


def test_folders_are_equal_if_names_sizes_and_both_ends_of_their_files_are(tmp_path):
    one = written(tmp_path / "one", config=b"{}", weights=b"a" * EDGE_BYTES * 3)
    assert digest(written(tmp_path / "same", config=b"{}", weights=b"a" * EDGE_BYTES * 3)) == digest(one)
    others = {
        "name": {"config2": b"{}", "weights": b"a" * EDGE_BYTES * 3},
        "size": {"config": b"{}", "weights": b"a" * (EDGE_BYTES * 3 + 1)},
        "start": {"config": b"{}", "weights": b"b" + b"a" * (EDGE_BYTES * 3 - 1)},
        "end": {"config": b"{}", "weights": b"a" * (EDGE_BYTES * 3 - 1) + b"b"},
    }
    digests = [digest(written(tmp_path / name, **files)) for name, files in others.items()]
    assert len({digest(one), *digests}) == 5


def test_a_hub_downloads_hidden_folder_does_not_count(tmp_path):
    before = digest(written(tmp_path / "model", config=b"{}"))
    written(tmp_path / "model" / ".cache", etag=b"now")
    assert digest(tmp_path / "model") == before


def test_a_file_is_compared_by_what_is_in_it_and_not_by_its_name(tmp_path):
    written(tmp_path / "files", a=b"same", b=b"same", c=b"other")
    a, b, c = (digest(tmp_path / "files" / name) for name in "abc")
    assert (a == b, a == c) == (True, False)
    assert digest(tmp_path / "none") == "is not there"


def test_the_code_is_its_modules_templates_and_tables_without_tests_and_settings(tmp_path):
    for package in OUR_PACKAGES:
        written(tmp_path / package, **{"a.py": b"1", "b.jinja": b"2"})
    before = code_digest(tmp_path)
    written(tmp_path / "sql_agent" / "tests", **{"test_a.py": b"3"})
    written(tmp_path / "sql_agent" / "configs", **{"mine.yaml": b"3"})
    (tmp_path / "sql_agent" / "a.pyc").write_bytes(b"4")
    assert code_digest(tmp_path) == before
    for name in ("b.jinja", "words.yaml"):
        (tmp_path / "sql_agent" / name).write_bytes(b"5")
        assert code_digest(tmp_path) != before
        before = code_digest(tmp_path)


def test_a_note_is_read_once_it_is_whole_and_answered_beside_it(tmp_path):
    note = tmp_path / "note"
    assert why_unread(note, "text", 0) == "No such file or directory"
    note.write_text("te")
    assert why_unread(note, "text", 0) == "it is not whole"
    note.write_text("text")
    assert why_unread(note, "text", 0) == ""
    assert why_unwritten(tmp_path / "answer") == ""
    assert why_unread(tmp_path / "answer", tmp_path.name, 0) == ""
    assert why_unwritten(note / "answer") == "Not a directory"


def test_a_command_on_no_node_is_told_which_nodes_there_are():
    here, elsewhere = Node("a", "one", "127.0.0.1", 0, 1), Node("b", "two", "203.0.113.9", 0, 1)
    assert own_node([elsewhere, here], "203.0.113.9:6379") == here
    with pytest.raises(UsageError, match=r"is no node of the Ray cluster at 203\.0\.113\.9:6379, whose nodes are two"):
        own_node([elsewhere], "203.0.113.9:6379")
