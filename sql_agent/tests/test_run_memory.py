"""The memory of a run: each part worked out by hand, two sums that an H100 showed, and the settings that would fit."""

import json
from pathlib import Path

import pytest

from agentgrpo.checks import UsageError
from sql_agent.commands import doctor
from sql_agent.model_shape import ModelShape, shape_of
from sql_agent.settings.load import load_config
from sql_agent.startup.memory_check import Gpu, check_gpu_memory, check_run_memory, gpus_here, settings_that_fit
from sql_agent.startup.preflight import gpus_of
from sql_agent.startup.run_memory import GIB, PROCESSES, Load, Need, cpu_need, load_of, need_of, phases
from sql_agent.train_sql_agent import main

SHAPE = ModelShape(
    hidden=4, intermediate=8, layers=2, heads=2, kv_heads=1, head_dim=2, vocab=10, positions=1000, tied=True
)
LENGTHS = ["data.max_prompt_tokens=100", "data.max_response_tokens=28", "agent.max_tokens=16"]
SMALL = [*LENGTHS, "optim.micro_batch_tokens=128", "engine.max_num_seqs=1", "engine.precision=bfloat16"]
THREE_AT_ONCE = ["rollout.n_runners=1", "rollout.runner_concurrency=3"]
# two rows of 128 tokens, four blocks, for each of three rollouts, and an empty block; keys and values of two layers,
# one head of 2
CACHE = (2 * 3 * 4 + 1) * 32 * 2 * 2 * 2 * 4
NEED = Need(
    # a layer's matrices: 16 + 8 + 8 + 16 + 3 x 32 = 144, its norms 8; 10 x 4 embeddings, a last norm of 4: 348 weights
    weights=4 * 348,
    gradients=4 * 348,
    moments=8 * 348,
    # embeddings and two layers in bfloat16; the gradient of a layer in bfloat16 and float32
    gathered=2 * (40 + 2 * 154) + 6 * 154,
    # inputs of two layers; kept of one: 8 bytes x 4 in the norms, 2 x (16 + 16 + 32) besides; a mask of numbers
    # kept, and one of bits and one of numbers with 44 numbers a token in work
    activations=2 * 128 * 4 * 2 + 128 * (32 + 128) + 2 * 128**2 + (128 * 2 * 44 + 128**2 + 2 * 128**2),
    logits=512 * 22 * 10 + 4 * 40,
    largest=4 * 10 * 4,
    served=2 * 348,
    reading=4096 * 2 * 44 + 12 * 10,
    row=2 * 2 * 2 * 2 * 128,
)


def load(*settings, cpu=False) -> Load:
    return load_of(load_config(None, list(settings)), cpu=cpu)


def need(*settings, shape=SHAPE, cpu=False) -> Need:
    return need_of(load(*SMALL, *settings, cpu=cpu), shape)


def changed(**parts) -> Need:
    return Need(**(vars(NEED) | parts))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param([], NEED, id="one_gpu"),
        pytest.param(
            ["engine.n_gpus=2", "engine.tensor_parallel_size=2"],
            # one key-value head is held by both
            changed(weights=696, gradients=696, moments=1392, served=348, reading=4096 * 2 * (16 + 12) + 120),
            id="two_gpus_share_trainer_and_server",
        ),
        pytest.param(
            ["lora.rank=2"],
            # rank x (inputs + outputs): 2 x (8 + 6 + 6 + 8 + 12 + 12 + 12) in each of two layers: 256 weights
            changed(weights=4 * (348 + 256), gradients=4 * 256, moments=8 * 256, gathered=2 * (40 + 2 * 154)),
            id="an_adapter_has_gradients_and_moments_alone",
        ),
        pytest.param(
            ["engine.gradient_checkpointing=false"],
            changed(activations=2 * (128 * 160 + 2 * 128**2) + (128 * 2 * 44 + 3 * 128**2)),
            id="everything_is_kept",
        ),
        pytest.param(
            ["engine.precision=float32"],
            changed(
                gathered=4 * (40 + 2 * 154) + 8 * 154,
                activations=2 * 128 * 4 * 4 + 128 * (32 + 256) + 4 * 128**2 + (128 * 4 * 44 + 5 * 128**2),
                logits=512 * 22 * 10 + 8 * 40,
                served=4 * 348,
                reading=4096 * 4 * 44 + 12 * 10,
                row=2 * 4 * 2 * 2 * 128,
            ),
            id="float32",
        ),
    ],
)
def test_each_part_is_counted(settings, expected):
    assert need(*settings) == expected


