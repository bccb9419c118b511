"""A run folder as training writes it: real episodes over a real database, saved by the run's own code."""

import json
import sqlite3
from contextlib import closing

from sql_agent.datatypes import Reward
from sql_agent.settings.groups import AgentConfig
from sql_agent.settings.load import dump_config, load_config
from sql_agent.source.run_context import RunContext
from sql_agent.tests.records import make_record, make_result, rewarded
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql

SHOP = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, town TEXT);
INSERT INTO customer VALUES (1, 'Ann', 'Ulm'), (2, 'Bo', NULL), (3, 'Cy', 'Bonn');
"""
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--\u2028{{TITLE}} & `x`"
NAMES = "SELECT name FROM customer ORDER BY id"
BO = "SELECT name FROM customer WHERE town IS NULL"
QUESTIONS = [
    Question("q-0", "Who are the customers, by id?", "shop", NAMES),
    Question("q-1", f"Who has no town? {HOSTILE}", "shop", BO),
    Question("q-2", "How many customers are there?", "shop", "SELECT count(*) FROM customer"),
    Question("q-3", "Which towns are there?", "shop", "SELECT town FROM customer WHERE town IS NOT NULL"),
    Question("q-4", "Let Ann move to Bonn.", "shop", "UPDATE customer SET town = 'Bonn' WHERE id = 1", changes=True),
]
"""Newly solved, no longer solved, still wrong (first without a column of that name), right both times, unchanged."""
BEFORE = ["SELECT name FROM customer WHERE id < 3", BO, "SELECT count(custmer) FROM customer",
          QUESTIONS[3].query, "UPDATE customer SET town = 'Bonn' WHERE id = 2"]  # fmt: skip
AFTER = [NAMES, "SELECT name FROM customer WHERE town = ''", None, QUESTIONS[3].query,
         "UPDATE customer SET town = 'Bonn'"]  # fmt: skip


def make_run(folder, *, steps=2, before=BEFORE, after=AFTER, settings=()):
    """Write the folder of a run that ended; its last validation is left out where `after` is None."""
    folder.mkdir(parents=True)
    cfg = load_config(None, [f"trainer.steps={steps}", f"run_dir={folder}", "env.type=text2sql", *settings])
    (folder / "config.yaml").write_text(dump_config(cfg))
    facts = {"run_id": folder.name, "commit": "1234567", "device": "cpu", "argv": ["train"], "started_at": 0}
    (folder / "run.json").write_text(json.dumps(facts))
    context = RunContext(cfg, folder.name, "", 0, lambda _: None)
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        connection.executescript(SHOP)
    with TextToSql(folder / "shop.sqlite") as environment:
        first, last = (
            None if answers is None else [*map(lambda q, a: result(environment, q, a), QUESTIONS, answers)]
            for answers in (before, after)
        )
    context.save_trajectories(first, step=0, validate=True)
    rows = [_validated(first, 0)]
    for step in range(1, steps + 1):
        context.save_trajectories(first[:3], step=step, validate=False)
        rows.append(_trained(step))
    if last is not None:
        context.save_trajectories(last, step=steps, validate=True)
        rows[-1] |= _validated(last, steps)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def result(environment, question, sql):
    """One rollout that hands this statement in; None hands in nothing."""
    messages = environment.messages(question)
    with closing(environment.open(question, AgentConfig())) as episode:
        if sql is not None:
            arguments = json.dumps({"sql": sql})
            call = {"id": "1", "type": "function", "function": {"name": "submit_sql", "arguments": arguments}}
            said = episode.call_tool("submit_sql", arguments)
            messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
            messages += [{"role": "tool", "tool_call_id": "1", "content": said}]
        else:
            messages += [{"role": "assistant", "content": "I do not know."}]
        score = environment.judge(episode)
        compared = environment.comparison(episode)
    said = dict(kind=question.kind, messages=messages, comparison=compared.to_dict())
    record = make_record(score, task_id=question.id, **said)
    return make_result(question.id, rewarded(record, Reward(score.value, score.reason)), task_id=question.id)


def _validated(results, step):
    right = sum(r.success == 1 for r in results)
    rates = {"val/rollout/success": right / len(results), "val/rollout/judged": float(len(results))}
    return {"train_step": step, **rates}


def _trained(step):
    return {"train_step": step, "reward/mean": 0.25, "rollout/success": 0.25, "reward/unjudged_frac": 0.0,
            "rollout/count": 16.0, "rollout/stop/answered": 0.75, "rollout/stop/max_turns": 0.25,
            "time/rollout_s": 12.0, "time/log_prob_s": 3.0, "time/update_s": 9.0, "time/weight_sync_s": 0.5,
            "rollout/sampled_tokens": 40.0, "rollout/response_tokens": 90.0, "policy/entropy": 0.7,
            "policy/grad_norm": 1.2, "policy/kl_k3": 0.001, "group/zero_std_frac": 0.5, "group/all_wrong_frac": 0.5,
            "engine/probs_diff_max": 2e-6, "engine/alarm": 0.0}  # fmt: skip
