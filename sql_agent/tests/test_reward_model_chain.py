"""Rollouts to rewards: pairs, convert, train, merge, serve, score, reward, each by its command."""

import json
import math
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from agentgrpo.machine import free_port
from dbbench_adapter.datatypes import Score
from reward_model import convert_dpo_format, merge, validate
from reward_model.scorer import Scorer
from sql_agent.datatypes import Reward, RolloutRecord
from sql_agent.rewards import REWARDS, reward
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.source.scoring import RolloutScorer, scored_conversation
from sql_agent.tests.conftest import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def raw_rows(count: int) -> list[dict[str, str]]:
    """Instruction-style rows: the right number after `rows:` is better than a wrong one."""
    rng = random.Random(0)
    numbers = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(count)]
    return [
        {"instruction": f"Which number comes after {n}?", "input": "", "chosen": f"rows: {n + 1}", "rejected": f"{m}"}
        for n, m in numbers
    ]


def rollout(answer: str, value: float) -> RolloutRecord:
    messages = [{"role": "user", "content": "Which number comes after 41?"}, {"role": "assistant", "content": answer}]
    return RolloutRecord(
        task_id="t",
        kind="other",
        stop_reason="answered",
        score=Score(value, "match" if value else "wrong_answer"),
        num_turns=1,
        malformed_calls=0,
        messages=messages,
        prompt_tokens=10,
        completion_tokens=5,
        seconds=0.1,
    )


async def test_raw_preferences_become_a_served_scorer_that_shapes_rewards(small_policy, tmp_path):
    raw, converted = tmp_path / "raw.jsonl", tmp_path / "converted.jsonl"
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    raw.write_text("".join(json.dumps(row) + "\n" for row in raw_rows(64)))

    assert convert_dpo_format.main([f"--input={raw}", f"--output={converted}"]) == 0
    assert validate.main([str(converted)]) == 0
    train = [BIN / "accelerate", "launch", "--cpu", "--num_processes", "1", "reward_model/reward_modeling.py"]
    flags = ["--dataset_name", converted, "--model_name_or_path", small_policy, "--output_dir", adapter]
    said = run(*train, *flags, "--max_steps", "20", "--learning_rate", "1e-2", "--lora_dropout", "0")
    assert f"reward model: {adapter}" in said
    assert merge.main(["--adapter", str(adapter), "--output", str(merged)]) == 0

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serve = [sys.executable, "-m", "agentgrpo", "reward", "serve", "--model", str(merged), "--port", str(port)]
    service = subprocess.Popen(serve, cwd=ROOT)
    try:
        wait_for(f"{url}/readyz", service)
        local = Scorer.load(merged, device="cpu")
        right, wrong = rollout("rows: 42", 1.0), rollout("17", 0.0)
        expected = local.score([local.encode(scored_conversation(right.messages))])[0].value

        ask = {"prompt": "Which number comes after 41?", "response": "rows: 42"}
        assert requests.post(f"{url}/score", json=ask, timeout=30).json() == {
            "score": pytest.approx(expected, abs=1e-5)
        }
        sides = {"prompt": ask["prompt"], "chosen": "rows: 42", "rejected": "17"}
        pair = requests.post(f"{url}/score-pair", json=sides, timeout=30).json()
        assert pair["preference"] == "chosen"  # what it was trained to prefer

        shaping = RewardModelConfig(url=url, weight=0.2, timeout_s=2.0)
        scorer = RolloutScorer(shaping)
        scores = [await scorer.score(right), await scorer.score(wrong)]
        preset = REWARDS["agentbench"]
        assert reward(right, preset, scores[0], shaping).value == pytest.approx(1 + 0.2 * math.tanh(expected), abs=1e-5)
        assert reward(wrong, preset, scores[1], shaping).value == 0.0
    finally:
        service.send_signal(signal.SIGTERM)
        ended = service.wait(60)
    assert ended == 0
    gone = reward(right, preset, await scorer.score(right), shaping)
    assert gone == Reward(1.0, "match", {"correctness": 1.0, "base": 1.0, "shaping": 0.0})  # correctness is still known
    await scorer.aclose()
