"""What vLLM does otherwise on a CPU: norms have the same bits, weights can be loaded, a token takes one number."""

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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_norm_has_the_bits_of_vllms(counted, norms, shape, carried, dtype):
    torch.manual_seed(0)
    theirs, ours = norms(hidden_size=shape[-1], eps=1e-6, dtype=dtype)
    theirs.weight.data.uniform_(0.5, 1.5)
    ours.weight.data.copy_(theirs.weight.data)
    x = torch.randn(*shape[:-1], 2 * shape[-1]).mul_(30)[..., : shape[-1]]
    given = [tensor.to(dtype) for tensor in ([x, torch.randn(shape)] if carried else [x])]
    with torch.inference_mode():
        expected = theirs.forward_native(*(tensor.clone() for tensor in given))
        counted.clear()
        found = ours.forward_native(*(tensor.clone() for tensor in given))
    assert counted == [1]
    assert isinstance(found, tuple) == carried
    for one, other in zip(*((it if carried else (it,)) for it in (found, expected)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        pytest.param(torch.float32, {"var_hidden_size": 16}, id="variance_of_a_part"),
        pytest.param(torch.float32, {"has_weight": False}, id="no_weight"),
        pytest.param(torch.bfloat16, {}, id="weight_of_another_dtype"),
    ],
)
def test_other_norms_are_vllms_own(counted, norms, dtype, options):
    theirs, ours = norms(hidden_size=32, **options)
    x = torch.randn(5, 32, dtype=dtype)
    found = ours.forward_native(x)
    assert counted == []
    assert torch.equal(found, theirs.forward_native(x))


@pytest.fixture(scope="module")
def samplers():
    """vLLM's sampler and ours."""
    from vllm.v1.sample.ops import topk_topp_sampler as upstream

    theirs = upstream.TopKTopPSampler
    ours = SimpleNamespace(**{**vars(upstream), "TopKTopPSampler": type("TopKTopPSampler", (theirs,), {})})
    vllm_cpu._draw_one_number(ours)
    return theirs, ours.TopKTopPSampler


def generators(rows):
    return {row: torch.Generator().manual_seed(100 + row) for row in range(rows)}


def test_a_token_is_the_first_up_to_which_the_probabilities_sum_to_more_than_the_number():
    probs = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).expand(7, 4)
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999, 1 - 2**-53], dtype=torch.float64)
    assert vllm_cpu.inverse_transform(probs, numbers).tolist() == [0, 0, 2, 2, 3, 3, 3]


# 300 tokens are two whole blocks of 128 and a part of one
@pytest.mark.parametrize("token", [0, 127, 128, 255, 256, 299])
@pytest.mark.parametrize("number", [0.0, 0.3, 1 - 2**-53])
def test_a_token_without_a_probability_is_never_taken(token, number):
    probs = torch.zeros(1, 300)
    probs[0, token] = 0.9999999  # rounded probabilities need not sum to 1
    assert vllm_cpu.inverse_transform(probs, torch.tensor([number], dtype=torch.float64)).tolist() == [token]


def test_rounding_at_the_ends_of_blocks_takes_no_token_without_a_probability():
    torch.manual_seed(0)
    probs = torch.randn(200, 128 * 40).mul(10).softmax(-1).view(200, 40, 128)
    probs[..., [0, 127]] = 0
    ends = probs.sum(-1, dtype=torch.float64).cumsum(-1)
    at = (ends / ends[:, -1:])[:, :-1]
    probs = probs.view(200, -1)
    for numbers in (at, at.nextafter(torch.zeros_like(at))):
        taken = torch.stack([vllm_cpu.inverse_transform(probs, column) for column in numbers.unbind(1)], 1)
        assert probs.gather(1, taken).min() > 0


@pytest.mark.parametrize("broken", [torch.nan, 0.0], ids=["not_numbers", "nothing"])
def test_a_row_of_broken_probabilities_gets_some_token_and_leaves_the_others_alone(broken):
    probs = torch.tensor([[0.5, 0.5], [broken, broken]])
    first, second = vllm_cpu.inverse_transform(probs, torch.tensor([0.7, 0.7], dtype=torch.float64)).tolist()
    assert first == 1 and second in (0, 1)


