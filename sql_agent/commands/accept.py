"""Sign the checkpoints in a folder that you trust: `agentgrpo accept RUN_DIR`.

Resuming from a checkpoint executes code in its pickles, so runs and trainings load only files that their own user
signed. This command signs files that somebody else wrote, or that you wrote on another machine; copying that machine's
key works as well (`agentgrpo.signed_checkpoints`). It loads nothing, and signs no file that is incomplete, changed, or
another user's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgrpo import signed_checkpoints
from agentgrpo.checkpoints import NAME, checkpoints
from agentgrpo.flags import Parser

RECORDS = ("manifest.json", "reward_model.json", "dpo.json")
"""The records of checkpoints: of the main job, local runs and fine-tuning; of reward models; of DPO."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo accept", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="folder of a run, or of one checkpoint")
    run_dir = parser.parse_args(argv).run_dir.resolve()
    found = list(checkpoints_in(run_dir))
    if not found:
        names = ", ".join(RECORDS)
        print(f"error: {run_dir} holds no checkpoint with one of {names}; give the folder of a run", file=sys.stderr)
        return 1
    refused = 0
    for folder, name in found:
        try:
            fault = accept(folder, name, run_dir)
        except signed_checkpoints.NotOursError as error:
            fault = str(error)
        print(f"{folder}: {fault or 'signed'}")
        refused += fault is not None
    return 1 if refused else 0


def checkpoints_in(run_dir: Path) -> Iterator[tuple[Path, str]]:
    """Yield every folder that is named as a checkpoint, with the name of its record."""
    places = (run_dir, run_dir / "checkpoints")
    found = [folder for place in places for folder in reversed(checkpoints(place))]
    for folder in [run_dir, *found] if NAME.fullmatch(run_dir.name) else found:
        name = next((name for name in RECORDS if (folder / name).is_file()), None)
        if name is not None:
            yield folder, name


def accept(folder: Path, name: str, run_dir: Path) -> str | None:
    """Sign one checkpoint as it is, or return what is wrong with it.

    Raises:
        NotOursError: something in the folder is another user's.
    """
    signed_checkpoints.check_owner(folder, run_dir=run_dir)
    record = signed_checkpoints.read_record(folder, name)
    if isinstance(record, str):
        return record
    fault = signed_checkpoints.check_record_files(folder, {"files": {}, **record})
    if fault is None:
        signed_checkpoints.seal(
            folder, name, {key: value for key, value in record.items() if key != signed_checkpoints.SIGNATURE}
        )
    return fault
