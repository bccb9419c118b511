"""The recipes of doc/guides/models_and_gpus.md: verl takes what they compose, and the memory is what the page says."""

import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sql_agent.model_shape import shape_of
from sql_agent.settings.load import load_config
from sql_agent.startup.memory_check import check_gpu_memory
from sql_agent.startup.run_memory import GIB, load_of, need_of, phases
from sql_agent.tests.test_run_memory import QWEN, gpu
from sql_agent.train_sql_agent import main
from sql_agent.verl_side.config import Files, compose, to_verl, validate

PAGE = (Path(__file__).parents[2] / "doc" / "guides/models_and_gpus.md").read_text()
ROWS = re.findall(r"^\| (.*) \| `\.venv/bin/agentgrpo train (.*)` \| ([\d.]+) \((.*)\) \|$", PAGE, re.MULTILINE)
CARDS = {"24 GB": 23.6, "40 GB": 39.6, "80 GB": 79.6}
"""GiB that GPUs of these names have: an RTX 4090 or L4, an A100, an A100 or H100."""
SHAPES = QWEN | {
    "Qwen3-4B": shape_of({
        "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": True,
    })
}  # fmt: skip


def test_there_are_eight_recipes():
    assert len(ROWS) == 8


@pytest.mark.parametrize(("what", "flags", "most", "phase"), ROWS, ids=[row[0] for row in ROWS])
def test_a_recipe_fits_its_card_by_the_estimate_and_the_page_says_how_tightly(what, flags, most, phase):
    words = shlex.split(flags)
    sets = words[words.index("--set") + 1 :] if "--set" in words else []
    cfg = load_config(Path(words[words.index("--config") + 1]), sets)
    model = words[words.index("--model") + 1]
    (shape,) = (shape for name, shape in SHAPES.items() if f"-{name}" in model or model.endswith(name))
    (gib,) = (gib for name, gib in CARDS.items() if what.endswith(name))
    load = load_of(cfg, cpu=False)
    found = phases(load, need_of(load, shape), int(gib * GIB))
    largest = max(found, key=lambda name: found[name])
    assert (f"{found[largest] / GIB:.1f}", largest) == (most, phase)
    assert check_gpu_memory(load, shape, gpu(gib)) is None


@pytest.fixture(scope="module")
def spider(tmp_path_factory):
    """A database in Spider's layout, with questions."""
    folder = tmp_path_factory.mktemp("spider")
    (folder / "database" / "shop").mkdir(parents=True)
    with closing(sqlite3.connect(folder / "database" / "shop" / "shop.sqlite")) as db:
        db.execute("CREATE TABLE item (name TEXT)")
        db.commit()
    for name in ("train_spider.json", "dev.json"):
        (folder / name).write_text('[{"db_id": "shop", "question": "How many?", "query": "SELECT count(*) FROM item"}]')
    return folder


@pytest.mark.parametrize("flags", [row[1] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_recipe_is_composed_and_verl_takes_it_without_a_gpu(flags, spider, capsys, tmp_path):
    words = shlex.split(flags.replace("SPIDER", str(spider)))
    assert main([*words, "--dry-run", "--run-dir", str(tmp_path)]) == 0, capsys.readouterr().err
    gpus = re.search(r"engine.n_gpus=(\d)", flags) or re.search(
        r"n_gpus: (\d)", Path(words[words.index("--config") + 1]).read_text()
    )
    said = capsys.readouterr().out
    assert f'"n_gpus_per_node": {gpus[1] if gpus else 1}' in said
    assert "tasks and prompts: not known before the model is on this machine" in said


def test_the_comparison_has_agent_lightnings_settings():
    """Those of its examples/spider/train_sql_agent.py."""
    cfg = load_config(Path("sql_agent/configs/spider_1.5b.yaml"))
    composed = compose(to_verl(cfg, Files(Path("m"), Path("t"), Path("v")), cpu=False))
    actor, rollout = composed.actor_rollout_ref.actor, composed.actor_rollout_ref.rollout
    data, trainer = composed.data, composed.trainer
    lengths = (data.train_batch_size, data.max_prompt_length, data.max_response_length, actor.ppo_mini_batch_size)
    assert lengths == (32, 4096, 2048, 32)
    assert (actor.optim.lr, actor.clip_ratio_low, actor.clip_ratio_high, actor.use_kl_loss) == (1e-6, 0.2, 0.3, False)
    assert (actor.entropy_coeff, actor.optim.weight_decay, actor.loss_agg_mode) == (0, 0.01, "token-mean")
    assert (actor.fsdp_config.param_offload, actor.fsdp_config.optimizer_offload) == (True, True)
    assert (rollout.n, rollout.gpu_memory_utilization, rollout.temperature) == (4, 0.8, 1.0)
    assert (trainer.test_freq, trainer.n_gpus_per_node, trainer.val_before_train) == (32, 1, True)


def test_verls_own_refusal_is_passed_on():
    """Ours are made before; this one is of a configuration that our settings cannot say."""
    tree = to_verl(load_config(None), Files(Path("m"), Path("t"), Path("v")), cpu=False)
    tree["actor_rollout_ref"]["actor"]["loss_agg_mode"] = "mean-of-means"
    with pytest.raises(ValueError, match=r"(?s)verl refuses these settings: .*Invalid loss_agg_mode: mean-of-means"):
        validate(compose(tree))
