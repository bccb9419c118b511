"""What may not be in the repository: hosts of package registries, and paths of one machine."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The dots are classes so that this file does not name what it forbids.
REGISTRY = re.compile(r"pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|wheels[.]vllm[.]ai|anaconda[.]org")
MACHINE = re.compile(r"(?<![\w.])/(?:root|home|work|mnt|Users|opt/(?:pypi|wheels))/[\w.]+")


def tracked_text() -> list[tuple[str, str]]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]
    return [(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8", errors="replace")) for file in files]


@pytest.mark.parametrize("forbidden", [pytest.param(REGISTRY, id="registry"), pytest.param(MACHINE, id="machine_path")])
def test_no_tracked_file_names(forbidden: re.Pattern[str]):
    found = [
        f"{name}:{number}: {match[0]}"
        for name, text in tracked_text()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := forbidden.search(line))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        pytest.param("pip install -i https://pypi" + ".org/simple x", REGISTRY),
        pytest.param("cd /ro" + "ot/project", MACHINE),
        pytest.param('open("/ho' + 'me/me/tasks.jsonl")', MACHINE),
    ],
)
def test_the_patterns_catch_what_they_are_for(line: str, pattern: re.Pattern[str]):
    assert pattern.search(line)
