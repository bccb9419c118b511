"""The limits of memory that a process finds around it, and which hosts are this machine."""

import pytest

from agentgrpo.machine import is_loopback, memory_limits


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        pytest.param("0::/\n", {"memory.max": "4096\n"}, 4096, id="a_container"),
        pytest.param("0::/job/step\n", {"job/memory.max": "8192", "job/step/memory.max": "max"}, 8192, id="around_it"),
        pytest.param("0::/docker/1\n", {"memory.max": "4096"}, 4096, id="seen_from_inside"),
        pytest.param(
            "5:cpu:/a\n4:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "2048", "memory.max": "1"},
            2048,
            id="version_1",
        ),
        pytest.param("0::/\n", {"memory.max": "max"}, None, id="no_limit"),
        pytest.param("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, None, id="no_limit_1"),
        pytest.param("", {}, None, id="no_control_groups"),
    ],
)
def test_the_lowest_limit_of_the_control_groups_counts(tmp_path, groups, files, limit):
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    proc.write_text(groups)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert min([2**50, *memory_limits(proc, root)]) == (limit or 2**50)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_what_counts_as_this_machine(host, expected):
    assert is_loopback(host) is expected
