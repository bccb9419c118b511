"""Log-probs of chosen tokens, tile by tile: what the model's own logits say, and their gradient."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from sql_agent import log_probs
from sql_agent.local.packed_model import VOCAB_TILE, score_tokens

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 2 * VOCAB_TILE + 5,  # three tiles of TRL's function, the last one narrow
    "pad_token_id": 0,
}
MODELS = [
    pytest.param({"model_type": "llama", "tie_word_embeddings": True}, id="llama_tied"),
    pytest.param({"model_type": "qwen3", "tie_word_embeddings": False}, id="qwen3_untied"),
    pytest.param({"model_type": "gemma2", "final_logit_softcapping": 2.0}, id="gemma2_caps_its_logits"),
    pytest.param({"model_type": "cohere", "logit_scale": 0.25}, id="cohere_multiplies_its_logits"),
    pytest.param({"model_type": "granite", "logits_scaling": 4.0}, id="granite_divides_its_logits"),
]
IDS = torch.tensor([[5, 6, 7, 8, 9, 8196], [5, 4100, 7, 0, 0, 0]])
ATTENTION = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
CHOSEN = torch.tensor([[0, 0, 1, 0, 1, 1], [0, 1, 1, 0, 0, 0]]).bool()
WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0, -0.5])  # of the five chosen tokens, row by row


def model_of(own):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**SHAPE, **own}), dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def gradients(model):
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


def by_whole_logits(model, temperature):
    log_probs = (model(IDS, attention_mask=ATTENTION).logits[:, :-1] / temperature).log_softmax(-1)
    return log_probs.gather(-1, IDS[:, 1:, None]).squeeze(-1)[CHOSEN[:, 1:]], log_probs[CHOSEN[:, 1:]]


@pytest.mark.parametrize("own", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_values_and_gradients_are_those_of_the_whole_logits(own, temperature):
    model = model_of(own)
    scores = score_tokens(model, IDS, ATTENTION, CHOSEN, temperature=temperature, metrics=True)
    (scores.log_probs * WEIGHTS).sum().backward()
    ours = gradients(model)
    expected, whole = by_whole_logits(model, temperature)
    (expected * WEIGHTS).sum().backward()
    torch.testing.assert_close(scores.log_probs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours, gradients(model), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(scores.entropy, -(whole.exp() * whole).sum(-1), atol=1e-4, rtol=1e-5)
    assert scores.is_top1.tolist() == (whole.argmax(-1) == IDS[:, 1:][CHOSEN[:, 1:]]).tolist()


def test_an_adapter_is_trained_through_it():
    model = get_peft_model(model_of({"model_type": "llama"}), LoraConfig(r=2, target_modules="all-linear"))
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
            weight.add_(torch.randn_like(weight) * 0.1)
    (score_tokens(model, IDS, ATTENTION, CHOSEN).log_probs * WEIGHTS).sum().backward()
    ours = gradients(model)
    (by_whole_logits(model, 1.0)[0] * WEIGHTS).sum().backward()
    assert len(ours) == 2 * 7 * 2  # layers, matrices, two factors
    torch.testing.assert_close(ours, gradients(model), atol=1e-5, rtol=1e-3)


def test_under_autocast_gradients_are_float32_and_close():
    model = model_of({"model_type": "llama"})
    (score_tokens(model, IDS, ATTENTION, CHOSEN).log_probs * WEIGHTS).sum().backward()
    exact = gradients(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score_tokens(model, IDS, ATTENTION, CHOSEN)
    (scores.log_probs * WEIGHTS).sum().backward()
    rounded = gradients(model)
    assert {scores.log_probs.dtype, *(gradient.dtype for gradient in rounded.values())} == {torch.float32}
    for name, gradient in exact.items():
        assert (rounded[name] - gradient).norm() <= 0.05 * gradient.norm(), (
            name
        )  # bfloat16 keeps 8 bits: 0.4 % a number


def test_nothing_chosen_is_a_differentiable_nothing():
    model = model_of({"model_type": "llama"})
    scores = score_tokens(model, IDS, ATTENTION, torch.zeros_like(CHOSEN))
    scores.log_probs.sum().backward()
    assert scores.log_probs.shape == (0,)
    assert all((gradient == 0).all() for gradient in gradients(model).values())


def test_an_adapter_on_the_output_layer_is_refused():
    config = LoraConfig(r=2, target_modules=["lm_head", "q_proj"])
    model = get_peft_model(model_of({"model_type": "llama", "tie_word_embeddings": False}), config)
    with pytest.raises(ValueError, match="leave lm_head out of target_modules"):
        score_tokens(model, IDS, ATTENTION, CHOSEN)


def test_the_output_layers_factors_are_rounded_where_those_of_other_layers_are(monkeypatch):
    seen, product = [], log_probs._product
    monkeypatch.setattr(
        log_probs, "_product", lambda a, b, rounded, *room: seen.append(rounded) or product(a, b, rounded, *room)
    )
    model = model_of({"model_type": "llama"})
    for bfloat16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            score_tokens(model, IDS, ATTENTION, CHOSEN).log_probs.sum().backward()
    assert seen == [False] * 4 + [True] * 4  # logits forwards and backwards, gradients of states and weights
