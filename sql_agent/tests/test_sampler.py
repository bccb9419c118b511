"""vLLM on a CPU as a run starts it: what requests have in common is computed once, and a prompt is never cut."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import Files, to_verl, worker_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # starts vLLM
@pytest.mark.timeout(300)
def test_a_group_that_arrives_at_once_computes_its_prompt_once_and_more_prompts_than_fit_into_a_pass_wait(
    small_policy,
):
    """65 prompts of 68 tokens are more than the 4,096 of a pass. vLLM would cut one, and a cut prompt whose request has
    a seed ends its engine on a CPU."""
    unused = Path("unused.parquet")
    cfg = load_config(None, [f"model={small_policy}", "data.max_prompt_tokens=1024"])
    rollout = to_verl(cfg, Files(small_policy, unused, unused), cpu=True)["actor_rollout_ref"]["rollout"]
    vllm = rollout["engine_kwargs"]["vllm"]
    settings = {name: rollout[name] for name in ("max_model_len", "max_num_batched_tokens", "enable_chunked_prefill")}
    settings |= {name: vllm[name] for name in ("block_size", "distributed_executor_backend", "kv_cache_memory_bytes")}
    command = [sys.executable, "-m", "sql_agent.tests.sampler_worker", str(small_policy)]
    done = subprocess.run(
        [*command, json.dumps(settings), "65", "2", "68"],
        cwd=ROOT,
        env=os.environ | worker_environment(cfg, cpu=True),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    # two blocks of 32 of the other member's 68 tokens; then two of one's own 72
    assert first == [0, 64] * 65
    assert second == [64] * 130
