"""`bench.plot_improve`: the numbers of each stage, and a question that every run solved anew."""

import json

from bench.plot_improve import before_and_after, main
from sql_agent.report.reading import ASKED_BEFORE, GRPO, IMPROVED


def row(task, right, **fields):
    score = {"value": float(right), "reason": "match" if right else "wrong_result"}
    said = [{"role": "user", "content": f"Question {task}?"}, {"role": "assistant", "content": "I do not know."}]
    comparison = {"submitted": f"SELECT {task}" if right else None}
    return {"task_id": task, "score": score, "messages": said, "comparison": comparison, **fields}


def run(folder, before, tuned, trained):
    (folder / GRPO / "trajectories").mkdir(parents=True)
    (folder / IMPROVED).write_text("{}")
    (folder / ASKED_BEFORE).write_text("".join(json.dumps(row(*each)) + "\n" for each in before.items()))
    (folder / GRPO / "config.yaml").write_text("seed: 0\n")
    (folder / GRPO / "run.json").write_text('{"kind": "train", "steps": 4}')
    (folder / GRPO / "metrics.jsonl").write_text('{"train_step": 0}\n{"train_step": 4}\n')
    for step, found in ((0, tuned), (4, trained)):
        lines = [json.dumps(row(*each, train_step=step, validate=True)) for each in found.items()]
        (folder / GRPO / "trajectories" / f"val_{step:06d}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_each_stage_has_its_rate_and_the_picture_a_question_that_all_solved_anew(tmp_path, capsys):
    none, one, two = ({"1": a, "2": b} for a, b in ((0, 0), (1, 0), (1, 1)))
    runs = [run(tmp_path / "a", none, one, two), run(tmp_path / "b", one, one, two)]
    picture = tmp_path / "improve.svg"
    main([*map(str, runs), "--output", str(picture)])
    first, second = json.loads(picture.with_suffix(".json").read_text())
    assert [text.partition(" (")[0] for text in first.values()] == ["0.0% of 2", "50.0% of 2", "100.0% of 2"]
    assert [text.partition(" (")[0] for text in second.values()] == ["50.0% of 2", "50.0% of 2", "100.0% of 2"]
    assert "seed 1: before 50.0% of 2" in capsys.readouterr().out
    text = picture.read_text()
    assert "Question 2?" in text and "SELECT 2" in text and "I do not know." in text
    assert "Question 1?" not in text, "the second run had solved it before"


def test_without_such_a_question_there_are_no_words():
    rows = [row("1", 0)]
    assert before_and_after([[rows, rows, rows]]) == []
