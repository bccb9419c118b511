from reward_model.micro_batches import micro_batches


def test_micro_batches_are_cut_by_their_padded_size():
    # 2 rows of 3 are 6 tokens, 3 rows of 3 would be 9; 2 rows of 7 would be 14
    assert micro_batches([2, 3, 3, 7], 8) == [[0, 1], [2], [3]]
    assert micro_batches([2, 3, 3, 7], 1) == [[0], [1], [2], [3]]
    assert micro_batches([2, 3, 3, 7], 28) == [[0, 1, 2, 3]]


def test_rows_of_like_length_come_together():
    assert micro_batches([9, 1, 8, 2], 16) == [[1, 3], [2], [0]]  # 2 rows of 9 would be 18
