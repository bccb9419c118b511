"""A template that rewrites earlier turns, Qwen3's, through the real vLLM server, LLM proxy, `agl store` and runner:
every rollout is trained whole, with the model's own template and with TRL's version of it, which a run uses.

What is sampled is scripted (`recorded_vllm.ODD`), replies with a thought, an empty one and none among them.
"""

import dataclasses
import shutil
from collections import Counter
from pathlib import Path

import pytest
import trl

from dbbench_adapter.generator import generate_tasks
from sql_agent.settings.load import load_config
from sql_agent.tests.recorded_vllm import ODD, ODD_TEXTS
from sql_agent.tests.test_faithful import ROOM, Chain, conversations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Nobody asks it; its tokenizer is the small policy's, its template Qwen3's own."""
    from sql_agent.tiny_policy.make import make_tiny_policy

    folder = tmp_path_factory.mktemp("policy") / "qwen3"
    make_tiny_policy(folder, steps=1)
    shutil.copy(TEMPLATES / "qwen3.jinja", folder / "chat_template.jinja")
    return folder


@pytest.mark.parametrize(
    ("protocol", "replies", "template"),
    [pytest.param("fc", ODD, None, id="fc-own"), pytest.param("text", ODD_TEXTS, "qwen3_training", id="text-trl")],
)
def test_every_rollout_is_trained_whole(protocol, replies, template, model, store_url, tmp_path):
    settings = ["llm_proxy=true", "rollout.max_resamples=0", f"agent.protocol={protocol}"]
    settings += ["data.max_prompt_tokens=512", f"data.max_response_tokens={ROOM}"]
    text = template and (TEMPLATES / f"{template}.jinja").read_text()
    chain = Chain(load_config(None, [f"run_dir={tmp_path}", *settings]), model, store_url, tmp_path, text)
    task = generate_tasks(1, seed=6, split="train")[0]
    tasks = [dataclasses.replace(task, id=f"odd-{k}", question=f"ODD {k}") for k in range(len(replies))]
    try:
        chain.start()
        played = chain.play(tasks, 1, step=1)
    finally:
        chain.end()
    assert (played.metrics["prefix/broken_frac"], played.metrics["rollout/turns"]) == (0.0, 2.0)
    assert [name for name in played.metrics if name.startswith("rollout/lost/")] == []
    trained = Counter((row.ids, row.mask) for row in played.rows)
    assert trained == Counter({(ids, mask): n for (ids, mask, _), n in conversations(played.calls).items()})
    assert [seam["seam"] for seam in played.seams] == [True] * len(replies)
    by_template = sum(seam["breaks"] for seam in played.seams)
    print(f"{protocol}: {by_template} of {len(replies)} prompts would have broken as the template writes them")
    assert by_template > len(replies) / 2
