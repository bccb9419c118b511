"""A rollout of several conversations is one row: every sampled token once, each chain as if it stood alone."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sql_agent.credit.grpo import GroupRelative
from sql_agent.credit.row import Row, Turn, stitch
from sql_agent.source.batch import CREDIT, to_tensors
from sql_agent.source.dynamic_sampling import credit_group
from sql_agent.tests.records import make_outcome, make_result, make_row


def turn(prompt, sampled, *, tool=False):
    return Turn(tuple(prompt), tuple(sampled), tuple(-token / 10 for token in sampled), tool)


def chains(row):
    """Ids and mask of each chain, as they stand in verl's batch: parted where positions begin anew."""
    batch = to_tensors([row], [1.0], pad_id=0)
    mask = [0] * row.prompt_tokens + batch["response_mask"][0].tolist()
    parted = []
    for token, trained, position in zip(
        batch["input_ids"][0].tolist(), mask, batch["position_ids"][0].tolist(), strict=True
    ):
        if position == 0:
            parted.append(([], []))
        ids, masks = parted[-1]
        assert len(ids) == position
        ids.append(token)
        masks.append(trained)
    return parted


# Ids below 10 are what a template or a user says, those from 10 on are sampled.
TRIAGE, SALES = (1, 2), (1, 3)
"""Two agents' system prompts with the same beginning."""


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param(
            # the second agent sees the history below its own system prompt, and goes on with it
            [turn([*TRIAGE, 5], [10, 11]), turn([*SALES, 5, 10, 11, 6], [12]),
             turn([*SALES, 5, 10, 11, 6, 12, 7], [13])],
            [([1, 2, 5, 10, 11], [0, 0, 0, 1, 1]),
             ([1, 3, 5, 10, 11, 6, 12, 7, 13], [0, 0, 0, 0, 0, 0, 1, 0, 1])],
            id="a_handoff",
        ),
        pytest.param(
            # the first agent waits for the second one's two turns, then goes on
            [turn([*TRIAGE, 5], [10]), turn([*SALES, 4], [11]), turn([*SALES, 4, 11, 6], [12]),
             turn([*TRIAGE, 5, 10, 7], [13])],
            [([1, 2, 5, 10, 7, 13], [0, 0, 0, 1, 0, 1]), ([1, 3, 4, 11, 6, 12], [0, 0, 0, 1, 0, 1])],
            id="an_agent_as_a_tool",
        ),
        pytest.param(
            # each question is routed anew: the router's conversation and the answerer's take turns
            [turn([*TRIAGE, 5], [10]), turn([*SALES, 5], [11]), turn([*TRIAGE, 5, 10, 6], [12]),
             turn([*SALES, 5, 11, 6], [13])],
            [([1, 2, 5, 10, 6, 12], [0, 0, 0, 1, 0, 1]), ([1, 3, 5, 11, 6, 13], [0, 0, 0, 1, 0, 1])],
            id="routing",
        ),
        pytest.param(
            # two calls go on from the same reply: 10 is trained in the first chain alone
            [turn([1, 5], [10]), turn([1, 5, 10, 6], [11]), turn([1, 5, 10, 7], [12]),
             turn([1, 5, 10, 7, 12, 8], [13])],
            [([1, 5, 10, 6, 11], [0, 0, 1, 0, 1]), ([1, 5, 10, 7, 12, 8, 13], [0, 0, 0, 0, 1, 0, 1])],
            id="parallel_branches",
        ),
        pytest.param(
            # what happened is summed up in 8, and the agent begins from there
            [turn([1, 5], [10]), turn([1, 5, 10, 6], [11]), turn([1, 8], [12]), turn([1, 8, 12, 6], [13])],
            [([1, 5, 10, 6, 11], [0, 0, 1, 0, 1]), ([1, 8, 12, 6, 13], [0, 0, 1, 0, 1])],
            id="a_reset_of_the_context",
        ),
        pytest.param(
            # three agents start together from different prompts, and end in another order
            [turn([1, 5], [10]), turn([1, 6], [11]), turn([1, 7], [12]), turn([1, 7, 12, 9], [13]),
             turn([1, 5, 10, 9], [14])],
            [([1, 5, 10, 9, 14], [0, 0, 1, 0, 1]), ([1, 6, 11], [0, 0, 1]), ([1, 7, 12, 9, 13], [0, 0, 1, 0, 1])],
            id="parallel_calls",
        ),
    ],
)  # fmt: skip
def test_every_conversation_is_trained_as_a_chain_of_its_own(turns, expected):
    row = stitch(turns, max_response_tokens=20, one_conversation=False)
    assert chains(row) == expected
    assert (row.num_turns, row.dropped_turns, row.prefix_break) == (len(turns), 0, None)
    assert row.num_chains == len(expected)


