"""verl's tensor layout: padding, masks, where the reward stands, and rows that were lost."""

import torch

from sql_agent.source.batch import to_tensors
from sql_agent.tests.records import make_row

LONG = make_row((1, 2), (3, 9, 4), (1, 0, 1), (-0.1, 0.0, -0.2), num_turns=2)
SHORT = make_row((5,), (6,), (1,), (-0.3,), num_turns=1)


def test_prompts_pad_left_and_responses_right_to_the_longest_of_the_batch():
    batch = to_tensors([LONG, SHORT], [1.0, 0.0], pad_id=0)
    assert batch["prompts"].tolist() == [[1, 2], [0, 5]]
    assert batch["responses"].tolist() == [[3, 9, 4], [6, 0, 0]]
    assert batch["response_mask"].tolist() == [[1, 0, 1], [1, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 0, 1, 1, 1]]
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9, 4], [0, 5, 6, 0, 0]]
    torch.testing.assert_close(batch["rm_scores"], torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(batch["rollout_log_probs"], torch.tensor([[-0.1, 0.0, -0.2], [-0.3, 0.0, 0.0]]))


def test_a_row_without_a_reward_is_masked_even_if_it_has_tokens():
    batch = to_tensors([LONG, SHORT], [None, 1.0], pad_id=0)
    assert batch["response_mask"].tolist() == [[0], [1]]
    assert batch["rm_scores"].tolist() == [[0.0], [1.0]]
    assert batch["attention_mask"].sum(dim=1).tolist() == [2, 2]  # something to attend to: softmax of nothing is NaN


def test_a_batch_of_lost_rows_still_has_a_shape():
    batch = to_tensors([None, None], [None, None], pad_id=7)
    assert batch["input_ids"].tolist() == [[7, 7], [7, 7]]
    assert not batch["response_mask"].any()


def test_positions_begin_anew_with_each_chain_and_the_reward_stands_once():
    # 1 2 | 3, then the chain 5 6 | 7 8, then the chain 9 | 4
    chains = make_row(
        (1, 2), (3, 5, 6, 7, 8, 9, 4), (1, 0, 0, 1, 1, 0, 1), (-0.1, 0.0, 0.0, -0.2, -0.3, 0.0, -0.4), 3,
        starts=(1, 5),
    )  # fmt: skip
    batch = to_tensors([SHORT, chains], [0.0, 1.0], pad_id=0)
    assert batch["position_ids"].tolist() == [[0, 0, 1, 1, 1, 1, 1, 1, 1], [0, 1, 2, 0, 1, 2, 3, 0, 1]]
    assert batch["input_ids"][1].tolist() == [1, 2, 3, 5, 6, 7, 8, 9, 4]
    assert batch["rm_scores"][1].tolist() == [0.0] * 6 + [1.0]


def test_positions_of_a_row_that_is_shorter_than_the_batch_are_those_of_its_chains():
    chains = make_row((1,), (2, 5, 6), (1, 0, 1), (0.0,) * 3, 2, starts=(1,))
    long = make_row((7, 7, 7), (8,) * 5, (1,) * 5, (0.0,) * 5, 1)
    batch = to_tensors([chains, long], [1.0, 0.0], pad_id=0)
    used = batch["attention_mask"][0].bool()
    assert batch["position_ids"][0][used].tolist() == [0, 1, 0, 1]
    assert batch["position_ids"][1].tolist() == list(range(8))
    assert (batch["position_ids"] >= 0).all()
