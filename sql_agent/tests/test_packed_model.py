"""Rows that begin alike are computed as one sequence; log-probs and gradients are those of rows apart."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from agentgrpo.checks import UsageError
from sql_agent import shared_prefix
from sql_agent.architectures import TOGETHER, WITH_WINDOW_IN_MASK
from sql_agent.local.memory import Pass, largest_pass
from sql_agent.local.packed_model import base_of, micro_batches_of, packed_states, packs, score_tokens
from sql_agent.local.policy import load_policy
from sql_agent.packed_rows import pack_rows
from sql_agent.settings.local import AdapterConfig

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 50,
    "pad_token_id": 0,
}


def model_of(attention="sdpa", **own):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**SHAPE, **own})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()


@pytest.mark.parametrize(("own", "expected"), [
    pytest.param({"model_type": "llama"}, True, id="llama"),
    pytest.param({"model_type": "qwen2"}, True, id="qwen2_without_its_window"),
    pytest.param({"model_type": "qwen3"}, True, id="qwen3"),
    pytest.param({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, True, id="a_window"),
    pytest.param({"model_type": "mistral"}, True, id="mistral_has_a_window"),
    pytest.param({"model_type": "gemma2", "sliding_window": None}, False, id="gemma2_caps_its_scores"),
    pytest.param({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, False, id="lfm2_has_convolutions"),
    pytest.param({"model_type": "llama", "attention": "eager"}, False, id="another_attention"),
    pytest.param({"model_type": "doge"}, False, id="doge_makes_its_own_mask"),
    pytest.param({"model_type": "roberta"}, False, id="an_encoder"),
    pytest.param({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
                 False, id="positions_by_the_longest_row"),
])  # fmt: skip
def test_models_with_plain_causal_attention_pack(own, expected):
    assert packs(model_of(**own)) is expected


ROWS = [[1, 2, 3, 4], [1, 2, 3, 5], [9, 9], [1, 2, 3, 6, 7]]
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_intermediate_size": 8, "n_group": 1}
EXPERTS |= {"num_experts_per_tok": 2, "topk_group": 1, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
EXPERTS |= {"q_lora_rank": 8, "kv_lora_rank": 8, "first_k_dense_replace": 0}
WINDOW = {"sliding_window": 2, "use_sliding_window": True, "max_window_layers": 0}
COMMON = {"gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"}


@pytest.mark.parametrize("model_type", [
    pytest.param(name, marks=() if name in COMMON else pytest.mark.slow) for name in sorted(TOGETHER)
])  # fmt: skip
@pytest.mark.parametrize("window", [pytest.param({}, id="as_it_is"), pytest.param(WINDOW, id="window_of_two_tokens")])
def test_rows_together_have_the_states_of_rows_apart(model_type, window):
    caps = {"attn_logit_softcapping": None} if model_type in ("gemma2", "vaultgemma") else {}
    if window and model_type in WITH_WINDOW_IN_MASK:
        layers = {"max_window_layers": 2}  # Qwen2-MoE's first ones; in Qwen2 those behind them
        assert not packs(model_of(model_type=model_type, **EXPERTS, **window | layers))
        return
    model = model_of(model_type=model_type, **EXPERTS, **caps, **window)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    packed = pack_rows(ROWS)
    states = packed_states(model, packed)
    for row, places in zip(ROWS, packed.places, strict=True):
        apart = model.base_model(input_ids=torch.tensor([row])).last_hidden_state[0]
        torch.testing.assert_close(states[places], apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("small", [0, 2**24])
def test_a_window_hides_what_is_further_away(monkeypatch, small):
    """Gemma 3 has rows of more tokens than its window; they were refused."""
    monkeypatch.setattr(shared_prefix, "SMALL", small)
    packed = pack_rows(ROWS)
    in_window, everything = (
        packed_states(model_of(model_type="gemma3_text", sliding_window=tokens), packed) for tokens in (2, 5)
    )
    near = packed.position_ids < 2
    torch.testing.assert_close(in_window[near], everything[near])
    assert not torch.isclose(in_window[~near], everything[~near]).all(-1).any()


@pytest.mark.parametrize(("most", "expected"), [
    pytest.param(6, [[0, 1], [3], [2]], id="some"),  # 1 2 3 4 | 5 are five tokens; 6 7 would make them seven
    pytest.param(7, [[0, 1, 3], [2]], id="all_that_begin_alike"),
    pytest.param(9, [[0, 1, 3, 2]], id="all"),
    pytest.param(1, [[3], [0], [1], [2]], id="one_row_at_least"),
])  # fmt: skip
def test_a_shared_beginning_counts_once(most, expected):
    assert micro_batches_of(model_of(model_type="llama"), ROWS, most) == expected


@pytest.mark.parametrize(
    ("prompt", "own", "groups", "group_size", "most", "common", "expected"),
    [
        pytest.param(6, 2, 1, 4, 14, 0, Pass(14, 4), id="a_group_in_one_pass"),
        pytest.param(6, 2, 1, 4, 12, 0, Pass(12, 3), id="a_group_in_two_passes"),
        pytest.param(7, 1, 1, 10, 16, 0, Pass(16, 9), id="all_but_one"),
        pytest.param(6, 2, 2, 2, 20, 0, Pass(20, 4), id="two_groups_in_one_pass"),
        pytest.param(6, 2, 3, 1, 16, 0, Pass(16, 2), id="no_row_shares_anything"),
        pytest.param(6, 6, 1, 4, 14, 0, Pass(12, 1), id="a_row_alone"),
        pytest.param(6, 9, 1, 4, 14, 0, Pass(15, 1), id="a_row_longer_than_a_pass"),
        pytest.param(6, 2, 3, 2, 16, 4, Pass(16, 4), id="groups_that_share_a_schema"),
        pytest.param(6, 2, 4, 1, 16, 4, Pass(16, 3), id="tasks_that_share_a_schema"),
    ],
)
def test_the_largest_pass_is_known_before_the_rows_are(prompt, own, groups, group_size, most, common, expected):
    numbers = iter(range(10_000))
    schema, rows = [next(numbers) for _ in range(common)], []
    for _ in range(groups):
        shared = [*schema, *(next(numbers) for _ in range(prompt - common))]
        rows += [[*shared, *(next(numbers) for _ in range(own))] for _ in range(group_size)]
    first, *_ = micro_batches_of(model_of(model_type="llama"), rows, most)
    assert (len(pack_rows([rows[i] for i in first]).input_ids), len(first)) == (expected.tokens, expected.rows)
    assert largest_pass(prompt, own, len(rows), group_size, most, common=common) == expected


def test_rows_of_a_model_that_does_not_pack_count_with_their_padding():
    # three rows of five tokens are 15; shortest first: 2, 4, 4 make 12 tokens, then the row of five
    assert micro_batches_of(model_of(model_type="stablelm"), ROWS, 12) == [[3], [2, 0, 1]]


def test_attention_dropout_is_that_of_rows_apart():
    model = model_of(model_type="llama", attention_dropout=0.9).train()
    packed = pack_rows([[1, 2, 3], [1, 2, 4]])
    assert not torch.equal(packed_states(model, packed), packed_states(model, packed))
    model.eval()
    assert torch.equal(packed_states(model, packed), packed_states(model, packed))


@pytest.mark.parametrize("recompute", [False, True])
def test_an_adapter_gets_the_gradient_of_rows_apart(recompute):
    model = get_peft_model(model_of(model_type="qwen3"), LoraConfig(r=2, target_modules="all-linear"))
    for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
        torch.nn.init.normal_(weight, std=0.1)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    rows = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 7, 8]]

    def found(parts):
        model.zero_grad()
        log_probs = []
        for part in parts:
            width = max(len(rows[i]) for i in part)
            ids = torch.tensor([rows[i] + [0] * (width - len(rows[i])) for i in part])
            attention = (ids != 0).long()
            chosen = (torch.arange(width) >= 3) & attention.bool()
            scores = score_tokens(model, ids, attention, chosen).log_probs
            (scores**2).sum().backward()
            log_probs.append(scores.detach())
        return torch.cat(log_probs), [weight.grad for weight in model.parameters() if weight.grad is not None]

    torch.testing.assert_close(found([[0, 1, 2]]), found([[0], [1], [2]]), atol=1e-5, rtol=1e-4)


def test_other_calls_of_a_model_that_has_packed_stay_as_they_were():
    model = model_of(model_type="llama")
    padded = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    before = model(**padded).logits
    states = packed_states(model, pack_rows([[1, 2, 3], [1, 2, 4]]))
    assert states.shape == (4, 16)
    assert torch.equal(model(**padded).logits, before)
    assert model.config.to_dict() == model_of(model_type="llama").config.to_dict()


def test_flex_attention_is_for_models_that_drop_no_attention_weight():
    dropping = model_of(model_type="llama", attention_dropout=0.1)
    assert (packs(dropping), packs(dropping, "flex_attention")) == (True, False)
    assert packs(model_of(model_type="llama"), "flex_attention")
    assert not packs(model_of(model_type="stablelm"), "flex_attention")


def test_a_model_that_cannot_share_is_refused_where_it_was_asked_to(tmp_path):
    model_of(model_type="stablelm").save_pretrained(tmp_path)
    with pytest.raises(
        UsageError, match=r"--shared-prompts flex_attention needs .* \(stablelm\) has another one: leave"
    ):
        load_policy(
            tmp_path,
            adapter=AdapterConfig(),
            device="cpu",
            tokenizer=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel())),
            shared_prompts="flex_attention",
        )


def test_the_model_inside_an_adapter_is_found():
    model = model_of(model_type="llama")
    assert base_of(model) is model
    assert base_of(get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))) is model
