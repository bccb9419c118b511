"""`sql_agent.tracking`: what a resume finds of the steps before it."""

from sql_agent.tracking import drop_torn_line, earlier_steps


def test_a_step_that_was_taken_again_counts_once_with_its_later_metrics(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"train_step": 1, "a": 1}\n{"train_step": 2, "a": 2}\n{"train_step": 1, "a": 3}\n')
    assert earlier_steps(file) == [{"train_step": 1, "a": 3}, {"train_step": 2, "a": 2}]
    assert earlier_steps(tmp_path / "none") == []


def test_a_last_line_that_a_kill_cut_short_is_dropped_and_said(tmp_path, caplog):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"train_step": 1, "a": 1}\n{"train_step": 2, "a"')
    assert earlier_steps(file) == [{"train_step": 1, "a": 1}]
    drop_torn_line(file)
    assert file.read_text() == '{"train_step": 1, "a": 1}\n'  # what is appended next starts a line of its own
    assert "last line was cut short" in caplog.text
    drop_torn_line(file)
    drop_torn_line(tmp_path / "none")
    assert len(caplog.records) == 1