BUCKET = 2 * GIB
TEN = Need(10, 20, 30, 1, 2, 3, 4, 5, 6, 7)
"""Its update takes 66, its sampler 18."""
OFFLOAD = "verl.actor_rollout_ref.actor.fsdp_config"
BUCKET_KEY = "verl.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"


@pytest.mark.parametrize(
    ("settings", "total", "expected"),
    [
        # half of the GPU, weights and moments; the sampler's weights and the trainer's, a bucket, the largest weight
        pytest.param([], 1000, {"rollouts": 540, "weight sync": 5 + 40 + BUCKET + 4, "the update": 66}, id="by_turns"),
        pytest.param([], None, {"rollouts": 58, "weight sync": 49 + BUCKET, "the update": 66}, id="card_not_known"),
        pytest.param(
            ["trainer.max_off_policy_steps=1", "llm_proxy=true"],
            1000,
            {"rollouts": 540, "weight sync": 544 + BUCKET, "the update": 566},
            id="a_lag_keeps_the_sampler",
        ),
        pytest.param(
            ["cluster.sampler_gpus=1", "trainer.max_off_policy_steps=1", "llm_proxy=true"],
            1000,
            # on one GPU the sampler, two buffers of NCCL and one to vLLM; on another the trainer and two buffers
            {"rollouts": 504 + 3 * BUCKET, "weight sync": 44 + 2 * BUCKET, "the update": 66},
            id="samplers_apart",
        ),
        pytest.param(
            [f"{OFFLOAD}.param_offload=true", f"{OFFLOAD}.optimizer_offload=true"],
            1000,
            {"rollouts": 500, "weight sync": 9 + BUCKET, "the update": 66},
            id="offload",
        ),
        pytest.param(
            [f"{BUCKET_KEY}=512"],
            1000,
            {"rollouts": 540, "weight sync": 49 + BUCKET // 4, "the update": 66},
            id="a_smaller_bucket",
        ),
        pytest.param(
            [f"{OFFLOAD}.param_offload=true", "lora.rank=8"],
            1000,
            {"rollouts": 530, "weight sync": 49 + BUCKET, "the update": 66},
            id="an_adapter_is_merged_on_the_gpu",
        ),
    ],
)
def test_trainer_and_sampler_are_added_up_phase_by_phase(settings, total, expected):
    found = phases(load(*settings), TEN, total)
    assert {phase: size - PROCESSES for phase, size in found.items()} == expected


def test_a_cpus_workers_hold_their_shares_and_a_server_each():
    settings = ["cluster.workers_per_node=2", "engine.precision=float32", *THREE_AT_ONCE]
    cfg = load(*SMALL, *settings, cpu=True)
    # half of weights, gradients and moments; whole layers in float32, nothing recomputed and no mask
    one = 16 * 348 // 2 + 4 * (40 + 2 * 154) + 8 * 154 + (2 * 128 * 288 + 128 * 4 * 44) + 512 * 22 * 10 + 8 * 40
    assert need_of(cfg, SHAPE).update == one
    assert cpu_need(cfg, SHAPE) == int(5.5 * GIB) + 2 * (one + 2 * 4 * 348 + CACHE)
    # the scores of a layer's two heads in the backward pass
    flex = load(*SMALL, *settings, "engine.shared_prompts=flex_attention", cpu=True)
    assert cpu_need(flex, SHAPE) == cpu_need(cfg, SHAPE) + 2 * 29 * 2 * 128**2
    # four workers share, two of which are on this node
    two_nodes = load(*SMALL, *settings, "cluster.nodes=2", "cluster.ray_address=10.0.0.1:6379", cpu=True)
    assert cpu_need(two_nodes, SHAPE) == cpu_need(cfg, SHAPE) - 2 * 16 * 348 // 4


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            f"{OFFLOAD}=null",
            f"{OFFLOAD} is None, expected keys below it; leave it out, or set {OFFLOAD}.param_offload",
        ),
        (
            f"{BUCKET_KEY}=auto",
            f"{BUCKET_KEY} is 'auto', expected a number of MiB; verl's default is 2048",
        ),
    ],
)
def test_a_key_of_verls_that_cannot_be_read_is_named(setting, words):
    with pytest.raises(UsageError) as error:
        phases(load(setting), TEN, 1000)
    assert str(error.value) == words


