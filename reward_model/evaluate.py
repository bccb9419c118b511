"""Measures a reward model on held-out pairs: `agentgrpo reward evaluate --model OUT --data pairs.held_out.jsonl`.

It prints pair accuracy beside single-feature rules, calibration, the influence of length, and how often bad answers
beat the chosen one; `--output DIR` adds evaluation.json and evaluation.png. It does not judge the preferences.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.evaluate")

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from agentgrpo.chat.messages import Message
from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from agentgrpo.hub_rows import named_rows
from agentgrpo.outputs import OutputError, check_output, written
from reward_model.datatypes import Preference, prompt_key
from reward_model.measures import (
    FEATURES,
    adversarial_sides,
    calibration_bins,
    expected_calibration_error,
    neighbours,
    wins,
)

if TYPE_CHECKING:
    from reward_model.scorer import Scorer


class SideScore(TypedDict):
    score: float
    tokens: int
    truncated: bool


class Share(TypedDict):
    value: float
    ties: int
    interval: tuple[float, float]
    """Wilson's, over pairs."""
    prompt_interval: tuple[float, float] | None
    """The bootstrap's, over prompts."""


class AdversarialShare(Share):
    pairs: int
    score: float


class LengthBin(TypedDict):
    low: int
    high: int
    pairs: int
    value: float
    interval: tuple[float, float]


class PairEvaluation(TypedDict):
    pairs: int
    prompts: int
    truncated: int
    accuracy: Share
    baselines: dict[str, Share]
    best_baseline: str
    margin: dict[str, float]
    ece: float
    calibration: list[dict[str, float]]
    length: list[LengthBin]
    adversarial: dict[str, AdversarialShare]
    center: float
    scale: float


BATCH_SIZE = 16
LENGTH_BINS = 5


def evaluate_scorer(scorer: Scorer, rows: Sequence[Preference]) -> PairEvaluation:
    """All measurements as plain JSON values.

    Args:
        rows: held-out pairs. Pairs of one prompt are not independent; `prompt_interval` accounts for that.
    """
    import numpy as np

    chosen = score_sides(scorer, [(row, row.chosen) for row in rows], "chosen")
    rejected = score_sides(scorer, [(row, row.rejected) for row in rows], "rejected")
    margins = [a["score"] - b["score"] for a, b in zip(chosen, rejected, strict=True)]
    prompts = [prompt_key(row) for row in rows]
    won = wins([side["score"] for side in chosen], [side["score"] for side in rejected])
    lengths = [[side["tokens"] for side in sides] for sides in (chosen, rejected)]
    scores = np.array([side["score"] for side in (*chosen, *rejected)])
    rules = baselines(rows, lengths)
    return {
        "pairs": len(rows),
        "prompts": len(set(prompts)),
        "truncated": sum(side["truncated"] for side in (*chosen, *rejected)),
        "accuracy": share(won, prompts),
        "baselines": rules,
        "best_baseline": max(rules, key=lambda name: rules[name]["value"]),
        "margin": {"mean": float(np.mean(margins)), "std": float(np.std(margins))},
        "ece": expected_calibration_error(margins),
        "calibration": [vars(found) for found in calibration_bins(margins)],
        "length": by_length(won, [a - b for a, b in zip(*lengths, strict=True)]),
        "adversarial": adversarial(scorer, rows, [side["score"] for side in chosen], prompts),
        "center": float(scores.mean()),
        "scale": float(scores.std()),
    }


def score_sides(scorer: Scorer, sides: Sequence[tuple[Preference, Sequence[Message]]], name: str) -> list[SideScore]:
    # Sides of similar length share a batch.
    from rich.console import Console
    from rich.progress import track

    encoded = [scorer.encode([*row.prompt, *side], row.tools) for row, side in sides]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i].ids))
    results: dict[int, SideScore] = {}
    starts = range(0, len(order), BATCH_SIZE)
    for start in track(starts, f"scoring: {name}", console=Console(stderr=True), transient=True):
        batch = order[start : start + BATCH_SIZE]
        for i, score in zip(batch, scorer.score([encoded[i] for i in batch]), strict=True):
            results[i] = {"score": score.value, "tokens": len(encoded[i].ids), "truncated": score.truncated}
    return [results[i] for i in range(len(encoded))]


def share(won: Sequence[float], prompts: Sequence[str]) -> Share:
    """Mean of `won` (1, 0, ties 0.5) with Wilson's interval over pairs and the bootstrap interval over prompts. The
    latter is None for a single prompt, which says nothing about other prompts.
    """
    from agentgrpo.stats import cluster_interval, wilson_interval

    return {
        "value": sum(won) / len(won),
        "ties": sum(win == 0.5 for win in won),
        "interval": wilson_interval(sum(won), len(won)),
        "prompt_interval": cluster_interval(won, prompts) if len(set(prompts)) > 1 else None,
    }


def baselines(rows: Sequence[Preference], lengths: Sequence[Sequence[int]]) -> dict[str, Share]:
    """Accuracy of each single-feature rule, in both directions, by name.

    Args:
        lengths: the tokens of the chosen and of the rejected sides, prompt included.
    """
    prompts = [prompt_key(row) for row in rows]
    values = {
        name: ([f(row.chosen) for row in rows], [f(row.rejected) for row in rows]) for name, f in FEATURES.items()
    }
    values["tokens"] = (list(lengths[0]), list(lengths[1]))
    rules = {}
    for name, (chosen, rejected) in values.items():
        won = wins(chosen, rejected)
        rules[f"more {name}" if name != "has an answer" else name] = share(won, prompts)
        rules[f"fewer {name}" if name != "has an answer" else "has no answer"] = share([1 - w for w in won], prompts)
    return rules


def by_length(won: Sequence[float], differences: Sequence[int]) -> list[LengthBin]:
    """Bins of about equal size, by tokens of the chosen minus tokens of the rejected side."""
    import numpy as np

    from agentgrpo.stats import wilson_interval

    edges = np.unique(np.quantile(differences, np.linspace(0, 1, LENGTH_BINS + 1)))
    index = np.clip(np.searchsorted(edges, differences, side="right") - 1, 0, max(len(edges) - 2, 0))
    bins: list[LengthBin] = []
    for i in sorted(set(index.tolist())):
        inside = [(win, d) for win, d, at in zip(won, differences, index, strict=True) if at == i]
        total = sum(win for win, _ in inside)
        bins.append(
            {
                "low": min(d for _, d in inside),
                "high": max(d for _, d in inside),
                "pairs": len(inside),
                "value": total / len(inside),
                "interval": wilson_interval(total, len(inside)),
            }
        )
    return bins


def adversarial(
    scorer: Scorer, rows: Sequence[Preference], chosen: Sequence[float], prompts: Sequence[str]
) -> dict[str, AdversarialShare]:
    """Share of pairs in which a bad answer beats the chosen one, and its mean score, by kind.

    Only pairs for which such an answer can be made count: if all pairs have one prompt, no answer to another exists.
    """
    sides = [adversarial_sides(row, other) for row, other in zip(rows, neighbours(rows), strict=True)]
    found: dict[str, AdversarialShare] = {}
    for name in dict.fromkeys(name for bad in sides for name in bad):
        having = [i for i, bad in enumerate(sides) if name in bad]
        scored = [side["score"] for side in score_sides(scorer, [(rows[i], sides[i][name]) for i in having], name)]
        won = wins(scored, [chosen[i] for i in having])
        beaten = share(won, [prompts[i] for i in having])
        found[name] = {**beaten, "pairs": len(having), "score": sum(scored) / len(scored)}
    return found


# Output ---------------------------------------------------------------------------------------------------------------


def format_accuracy(part: Share) -> tuple[str, str, str]:
    intervals = (part["interval"], part["prompt_interval"])
    pairs, prompts = ("-" if found is None else f"{100 * found[0]:.1f} to {found[1]:.1%}" for found in intervals)
    return f"{part['value']:.1%}", pairs, prompts


def print_evaluation(result: PairEvaluation) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()

    def new_table(title: str, first: str, *headings: str) -> Table:
        table = Table(title=title, title_justify="left")
        table.add_column(first, no_wrap=True)
        for heading in headings:
            table.add_column(heading, justify="right")
        return table

    title = f"{result['pairs']} held-out pairs of {result['prompts']} prompts"
    table = new_table(title, "prefers", "accuracy", "95 %, pairs", "95 %, prompts", "ties")
    table.add_row("reward model", *format_accuracy(result["accuracy"]), str(result["accuracy"]["ties"]), style="bold")
    for name, part in sorted(result["baselines"].items(), key=lambda item: -item[1]["value"]):
        if part["value"] >= 0.5:
            table.add_row(name, *format_accuracy(part), str(part["ties"]))
    console.print(table)

    title = "Bad answers that beat the chosen one"
    table = new_table(title, "answer", "beats it", "95 %, pairs", "95 %, prompts", "score")
    for name, part in result["adversarial"].items():
        of = "" if part["pairs"] == result["pairs"] else f" ({part['pairs']} pairs)"
        table.add_row(name + of, *format_accuracy(part), f"{part['score']:+.2f}")
    console.print(table)

    table = new_table("Accuracy by tokens of chosen minus rejected", "tokens", "pairs", "accuracy", "95 %, pairs")
    for part in result["length"]:
        low, high = part["interval"]
        table.add_row(
            f"{part['low']:+d} to {part['high']:+d}",
            str(part["pairs"]),
            f"{part['value']:.1%}",
            f"{100 * low:.1f} to {high:.1%}",
        )
    console.print(table)
    print(f"margin {result['margin']['mean']:+.3f} +- {result['margin']['std']:.3f}   ECE {result['ece']:.3f}")
    if result["scale"] > 0:
        print(
            f"as a reward: center {result['center']:.4f}   scale {result['scale']:.4f}, of {2 * result['pairs']} scores"
        )
    if result["truncated"]:
        print(f"{result['truncated']} of {2 * result['pairs']} sides were cut to the model's limit")


