"""The model card of a run: `model_card.md` in the run's folder, and README.md on the hub (`agentgrpo push`).

Nothing secret goes into a card: no path of this machine, only names of files; no address of a database or service; no
row of the user's. A card that the user has edited stays as it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.hub_address import HubRows
from agentgrpo.json_text import parse_json
from agentgrpo.outputs import written
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.run_folder import flat
from sql_agent.report.public import base_of, command_of, hub_id, public_name, shown_base
from sql_agent.report.reading import ADAPTER_CONFIG, Run
from sql_agent.serve_commands import serve_command

CARD, CURVE = "model_card.md", "curve.png"
NAME = "MODEL_NAME"
REPO = f"ORG/{NAME}"
"""What a card calls its repository until it is pushed."""
RECORDS = {"reward train": "reward_model.json"}
"""Records of a finished model that are not named after its command."""
_MARK = "<!-- agentgrpo report writes this card anew until you edit it: "
# Settings that are a part of the recipe, by the last part of their names.
_KEY = (
    *("estimator", "algorithm", "group_size", "batch_size", "train_batch_size", "num_epochs", "steps", "seed", "beta"),
    *("learning_rate", "weight_decay", "kl_coef", "temperature", "top_p", "r", "rank", "lora_rank", "alpha"),
    *("max_tokens", "max_new_tokens", "max_response_tokens", "max_length", "protocol", "schema_form", "judge"),
)
_PLAYS = {
    "text2sql": "answers questions about a database with SQL",
    "dbbench": "answers questions and changes tables with SQL, as in DB-Bench",
    "gsm8k": "solves word problems with a calculator",
}

# Files ----------------------------------------------------------------------------------------------------------------


def write_card(run: Run) -> Path | None:
    """Write the card; None if there is no model yet, or if the user has edited the card, which stays."""
    if run.model is None or is_edited(run):
        return None
    text = render_card(run)
    with written(run.folder / CARD) as part:
        part.write_text(f"{text}\n{_MARK}{_digest(text)} -->\n", "utf-8")
    return run.folder / CARD


def is_edited(run: Run) -> bool:
    file = run.folder / CARD
    if not file.is_file():
        return False
    text, mark, digest = file.read_text("utf-8").rpartition(f"\n{_MARK}")
    return not mark or digest.removesuffix(" -->\n") != _digest(text)


def read_card(run: Run) -> str:
    """The card in the run's folder without the mark of the last line."""
    text = (run.folder / CARD).read_text("utf-8")
    return re.sub(rf"\n{re.escape(_MARK)}\w+ -->\n", "", text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# The text -------------------------------------------------------------------------------------------------------------


def render_card(run: Run, license: str | None = None) -> str:
    """
    Args:
        run: one that has a model, with its start (`with_start`).
        license: what the base says; None: the README.md of its folder is read.
    """
    from huggingface_hub import ModelCardData

    base, adapter = base_of(run), _is_adapter(run)
    kind = run.kind.replace(" ", "-")
    data = ModelCardData(
        base_model=hub_id(base),
        license=license or license_of(base),
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-classification" if kind == "reward-train" else "text-generation",
        tags=[
            "agentgrpo",
            {"train": "grpo", "local": "grpo", "reward-train": "reward-model"}.get(kind, kind),
            *_sql_tags(run),
        ],
        model_name=NAME if (results := _results(run)) else None,
        eval_results=results,
    )
    parts = [f"---\n{data.to_yaml()}\n---", f"# {NAME}", _opening(run, adapter=adapter)]
    for title, text in (
        ("Results", _results_text(run)),
        ("Data", _table(_data(run))),
        ("Recipe", f"```bash\n{command_of(run)}\n```\n\n{_table(_recipe(run))}"),
        ("How to serve it", f"```bash\n{_serve(run, adapter=adapter)}\n```"),
        ("Limits", _limits(run)),
    ):
        parts.append(f"## {title}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def license_of(base: str) -> str | None:
    from huggingface_hub import ModelCard

    try:
        return ModelCard.load(Path(base) / "README.md").data.to_dict().get("license") if Path(base).is_dir() else None
    except (OSError, ValueError, yaml.YAMLError):  # none is there, or its front matter is no YAML
        return None


def _is_adapter(run: Run) -> bool:
    return run.model is not None and (run.model / ADAPTER_CONFIG).is_file()


def _sql_tags(run: Run) -> list[str]:
    return ["text-to-sql"] if _trained_on(run).get("env") in ("text2sql", "dbbench") else []


def _opening(run: Run, *, adapter: bool) -> str:
    what = "A LoRA adapter" if adapter else "A model"
    said = [f"{what} that `agentgrpo {run.kind}` trained from {shown_base(run)}."]
    if run.kind == "reward train":
        said.append("It gives a conversation a score.")
    elif env := _trained_on(run).get("env"):  # the environment that it was last trained in
        said.append(f"It {_PLAYS.get(env, 'plays the environment ' + env.rpartition(':')[2])}.")
    return " ".join([*said, "This card was written from the files of the run."])


def _results(run: Run) -> list[Any] | None:
    from huggingface_hub import EvalResult

    points = run.held_out
    if not points:
        return None
    rows = next((HubRows.parse(each) for each in run.facts.get("hub_rows", ())), None)
    name = _tasks(run).get("held_out_tasks") or _tasks(run).get("tasks") or "tasks of the run"
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=rows.id if rows else _trained_on(run).get("env", "tasks").rpartition(":")[2],
            dataset_name=f"{points[-1].judged} held-out tasks ({name})",
            dataset_revision=rows.revision if rows else None,
            metric_type="accuracy",
            metric_name="held-out success",
            metric_value=round(points[-1].success, 4),
        )
    ]


