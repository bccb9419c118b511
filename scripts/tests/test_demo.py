"""The demo's script refuses what it does not know before it does anything."""

import subprocess

import pytest

from scripts.tests.pages import ROOT
from sql_agent import demo


@pytest.mark.parametrize("option", ["--help", "--pretraned"])
def test_an_unknown_option_stops_the_demo_before_it_starts(option):
    done = subprocess.run(["bash", "scripts/demo.sh", option], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"unknown option {option}; expected nothing, --small, --pretrained, or --tasks FILE" in done.stderr


def test_a_demo_without_time_is_refused_before_anything_is_fetched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        demo.main(["--minutes", "0"])
    assert "--minutes is 0, expected more than 0" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []
