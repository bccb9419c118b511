import json

import pytest

from agentgrpo.stats import wilson_interval
from reward_model.datatypes import EncodedConversation, Preference, RewardScore
from reward_model.evaluate import baselines, by_length, evaluate_scorer, format_accuracy, main, score_sides, share
from reward_model.measures import FLUENT
from reward_model.scorer import Scorer
from reward_model.tests.conftest import assistant, counting_pairs, user


class Scripted:
    """Scores by the last message's text; a token is a character of it."""

    def __init__(self, scores):
        self.scores, self.batches = scores, []

    def encode(self, messages, tools=None):
        return EncodedConversation(tuple(map(ord, messages[-1].content)) or (0,))

    def score(self, batch):
        self.batches.append([len(encoded.ids) for encoded in batch])
        texts = ["".join(map(chr, encoded.ids)).strip("\0") for encoded in batch]
        return [RewardScore(float(self.scores.get(text, -9.0)), truncated=text == "long") for text in texts]


def pair(question: str, chosen: str, rejected: str) -> Preference:
    return Preference(prompt=(user(question),), chosen=(assistant(chosen),), rejected=(assistant(rejected),))


# margins 2, -1, 0, 1 for two prompts
ROWS = [pair("a", "good", "bad"), pair("a", "meh", "fine"), pair("b", "same", "equal"), pair("b", "long", "off")]
SCORES = {"good": 3, "bad": 1, "meh": 0, "fine": 1, "same": 2, "equal": 2, "long": 1, "off": 0, FLUENT: 2}


@pytest.fixture(scope="module")
def result():
    return evaluate_scorer(Scripted(SCORES), ROWS)


def test_accuracy_counts_a_tie_half_and_draws_prompts_whole(result):
    # wins 1, 0, 0.5, 1: 2.5 of 4; prompt a has 0.5, b 0.75
    assert result["accuracy"] == {
        "value": 0.625,
        "ties": 1,
        "interval": wilson_interval(2.5, 4),
        "prompt_interval": (0.5, 0.75),
    }
    assert (result["pairs"], result["prompts"], result["truncated"]) == (4, 2, 1)


def test_a_single_prompt_has_no_interval_over_prompts():
    assert share([1.0, 0.5], ["a", "a"])["prompt_interval"] is None
    assert format_accuracy(share([1.0], ["a"])) == ("100.0%", "20.7 to 100.0%", "-")  # Wilson, 1 of 1: 1 / (1 + 1.96^2)


def test_margin_and_what_a_reward_needs(result):
    # margins 2, -1, 0, 1: mean 0.5, variance (2.25 + 2.25 + 0.25 + 0.25) / 4 = 1.25
    assert result["margin"] == {"mean": 0.5, "std": pytest.approx(1.25**0.5)}
    # scores 3, 0, 2, 1 and 1, 1, 2, 0: mean 10 / 8, mean square 20 / 8
    assert (result["center"], result["scale"]) == (1.25, pytest.approx((2.5 - 1.25**2) ** 0.5))


def test_bad_answers_are_set_against_the_chosen_one(result):
    # FLUENT scores 2 against chosen 3, 0, 2, 1: it loses, beats, ties, beats
    fluent = result["adversarial"]["fluent and wrong"]
    assert (fluent["value"], fluent["ties"], fluent["score"], fluent["pairs"]) == (0.625, 1, 2.0, 4)
    # the next answer of the other prompt: same, same, good, good against good, meh, same, long
    foreign = result["adversarial"]["another task's answer"]
    assert (foreign["value"], foreign["score"]) == (0.75, 2.5)
    assert result["adversarial"]["empty"]["value"] == 0.0


def test_where_all_pairs_have_one_prompt_no_other_tasks_answer_counts():
    assert "another task's answer" not in evaluate_scorer(Scripted(SCORES), ROWS[:2])["adversarial"]


def test_rules_are_measured_in_both_directions():
    rows = [pair("a", "x", ""), pair("b", "y", "z"), pair("c", "", "q")]
    rules = baselines(rows, [[5, 5, 5], [4, 6, 5]])
    assert {name: part["value"] for name, part in rules.items()} == {
        "more messages": 0.5,
        "fewer messages": 0.5,
        "more tool calls": 0.5,
        "fewer tool calls": 0.5,
        "has an answer": 0.5,  # right, tie, wrong
        "has no answer": 0.5,
        "more tool errors": 0.5,
        "fewer tool errors": 0.5,
        "more tokens": 0.5,  # right, wrong, tie
        "fewer tokens": 0.5,
    }
    longer = baselines(rows, [[5, 7, 5], [4, 6, 5]])
    assert (longer["more tokens"]["value"], longer["fewer tokens"]["value"]) == (2.5 / 3, pytest.approx(0.5 / 3))


def test_accuracy_by_length_difference_over_bins_of_like_many_pairs():
    wins, differences = [1, 1, 0, 1, 0, 0, 1, 0, 1, 1], list(range(-5, 5))
    # quintiles: two pairs each
    assert [(b["low"], b["high"], b["pairs"], b["value"]) for b in by_length(wins, differences)] == [
        (-5, -4, 2, 1.0),
        (-3, -2, 2, 0.5),
        (-1, 0, 2, 0.0),
        (1, 2, 2, 0.5),
        (3, 4, 2, 1.0),
    ]


def test_pairs_of_one_length_difference_are_one_bin():
    assert by_length([1, 0, 1, 1], [0] * 4) == [
        {"low": 0, "high": 0, "pairs": 4, "value": 0.75, "interval": wilson_interval(3, 4)}
    ]


def test_like_lengths_share_a_batch_and_scores_come_back_in_order():
    scorer = Scripted({"x" * n: n for n in range(1, 33)})
    sides = [(ROWS[0], (assistant("x" * n),)) for n in range(32, 0, -1)]
    assert [side["score"] for side in score_sides(scorer, sides, "chosen")] == list(range(32, 0, -1))
    assert scorer.batches == [list(range(1, 17)), list(range(17, 33))]


KEYS = {
    "model",
    "data",
    "data_sha256",
    "git_commit",
    "versions",
    "pairs",
    "prompts",
    "truncated",
    "accuracy",
    "baselines",
    "best_baseline",
    "margin",
    "ece",
    "calibration",
    "length",
    "adversarial",
    "center",
    "scale",
}


def test_the_command_shows_a_table_and_writes_numbers_and_a_picture(adapter, pairs, tmp_path, capsys):
    assert main(["--model", str(adapter), "--data", str(pairs), "--output", str(tmp_path / "out")]) == 0
    written = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert set(written) == KEYS
    again = evaluate_scorer(Scorer.load(adapter), counting_pairs(24))
    assert written["accuracy"]["value"] == pytest.approx(again["accuracy"]["value"])
    assert (tmp_path / "out" / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "24 held-out pairs of 24 prompts" in said
    assert f"{written['accuracy']['value']:.1%}" in said
    assert "another task's answer" in said


def test_what_cannot_be_measured_is_refused_with_the_reason(adapter, pairs, tmp_path, capsys):
    for flags, words in (
        (
            ["--model", "gone", "--data", str(pairs)],
            "gone is no folder, and no model of that name is whole in the Hugging Face cache",
        ),
        (["--model", "/gone", "--data", str(pairs)], "ORG/NAME, or give the output of agentgrpo reward train"),
        (["--model", str(adapter), "--data", "gone"], "gone does not exist"),
        (["--model", str(adapter), "--data", str(pairs), "--output", str(pairs)], "cannot be written"),
    ):
        assert main(flags) == 1
        assert words in capsys.readouterr().err
