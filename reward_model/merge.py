"""Merges a trained adapter into its base: `agentgrpo reward merge --adapter OUT --output MERGED`.

The result is a plain Hugging Face folder in float32, which `Scorer.load`, the scoring service and vLLM can load. The
scores of the written model are compared on real rows with those before merging; if they differ by more than the bound,
there is no result. Merging in bfloat16 changes scores ten thousand times as much. A
quantised base is not merged.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.merge")

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.chat.messages import Message
from agentgrpo.checks import UsageError
from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from agentgrpo.json_text import parse_json
from agentgrpo.outputs import OutputError, check_output, written
from reward_model.datatypes import RECORD

BOUND = 1e-4
ROWS = 32
# This conversation is invented, so that the record quotes nobody's data.
PROBE = (
    Message(role="user", content="Which number comes after 41?"),
    Message(role="assistant", content="The number after 41 is 42."),
)
# The probe's score may differ this much on another machine in float32, relative above 1. This is ten times its
# difference between batches, because other processors add up in another order. Another tokenizer, template or head
# changes it more.
PROBE_TOLERANCE = 1e-3


def merge_adapter(
    adapter: Path, output: Path, *, base: Path | None = None, data: Path | None = None, bound: float = BOUND
) -> dict[str, object]:
    """Part of the record about the merge.

    Args:
        base: the folder of the base, if it is not the one that the record names.
        data: preferences whose first `ROWS` rows are scored before and after; None takes the training data.
        bound: the largest allowed difference of a score before and after.
    Raises:
        UsageError: the adapter, its base or the data do not fit, or scores differ by more than the bound. Then `output`
        is not written.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from agentgrpo.weights import weights_sha256
    from reward_model.evaluate import score_sides
    from reward_model.preferences import read_preferences
    from reward_model.scorer import Scorer, length_limit

    record = read_training_record(adapter)
    if output.exists():
        raise UsageError(f"{output} is there already; name another --output")
    check_output(output, "--output")
    base = base or Path(record["base"]["path"])
    if not base.is_dir():
        raise UsageError(f"the base {base} that the record names is not there; give its folder with --base")
    if (found := weights_sha256(base)) != record["base"]["sha256"]:
        raise UsageError(
            f"{base} is not the base that {adapter} was trained on: sha256 {found}, expected "
            f"{record['base']['sha256']}; give the right folder with --base"
        )
    data = data or Path(record["dataset"]["path"])
    if not data.is_file():
        raise UsageError(f"{data} is not there; give preferences to compare scores on with --data FILE")
    rows = read_preferences(data)[:ROWS]
    sides = [(row, side) for row in rows for side in (row.chosen, row.rejected)]

    tokenizer = AutoTokenizer.from_pretrained(adapter, trust_remote_code=False)
    model = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=1, dtype=torch.float32, trust_remote_code=False
    )
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    model = PeftModel.from_pretrained(model, str(adapter))
    before = score_sides(Scorer(model, tokenizer, length_limit(record, model.config)), sides, "before the merge")
    lora = model.peft_config["default"]
    merged: Any = model.merge_and_unload(safe_merge=True)  # type: ignore[operator]

    with written(output) as folder:
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        read_back = Scorer.load(folder, device="cpu")
        after = score_sides(read_back, sides, "after the merge")
        difference = max(abs(a["score"] - b["score"]) for a, b in zip(before, after, strict=True))
        if not difference <= bound:
            raise UsageError(
                f"scores before and after differ by up to {difference:.2e} on {len(sides)} sides, more than --bound "
                f"{bound:.0e}; {output} was not written; a larger --bound would accept it"
            )
        about = {
            "rank": getattr(lora, "r", None),
            "alpha": getattr(lora, "lora_alpha", None),
            "adapter_sha256": weights_sha256(adapter),
            "sha256": weights_sha256(folder),
            "dtype": "float32",
            "compared": len(sides),
            "max_difference": difference,
            "bound": bound,
        }
        score = read_back.score([read_back.encode(PROBE)])[0].value
        probe = {
            "messages": [message.to_dict() for message in PROBE],
            "score": score,
            "tolerance": PROBE_TOLERANCE * max(1.0, abs(score)),
        }
        (folder / RECORD).write_text(json.dumps({**record, "merge": about, "probe": probe}, indent=2) + "\n")
    return about


def read_training_record(adapter: Path) -> dict[str, Any]:
    """Raises UsageError: the folder is not an adapter of `agentgrpo reward train`."""
    if not adapter.is_dir():
        raise UsageError(f"{adapter} is not a folder; give the output of agentgrpo reward train")
    if not (adapter / "adapter_config.json").is_file():
        if (adapter / "config.json").is_file():
            raise UsageError(f"{adapter} is a whole model, trained without LoRA; it needs no merge and can be served")
        raise UsageError(f"{adapter} holds no adapter_config.json; give the output of agentgrpo reward train")
    if not (adapter / RECORD).is_file():
        raise UsageError(
            f"{adapter} has no {RECORD}, so its base cannot be checked; train it with agentgrpo reward train"
        )
    return parse_json((adapter / RECORD).read_text())


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo reward merge", description="Merge an adapter into its base.")
    parser.add_argument("--adapter", type=Path, required=True, help="output of agentgrpo reward train")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write, which must not exist yet")
    parser.add_argument(
        "--base", type=Path, help="the base, a folder or an id on the hub; default: the base in the record"
    )
    parser.add_argument(
        "--data", type=Path, help="preferences to compare scores on; default: the first 32 of the training data"
    )
    parser.add_argument(
        "--bound", type=float, default=BOUND, help=f"largest difference of a score before and after; default {BOUND}"
    )
    args = parser.parse_args(argv)
    from transformers.utils.logging import disable_progress_bar

    from agentgrpo.hub import ModelError, model_folder
    from reward_model.preferences import PreferenceFileError

    disable_progress_bar()
    try:
        about = merge_adapter(
            args.adapter, args.output, base=args.base and model_folder(args.base), data=args.data, bound=args.bound
        )
    except (UsageError, ModelError, OutputError, PreferenceFileError) as error:
        return failed(error)
    print(
        f"rank {about['rank']}, alpha {about['alpha']}, merged in float32; largest difference of {about['compared']} "
        f"scores {about['max_difference']:.2e} (bound {about['bound']:.0e})"
    )
    print(f"merged reward model: {args.output}")
    return 0