def test_the_row_of_two_chains_in_full():
    first, other = turn([1, 2], [10, 11]), turn([1, 3, 10], [12])
    assert stitch([first, other], max_response_tokens=9, one_conversation=False) == Row(
        ids=(1, 2, 10, 11, 1, 3, 10, 12),
        sampled=(0, 0, 1, 1, 0, 0, 0, 1),
        log_probs=(0.0, 0.0, -1.0, -1.1, 0.0, 0.0, 0.0, -1.2),
        prompt_tokens=2,
        num_turns=2,
        starts=(4,),
    )


def test_a_turn_continues_the_longest_chain_that_it_can():
    """Two samples of one prompt, one of which begins with the other; the third turn's prompt begins with both."""
    turns = [turn([1], [10]), turn([1], [10, 11]), turn([1, 10, 11, 5], [12])]
    row = stitch(turns, max_response_tokens=9, one_conversation=False)
    assert chains(row) == [([1, 10], [0, 1]), ([1, 10, 11, 5, 12], [0, 1, 1, 0, 1])]


@pytest.mark.parametrize(
    ("turns", "cause"),
    [
        pytest.param(
            [turn([1, 2], [10], tool=True), turn([1, 2, 9, 5], [11])], "tool_call_rendering", id="a_tool_call"
        ),
        pytest.param([turn([1, 2], [10]), turn([1, 2, 9, 5], [11])], "tokenisation", id="plain_text"),
        pytest.param([turn([1, 2], [10]), turn([1, 3, 9, 5], [11])], None, id="another_system_prompt_is_no_break"),
        # the agents take turns, and it is the first one's reply, three turns ago, that is written down anew
        pytest.param(
            [turn([1, 2], [10], tool=True), turn([3], [11]), turn([3, 11, 4], [12]), turn([1, 2, 9, 5], [13])],
            "tool_call_rendering",
            id="after_another_agents_turns",
        ),
        # three samples of one prompt, of which the agent goes on with one
        pytest.param(
            [turn([1, 2], [10]), turn([3], [9]), turn([1, 2], [11]), turn([1, 2, 10, 5], [12])],
            None,
            id="one_of_several_samples_is_chosen",
        ),
    ],
)
def test_among_several_conversations_a_break_is_a_reply_that_was_written_down_anew(turns, cause):
    row = stitch(turns, max_response_tokens=20, one_conversation=False)
    assert (row.prefix_break, row.num_turns) == (cause, len(turns))


def test_a_chain_that_does_not_fit_into_the_row_is_dropped_whole_and_later_ones_may_fit():
    turns = [
        turn([1], [10]),  # 2 tokens
        turn([2, 2, 2, 2], [11]),  # 5 more would be 7
        turn([2, 2, 2, 2, 11], [12]),  # continues what was dropped
        turn([3], [13]),  # 4
        turn([1, 10, 5], [14]),  # 6, in the first chain
        turn([1, 10, 5, 14], [15]),  # 7
    ]
    row = stitch(turns, max_response_tokens=9, max_row_tokens=6, one_conversation=False)
    assert chains(row) == [([1, 10, 5, 14], [0, 1, 0, 1]), ([3, 13], [0, 1])]
    assert (row.num_turns, row.dropped_turns) == (3, 3)


def test_a_chain_may_have_so_many_tokens_after_its_own_first_prompt():
    turns = [turn([1], [10]), turn([2, 2, 2], [11]), turn([2, 2, 2, 11, 5], [12]), turn([2, 2, 2, 11, 5, 12], [13])]
    row = stitch(turns, max_response_tokens=3, one_conversation=False)
    assert chains(row) == [([1, 10], [0, 1]), ([2, 2, 2, 11, 5, 12], [0, 0, 0, 1, 0, 1])]
    assert row.dropped_turns == 1


