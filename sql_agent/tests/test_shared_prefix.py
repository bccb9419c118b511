"""Rows that begin alike are packed once, and attend as if each were alone."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sql_agent import shared_prefix
from sql_agent.packed_rows import Segment, pack_chains, pack_rows
from sql_agent.shared_prefix import shared_prefix_attention


def test_a_shared_prompt_stands_once():
    packed = pack_rows([[5, 6, 7, 1], [5, 6, 7, 2, 3]])
    assert packed.input_ids.tolist() == [5, 6, 7, 1, 2, 3]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 3, 4]
    assert packed.segments == (Segment(0, 3, 0, ()), Segment(3, 1, 3, (0,)), Segment(4, 2, 3, (0,)))
    assert [place.tolist() for place in packed.places] == [[0, 1, 2, 3], [0, 1, 2, 4, 5]]


def test_turns_that_some_rows_share_beyond_the_prompt_stand_once_too():
    packed = pack_rows([[5, 1, 2], [5, 1, 3], [5, 4]])
    # 5 | 1 of the first two | 2 | 3 | 4 of the last
    assert packed.input_ids.tolist() == [5, 1, 2, 3, 4]
    assert [(s.depth, s.ancestors) for s in packed.segments] == [
        (0, ()),
        (1, (0,)),
        (2, (0, 1)),
        (2, (0, 1)),
        (1, (0,)),
    ]
    assert [place.tolist() for place in packed.places] == [[0, 1, 2], [0, 1, 3], [0, 4]]


@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        pytest.param([[1, 2], [1, 2]], [1, 2], id="two_equal_rows"),
        pytest.param([[1, 2, 3], [1, 2]], [1, 2, 3], id="a_row_that_ends_inside_another"),
        pytest.param([[1, 2], [3]], [1, 2, 3], id="nothing_in_common"),
    ],
)
def test_every_row_is_found_again(rows, ids):
    packed = pack_rows(rows)
    assert packed.input_ids.tolist() == ids
    assert [packed.input_ids[place].tolist() for place in packed.places] == rows
    assert [packed.position_ids[place].tolist() for place in packed.places] == [list(range(len(row))) for row in rows]


def test_a_rows_chains_share_what_they_begin_with_among_themselves_and_with_other_rows():
    packed = pack_chains([[[5, 1, 2], [5, 1, 3]], [[5, 4]]])
    # 5 | 1 of the first row's chains | 2 | 3 | 4 of the second row
    assert packed.input_ids.tolist() == [5, 1, 2, 3, 4]
    assert packed.position_ids.tolist() == [0, 1, 2, 2, 1]
    assert [place.tolist() for place in packed.places] == [[0, 1, 2, 0, 1, 3], [0, 4]]
    assert packed.segments == pack_rows([[5, 1, 2], [5, 1, 3], [5, 4]]).segments


def test_an_empty_row_is_refused():
    with pytest.raises(ValueError, match="without tokens"):
        pack_rows([[1], []])


def test_each_row_attends_to_itself_alone():
    rows = [[5, 6, 7, 1], [5, 6, 7, 2, 3], [5, 6, 8], [9, 9]]
    packed = pack_rows(rows)
    generator = torch.Generator().manual_seed(0)
    length = len(packed.input_ids)
    query = torch.randn(1, 4, length, 8, generator=generator, dtype=torch.float64)
    key, value = (torch.randn(1, 2, length, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    attended, weights = shared_prefix_attention(torch.nn.Module(), query, key, value, None, segments=packed.segments)
    assert (attended.shape, weights) == ((1, length, 4, 8), None)
    for place in packed.places:
        alone = scaled_dot_product_attention(
            query[:, :, place],
            key[:, :, place].repeat_interleave(2, 1),
            value[:, :, place].repeat_interleave(2, 1),
            is_causal=True,
        )
        torch.testing.assert_close(attended[:, place], alone.transpose(1, 2))


@pytest.mark.parametrize("window", [None, 2, 3])
@pytest.mark.parametrize("scores", [8, 2**18])
def test_long_segments_attend_as_torch_lets_short_ones_and_their_gradients_are_the_same(monkeypatch, window, scores):
    """Blocks of about eight scores of two heads, and one block a segment."""
    packed = pack_rows([[5, 6, 7, 1], [5, 6, 7, 2, 3], [5, 6, 8], [9, 9, 9, 9, 9, 9]])
    generator = torch.Generator().manual_seed(0)
    length = len(packed.input_ids)
    states = [
        torch.randn(1, heads, length, width, generator=generator, dtype=torch.float64).requires_grad_()
        for heads, width in ((4, 8), (2, 8), (2, 3))
    ]
    weights = torch.randn(1, length, 4, 3, generator=generator, dtype=torch.float64)
    found = []
    for small in (shared_prefix.SMALL, 0):
        monkeypatch.setattr(shared_prefix, "SMALL", small)
        monkeypatch.setattr(shared_prefix, "SCORES", scores)
        attended, _ = shared_prefix_attention(
            torch.nn.Module(), *states, None, scaling=0.5, segments=packed.segments, sliding_window=window
        )
        found.append((attended, *torch.autograd.grad((attended * weights).sum(), states)))
    torch.testing.assert_close(found[1], found[0])
    assert not torch.equal(found[1][0], found[0][0])  # two ways indeed


def test_beyond_its_window_a_block_computes_nothing(monkeypatch):
    monkeypatch.setattr(shared_prefix, "SCORES", 10 * 100)
    blocks = [*shared_prefix._blocks(pack_rows([[*range(100)]]).segments, group=1, window=5)]
    # ten tokens a block, of which the first sees four before itself
    seen = [(place.columns.start, place.columns.stop) for _, _, places in blocks for place in places]
    assert seen == [(max(0, first - 4), first + 10) for first in range(0, 100, 10)]


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="oneDNN rounds float32 where the CPU has AMX")
def test_large_products_of_bfloat16_states_round_their_factors(monkeypatch):
    packed = pack_rows([[*range(60), 100 + row, *range(40)] for row in range(3)])
    generator = torch.Generator().manual_seed(0)
    sizes = [(1, heads, len(packed.input_ids), 16) for heads in (6, 2, 2)]
    states = [torch.randn(size, generator=generator).to(torch.bfloat16) for size in sizes]
    scores = []
    for large in (0, 2**60):
        monkeypatch.setattr(shared_prefix, "SMALL", 0)
        monkeypatch.setattr(shared_prefix, "LARGE", large)
        scores.append(shared_prefix_attention(torch.nn.Module(), *states, None, segments=packed.segments)[0])
    assert not torch.equal(*scores)


@pytest.mark.parametrize("large", [0, 2**60])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_long_segments_in_the_precisions_of_training(dtype, close, large, monkeypatch):
    """bfloat16 keeps 8 bits of a number; the scores and what is added up are float32. Scores of up to 30 would be off
    by up to 0.06 in bfloat16, and what is attended by 9e-3."""
    packed = pack_rows([[*range(60), 100 + row, *range(40)] for row in range(3)])
    generator = torch.Generator().manual_seed(0)
    length = len(packed.input_ids)
    # heads beside one another for each token, as a model makes them
    states = [torch.randn(1, length, heads, 16, generator=generator).to(dtype) for heads in (6, 2, 2)]
    states[0] *= 8
    weights = torch.randn(1, length, 6, 16, generator=generator)
    monkeypatch.setattr(shared_prefix, "SMALL", 0)
    monkeypatch.setattr(shared_prefix, "LARGE", large)
    precision = torch.backends.mkldnn.matmul.fp32_precision
    found = []
    for exactly in (torch.float64, dtype):
        own = [each.to(exactly).transpose(1, 2).requires_grad_() for each in states]
        attended, _ = shared_prefix_attention(torch.nn.Module(), *own, None, segments=packed.segments)
        assert attended.dtype is exactly
        found.append((attended, *torch.autograd.grad((attended * weights).sum(), own)))
    for exact, ours in zip(*found, strict=True):
        assert (ours.double() - exact).norm() <= close * exact.norm()
    assert torch.backends.mkldnn.matmul.fp32_precision == precision


def test_under_autocast_long_segments_are_bfloat16_as_torch_makes_short_ones(monkeypatch):
    packed = pack_rows([[*range(60), 100 + row, *range(40)] for row in range(3)])
    generator = torch.Generator().manual_seed(0)
    length = len(packed.input_ids)
    # a model's rotary embeddings make queries and keys float32; values stay as they are
    states = [
        torch.randn(1, heads, length, 16, generator=generator).to(dtype).requires_grad_()
        for heads, dtype in ((6, torch.float32), (2, torch.float32), (2, torch.bfloat16))
    ]
    found = []
    for small in (shared_prefix.SMALL, 0):
        monkeypatch.setattr(shared_prefix, "SMALL", small)
        with torch.autocast("cpu", torch.bfloat16):
            attended, _ = shared_prefix_attention(torch.nn.Module(), *states, None, segments=packed.segments)
        assert attended.dtype is torch.bfloat16
        gradients = torch.autograd.grad((attended.float() ** 2).sum(), states)
        assert [each.dtype for each in gradients] == [each.dtype for each in states]
        found.append((attended, *gradients))
    for torchs, ours in zip(*found, strict=True):
        assert (ours.double() - torchs.double()).norm() <= 1e-2 * torchs.double().norm()


def test_scores_exist_a_block_at_a_time(monkeypatch):
    """Six tokens of two heads see up to six positions: 72 scores, 24 at a time are two tokens."""
    monkeypatch.setattr(shared_prefix, "SCORES", 24)
    prompt, response = Segment(0, 2, 0, ()), Segment(2, 4, 2, (0,))
    first, whole = slice(0, 2), slice(0, 4)
    assert [*shared_prefix._blocks((prompt, response), group=2, window=None)] == [
        (range(0, 2), 2, [(slice(0, 4), whole, first, first)]),
        (range(2, 4), 4, [(slice(4, 8), whole, first, first), (slice(4, 8), whole, slice(2, 4), slice(2, 4))]),
        (range(4, 6), 6, [(slice(8, 12), whole, first, first), (slice(8, 12), whole, slice(2, 6), slice(2, 6))]),
    ]


def test_many_short_rows_do_not_copy_the_keys_of_their_prompt(monkeypatch):
    """Forty rows behind a prompt of 20 tokens would keep the keys of 800 tokens, where the sequence has 60."""
    packed = pack_rows([[*range(20), 100 + row] for row in range(40)])
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(1, 2, 60, 8, generator=generator) for _ in range(3)]
    monkeypatch.setattr(shared_prefix, "_by_torch", None)
    shared_prefix_attention(torch.nn.Module(), *states, None, segments=packed.segments)
    few = pack_rows([[*range(20), 100 + row] for row in range(4)])
    with pytest.raises(TypeError):  # the short form, which was taken away
        shared_prefix_attention(torch.nn.Module(), *(each[:, :, :24] for each in states), None, segments=few.segments)


def test_weights_are_dropped_in_long_segments_too(monkeypatch):
    monkeypatch.setattr(shared_prefix, "SMALL", 0)
    states = torch.ones(1, 1, 8, 4)
    attended, _ = shared_prefix_attention(
        torch.nn.Module(), states, states, states, None, segments=(Segment(0, 8, 0, ()),), dropout=0.5
    )
    assert not torch.equal(attended, torch.ones(1, 8, 1, 4))  # what it would be: every value is 1


def test_hand_worked():
    packed = pack_rows([[7, 1], [7, 2]])
    zeros = torch.zeros(1, 1, 3, 1)
    value = torch.tensor([1.0, 3.0, 7.0]).reshape(1, 1, 3, 1)
    attended, _ = shared_prefix_attention(torch.nn.Module(), zeros, zeros, value, None, segments=packed.segments)
    # equal weights: the prompt sees itself, each response the prompt and itself: (1 + 3) / 2, (1 + 7) / 2
    assert attended.flatten().tolist() == [1.0, 2.0, 4.0]


def test_a_window_by_hand():
    zeros, value = torch.zeros(1, 1, 3, 1), torch.tensor([1.0, 3.0, 7.0]).reshape(1, 1, 3, 1)
    attended, _ = shared_prefix_attention(
        torch.nn.Module(), zeros, zeros, value, None, segments=(Segment(0, 3, 0, ()),), sliding_window=2
    )
    assert attended.flatten().tolist() == [1.0, 2.0, 5.0]  # the last one: (3 + 7) / 2


def test_capped_scores_are_refused():
    zeros = torch.zeros(1, 1, 3, 1)
    with pytest.raises(NotImplementedError, match=r"Module caps its attention scores \(softcap=50.0\)"):
        shared_prefix_attention(
            torch.nn.Module(), zeros, zeros, zeros, None, segments=(Segment(0, 3, 0, ()),), softcap=50.0
        )