# Measured ------------------------------------------------------------------------------------------------------------

SMOLLM2 = shape_of({
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True,
})  # fmt: skip
TINY = shape_of({
    "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "vocab_size": 1020,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
})  # fmt: skip


def test_the_two_sums_that_an_h100_showed_are_met():
    """The trainer's most allocated bytes of both runs (doc/project/benchmarks.md); the second in weight sync."""
    kept = load("engine.gradient_checkpointing=false", "data.max_response_tokens=768")
    assert need_of(kept, SMOLLM2).update == pytest.approx(29.5 * GIB, rel=0.15)
    expected = need_of(load("data.max_response_tokens=512"), TINY)
    assert expected.weights + expected.moments + BUCKET + expected.largest == pytest.approx(2.1 * GIB, rel=0.15)
    assert expected.update < BUCKET


# Published -----------------------------------------------------------------------------------------------------------


CONFIGS = json.loads((Path(__file__).parents[2] / "doc" / "data" / "qwen2.5_configs.json").read_text("utf-8"))
QWEN = {size: shape_of(config) for size, config in CONFIGS.items()}


@pytest.mark.parametrize(
    ("size", "weights", "without_embeddings"),
    [("0.5B", 0.49, 0.36), ("1.5B", 1.54, 1.31), ("3B", 3.09, 2.77), ("7B", 7.61, 6.53)],
)
def test_sizes_are_those_of_the_model_cards_of_qwen_2_5(size, weights, without_embeddings):
    shape = QWEN[size]
    embeddings = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    assert shape.parameters / 1e9 == pytest.approx(weights, abs=0.006)
    assert (shape.parameters - embeddings) / 1e9 == pytest.approx(without_embeddings, abs=0.006)


# What would fit ------------------------------------------------------------------------------------------------------


def gpu(gib) -> Gpu:
    return Gpu(int(gib * GIB), int((gib - 0.5) * GIB))