def _results_text(run: Run) -> str:
    name, points = run.measured
    shown = [*points[:1], *points[1:][-1:]]
    lines = [_table([(f"{name} {point.when}", str(point)) for point in shown])] if shown else ["Nothing was measured."]
    if run.held_out:
        lines.append("Intervals are Wilson's, 95 %." + (f" {run.change}." if run.change else ""))
    return "\n\n".join([*lines, f"![curve of the run]({CURVE})"])


def _trained_on(run: Run) -> dict[str, Any]:
    return _read(run, "trained_on.json")


def _tasks(run: Run) -> dict[str, Any]:
    """The last training that the model's trained_on.json names; {} if there is none."""
    return (_trained_on(run).get("sources") or [{}])[-1]


def _read(run: Run, name: str) -> dict[str, Any]:
    try:
        assert run.model is not None
        found = parse_json((run.model / name).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _data(run: Run) -> list[tuple[str, object]]:
    tasks, given, record = _tasks(run), flat(run.settings), _read(run, RECORDS.get(run.kind, f"{run.kind}.json"))
    data = record.get("data") or record.get("dataset") or {}
    database = given.get("env.database") or given.get("database")
    rows = [
        ("tasks", tasks.get("tasks") or (public_name(data["path"]) if "path" in data else None)),
        ("to train on", tasks.get("learnt", data.get("train_pairs"))),
        ("held out", tasks.get("held_out", data.get("held_out_pairs"))),
        ("held-out tasks in", tasks.get("held_out_tasks")),
        ("database", _database_kind(str(database)) if database else None),
        ("sha256 of the file" if "path" in data else "sha256 of the tokens", data.get("sha256")),
        ("fingerprint of each task", "in trained_on.json" if _trained_on(run).get("learnt") else None),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]


def _database_kind(database: str) -> str:
    return f"{database.partition('://')[0]} server" if "://" in database else "SQLite file"


def _recipe(run: Run) -> list[tuple[str, object]]:
    steps = f"{run.step}" + (f" of {run.steps}" if run.steps is not None else "")
    versions = ", ".join(f"{name} {number}" for name, number in run.facts.get("versions", {}).items())
    key = {name: value for name, value in flat(run.settings).items() if _is_key(name)}
    found = {"commit": run.facts.get("commit"), "train steps": steps, "device": run.facts.get("device")}
    found |= {name: public_name(value) if isinstance(value, str) else value for name, value in key.items()}
    return [(name, value) for name, value in (found | {"versions": versions}).items() if value not in (None, "")]


def _is_key(name: str) -> bool:
    group, _, last = name.rpartition(".")
    return last in _KEY and group not in ("llm_judge", "judge", "reward_model")


def _serve(run: Run, *, adapter: bool) -> str:
    if run.kind == "reward train":
        return _plain(agentgrpo_command("reward serve", "--model", REPO))
    cpu, dtype = run.facts.get("device") == "cpu", run.facts.get("precision")
    merged = f"{NAME}-merged" if adapter else REPO
    merge = [agentgrpo_command("merge", "--adapter", REPO, "--output", merged)] if adapter else []
    return "\n".join(_plain(line) for line in (*merge, serve_command(merged, NAME, cpu=cpu, dtype=dtype)))


def _plain(command: str) -> str:
    # as it is where the virtual environment is active
    return re.sub(r"\S*bin/(?=(agentgrpo|vllm)\b)", "", command)


def _limits(run: Run) -> str:
    name, points = run.measured
    if run.held_out:
        count = run.held_out[-1].judged
        measured = f"Success was measured on {count} held-out tasks of the data above, and on nothing else."
    else:
        measured = f"The {name} was measured on the data above; success was not." if points else "Nothing was measured."
    return (
        f"{measured} Other databases, other wordings, longer conversations and harmful requests were not tried: check "
        "what the model writes, and run its SQL as a user who may only read."
    )


def _table(rows: Sequence[tuple[str, object]]) -> str:
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in cells)])
