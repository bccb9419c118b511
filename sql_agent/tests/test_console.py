"""`sql_agent.console`: what a person sees."""

from sql_agent.config import TrainConfig
from sql_agent.console import Console


def test_an_alarm_is_printed_once_per_occurrence(capsys):
    console = Console(TrainConfig())
    for step, alarm in enumerate([0.0, 1.0, 1.0, None, 0.0, 1.0], 1):
        metrics = {"reward/mean": 0.5} | ({} if alarm is None else {"reward_model/alarm": alarm})
        console.show({"event": "step", "step": step, "metrics": metrics})
    lines = capsys.readouterr().out.splitlines()
    assert [k for k, line in enumerate(lines) if "ALARM: over the last 10 steps" in line] == [2, 7]


def test_each_alarm_has_its_own_words(capsys):
    Console(TrainConfig()).show(
        {"event": "step", "step": 1, "metrics": {"engine/alarm": 1.0, "reward_model/alarm": 0.0}}
    )
    _step, alarm = capsys.readouterr().out.splitlines()
    assert "ALARM: the sampler gives the tokens it sampled other probabilities" in alarm