def test_the_row_limit_is_no_limit_of_a_rollout_with_one_chain():
    turns = [turn([1, 1, 1], [10]), turn([1, 1, 1, 10, 5], [11])]
    row = stitch(turns, max_response_tokens=3)
    assert stitch(turns, max_response_tokens=3, max_row_tokens=2) == row
    assert row.dropped_turns == 0


# Random rollouts ------------------------------------------------------------------------------------------------------


@st.composite
def rollouts(draw, straight=False):
    """Turns, each of which begins anew, goes on from any earlier one, or from what an earlier one's became rewritten.

    Sampled ids are all different, so that it can be told where each one is trained.
    """
    turns, fresh = [], iter(range(100, 1000))
    for _ in range(draw(st.integers(1, 7))):
        said = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
        if straight and turns:
            before = turns[-1].prompt_ids + turns[-1].sampled_ids
        else:
            before = draw(st.sampled_from([(), *(t.prompt_ids + t.sampled_ids for t in turns)]))
            if before and draw(st.booleans()):
                cut = draw(st.integers(0, len(before) - 1))
                before = (*before[:cut], 7)  # from here on the history is another
        sampled = [next(fresh) for _ in range(draw(st.integers(1, 3)))]
        turns.append(turn([*before, *said], sampled, tool=draw(st.booleans())))
    return turns


LIMITS = st.one_of(st.integers(1, 40), st.just(10_000))


def one_chain(turns, max_response_tokens):
    """A row as it was made when a rollout was one chain and ended with the first turn that did not fit."""
    prompt = seen = turns[0].prompt_ids
    response, mask, log_probs, ends = [], [], [], []
    for t in turns:
        between = t.prompt_ids[len(seen) :]
        if len(response) + len(between) + len(t.sampled_ids) > max_response_tokens:
            break
        response += [*between, *t.sampled_ids]
        mask += [0] * len(between) + [1] * len(t.sampled_ids)
        log_probs += [0.0] * len(between) + list(t.log_probs)
        seen = t.prompt_ids + t.sampled_ids
        ends.append(len(prompt) + len(response))
    more = {"dropped_turns": len(turns) - len(ends), "turn_ends": tuple(ends)}
    return make_row(prompt, tuple(response), tuple(mask), tuple(log_probs), len(ends), **more)


@settings(max_examples=60, deadline=None)
@given(rollouts(straight=True), LIMITS, LIMITS, st.booleans())
def test_a_rollout_of_one_chain_has_the_row_it_always_had(turns, max_response_tokens, max_row_tokens, one_conversation):
    limits = {"max_response_tokens": max_response_tokens, "max_row_tokens": max_row_tokens}
    assert stitch(turns, **limits, one_conversation=one_conversation) == one_chain(turns, max_response_tokens)


@settings(max_examples=120, deadline=None)
@given(rollouts(), LIMITS, LIMITS)
def test_each_sampled_token_is_trained_once_below_what_it_was_sampled_from_or_its_turn_is_counted(
    turns, max_response_tokens, max_row_tokens
):
    row = stitch(turns, max_response_tokens=max_response_tokens, max_row_tokens=max_row_tokens)
    found = chains(row) if row.response_tokens else []
    trained = {ids[i]: tuple(ids[:i]) for ids, mask in found for i, one in enumerate(mask) if one}
    assert sum(sum(mask) for _, mask in found) == len(trained)  # none twice
    whole = [t for t in turns if t.sampled_ids[0] in trained]
    assert trained == {token: t.prompt_ids + t.sampled_ids[:i] for t in whole for i, token in enumerate(t.sampled_ids)}
    assert (row.num_turns, row.dropped_turns) == (len(whole), len(turns) - len(whole))
    assert sum(row.log_probs) == pytest.approx(sum(sum(t.log_probs) for t in whole))
    if row.num_chains > 1:
        assert len(row.ids) <= max(max_row_tokens, len(found[0][0]))
    if max_response_tokens == max_row_tokens == 10_000:
        assert row.dropped_turns == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(rollouts(), min_size=2, max_size=4), st.data())
