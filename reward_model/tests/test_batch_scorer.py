"""Shared and cached prefixes change what is computed, never what a conversation scores."""

import random

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from reward_model.datatypes import EncodedConversation
from reward_model.scorer import Scorer
from reward_model.service import batch_scorer as batch_scorer_module
from reward_model.service import metrics
from reward_model.service.batch_scorer import CPU, BatchScorer, PrefixCache

BOUND = 5e-6


class Padding:
    pad_token_id = 0


@pytest.fixture(scope="module")
def scorer():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    config.num_labels = 1
    return Scorer(Qwen3ForSequenceClassification(config), Padding(), 512)  # type: ignore[arg-type]


def row(*parts: tuple[int, ...]) -> EncodedConversation:
    return EncodedConversation(tuple(token for part in parts for token in part))


def scores(batch_scorer: BatchScorer, asked: list[EncodedConversation]) -> list[float]:
    found = dict(pair for part in batch_scorer.score(asked) for pair in part)
    return [found[number].value for number in range(len(asked))]


def alone(scorer: Scorer, asked: list[EncodedConversation]) -> list[float]:
    return [scorer.score([each])[0].value for each in asked]


RULES, TASK, OTHER = (1,) * 100, (2,) * 80, (3,) * 80


def test_what_an_earlier_batch_computed_is_not_computed_again(scorer):
    batch_scorer = BatchScorer(scorer, CPU, threads=2)
    first = [row(RULES, TASK, (4,)), row(RULES, TASK, (5,))]
    later = [row(RULES, TASK, (6, 7))]
    before = metrics.COMPUTED._value.get()
    assert scores(batch_scorer, first) == pytest.approx(alone(scorer, first), abs=BOUND)
    # the prefix of 180 tokens once, and 1 token of each
    assert metrics.COMPUTED._value.get() - before == 182
    assert scores(batch_scorer, later) == pytest.approx(alone(scorer, later), abs=BOUND)
    assert metrics.COMPUTED._value.get() - before == 184


def test_a_part_of_a_cached_prefix_helps_too(scorer):
    batch_scorer = BatchScorer(scorer, CPU, threads=2)
    scores(batch_scorer, [row(RULES, TASK, (4,)), row(RULES, TASK, (5,))])
    before = metrics.COMPUTED._value.get()
    asked = [row(RULES, OTHER, (4,))]
    assert scores(batch_scorer, asked) == pytest.approx(alone(scorer, asked), abs=BOUND)
    assert metrics.COMPUTED._value.get() - before == 81  # without the 100 of the rules


def test_a_conversation_that_is_itself_a_cached_prefix_is_scored(scorer):
    batch_scorer = BatchScorer(scorer, CPU, threads=2)
    scores(batch_scorer, [row(RULES, (4,)), row(RULES, (5,))])
    assert list(batch_scorer.cache) == [RULES]
    assert scores(batch_scorer, [row(RULES)]) == pytest.approx(alone(scorer, [row(RULES)]), abs=BOUND)


def test_any_order_and_any_company_gives_the_same_scores(scorer):
    rng = random.Random(0)
    pool = [
        row(RULES, (task,) * rng.randint(40, 90), tuple(rng.choices(range(10, 50), k=rng.randint(1, 9))))
        for task in (2, 3, 4, 5)
        for _ in range(6)
    ]
    expected = dict(zip(pool, alone(scorer, pool), strict=True))
    batch_scorer = BatchScorer(scorer, CPU, threads=2)
    for _ in range(30):
        asked = rng.choices(pool, k=rng.randint(1, 12))
        assert scores(batch_scorer, asked) == pytest.approx([expected[each] for each in asked], abs=BOUND)


def test_the_prefixes_used_last_are_kept():
    kept = PrefixCache(max_tokens=5)
    kept.update([], [((1, 1), "a"), ((2, 2), "b")])
    kept.update([(1, 1)], [((3, 3), "c")])  # 6 tokens: (2, 2) is the one not used for longest
    assert list(kept) == [(1, 1), (3, 3)]


@pytest.mark.parametrize(("every_s", "expected"), [(-1.0, 3), (3600.0, 1)])
def test_freed_memory_is_returned_after_a_batch_but_not_after_each_of_many(scorer, monkeypatch, every_s, expected):
    returned = []
    monkeypatch.setattr(batch_scorer_module, "FREE_EVERY_S", every_s)
    monkeypatch.setattr(batch_scorer_module, "return_freed_memory", lambda: returned.append(1))
    batch_scorer = BatchScorer(scorer, CPU, threads=2)
    for _ in range(3):
        scores(batch_scorer, [row(TASK)])
    assert len(returned) == expected
