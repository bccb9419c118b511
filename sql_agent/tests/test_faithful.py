"""Every trained token is one that the engine sampled: what vLLM's engine writes down itself (`recorded_vllm`) against
what the rollout manager hands to verl, through the real LLM proxy, `agl store` and runner.

The policy has hardly been trained and plays at temperature 1: it rambles, breaks its calls and takes many turns.
32 rollouts; `--full` plays 1,024. `-s` shows the counts.
"""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from agentgrpo.machine import free_port
from dbbench_adapter.generator import generate_tasks
from sql_agent.lightning.child_processes import log_file, spawn
from sql_agent.settings.load import load_config
from sql_agent.source import run_context
from sql_agent.source.run_context import RunContext
from sql_agent.tests.conftest import wait_for
from sql_agent.tests.recorded_vllm import ODD
from sql_agent.tests.test_rollout_manager import _work
from sql_agent.verl_side.config import worker_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

WARM_START_STEPS = 40
"""Of the 400 that make a policy worth training: four turns a rollout, and most replies unlike the template's."""
GROUPS, GROUP_SIZE = 8, 4
BATCHES, FULL_BATCHES = 1, 32
ROOM = 3500
"""Tokens of a response: a rollout that talks for all of its 15 turns fits."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    from sql_agent.tiny_policy.make import make_tiny_policy

    folder = tmp_path_factory.mktemp("policy") / "undertrained"
    make_tiny_policy(folder, steps=WARM_START_STEPS)
    return folder


class Chain:
    """Store, LLM proxy, runner and a recorded vLLM behind one rollout manager.

    Args:
        template: in place of the model's own chat template.
    """

    def __init__(self, cfg, model, store_url, folder, template=None):
        self.record, self.stop, port = folder / "engine.jsonl", threading.Event(), free_port()
        flags = {
            "host": "127.0.0.1",
            "port": port,
            "dtype": "float32",
            "max-model-len": cfg.data.prompt_tokens + ROOM,
            "max-num-seqs": cfg.engine.max_num_seqs,
            "tool-call-parser": cfg.rollout.tool_parser,
            "distributed-executor-backend": "uni",
            "kv-cache-memory-bytes": 2**30,
            **({"chat-template": template} if template else {}),
        }
        command = [sys.executable, "-m", "sql_agent.tests.recorded_vllm", str(self.record), "serve", str(model)]
        command += ["--enforce-eager", "--enable-auto-tool-choice"]
        command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
        with (folder / "vllm.log").open("w") as log:
            environment = os.environ | worker_environment(cfg, cpu=True)
            self.server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.proxy = spawn("sql_agent.lightning.llm_proxy", "--store", store_url, log=log_file(cfg.run_dir, "proxy"))
        self.runner = threading.Thread(target=_work, args=(cfg, store_url, self.stop))
        self.context = RunContext(cfg, "run", store_url, 0, self._start_proxy)
        self.model, self.address = str(model), f"127.0.0.1:{port}"

    def start(self):
        from sql_agent.verl_side.rollout_manager import RolloutManager

        wait_for(f"http://{self.address}/health", self.server, 300)
        self.runner.start()
        run_context.enter(self.context)
        config = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(model=SimpleNamespace(path=self.model)),
            trainer=SimpleNamespace(resume_from_path=None),
        )
        balancer = SimpleNamespace(addresses=[self.address])
        self.manager = RolloutManager(config, SimpleNamespace(_load_balancer=balancer))

    def _start_proxy(self, servers):
        self.proxy.stdin.write(json.dumps(servers) + "\n")
        self.proxy.stdin.flush()
        return json.loads(self.proxy.stdout.readline())["url"]

    def end(self):
        self.stop.set()
        self.proxy.stdin.close()
        self.server.terminate()
        self.server.wait(30)
        self.proxy.wait(30)

    def play(self, tasks, group_size, step):
        """One train batch: `rows` handed to verl, its `metrics`, and what the engine wrote meanwhile."""
        from verl import DataProto

        asked = [task for task in tasks for _ in range(group_size)]
        extra = np.array([{"task": json.dumps(task.to_dict())} for task in asked], dtype=object)
        groups = np.array([task.id for task in asked], dtype=object)
        prompts = DataProto(non_tensor_batch={"extra_info": extra, "uid": groups}, meta_info={"global_steps": step})
        before = len(self.record.read_text().splitlines()) if self.record.exists() else 0
        batch = self.manager.generate_sequences(prompts).batch
        metrics = dict(self.context.step_metrics)
        self.context.step_metrics.clear()
        lines = [json.loads(line) for line in self.record.read_text().splitlines()[before:]]
        return SimpleNamespace(
            tasks=asked,
            rows=[read_row(batch, i) for i in range(len(asked))],
            metrics=metrics,
            calls=[line for line in lines if "prompt" in line],
            seams=[line for line in lines if "known" in line],
        )


@pytest.fixture(scope="module")
def chain(policy, store_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faithful")
    settings = [
        "llm_proxy=true",
        "rollout.max_resamples=0",
        "data.max_prompt_tokens=512",
        f"data.max_response_tokens={ROOM}",
    ]
    chain = Chain(load_config(None, [f"run_dir={folder}", *settings]), policy, store_url, folder)
    try:
        chain.start()
        yield chain
    finally:
        chain.end()


@pytest.fixture(scope="module")
def batches(request, chain):
    count = FULL_BATCHES if request.config.getoption("--full") else BATCHES
    tasks = generate_tasks(GROUPS * count, seed=5, split="train")
    played = [chain.play(tasks[b * GROUPS : (b + 1) * GROUPS], GROUP_SIZE, step=b + 1) for b in range(count)]
    print(json.dumps(counts(played), indent=2))
    return played


@pytest.fixture(scope="module")
def odd(chain):
    """A rollout for each of `ODD`."""
    task = generate_tasks(1, seed=6, split="train")[0]
    tasks = [dataclasses.replace(task, id=f"odd-{k}", question=f"ODD {k}") for k in range(len(ODD))]
    return chain.play(tasks, 1, step=100)


def read_row(batch, i):
    """A row of verl's batch without padding: ids of prompt and response, what is trained, log-probs of what is."""
    width = batch["prompts"].shape[1]
    there, trained = batch["attention_mask"][i].bool(), batch["response_mask"][i].bool()
    mask = (0,) * int(there[:width].sum()) + tuple(batch["response_mask"][i][there[width:]].tolist())
    ids, log_probs = batch["input_ids"][i][there].tolist(), batch["rollout_log_probs"][i][trained].tolist()
    return SimpleNamespace(ids=tuple(ids), mask=mask, log_probs=tuple(log_probs))


