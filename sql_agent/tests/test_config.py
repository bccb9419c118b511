"""Settings: the later wins, misspelt keys stop, every field reaches verl."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.settings.load import dump_config, load_config
from sql_agent.settings.train import MOST_CALLS, TrainConfig
from sql_agent.verl_side.config import Files, compose, precision, to_verl, worker_environment

FILES = Files(Path("model"), Path("train.parquet"), Path("val.parquet"))
CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


def test_set_wins_over_the_file_and_the_file_over_the_default(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("trainer: {steps: 5}\nrollout: {group_size: 8}\n")
    cfg = load_config(file, ["rollout.group_size=16"])
    assert (cfg.trainer.steps, cfg.rollout.group_size, cfg.seed) == (5, 16, 0)


@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [
        ([], 100),
        (["optim.micro_batch_tokens=200"], 200),
        (["optim.max_tokens_per_micro_batch=300"], 300),
        (["optim.micro_batch_tokens=200", "optim.max_tokens_per_micro_batch=300"], 300),
    ],
)
def test_an_earlier_name_of_a_setting_is_the_setting_and_the_later_entry_wins(overrides, tokens, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("optim: {max_tokens_per_micro_batch: 100}\n")
    assert load_config(file, overrides).optim.micro_batch_tokens == tokens


def test_both_names_of_a_setting_in_one_file_are_refused(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("optim: {max_tokens_per_micro_batch: 100, micro_batch_tokens: 200}\n")
    with pytest.raises(
        ValueError, match=r"^max_tokens_per_micro_batch and micro_batch_tokens are names of one setting"
    ):
        load_config(file)


def test_settings_have_their_earlier_names_too(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("rollout: {redraws: 0}\ntrainer: {max_lag: 3}\nllm_proxy: true\n")
    cfg = load_config(file)
    assert (cfg.rollout.max_resamples, cfg.trainer.max_off_policy_steps) == (0, 3)
    cfg = load_config(file, ["rollout.redraws=5", "trainer.max_lag=1"])
    assert (cfg.rollout.max_resamples, cfg.trainer.max_off_policy_steps) == (5, 1)


def test_a_model_of_fewer_than_twenty_million_weights_takes_the_settings_of_the_small_policy(tmp_path):
    def lengths(cfg):
        return cfg.data.max_prompt_tokens, cfg.data.max_response_tokens

    def folder(name, weights, *files):
        (tmp_path / name).mkdir()
        for file in ("config.json", *files):
            (tmp_path / name / file).touch()
        with open(tmp_path / name / "model.safetensors", "wb") as file:
            file.truncate(4 * weights)
        return f"model={tmp_path / name}"

    small, others = (None, 768), (None, 2048)
    assert lengths(load_config(None)) == small  # the small policy is made
    assert lengths(load_config(None, [folder("small", 19_999_999)])) == small
    assert lengths(load_config(None, [folder("large", 20_000_000)])) == others
    assert lengths(load_config(None, [folder("adapter", 1_000_000, "adapter_config.json")])) == others
    assert lengths(load_config(None, ["model=Qwen/Qwen2.5-7B-Instruct"])) == others
    (tmp_path / "mine.yaml").write_text("data: {max_prompt_tokens: 300}\n")
    assert lengths(load_config(tmp_path / "mine.yaml", [])) == (300, 768)


def test_keys_of_verls_own_are_merged_last_into_what_the_settings_say():
    cfg = load_config(
        None,
        [
            "loss.clip_ratio=0.1",
            "verl.actor_rollout_ref.actor.clip_ratio_c=10",
            "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_batched_tokens=8192",
            "verl.algorithm.rollout_correction.rollout_is=token",
        ],
    )
    verl = compose(to_verl(cfg, FILES, cpu=False))
    actor, vllm = verl.actor_rollout_ref.actor, verl.actor_rollout_ref.rollout.engine_kwargs.vllm
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.1, 0.1, 10)
    assert (vllm.max_num_batched_tokens, vllm.tool_call_parser) == (8192, "hermes")
    assert verl.algorithm.rollout_correction.rollout_is == "token"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "verl.actor_rollout_ref.actor.clip_ratio_cc=1",
            "may be set is .*actor.clip_ratio_c ",
        ),
        ("verl.actor_rollout_ref.actor.clip_ratio_high=1", "is the setting loss.clip_ratio_high here"),
        ("verl.actor_rollout_ref.actor.clip_ratio_low=1", "is the setting loss.clip_ratio here"),
        ("verl.actor_rollout_ref.rollout.n=8", "is the setting rollout.group_size here; give that, --set rollout.gr"),
        (
            "verl.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16",
            "is the setting engine.precision",
        ),
        ("verl.algorithm.adv_estimator=gae", "verl.algorithm.adv_estimator is not known to work here"),
        ("verl.algorithm.use_kl_in_reward=true", "verl.algorithm.use_kl_in_reward is not known to work here"),
        ("verl.algorithm.kl_ctrl.kl_coef=0.1", "verl.algorithm.kl_ctrl.kl_coef is not known to work here"),
        ("verl.algorithm.filter_groups.enable=true", "verl.algorithm.filter_groups.enable is not known to work here"),
        ("verl.algorithm.rollout_correction.rollout_rs=token_k1", "may be set is .*rollout_correction.rollout_is "),
        ("verl.actor_rollout_ref.actor.use_prefix_grouper=true", "is not known to work here"),
        ("verl.actor_rollout_ref.rollout.top_k=20", "verl.actor_rollout_ref.rollout.top_k is not known to work here"),
        ("verl.trainer.nnodes=2", "verl.trainer.nnodes is the setting cluster.nodes here"),
        ("verl.algorithm=null", "verl.algorithm is not known to work here"),
        ("verl.actor_rollout_ref.rollout.val_kwargs.temperature=1", "is not known to work here"),
        ("verl.actor_rollout_ref.rollout.engine_kwargs.vllm=null", "may be set is .*engine_kwargs.vllm.NAME "),
        ("verl.actor_rollout_ref.rollout.engine_kwargs.vllm.middleware=x", "is not known to work here"),
        ("verl.actor_rollout_ref.rollout.engine_kwargs.vllm.middleware={a: 1}", "is not known to work here"),
        ("verl.actor_rollout_ref.rollout.engine_kwargs.vllm.logprobs-mode=raw_logits", "is not known to work here"),
    ],
)
def test_a_key_that_is_not_known_to_work_or_that_is_decided_elsewhere_is_refused(override, words):
    with pytest.raises(ValueError, match=words):
        compose(to_verl(load_config(None, [override]), FILES, cpu=False))


def test_a_limit_of_own_code_does_not_concern_other_environments():
    short = ["agent.statement_timeout_s=1", "agent.turn_timeout_s=6", "agent.rollout_timeout_s=20"]
    assert load_config(None, short).env.call_timeout_s == 30


def test_what_is_saved_reads_back_equal(tmp_path):
    cfg = load_config(None, ["optim.learning_rate=1e-4", "trainer.loggers=[wandb]", "model=some/folder"])
    (tmp_path / "config.yaml").write_text(dump_config(cfg))
    assert load_config(tmp_path / "config.yaml") == cfg


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trainer.stepz=3"], "trainer.stepz"),
        (["rollout.group_size=1"], "greater than or equal to 2"),
        (["rollout.reward=best"], "agentbench"),
        (["optim.mini_batch_size=3"], "has to divide data.train_batch_size"),
        (
            ["agent.rollout_timeout_s=900"],
            "a rollout has to end before its step does: lower the first, or raise the second",
        ),
        (["agent.turn_timeout_s=120"], "3 tries of a turn have to fit into the rollout"),
        (["env.type=chess"], "unknown environment 'chess'; known: agent, dbbench, gsm8k, medical"),
        (["reward_model.weight=0.3"], "less than or equal to 0.2"),
        (["reward_model.center=.nan"], "finite number"),
        (["reward_model.scale=0"], "greater than 0"),
        (
            ["env.database=own.db"],
            "env.database belongs to env.type=text2sql, this run's is dbbench; leave it out",
        ),
        (["env.type=a:B", "env.call_timeout_s=301"], "a call has to end before its rollout does: lower the first"),
        (["reward_model.url=localhost:8008"], r"reward_model.url\n.*expected http://HOST:PORT"),
        (["reward_model.url=http://:8008"], "expected http://HOST:PORT"),
        (["reward_model.url=http://[::1"], "expected http://HOST:PORT"),
        (["reward_model.url=http://127.0.0.1:99999"], "expected http://HOST:PORT.*a port from 1 to 65535"),
        (["reward_model.url=http://127.0.0.1:0"], "a port from 1 to 65535"),
        (["reward_model.url=https://me:5ecret@h:1"], "holds a user or a password; leave it out, .* REWARD_API_TOKEN"),
        (["reward_model.timeout_s=200"], "a score has to be late before .*: lower the first"),
        (
            ["reward_model.url=http://h:1", "rollout.step_timeout_s=310"],
            r"the wait for the reward \(30 s: reward_model.timeout_s, .* played and rewarded .*: raise the last",
        ),
        (
            ["reward_model.url=http://h:1", "reward_model.give_up_s=601"],
            "a step would end before it says .*: lower the first",
        ),
        (["env.type=medical", "data.skills=[select]"], "data.skills are of env.type=dbbench, .*; leave them out"),
        (
            ["rollout.n_runners=33", "data.train_batch_size=256"],
            r"n_runners \(33\) times rollout.runner_concurrency \(16\) lets 528 rollouts call the policy at once, and "
            "a server of a run closes new connections beyond 512: lower one of the two",
        ),
        (["rollout.judge=bird"], "rollout.judge=bird belongs to env.type=text2sql; take strict"),
        (["env.type=text2sql", "rollout.judge=lab"], "rollout.judge=lab belongs to env.type=dbbench; take strict"),
        (["env={type: agent, agent: a.py:a}"], "is traced by the LLM proxy, and llm_proxy is false; add --llm-proxy"),
        (
            ["env={type: agent, agent: a.py:a}", "llm_proxy=true", "reward_model.url=http://h:1"],
            "a reward model scores one conversation, and an agent of your own may hold several; leave reward_model.url",
        ),
        (["rollout.train_agents=[clerk]"], "names agents of an agent of your own; add --agent FILE.py:NAME"),
        (
            ["trainer.max_off_policy_steps=1"],
            "trainer.max_off_policy_steps lets new weights end open calls, .* llm_proxy is false; add --llm-pr",
        ),
        (["agent.temperature=0"], "all rollouts of a group would be equal and teach nothing; set it above 0"),
        (["agent.top_p=0.9"], "agent.top_p is 0.9: the sampler would leave out the less likely tokens"),
        (["agent.max_tokens=900"], "longer than data.max_response_tokens"),
        (["lora.alpha=32"], "lora.rank, which makes one, is left out; add lora.rank=16, or leave lora.alpha out"),
        (["engine.n_gpus=4", "engine.tensor_parallel_size=3"], r"tensor_parallel_size \(3\) has to divide .*\(4\)"),
        (["engine.tensor_parallel_size=2"], r"tensor_parallel_size \(2\) has to divide engine.n_gpus \(1\)"),
        (
            ["engine={n_gpus: 2, tensor_parallel_size: 2}", "cluster.sampler_gpus=3"],
            r"tensor_parallel_size \(2\) has to divide cluster.sampler_gpus \(3\): every model server uses that many",
        ),
        (["cluster.sampler_gpus=-1"], "greater than or equal to 0"),
        # 8 tasks of 4 rollouts
        (["engine.n_gpus=3"], r"n_gpus \(3\) has to divide data.train_batch_size \(8\) times .* \(4\), 32 rows"),
        (
            ["cluster.workers_per_node=3"],
            r"workers_per_node \(3\) has to divide data.train_batch_size \(8\) .* 32 rows",
        ),
        # updates of 2 tasks of 4 rollouts
        (
            ["engine.n_gpus=16", "optim.mini_batch_size=2"],
            r"\(16\) has to divide optim.mini_batch_size \(2\) .* 8 rows",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_named(overrides, words):
    with pytest.raises(ValidationError, match=words):
        load_config(None, overrides)


def test_the_servers_take_a_call_of_every_rollout_that_the_settings_allow():
    """33 x 16 rollouts have room, but a step has 128 x 4; 32 x 16 are as many as connections may begin together."""
    from agentgrpo.http_protocol import MAX_NEW_UNKNOWN

    for allowed in (
        ["rollout.n_runners=33", "data.train_batch_size=128"],
        ["rollout.n_runners=32", "data.generate=9999"],
    ):
        assert load_config(None, [*allowed, "data.val_limit=512"])
    assert MOST_CALLS == MAX_NEW_UNKNOWN
    lag = ["trainer.max_off_policy_steps=1", "llm_proxy=true", "data.train_batch_size=100", "rollout.n_runners=99"]
    # 100 x 4 that are open, beside as many that begin, or the validation's 64
    with pytest.raises(ValidationError, match="lets 800 rollouts call the policy at once"):
        load_config(None, lag)


def test_a_password_in_an_address_is_not_repeated():
    with pytest.raises(ValidationError) as refused:
        load_config(None, ["reward_model.url=https://me:5ecret@h:1"])
    assert "5ecret" not in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [(["steps"], "has no `=`"), (["seed=1", "seed.more=2"], "'seed' is a value"), (["a.b=1"], "a")],
)
def test_a_malformed_override_is_named(overrides, words):
    with pytest.raises(ValueError, match=words):
        load_config(None, overrides)


def test_a_missing_config_file_says_where_to_look(tmp_path):
    with pytest.raises(ValueError, match="sql_agent/configs"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_shipped_config_loads_and_reaches_verl(file):
    compose(to_verl(load_config(file), FILES, cpu=False))


def test_a_key_the_installed_verl_lacks_is_refused():
    with pytest.raises(ValueError, match=r"actor_rollout_ref\.rolout\.n"):
        compose({"actor_rollout_ref": {"rolout": {"n": 4}}})


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("rollout.group_size=6", "actor_rollout_ref.rollout.n", 6),
        ("data.train_batch_size=12", "data.train_batch_size", 12),
        ("data.max_prompt_tokens=100", "data.max_prompt_length", 100),
        ("data.max_response_tokens=2000", "data.max_response_length", 2000),
        ("data.val_limit=9", "data.val_batch_size", 9),
        # the folder's own sampling settings stay out of the sampler
        ("agent.temperature=0.7", "actor_rollout_ref.rollout.engine_kwargs.vllm.generation_config", "vllm"),
        ("agent.temperature=0.7", "actor_rollout_ref.rollout.temperature", 0.7),
        ("optim.learning_rate=0.01", "actor_rollout_ref.actor.optim.lr", 0.01),
        ("optim.weight_decay=0.5", "actor_rollout_ref.actor.optim.weight_decay", 0.5),
        ("optim.warmup_steps=3", "actor_rollout_ref.actor.optim.lr_warmup_steps", 3),
        ("optim.max_grad_norm=0.3", "actor_rollout_ref.actor.grad_clip", 0.3),
        ("optim.mini_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size", 2),
        ("optim.micro_batch_tokens=20000", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 20000),
        ("loss.clip_ratio=0.3", "actor_rollout_ref.actor.clip_ratio", 0.3),
        ("loss.kl_coef=0.05", "actor_rollout_ref.actor.kl_loss_coef", 0.05),
        ("loss.kl_coef=0.05", "actor_rollout_ref.actor.use_kl_loss", True),
        ("loss.entropy_coef=0.02", "actor_rollout_ref.actor.entropy_coeff", 0.02),
        ("loss.scale=false", "algorithm.norm_adv_by_std_in_grpo", False),
        ("loss.aggregation=seq-mean-token-mean", "actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-mean"),
        ("data.max_response_tokens=2000", "actor_rollout_ref.actor.loss_scale_factor", 2000),
        ("lora.rank=8", "actor_rollout_ref.model.lora_rank", 8),
        ("lora.rank=8", "actor_rollout_ref.model.lora.merge", True),
        ("lora={rank: 8, alpha: 32}", "actor_rollout_ref.model.lora_alpha", 32),
        ("lora={rank: 8, target_modules: q_proj}", "actor_rollout_ref.model.target_modules", "q_proj"),
        ("engine.n_gpus=4", "trainer.n_gpus_per_node", 4),
        ("engine={n_gpus: 2, tensor_parallel_size: 2}", "actor_rollout_ref.rollout.tensor_model_parallel_size", 2),
        ("engine.gpu_memory_utilization=0.7", "actor_rollout_ref.rollout.gpu_memory_utilization", 0.7),
        ("engine.max_num_seqs=17", "actor_rollout_ref.rollout.max_num_seqs", 17),
        ("rollout.tool_parser=xlam", "actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser", "xlam"),
        ("trainer.steps=7", "trainer.total_training_steps", 7),
        ("trainer.val_every=0", "trainer.test_freq", -1),
        ("trainer.save_every=5", "trainer.save_freq", 5),
        ("seed=11", "data.seed", 11),
    ],
)
def test_each_setting_reaches_its_key(override, key, value):
    tree = to_verl(load_config(None, [override]), FILES, cpu=False)
    for name in key.split("."):
        tree = tree[name]
    assert tree == value


def test_a_run_goes_on_from_the_checkpoint_it_is_given_and_is_not_validated_there_again():
    def trainer(checkpoint):
        files = Files(FILES.model, FILES.train, FILES.val, checkpoint)
        tree = to_verl(load_config(None), files, cpu=False)["trainer"]
        return [tree[key] for key in ("resume_mode", "resume_from_path", "val_before_train", "max_actor_ckpt_to_keep")]

    assert trainer(None) == ["disable", None, True, None]
    assert trainer(Path("c/global_step_4")) == ["resume_path", "c/global_step_4", False, None]


def test_model_servers_share_the_gpus_that_train_or_have_their_own():
    def placed(*settings):
        composed = compose(to_verl(load_config(None, ["engine.n_gpus=4", *settings]), FILES, cpu=False))
        trainer, rollout = composed.trainer, composed.actor_rollout_ref.rollout
        pools = (trainer.nnodes, trainer.n_gpus_per_node), (rollout.nnodes, rollout.n_gpus_per_node)
        return *pools, rollout.checkpoint_engine.backend, rollout.free_cache_engine, rollout.enable_sleep_mode

    assert placed() == ((1, 4), (0, 4), "naive", True, True)
    assert placed("cluster.sampler_gpus=2") == ((1, 4), (1, 2), "nccl", False, False)
    # without a lag nothing is sampled during an update, and nothing has to be corrected
    apart = compose(to_verl(load_config(None, ["cluster.sampler_gpus=2"]), FILES, cpu=False))
    assert apart.algorithm.rollout_correction.rollout_is is None


def test_a_template_in_place_of_the_models_own_reaches_the_sampler_and_the_checkpoints():
    def keys(template):
        files = Files(FILES.model, FILES.train, FILES.val, chat_template=template)
        tree = to_verl(load_config(None), files, cpu=False)
        compose(tree)
        role = tree["actor_rollout_ref"]
        return role["rollout"]["engine_kwargs"]["vllm"].get("chat_template"), role["model"]["custom_chat_template"]

    assert keys("{{ messages }}") == ("{{ messages }}", "{{ messages }}")
    assert keys(None) == (None, None)


def test_defaults_need_no_file():
    assert load_config(None, ["model=ORG/NAME"]) == TrainConfig(model=Path("ORG/NAME"))


def test_precision_is_what_was_asked_for_else_what_pays(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").touch()
    os.truncate(tmp_path / "model.safetensors", 4 * 20_000_000)  # a sparse file: no byte is written
    auto, small = load_config(None), FILES.model
    monkeypatch.setattr("agentgrpo.machine.bfloat16_pays", lambda: True)
    assert [precision(auto.engine, model, cpu=True) for model in (tmp_path, small)] == ["bfloat16", "float32"]
    assert precision(load_config(None, ["engine.precision=float32"]).engine, tmp_path, cpu=True) == "float32"
    monkeypatch.setattr("agentgrpo.machine.bfloat16_pays", lambda: False)
    assert precision(auto.engine, tmp_path, cpu=True) == "float32"
    assert precision(load_config(None, ["engine.precision=bfloat16"]).engine, small, cpu=True) == "bfloat16"
    assert precision(auto.engine, small, cpu=False) == "bfloat16"
    assert precision(load_config(None, ["engine.precision=float32"]).engine, small, cpu=False) == "float32"


def test_a_cpu_keeps_weights_in_float32_whatever_it_computes_in():
    def mixed(asked, cpu):
        role = to_verl(load_config(None, [f"engine.precision={asked}"]), FILES, cpu=cpu)["actor_rollout_ref"]
        return role["actor"]["fsdp_config"]["mixed_precision"]["param_dtype"], role["rollout"]["dtype"]

    assert mixed("bfloat16", True) == ("fp32", "bfloat16")  # its engine autocasts
    assert mixed("float32", True) == ("fp32", "float32")
    assert mixed("bfloat16", False) == ("bf16", "bfloat16")
    assert mixed("float32", False) == ("fp32", "float32")


@pytest.mark.parametrize(
    ("asked", "cpu", "found"), [("null", True, False), ("null", False, True), ("true", True, True)]
)
def test_gradient_checkpointing_is_a_gpus_default(asked, cpu, found):
    cfg = load_config(None, [f"engine.gradient_checkpointing={asked}"])
    assert to_verl(cfg, FILES, cpu=cpu)["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"] is found


def test_a_gpu_takes_torchs_attention_and_makes_no_logits_of_a_whole_micro_batch():
    model = to_verl(load_config(None), FILES, cpu=False)["actor_rollout_ref"]["model"]
    assert model["override_config"] == {"attn_implementation": "sdpa"}  # flash-attn is in neither set of versions
    assert (model["use_fused_kernels"], model["fused_kernel_options"]) == (True, {"impl_backend": "torch"})
    assert to_verl(load_config(None), FILES, cpu=True)["actor_rollout_ref"]["model"]["use_fused_kernels"] is False


@pytest.mark.parametrize("cpu", [True, False])
def test_shared_prompts_choose_an_engine_of_ours_which_makes_no_logits_either(cpu):
    shared, plain = (load_config(None, [f"engine.shared_prompts={name}"]) for name in ("flex_attention", "null"))
    added = worker_environment(shared, cpu=cpu).items() - worker_environment(plain, cpu=cpu).items()
    assert added == {("VERL_ENGINE_VENDOR", "flex_attention")}
    model = to_verl(shared, FILES, cpu=cpu)["actor_rollout_ref"]["model"]
    assert model == to_verl(plain, FILES, cpu=cpu)["actor_rollout_ref"]["model"] | {"use_fused_kernels": False}


def test_each_call_of_an_own_environment_may_take_its_time_after_a_rollouts_deadline():
    """The tool that is open, get_reward, solved, close."""
    assert load_config(None, ["env.type=my.py:Env", "env.call_timeout_s=20"]).ending_s == 80.0
    assert load_config(None, []).ending_s == 60.0


def test_the_rllm_predecessors_setting_differs_from_the_defaults_in_four_settings():
    (file,) = (each for each in CONFIGS if each.stem == "rllm")
    model = ["model=Qwen/Qwen2.5-7B-Instruct"]
    four = ["agent.protocol=lab", "agent.max_turns=3", "rollout.judge=lab", "rollout.reward=rllm"]
    assert load_config(file, model) == load_config(None, model + four)


OWN_AGENT = ("env.type=agent", "env.agent=my_agent.py:agent", "llm_proxy=true", "rollout.reward=my_agent.py:reward")


@pytest.mark.parametrize(("settings", "expected"), [
    pytest.param([], 0.1, id="agents_of_this_project"),
    pytest.param(OWN_AGENT, 1.0, id="a_framework_may_write_its_history_anew"),
    pytest.param([*OWN_AGENT, "rollout.max_broken_fraction=0.2"], 0.2, id="what_is_given_counts"),
])  # fmt: skip
def test_breaks_stop_a_run_where_the_history_is_ours(settings, expected):
    assert load_config(None, settings).max_broken_fraction == expected


def test_a_run_on_a_cpu_counts_one_gpu_for_ray_where_the_shell_hides_all(monkeypatch):
    """verl asks Ray for a GPU on every platform, and Ray gives no more of them than the variable names."""
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name, value in worker_environment(load_config(None), cpu=True).items():
        monkeypatch.setenv(name, value)
    assert NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids() == ["-1"]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_each_worker_is_a_gpu_of_ray(workers):
    cfg = load_config(None, [f"cluster.workers_per_node={workers}", "data.train_batch_size=12"])
    environment, keys = worker_environment(cfg, cpu=True), to_verl(cfg, FILES, cpu=True)
    assert environment["CUDA_VISIBLE_DEVICES"].split(",") == ["-1"] * workers
    assert keys["trainer"]["n_gpus_per_node"] == keys["ray_kwargs"]["ray_init"]["num_gpus"] == workers
    assert keys["ray_kwargs"]["ray_init"]["num_cpus"] >= 3 * workers
    assert keys["trainer"]["balance_batch"] is (workers > 1)


def test_the_settings_of_an_environment_are_those_of_its_groups_by_their_names():
    given = ["env.type=text2sql", "env.database=shop.db", "env.columns=question=q", "env.schema_form=linked"]
    given += ["env.call_timeout_s=7", "rollout.judge=bird", "rollout.backend=mariadb", "agent.instructions=how.txt"]
    assert load_config(None, given).environment == EnvironmentSettings(
        "text2sql", "fc", "bird", "mariadb", Path("shop.db"), 7.0, None, Path("how.txt"), "question=q", "linked"
    )