def test_a_group_has_the_advantages_that_it_would_have_with_one_chain_each(group, data):
    """A rollout of three chains counts once in mean and std, and its advantage stands on all its sampled tokens."""
    rewards = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=len(group), max_size=len(group)))

    def advantages(rows):
        pairs = zip(rows, rewards, strict=True)
        results = [make_result("g", make_outcome(reward, reason="lost"), row=row) for row, reward in pairs]
        credit_group(results, GroupRelative())
        batch = to_tensors([r.row for r in results], rewards, pad_id=0)
        assert {len(values) for values in batch.values()} == {len(group)}  # one row per rollout, as verl asked for
        mask = batch["response_mask"].bool()
        assert not batch[CREDIT][~mask].any()
        return [set(values[trained].tolist()) for values, trained in zip(batch[CREDIT], mask, strict=True)]

    found = advantages([stitch(turns, max_response_tokens=10_000) for turns in group])
    assert all(len(values) == (reward is not None) for values, reward in zip(found, rewards, strict=True))
    assert found == advantages([stitch(turns[:1], max_response_tokens=10_000) for turns in group])


# Upstream -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # imports transformers
def test_transformers_keeps_chains_apart_in_a_sequence_of_rows():
    """As verl's engine calls the model: the rows of a micro-batch one after another, positions, no mask."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        initializer_range=0.3, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    branches = [turn([1, 5], [10]), turn([1, 5, 10, 6], [11, 12]), turn([1, 5, 10, 7], [13]), turn([2, 3], [14, 15])]
    rows = [stitch(branches, max_response_tokens=20), stitch([turn([1, 5, 8], [16, 17])], max_response_tokens=20)]
    batch = to_tensors(rows, [1.0, 0.0], pad_id=0)
    used = batch["attention_mask"].bool()
    with torch.no_grad():
        packed = model(
            input_ids=batch["input_ids"][used][None], position_ids=batch["position_ids"][used][None],
            attention_mask=None, use_cache=False,
        ).logits[0]  # fmt: skip
        alone = [
            model(input_ids=torch.tensor([ids]), use_cache=False).logits[0] for row in rows for ids, _ in chains(row)
        ]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=0, atol=1e-4)


@pytest.mark.slow  # imports verl
def test_a_rollout_of_several_chains_weighs_as_one_in_verls_loss():
    """Where every rollout weighs the same: four sampled tokens in three chains against one; half each, not 3/4."""
    from verl.trainer.ppo.core_algos import agg_loss

    turns = [turn([1], [10]), turn([2], [11, 12]), turn([3], [13])]
    rows = [stitch(some, max_response_tokens=9) for some in (turns, turns[:1])]
    mask = to_tensors(rows, [1.0, 0.0], pad_id=0)["response_mask"]
    losses = torch.tensor([[1.0], [0.0]]) * mask
    assert agg_loss(losses, mask, "seq-mean-token-mean") == pytest.approx(1 / 2)
    assert agg_loss(losses, mask, "token-mean") == pytest.approx(4 / 5)


def test_only_the_named_agents_are_trained_and_a_chain_without_them_is_left_out():
    """The desk asks, hands over to the clerk, and a judge looks at both; trained is the clerk."""
    desk, clerk, judge = (
        dataclasses.replace(turn(prompt, sampled), agent=name)
        for name, prompt, sampled in (("desk", (1, 5), (10, 11)), ("clerk", (2, 5, 6), (12,)), ("judge", (3, 5), (13,)))
    )
    again = dataclasses.replace(turn((2, 5, 6, 12, 7), (14, 15)), agent="desk")
    row = stitch([desk, clerk, judge, again], max_response_tokens=99, one_conversation=False, agents=("clerk",))
    assert row == make_row((2, 5, 6), (12, 7, 14, 15), (1, 0, 0, 0), (-1.2, 0.0, 0.0, 0.0), num_turns=2)


def test_a_rollout_in_which_no_named_agent_asked_has_nothing_to_train():
    asked = [dataclasses.replace(turn((1, 5), (10, 11)), agent="desk"), turn((2, 5), (12,))]
    assert not any(stitch(asked, max_response_tokens=99, one_conversation=False, agents=("clerk",)).sampled)


def test_what_is_not_trained_takes_no_room_from_what_is():
    desk = dataclasses.replace(turn((1,) * 900, (10,) * 50), agent="desk")
    clerk = dataclasses.replace(turn((2,) * 100, (11,) * 50), agent="clerk")
    again = dataclasses.replace(turn((3,) * 100, (12,) * 50), agent="clerk")
    row = stitch(
        [desk, clerk, again], max_response_tokens=999, max_row_tokens=300, one_conversation=False, agents=("clerk",)
    )
    assert (sum(row.sampled), row.num_chains, row.dropped_turns) == (100, 2, 0)