def draw_evaluation(result: PairEvaluation, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ((left, bad), (middle, right)) = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    rules = sorted(result["baselines"].items(), key=lambda item: item[1]["value"])
    bars = [(name, part) for name, part in rules if part["value"] >= 0.5] + [("reward model", result["accuracy"])]
    for axes, parts in ((left, bars), (bad, list(result["adversarial"].items())[::-1])):
        for y, (name, part) in enumerate(parts):
            axes.barh(y, part["value"], color="tab:blue" if name == "reward model" else "0.75")
            axes.plot(part["interval"], [y, y], color="black", linewidth=1.5)
        axes.set_yticks(range(len(parts)), [name for name, _ in parts])
        axes.axvline(0.5, color="0.4", linestyle=":", linewidth=1)
    left.set(xlim=(0, 1), xlabel="pair accuracy, 95 % interval", title=f"{result['pairs']} held-out pairs")
    bad.set(xlim=(0, 1), xlabel="beats the chosen answer, 95 % interval", title="bad answers")

    middle.plot([0.5, 1], [0.5, 1], color="0.4", linestyle=":", linewidth=1)
    found = result["calibration"]
    size = [20 + 300 * part["pairs"] / result["pairs"] for part in found]
    middle.plot([part["confidence"] for part in found], [part["accuracy"] for part in found], color="tab:blue")
    middle.scatter([part["confidence"] for part in found], [part["accuracy"] for part in found], s=size)
    middle.set(xlim=(0.48, 1.02), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy")
    middle.set_title(f"calibration, ECE {result['ece']:.3f}")

    for x, part in enumerate(result["length"]):
        right.plot([x, x], part["interval"], color="black", linewidth=1.5)
        right.plot(x, part["value"], "o", color="tab:blue")
    right.axhline(0.5, color="0.4", linestyle=":", linewidth=1)
    right.set_xticks(
        range(len(result["length"])), [f"{part['low']:+d}\nto {part['high']:+d}" for part in result["length"]]
    )
    right.set(ylim=(0, 1.05), xlabel="tokens, chosen minus rejected", ylabel="accuracy", title="length")
    for axes in (left, bad, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, format="png")
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo reward evaluate", description="Measure a reward model on held-out pairs.")
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        help="output of agentgrpo reward train or of agentgrpo reward merge, or a model's id on the hub",
    )
    parser.add_argument("--data", type=named_rows, required=True, help="held-out preferences, JSONL")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write evaluation.json and evaluation.png there")
    args = parser.parse_args(argv)
    from transformers.utils.logging import disable_progress_bar

    from agentgrpo.hub import TRAIN, ModelError, model_folder
    from agentgrpo.machine import git_commit
    from agentgrpo.signed_checkpoints import file_sha256
    from agentgrpo.training_run import library_versions
    from reward_model.preferences import PreferenceFileError, read_preferences
    from reward_model.scorer import Scorer

    disable_progress_bar()
    try:
        rows = read_preferences(args.data)
        if args.output:
            for name in ("evaluation.json", "evaluation.png"):
                check_output(args.output / name, "--output", overwrite=True)
        result = evaluate_scorer(Scorer.load(model_folder(args.model, otherwise=TRAIN)), rows)
    except (ModelError, OutputError, PreferenceFileError) as error:
        return failed(error)
    print_evaluation(result)
    if args.output:
        about = {"model": str(args.model), "data": str(args.data), "data_sha256": file_sha256(args.data)}
        about |= {"git_commit": git_commit(), "versions": library_versions()}
        with written(args.output / "evaluation.json") as part:
            part.write_text(json.dumps(about | result, indent=2) + "\n")
        with written(args.output / "evaluation.png") as part:
            draw_evaluation(result, part)
        print(f"written: {args.output / 'evaluation.json'}, {args.output / 'evaluation.png'}")
    return 0
