"""Shared prefixes become a tree; the rest goes into micro-batches of similar length."""

from reward_model.service.prefix_tree import PrefixNode, build_prefix_tree, make_micro_batches


def planned(rows, min_saved=4):
    return build_prefix_tree(rows, [len(row) - 1 for row in rows], min_saved)


def test_two_rows_that_share_enough_share_a_node():
    # 5 tokens in common, computed once instead of twice: 5 saved, 4 asked for
    assert planned([(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 7)]) == PrefixNode(0, 0, [], [PrefixNode(0, 5, [1, 0])])


def test_two_rows_that_share_little_are_left_alone():
    assert planned([(1, 2, 3, 4), (1, 2, 3, 5)]) == PrefixNode(0, 0, [1, 0])


def test_groups_with_a_system_message_in_common_form_two_levels():
    system, ask, other = (1,) * 6, (2,) * 5, (3,) * 5
    rows = [system + ask + (7,), system + ask + (8,), system + other + (7,), system + other + (8,)]
    # the root's child holds the system message (6 tokens, 4 rows), its children the two questions (5 tokens, 2 rows)
    assert planned(rows) == PrefixNode(
        0, 0, [], [PrefixNode(0, 6, [], [PrefixNode(6, 11, [3, 2]), PrefixNode(6, 11, [1, 0])])]
    )


def test_the_scored_token_is_never_shared():
    # the second row begins with the whole first one
    root = planned([(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 7)])
    assert root.children == [PrefixNode(0, 5, [1, 0])]


def test_a_limit_before_the_end_is_kept():
    assert build_prefix_tree([(1, 1, 1, 1, 1, 2), (1, 1, 1, 1, 1, 3)], [4, 5], 4).children == [PrefixNode(0, 4, [1, 0])]


def test_every_row_is_planned_once():
    rows = sorted({(a, a, b, b, c, c) for a in range(3) for b in range(3) for c in range(3)})

    def below(node):
        return node.rows + [row for child in node.children for row in below(child)]

    assert sorted(below(planned(rows))) == list(range(27))


def test_rows_of_like_length_go_together():
    # 10 + 9 + 9 wastes 2 tokens, 3 more would waste 9 of the 4 allowed
    assert make_micro_batches([3, 10, 9, 9, 3], max_tokens=100, max_padding=4) == [[1, 2, 3], [0, 4]]


def test_a_batch_holds_no_more_tokens_than_allowed():
    assert make_micro_batches([5, 5, 5], max_tokens=10, max_padding=100) == [[0, 1], [2]]


def test_a_row_longer_than_a_batch_goes_alone():
    assert make_micro_batches([50, 5], max_tokens=10, max_padding=100) == [[0], [1]]