def test_a_number_of_each_row_takes_the_token_of_the_whole_vocabularys_sum():
    torch.manual_seed(0)
    probs = torch.randn(64, 49152).mul(4).softmax(-1)
    numbers = torch.rand(64, dtype=torch.float64)
    sums = probs.double().cumsum(-1)
    expected = torch.searchsorted(sums, (numbers * sums[:, -1])[:, None], right=True)[:, 0]
    assert torch.equal(vllm_cpu.inverse_transform(probs, numbers), expected)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits", "processed_logprobs"])
@pytest.mark.parametrize("top_k", [None, 3])
def test_rows_with_a_seed_draw_one_number_each_and_return_what_vllm_does(samplers, mode, top_k):
    logits = torch.randn(6, 1020, generator=torch.Generator().manual_seed(1))
    k = None if top_k is None else torch.full((6,), top_k)
    seeded, same = generators(6), generators(6)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    tokens, processed = samplers[1](mode).forward_cpu(logits.clone(), seeded, k, None)
    assert torch.equal(torch.get_rng_state(), before)
    numbers = torch.cat([torch.rand(1, generator=same[row], dtype=torch.float64) for row in range(6)])
    assert [it.get_state().tolist() for it in seeded.values()] == [it.get_state().tolist() for it in same.values()]
    allowed = logits if k is None else logits.masked_fill(logits < logits.topk(3).values[:, -1:], -torch.inf)
    assert tokens.tolist() == vllm_cpu.inverse_transform(allowed.softmax(-1), numbers).tolist()
    _, expected = samplers[0](mode).forward_cpu(logits.clone(), generators(6), k, None)
    assert (processed is None) == (expected is None)
    assert processed is None or torch.equal(processed, expected)


def test_rows_of_which_some_have_no_seed_are_sampled_by_vllm(samplers):
    logits, tokens = torch.randn(3, 8), []
    for sampler in samplers:
        torch.manual_seed(7)
        seeded = {0: torch.Generator().manual_seed(1)}
        tokens.append(sampler("raw_logprobs").forward_cpu(logits.clone(), seeded, None, None)[0].tolist())
    assert tokens[0] == tokens[1]


def test_passes_have_few_numbers_of_rows_and_each_row_its_product():
    sizes = []

    def linear(x, weight, bias):
        sizes.append(len(x))
        return torch.nn.functional.linear(x, weight, bias)

    weight, bias = torch.randn(3, 4), torch.randn(3)
    for rows in (0, 1, 2, 3, 5, 8, 9, 33, 64, 65, 200):
        x = torch.randn(rows, 4)
        found = vllm_cpu.in_few_sizes(linear, x, weight, bias)
        torch.testing.assert_close(found, torch.nn.functional.linear(x, weight, bias))
    assert sizes == [1, 1, 2, 4, 8, 8, 16, 40, 64, 128, 256]
    images = torch.randn(3, 2, 4)
    found = vllm_cpu.in_few_sizes(linear, images, weight, bias)
    torch.testing.assert_close(found, torch.nn.functional.linear(images, weight, bias))


def test_an_embedding_which_is_looked_up_is_not_repacked():
    def upstream(layer, remove_weight):
        raise AssertionError(layer)

    ours = SimpleNamespace(dispatch_cpu_unquantized_gemm=upstream)
    vllm_cpu._keep_weights(ours)
    embedding = type("VocabParallelEmbedding", (torch.nn.Embedding,), {})(10, 4)
    ours.dispatch_cpu_unquantized_gemm(embedding, remove_weight=False)
    x = torch.randn(2, 4)
    assert torch.equal(embedding.cpu_linear(x, embedding.weight, None), x @ embedding.weight.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_keeps_its_weight_and_computes_with_the_newest(dtype):
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    ours = SimpleNamespace(dispatch_cpu_unquantized_gemm=utils.dispatch_cpu_unquantized_gemm)
    vllm_cpu._keep_weights(ours)
    layer = torch.nn.Linear(64, 96, bias=False, dtype=dtype).requires_grad_(False)
    x = torch.randn(5, 64, dtype=dtype)
    for _ in range(2):  # as it is loaded, and after a weight sync
        layer.weight.normal_()
        ours.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
        expected = torch.nn.functional.linear(x, layer.weight)
        torch.testing.assert_close(utils.cpu_unquantized_gemm(layer, x, layer.weight, None), expected)
