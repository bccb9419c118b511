"""Models whose layers hand a state from token to token are sampled and trained in one process, without a shared prefix.

Who brought LFM2, Qwen3.5, Granite 4 or Nemotron to `agentgrpo local` was told to take another model.
"""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from sql_agent.architectures import PADDED
from sql_agent.credit.row import Row
from sql_agent.local.datatypes import Sampling
from sql_agent.local.learner import Learner
from sql_agent.local.policy import LocalPolicy, Rows
from sql_agent.settings.local import LossConfig, OptimConfig

SIZES = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "vocab_size": 60, "pad_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
BLOCKS = {"layers_block_type": ["mamba", "attention"]}
KINDS = {
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"], **LINEAR, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    },
    "falcon_h1": {**MAMBA, "mamba_d_head": 16, "mamba_d_ssm": 64},
    "bamba": {**MAMBA, "mamba_d_head": 32, "attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False,
              "mamba_d_state": 16, "mamba_dt_rank": 8},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"], **LINEAR},
    "granitemoehybrid": {**BLOCKS, **MAMBA, "mamba_d_head": 32, "num_local_experts": 0, "shared_intermediate_size": 64},
    "nemotron_h": {**BLOCKS, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1,
                   "chunk_size": 16},
}  # fmt: skip
PROMPTS = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 11], [5, 6, 7, 8, 12, 13, 14, 15]]
"""They begin alike and have three lengths."""


class Ends:
    eos_token_id, pad_token_id = 2, 0


def test_each_kind_that_local_training_takes_is_tried():
    assert {*KINDS} == PADDED


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_is_sampled_and_trained_as_its_rows_are_alone(kind):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES, **KINDS[kind])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    modules = (
        ["in_proj", "q_proj", "k_proj"] if kind in ("nemotron_h", "falcon_h1") else "all-linear"
    )  # PEFT refuses their out_proj
    model = get_peft_model(model, LoraConfig(r=4, target_modules=modules, task_type="CAUSAL_LM"))
    policy = LocalPolicy(model, Ends())
    samples = policy.generate(PROMPTS, [Sampling()] * len(PROMPTS), max_new_tokens=8)
    rows = [
        Row(
            (*prompt, *sample.ids), (0,) * len(prompt) + (1,) * len(sample.ids),
            (0.0,) * len(prompt) + sample.log_probs, prompt_tokens=len(prompt), num_turns=1,
            credit=(float(number),) * (len(prompt) + len(sample.ids)),
        )
        for number, (prompt, sample) in enumerate(zip(PROMPTS, samples, strict=True), -1)
    ]  # fmt: skip
    together = Rows.of(rows, pad_id=0)
    found = policy.log_probs(together)
    torch.testing.assert_close(found, together.old_log_probs, atol=1e-4, rtol=1e-4)
    for number, row in enumerate(rows):
        alone = policy.log_probs(Rows.of([row], pad_id=0))[0]
        torch.testing.assert_close(found[number, : len(row.ids)], alone, atol=1e-4, rtol=1e-4)
    before = [weight.detach().clone() for weight in policy.parameters()]
    metrics = Learner(policy, OptimConfig(learning_rate=1e-3), LossConfig(kl_coef=0.0)).learn(rows, temperature=1.0)
    assert metrics["policy/grad_norm"] > 0
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
