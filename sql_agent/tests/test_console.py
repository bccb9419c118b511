"""`sql_agent.console`: what a person sees."""

from sql_agent.config import TrainConfig
from sql_agent.console import Console


def test_the_alarm_is_printed_once_per_occurrence(capsys):
    console = Console(TrainConfig())
    for step, alarm in enumerate([0.0, 1.0, 1.0, None, 0.0, 1.0], 1):
        metrics = {"reward/mean": 0.5} | ({} if alarm is None else {"reward_model/alarm": alarm})
        console.show({"event": "step", "step": step, "metrics": metrics})
    lines = capsys.readouterr().out.splitlines()
    assert [k for k, line in enumerate(lines) if "ALARM: over the last 10 steps" in line] == [2, 7]