def conversations(calls):
    """The engine's calls, in the order in which they ended, joined by nothing but their ids: one whose prompt begins
    with an earlier call's prompt and sampled ids continues it. Counter of (ids, what was sampled, log-probs)."""
    ends = defaultdict(list)  # ids up to the end of a reply -> (mask, log-probs) of the conversations that stand there
    for call in calls:
        prompt = tuple(call["prompt"])
        before = next((prompt[:n] for n in range(len(prompt), 0, -1) if ends.get(prompt[:n])), ())
        mask, log_probs = ends[before].pop() if before else ((), ())
        mask += (0,) * (len(prompt) - len(before)) + (1,) * len(call["sampled"])
        ends[prompt + tuple(call["sampled"])].append((mask, log_probs + tuple(call["log_probs"])))
    return Counter((ids, *end) for ids, at_end in ends.items() for end in at_end)


def counts(batches):
    """What was played, how it ended, what broke, and what would have broken had the template written the prompts."""
    rows = [row for played in batches for row in played.rows]
    seams = [seam for played in batches for seam in played.seams]
    breaks = [tuple(seam["known"]) for seam in seams if seam["breaks"]]
    turns = [sum(a < b for a, b in zip(row.mask, row.mask[1:], strict=False)) for row in rows]
    total: dict[str, float] = defaultdict(float)
    for played in batches:
        for name, value in played.metrics.items():
            if name.startswith(("rollout/lost/", "prefix/break/")):
                total[name] += value
            elif name.startswith(("rollout/stop/", "prefix/")):
                total[name] += value / len(batches)
    return {
        "rollouts": len(rows),
        "engine calls": sum(len(played.calls) for played in batches),
        "tokens sampled by the engine": sum(len(call["sampled"]) for played in batches for call in played.calls),
        "tokens trained": sum(sum(row.mask) for row in rows),
        "rollouts by turns": dict(sorted(Counter(turns).items())),
        "prompts after the first": sum(len(played.calls) for played in batches) - len(rows),
        "... continued from sampled ids": sum(seam["seam"] for seam in seams),
        "... that the template would have broken": len(breaks),
        "rollouts that it would have broken": sum(any(row.ids[: len(ids)] == ids for ids in breaks) for row in rows),
        **total,
    }


def test_every_trained_token_was_sampled_and_none_is_missing(batches):
    for played in batches:
        trained = Counter((row.ids, row.mask, row.log_probs) for row in played.rows)
        assert rounded(trained) == rounded(conversations(played.calls))


def rounded(rows):
    """verl's batch holds float32."""
    return Counter({(ids, mask, tuple(np.float32(p) for p in probs)): n for (ids, mask, probs), n in rows.items()})


def test_rows_stand_where_their_tasks_stood(batches, policy):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    for played in batches:
        for task, row in zip(played.tasks, played.rows, strict=True):
            assert task.question in tokenizer.decode(row.ids[: row.mask.index(1)])


def test_rollouts_are_stitched_whole(batches):
    found = counts(batches)
    assert found["prefix/broken_frac"] + found["prefix/overflow_frac"] < 0.001
    assert [name for name in found if name.startswith("rollout/lost/")] == []


def test_the_policy_is_one_that_would_break_many_of_them(batches):
    found = counts(batches)
    assert found["engine calls"] > 3 * found["rollouts"]
    assert found["rollouts that it would have broken"] > found["rollouts"] / 4


@pytest.mark.parametrize("name", ODD)
def test_an_odd_reply_goes_back_as_it_was_sampled(odd, name):
    row = odd.rows[list(ODD).index(name)]
    of_it = [call for call in odd.calls if tuple(call["prompt"]) == row.ids[: len(call["prompt"])]]
    assert len(of_it) == 2  # the odd reply, and the commit
    assert conversations(of_it) == Counter({(row.ids, row.mask, row.log_probs): 1})
