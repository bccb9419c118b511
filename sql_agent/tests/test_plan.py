"""What a dry run says of a run: counted by hand for a model of known size and tasks of known number."""

from safetensors.numpy import load_file

from sql_agent.config import load_config
from sql_agent.startup.plan import describe_plan, planned

SETTINGS = [
    "data.generate=16",
    "data.val_limit=4",
    "data.train_batch_size=8",
    "optim.mini_batch_size=4",
    "rollout.group_size=4",
    "rollout.redraws=1",
    "trainer.steps=3",
    "trainer.val_every=2",
    "trainer.keep_checkpoints=1",
    "run_dir=runs/planned",
]


def plan(model, *more):
    cfg, tasks = planned(load_config(None, [*SETTINGS, f"model={model}", *more]))
    return [*tasks, *describe_plan(cfg, cpu=True)]


def test_tasks_steps_sizes_and_files_are_said_before_the_start(random_policy_folder):
    lines = plan(random_policy_folder)
    weights = sum(tensor.size for tensor in load_file(random_policy_folder / "model.safetensors").values())
    assert lines[0] == "tasks: 16 to train on, 4 held out; left out: too long 0"
    assert lines[-5].startswith("first prompts: ")
    assert lines[-5].endswith(
        f"; limit 3,328 (the context of {random_policy_folder}, 4,096 tokens, less 768 for the response); --set "
        "data.max_prompt_tokens=N sets another"
    )
    assert lines[-4:] == [
        "train steps: 3, each of 8 tasks x 4 rollouts (a group without spread gives way at most once); updates in a "
        "step: 2, each of 16 rollouts, at most 4,096 tokens in one pass",
        "validation: every 2 steps and at the end, and before",
        f"the policy: {weights:,} weights, all trained; in training 0.00 GiB with gradients and AdamW's moments, "
        "activations and vLLM beside it; a checkpoint has 0.00 GiB and the model's folder; at most 2 are there at once",
        "written to runs/planned: config.yaml, run.json, metrics.jsonl, trajectories/, checkpoints/, logs/, data/",
    ]
    assert weights < 2**30 * 0.005 / 16  # two digits are enough for no more


def test_prompts_are_measured_in_the_models_tokens(random_policy_folder):
    (line,) = [line for line in plan(random_policy_folder) if line.startswith("first prompts")]
    shortest, longest = (int(line.split()[i]) for i in (2, 4))
    assert 16 < shortest < longest <= 512
    lines = plan(random_policy_folder, f"data.max_prompt_tokens={longest - 1}")
    assert "too long 0" not in lines[0]


def test_what_is_not_there_is_not_made_and_said(tmp_path, random_policy_folder):
    assert plan(tmp_path)[0] == "tasks and prompts: not known before the model is on this machine"
    assert plan(random_policy_folder, "lora.rank=8")[-2].endswith("weights; an adapter of rank 8 is trained")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{n}"}}\n' for n in range(20)))
    own = ["env.type=agent", "env.agent=examples/own_agent/orders_lightning.py:clerk", "llm_proxy=true"]
    assert "first prompts: your agent writes them" in plan(random_policy_folder, *own, f"data.train_file={rows}")
