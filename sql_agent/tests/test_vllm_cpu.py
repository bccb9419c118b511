"""What a small model's sampler on a CPU leaves out changes no bit of what it computes, nor a random number."""

from types import SimpleNamespace

import pytest
import torch

from sql_agent.verl_side.plugin import vllm_cpu


@pytest.fixture(scope="module")
def norms():
    """vLLM's norm and ours; both are made under a configuration of vLLM, as in its engine."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import layernorm

    ours = SimpleNamespace(RMSNorm=type("RMSNorm", (layernorm.RMSNorm,), {}))
    vllm_cpu._norm_in_one_call(ours)

    def make(**options):
        with set_current_vllm_config(VllmConfig()):
            return layernorm.RMSNorm(**options), ours.RMSNorm(**options)

    return make


@pytest.fixture
def counted(monkeypatch):
    """How often torch's own norm was called."""
    calls, norm = [], torch.nn.functional.rms_norm
    monkeypatch.setattr(torch.nn.functional, "rms_norm", lambda *given: calls.append(1) or norm(*given))
    return calls


# numbers and weights of a hidden state, and of a head that is a slice of queries, keys and values
@pytest.mark.parametrize("shape", [(1, 128), (7, 128), (300, 576), (9, 4, 32)])
@pytest.mark.parametrize("carried", [False, True], ids=["alone", "with_residual"])
def test_a_norm_has_the_bits_of_vllms(counted, norms, shape, carried):
    torch.manual_seed(0)
    theirs, ours = norms(hidden_size=shape[-1], eps=1e-6)
    theirs.weight.data.uniform_(0.5, 1.5)
    ours.weight.data.copy_(theirs.weight.data)
    x = torch.randn(*shape[:-1], 2 * shape[-1]).mul_(30)[..., : shape[-1]]
    given = [x, torch.randn(shape)] if carried else [x]
    with torch.inference_mode():
        expected = theirs.forward_native(*(tensor.clone() for tensor in given))
        counted.clear()
        found = ours.forward_native(*(tensor.clone() for tensor in given))
    assert counted == [1]
    assert isinstance(found, tuple) == carried
    for one, other in zip(*((it if carried else (it,)) for it in (found, expected)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "options", [{"var_hidden_size": 16}, {"has_weight": False}, {"dtype": torch.bfloat16}], ids=str
)
def test_other_norms_are_vllms_own(counted, norms, options):
    theirs, ours = norms(hidden_size=32, **options)
    x = torch.randn(5, 32, dtype=options.get("dtype", torch.float32))
    found = ours.forward_native(x)
    assert counted == []
    assert torch.equal(found, theirs.forward_native(x))


@pytest.fixture(scope="module")
def samplers():
    """vLLM's sampler and ours."""
    from vllm.v1.sample.ops import topk_topp_sampler as upstream

    theirs = upstream.TopKTopPSampler
    ours = SimpleNamespace(**{**vars(upstream), "TopKTopPSampler": type("TopKTopPSampler", (theirs,), {})})
    vllm_cpu._draw_once(ours)
    return theirs, ours.TopKTopPSampler


def generators(rows):
    return {row: torch.Generator().manual_seed(100 + row) for row in range(rows)}


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("top_k", [None, 3])
def test_rows_with_a_seed_get_vllms_tokens_and_leave_their_generators_as_vllm_does(samplers, rows, top_k):
    logits = torch.randn(rows, 1020, generator=torch.Generator().manual_seed(1))
    k = None if top_k is None else torch.full((rows,), top_k)
    tokens, states = [], []
    for sampler in samplers:
        seeded = generators(rows)
        drawn = [sampler("raw_logprobs").forward_cpu(logits.clone(), seeded, k, None) for _ in range(3)]
        assert all(rest is None for _, rest in drawn)
        tokens.append([one.tolist() for one, _ in drawn])
        states.append([generator.get_state().tolist() for generator in seeded.values()])
    assert tokens[0] == tokens[1]
    assert states[0] == states[1]


def test_no_number_is_drawn_that_a_rows_own_would_replace(samplers):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    samplers[1]("raw_logprobs").forward_cpu(torch.zeros(2, 8), generators(2), None, None)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_to_be_returned_processed_is_vllms_own(samplers):
    logits = torch.randn(2, 8)
    found = [s("processed_logprobs").forward_cpu(logits.clone(), generators(2), None, None) for s in samplers]
    assert found[0][0].tolist() == found[1][0].tolist()
    assert torch.equal(found[0][1], found[1][1])