@pytest.mark.parametrize(
    ("size", "settings", "gib", "words", "fitting"),
    [
        pytest.param("1.5B", ["lora.rank=16"], 24, None, None, id="it_fits"),
        pytest.param(
            "3B",
            ["lora.rank=16"],
            24,
            "the run needs 25.8 GiB of each GPU in rollouts, and 23.5 GiB of 24.0 GiB are free",
            ["engine.gpu_memory_utilization=0.4", "optim.micro_batch_tokens=1792"],
            id="a_smaller_pass_and_share",
        ),
        pytest.param(
            "7B",
            ["lora.rank=16", "engine.gpu_memory_utilization=0.1"],
            80,
            "vLLM needs 15.0 GiB of each GPU, and engine.gpu_memory_utilization=0.1 gives it 8.0 GiB of 80.0 GiB",
            ["engine.gpu_memory_utilization=0.6"],
            id="a_larger_share",
        ),
        pytest.param("7B", [], 80, "in the update", ["lora.rank=16"], id="an_adapter"),
        pytest.param(
            "7B",
            ["lora.rank=16"],
            24,
            "vLLM needs 15.0 GiB",
            ["optim.micro_batch_tokens=1792", "engine.tensor_parallel_size=2", "engine.n_gpus=4"],
            id="more_gpus",
        ),
        pytest.param("7B", ["lora.rank=16"], 4, "vLLM needs 15.0 GiB", None, id="nothing_helps"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_settings_that_would(size, settings, gib, words, fitting):
    cfg = load_config(None, settings)
    fault = check_gpu_memory(load(*settings), QWEN[size], gpu(gib))
    if words is None:
        assert fault is None
        return
    assert fault is not None
    assert words in fault
    assert settings_that_fit(cfg, QWEN[size], [gpu(gib)]) == fitting
    if fitting:
        assert check_gpu_memory(load(*settings, *fitting), QWEN[size], gpu(gib)) is None


def test_what_another_program_has_taken_of_a_card_is_not_there():
    cfg, half_taken = load_config(None, ["lora.rank=16"]), Gpu(40 * GIB, 20 * GIB)
    # vLLM's half of the GPU, 6.0 of weights and moments, 2 beside them
    assert check_gpu_memory(load("lora.rank=16"), QWEN["1.5B"], half_taken) == (
        "the run needs 28.0 GiB of each GPU in rollouts, and 20.0 GiB of 40.0 GiB are free"
    )
    assert settings_that_fit(cfg, QWEN["1.5B"], [half_taken]) == ["engine.gpu_memory_utilization=0.3"]


FREE, TAKEN = Gpu(80 * GIB, 79 * GIB, "0"), Gpu(80 * GIB, GIB, "1")


def problems_of(tmp_path, size, gpus, *settings) -> list[str]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[size]))
    cfg = load_config(None, [f"model={tmp_path}", "lora.rank=16", *settings])
    return [str(problem) for problem in check_run_memory(cfg, gpus).problems]


def test_the_cards_that_a_run_gets_are_judged(tmp_path):
    assert problems_of(tmp_path, "1.5B", [FREE, TAKEN]) == []
    # vLLM's half of the GPU, 5.8 of frozen weights, 2 beside them, and the adapter's
    fault = "the run needs 48.0 GiB of each GPU in rollouts, and 1.0 GiB of 80.0 GiB are free; "
    other = "it would fit with CUDA_VISIBLE_DEVICES=0 before the command"
    assert problems_of(tmp_path, "1.5B", [TAKEN, FREE]) == [fault + other]
    assert problems_of(tmp_path, "1.5B", [FREE, TAKEN], "engine.n_gpus=2") != []
    assert problems_of(tmp_path, "1.5B", [FREE, TAKEN], "cluster.sampler_gpus=1") != []
    assert problems_of(tmp_path, "1.5B", [FREE, FREE, TAKEN], "cluster.sampler_gpus=1") == []
    two = "it would fit with CUDA_VISIBLE_DEVICES=0,2 before the command"
    (said,) = problems_of(tmp_path, "1.5B", [FREE, TAKEN, FREE._replace(name="2")], "engine.n_gpus=2")
    assert said.endswith(two)


def test_of_a_clusters_cards_the_fullest_is_said_with_its_node(tmp_path):
    of_nodes = [(80 * GIB, free * GIB, f"node {name}") for free, name in ((70, "one"), (1, "two (10.0.0.2)"))]
    gpus = gpus_of(cpu=False, of_nodes=of_nodes)
    (said,) = problems_of(tmp_path, "1.5B", gpus, "engine.n_gpus=2")
    free = "1.0 GiB of 80.0 GiB are free on node two (10.0.0.2)"
    assert said.startswith(f"the run needs 45.0 GiB of each GPU in rollouts, and {free}; ")


def test_cards_that_are_not_there_are_said_to_be_needed(tmp_path):
    settings = "--set optim.micro_batch_tokens=3072 engine.tensor_parallel_size=2 engine.n_gpus=4"
    (said,) = problems_of(tmp_path, "7B", [gpu(24)])
    assert said.endswith(f"; it would fit on 4 such GPUs with {settings}")
    (said,) = problems_of(tmp_path, "7B", [gpu(24)] * 4)
    assert said.endswith(f"; it would fit with {settings}")


def test_the_check_says_what_is_needed_and_names_what_it_cannot_estimate(tmp_path):
    config = {"model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    cfg = load_config(None, [f"model={tmp_path}"])
    (warning,) = check_run_memory(cfg, []).problems
    assert warning.what == "memory is not estimated for model type gpt2, only for llama, mistral, qwen2, qwen3"
    assert not warning.blocks
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    assert "config.json has no num_attention_heads" in check_run_memory(cfg, []).problems[0].what


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """An nvidia-smi that lists one GPU of 2 GiB, half of which is taken; it is returned to be rewritten."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: small" || echo "0, GPU-5ab1, 2048, 1024"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1"]),
        ("1,0", ["1", "0"]),
        ("GPU-c3", ["1"]),
        ("-1", []),
        ("MIG-5ab1", []),
        ("", []),
    ],
)
def test_the_cards_are_those_that_are_visible_in_that_order(driver, monkeypatch, visible, expected):
    driver.write_text("#!/bin/sh\necho '0, GPU-5ab1, 2048, 1024\n1, GPU-c3d2, 2048, 2048\n2, GPU-d4e3, [N/A], [N/A]'\n")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [each.name for each in gpus_here()] == expected


@pytest.mark.parametrize("script", ["echo No devices were found; exit 6", "exec sleep 60"])
def test_a_driver_that_does_not_answer_lists_no_card(driver, monkeypatch, script):
    monkeypatch.setattr("agentgrpo.machine.DRIVER_S", 0.5)
    driver.write_text(f"#!/bin/sh\n{script}\n")
    assert gpus_here() == []


def test_a_run_is_refused_before_anything_loads(driver, capsys, tmp_path, random_policy_folder):
    assert gpus_here() == [Gpu(2 * GIB, GIB)]
    assert main(["--model", str(random_policy_folder), "--run-dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        "error: the run needs 4.0 GiB of each GPU in weight sync, and 1.0 GiB of 2.0 GiB are free; take a "
        "smaller model, or larger GPUs\n"
    )


@pytest.mark.parametrize(
    ("settings", "n_gpus", "nodes", "address", "rollouts"),
    [
        pytest.param(["engine.n_gpus=1"], 1, 1, None, "2.", id="one"),
        pytest.param(["engine.n_gpus=2"], 2, 1, None, "2.", id="two"),
        pytest.param(["engine.n_gpus=8", "engine.tensor_parallel_size=2"], 8, 1, None, "2.", id="eight"),
        pytest.param(
            ["engine.n_gpus=8", "cluster.nodes=2", "cluster.ray_address=10.0.0.1:6379"],
            *(8, 2, "10.0.0.1:6379", "2."),
            id="two_nodes_of_eight",
        ),
        pytest.param(
            ["engine.n_gpus=4", "cluster.sampler_gpus=4"],
            4,
            1,
            None,
            "8.0 in rollouts",
            id="four_train_and_four_sample",
        ),
    ],
)
def test_a_dry_run_for_gpus_needs_none_and_has_verls_own_checks(
    capsys, tmp_path, random_policy_folder, settings, n_gpus, nodes, address, rollouts
):
    where = ["--model", str(random_policy_folder), "--run-dir", str(tmp_path)]
    assert main([*where, "--device", "gpu", "--dry-run", "--set", *settings]) == 0
    said = capsys.readouterr().out
    (memory,) = [line for line in said.splitlines() if line.startswith("memory: ")]
    assert memory.startswith(f"memory: GiB of each GPU: {rollouts}")
    assert memory.endswith("; no GPU was looked at")
    keys = json.loads(said.split("# verl's keys\n")[1].split("\n\n# plan")[0])
    assert (keys["trainer"]["n_gpus_per_node"], keys["trainer"]["nnodes"]) == (n_gpus, nodes)
    assert keys["ray_kwargs"]["ray_init"].get("address") == address


def test_doctor_knows_the_workers_of_a_cpu(capsys, monkeypatch, random_policy_folder):
    monkeypatch.setattr("sql_agent.startup.memory_check.available_memory_gib", lambda: 5.0)
    command = ["--model", str(random_policy_folder), "--set", "cluster.workers_per_node=2", "engine.precision=float32"]
    doctor.main(command)
    said = capsys.readouterr().out
    assert "2 training workers, each with a vLLM, may take 5." in said
    assert "5.0 GiB are available, and Ray ends a worker where none is left" in said
    assert "-> end other programs, or lower it with --set cluster.workers_per_node=1" in said
    four_nodes = ["cluster.nodes=4", "cluster.ray_address=10.0.0.1:6379", "engine.precision=float32"]
    doctor.main([*command[:2], "--set", *four_nodes])
    said = capsys.readouterr().out
    assert "a training worker and its vLLM may take" in said
    assert "cluster.workers_per_node=" not in said
    doctor.main([*command[:2], "--set", "engine.n_gpus=2"])
    assert "-> use --set engine.n_gpus=1 cluster.workers_per_node=2" in capsys.readouterr().out
