"""What a dry run says of a run: counted by hand for a model of known size and tasks of known number."""

import shutil

import pytest
from safetensors.numpy import load_file

from agentgrpo.disk_errors import OutputError
from agentgrpo.model_kinds import count_weights
from agentgrpo.outputs import DiskNeed
from sql_agent.environments.base import make_taskset
from sql_agent.settings.load import load_config
from sql_agent.settings.main_job import LoraConfig, TrainerConfig
from sql_agent.startup.plan import check_run_disk, describe_plan, describe_time, disk_need, planned, with_learning_rate

SETTINGS = [
    "data.generate=16",
    "data.val_limit=4",
    "data.train_batch_size=8",
    "optim.mini_batch_size=4",
    "rollout.group_size=4",
    "rollout.max_resamples=1",
    "trainer.steps=3",
    "trainer.val_every=2",
    "trainer.keep_checkpoints=1",
    "run_dir=runs/planned",
]


def plan(model, *more):
    cfg = load_config(None, [*SETTINGS, f"model={model}", *more])
    cfg, tasks, work = planned(cfg, make_taskset(cfg.environment), cpu=True)
    weights = count_weights(model)
    _, rate = with_learning_rate(cfg.optim, weights, lora=cfg.lora.rank > 0)
    time = describe_time(cfg.trainer, work, None)
    return [*tasks, *describe_plan(cfg, weights, rate, time, gpus=None)]


def test_tasks_steps_sizes_and_files_are_said_before_the_start(random_policy_folder):
    lines = plan(random_policy_folder)
    weights = sum(tensor.size for tensor in load_file(random_policy_folder / "model.safetensors").values())
    assert lines[0] == "tasks: 16 to train on, 4 held out; left out: too long 0"
    (prompts,) = [line for line in lines if line.startswith("first prompts: ")]
    assert prompts.endswith(
        f"; limit 3,328 (the context of {random_policy_folder}, 4,096 tokens, less 768 for the response); --set "
        "data.max_prompt_tokens=N sets another"
    )
    at = next(i for i, line in enumerate(lines) if line.startswith("train steps: "))
    free, memory = lines.pop(-2), lines.pop(-2)
    assert lines[at:] == [
        "train steps: 3, each of 8 tasks x 4 rollouts (a zero-variance group is replaced at most once); updates in a "
        "step: 2, each of 16 rollouts, at most 4,096 tokens in one pass",
        "validation: every 2 steps and at the end, and before",
        "time: not known before the run's first step, since no run of this kind was measured on this machine",
        f"learning rate: 0.0005, for a model of {weights:,} weights",
        f"the policy: {weights:,} weights, all trained",
        "written to runs/planned: config.yaml, run.json, metrics.jsonl, trajectories/, checkpoints/, logs/, data/",
    ]
    # 4 GiB of processes, and hardly any KV cache and tensors (test_run_memory.py)
    assert memory.startswith("memory: a training worker and its vLLM may take 4.1 GiB; ")
    # 16 bytes a weight; 4 bytes of 1,024 (the prompts are not known yet) + 768 tokens of 3 steps x 4 trajectories and
    # 3 validations x 4 tasks
    mib = 16 * weights / 2**20
    assert free.startswith(f"disk: 2 checkpoints of about {mib:.0f} MiB at once, 0 MiB for the rest; ")


def test_a_run_that_cannot_hold_one_checkpoint_is_refused_and_one_that_may_not_is_warned(monkeypatch, tmp_path):
    def free(gib):
        usage = shutil._ntuple_diskusage(100 * 2**30, 0, int(gib * 2**30))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    cfg = load_config(None, [f"run_dir={tmp_path}", "trainer.keep_checkpoints=2"])
    weights = 2**30  # 16 GiB a checkpoint: 12 for verl's shards, 4 for the model
    free(7.9)
    with pytest.raises(OutputError, match=r"has 7.9 GiB left, and one checkpoint takes about 16.0 GiB: make room, "):
        check_run_disk(tmp_path, disk_need(cfg, weights))
    free(47.9)
    said: list[str] = []
    check_run_disk(tmp_path, disk_need(cfg, weights), said.append)
    assert said == [
        f"warning: the disk of {tmp_path} may become full: 47.9 GiB are left, and the run writes up to 48.0 GiB (3 "
        "checkpoints of about 16.0 GiB at once); make room, or keep fewer (--set trainer.keep_checkpoints=1), save "
        "none (trainer.save_every=0), or train an adapter (lora.rank=16), whose checkpoints are half as large"
    ]
    free(48.5)
    check_run_disk(tmp_path, disk_need(cfg, weights), said.append)
    free(1.0)
    saves_none = cfg.model_copy(update={"trainer": TrainerConfig(save_every=0)})
    check_run_disk(tmp_path, disk_need(saves_none, weights), said.append)
    assert len(said) == 1


def test_checkpoints_of_a_resumed_run_make_room_for_the_next(tmp_path):
    (tmp_path / "checkpoints" / "global_step_3").mkdir(parents=True)
    (tmp_path / "checkpoints" / "global_step_3" / "shard").write_bytes(b"x" * 100)
    cfg = load_config(None, [f"run_dir={tmp_path}", "trainer.val_every=0", "rollout.trajectories_per_step=0"])
    cfg = cfg.model_copy(update={"trainer": cfg.trainer.model_copy(update={"val_before_train": False})})
    assert disk_need(cfg, 10) == DiskNeed(checkpoint=160, at_once=3, rest=0, there=100)
    assert disk_need(cfg, 10).total == 380
    assert disk_need(cfg.model_copy(update={"lora": LoraConfig(rank=8)}), 10).checkpoint == 80


def test_the_learning_rate_is_that_of_the_models_size_unless_it_is_given():
    cfg = load_config(None, ["model=m"])
    filled = cfg.optim.model_copy(update={"learning_rate": 3e-5})
    line = "learning rate: 3e-05, for a model of 134,515,008 weights"
    assert with_learning_rate(cfg.optim, 134_515_008, lora=False) == (filled, line)
    given = load_config(None, ["model=m", "optim.learning_rate=1e-6"]).optim
    line = "learning rate: 1e-06, as given (a model of this size takes about 0.0003)"
    assert with_learning_rate(given, 134_515_008, lora=True) == (given, line)


def test_prompts_are_measured_in_the_models_tokens(random_policy_folder):
    (line,) = [line for line in plan(random_policy_folder) if line.startswith("first prompts")]
    shortest, longest = (int(line.split()[i]) for i in (2, 4))
    assert 16 < shortest < longest <= 512
    lines = plan(random_policy_folder, f"data.max_prompt_tokens={longest - 1}")
    assert "too long 0" not in lines[0]


def test_what_is_not_there_is_not_made_and_said(tmp_path, random_policy_folder):
    assert plan(tmp_path)[0] == "tasks and prompts: not known before the model is on this machine"
    assert plan(random_policy_folder, "lora.rank=8")[-4].endswith("weights; an adapter of rank 8 is trained")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{n}"}}\n' for n in range(20)))
    own = ["env.type=agent", "env.agent=examples/own_agent/orders_lightning.py:clerk", "llm_proxy=true"]
    assert "first prompts: your agent writes them" in plan(random_policy_folder, *own, f"data.train_file={rows}")
