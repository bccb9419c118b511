"""Packed rows under flex_attention see what they see alone; log-probs, loss and gradients are those of rows apart."""

import functools
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from sql_agent.block_mask import block_mask, flex_shared_attention
from sql_agent.local.learner import Learner
from sql_agent.local.policy import Rows, load_policy
from sql_agent.packed_rows import Segment, pack_chains, pack_rows
from sql_agent.settings.local import AdapterConfig, LossConfig, OptimConfig
from sql_agent.shared_prefix import shared_prefix_attention
from sql_agent.tests.records import make_row

PRETRAINED = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct"
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def test_each_token_sees_its_rows_earlier_tokens_and_itself():
    packed = pack_chains([[[5, 1, 2], [5, 1, 3]], [[5, 4, 6]], [[9, 9]]])
    assert packed.input_ids.tolist() == [5, 1, 2, 3, 4, 6, 9, 9]
    mask = block_mask(packed.segments, "cpu")
    length = len(packed.input_ids)
    seen = create_mask(mask.mask_mod, None, None, length, length, device="cpu")[0, 0]
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],  # 5, of three chains
        [1, 1, 0, 0, 0, 0, 0, 0],  # 1, of the first row's two chains
        [1, 1, 1, 0, 0, 0, 0, 0],  # 2
        [1, 1, 0, 1, 0, 0, 0, 0],  # 3, which does not see 2
        [1, 0, 0, 0, 1, 0, 0, 0],  # 4 of the second row, which does not see 1
        [1, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],  # the third row, which shares nothing
        [0, 0, 0, 0, 0, 0, 1, 1],
    ]


def test_blocks_in_which_nobody_sees_anybody_are_left_out():
    """A prompt of a block, and two replies of a block each: of nine blocks only the second reply's view of the first
    and what comes later are empty."""
    prompt, replies = [*range(128)], ([128 + i for i in range(128)], [256 + i for i in range(128)])
    mask = block_mask(pack_rows([[*prompt, *reply] for reply in replies]).segments, "cpu")
    assert mask.to_dense()[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize(("scaling", "window"), [(None, None), (0.5, None), (None, 2)])
def test_values_and_gradients_are_those_of_the_attention_by_segments(scaling, window):
    packed = pack_rows([[5, 6, 7, 1], [5, 6, 7, 2, 3], [5, 6, 8], [9, 9]])
    generator = torch.Generator().manual_seed(0)
    length = len(packed.input_ids)

    def drawn(heads):
        return torch.randn(1, heads, length, 8, generator=generator, dtype=torch.float64).requires_grad_()

    states, weights = (drawn(4), drawn(2), drawn(2)), torch.randn(1, length, 4, 8, generator=generator)
    found = []
    for attend, mask in ((shared_prefix_attention, None), (flex_shared_attention, block_mask(packed.segments, "cpu"))):
        attended, _ = attend(
            torch.nn.Module(), *states, mask, scaling=scaling, segments=packed.segments, sliding_window=window
        )
        found.append((attended, *torch.autograd.grad((attended * weights).sum(), states)))
    torch.testing.assert_close(found[1], found[0])


def test_what_flex_attention_cannot_is_refused():
    segments, zeros = (Segment(0, 3, 0, ()),), torch.zeros(1, 1, 3, 1)
    arguments = (torch.nn.Module(), zeros, zeros, zeros, block_mask(segments, "cpu"))
    with pytest.raises(NotImplementedError, match="caps its attention scores"):
        flex_shared_attention(*arguments, segments=segments, softcap=50.0)
    with pytest.raises(NotImplementedError, match=r"attention_dropout=0.1.* leave shared_prompts out"):
        flex_shared_attention(*arguments, segments=segments, dropout=0.1)


@pytest.mark.slow  # torch's compiler is imported
def test_what_a_gpu_calls_is_traced_for_one_length_and_then_for_all(monkeypatch):
    """transformers compiles flex_attention; each trace costs a GPU a kernel, and after eight torch gives up on them."""
    from torch._dynamo.testing import CompileCounterWithBackend
    from transformers.integrations import flex_attention

    traced = CompileCounterWithBackend("eager")  # no kernel is made; a CPU has none with gradients
    monkeypatch.setattr(flex_attention.WrappedFlexAttention, "_is_flex_compiled", False)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=traced))
    generator = torch.Generator().manual_seed(0)
    for length in (300, 200, 431, 290):  # of two blocks and more; one alone is a trace of its own
        prompt = [*range(length)]
        packed = pack_rows([[*prompt, 900, 901], [*prompt, 902], [*prompt, 900, 903, 904]])
        states = [torch.randn(1, heads, len(packed.input_ids), 8, generator=generator) for heads in (4, 2, 2)]
        with torch.no_grad():
            found, _ = flex_attention.flex_attention_forward(
                torch.nn.Module(), *states, block_mask(packed.segments, "cpu")
            )
        expected, _ = shared_prefix_attention(torch.nn.Module(), *states, None, segments=packed.segments)
        torch.testing.assert_close(found, expected)
    assert traced.frame_count == 2


def learnt(model: Path, rows: list, shared_prompts: str | None, micro_batch_tokens: int):
    """The log-probs of all rows, the loss, and the gradients of one batch of the local trainers."""
    torch.manual_seed(0)
    policy = load_policy(
        model,
        adapter=AdapterConfig(rank=4, dropout=0.0),
        device="cpu",
        precision="float32",
        shared_prompts=shared_prompts,  # type: ignore[arg-type]
    )
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:  # zero at first, and then the others' gradient is too
            torch.nn.init.normal_(weight, std=0.02)
    # of two batches to accumulate, so that the gradients stay
    optim = OptimConfig(micro_batch_tokens=micro_batch_tokens, grad_accum=2)
    metrics = Learner(policy, optim, LossConfig(kl_coef=0.1)).learn(rows, temperature=0.8)
    with torch.no_grad():
        log_probs = policy.log_probs(Rows.of(rows, pad_id=policy.pad_id), temperature=0.8)
    gradients = [weight.grad / weight.grad.norm() for weight in policy.parameters()]
    return log_probs, metrics["policy/loss"], gradients


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "pretrained"])
def test_the_local_trainers_numbers_are_those_of_rows_apart(name, request):
    if name == "pretrained" and not (PRETRAINED / "model.safetensors").is_file():
        pytest.skip("make models/smollm2-135m-instruct with `agentgrpo pretrained-policy`")
    model = PRETRAINED if name == "pretrained" else request.getfixturevalue("small_policy")
    draw = torch.Generator().manual_seed(1)

    def drawn(count):
        return torch.randint(10, 300, (count,), generator=draw).tolist()

    prompt, turn, rows = drawn(150), drawn(12), []
    for member in range(4):  # the first two share a turn too, and their lengths differ
        own = [*(turn if member < 2 else ()), *drawn(20 + member)]
        mask = [int(i % 5 != 4) for i in range(len(own))]
        row = make_row(tuple(prompt), tuple(own), tuple(mask), tuple(-5.0 * one for one in mask), 1)
        rows.append(row.credited([(1.0, -1.0, 0.5, -0.5)[member]]))
    apart = learnt(model, rows, None, 1)  # a row at a time, by transformers' own attention
    torch.testing.assert_close(learnt(model, rows, "flex_attention", 4096), apart, **CLOSE)
