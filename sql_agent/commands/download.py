"""Fetch LifelongAgentBench's 500 tasks: `agentgrpo tasks download --output data/lifelong`.

The command reads the parquet form with `datasets`, from the hub or from a local file or folder, and checks every row.
It writes entry_dict.json (which LifelongAgentBench and `dbbench_adapter.tasks.load` read) and db_bench.parquet (the
form of the hub, which `load_tasks` reads as well). Nothing is written unless all rows are good. Leaves out the
benchmark's other parts.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgrpo.commands import interruptible
from agentgrpo.flags import Parser
from agentgrpo.outputs import OutputError, check_output, failures_of_the_disk, written
from dbbench_adapter.tasks.load import unpacked
from dbbench_adapter.tasks.records import RawRecord, RowFault
from dbbench_adapter.validate import check_task_file, report_lines

HUB_ID = "csyq/LifelongAgentBench"
# The folder of this benchmark in the data set on the hub.
PART = "db_bench"
NUM_TASKS = 500
LICENCE = (
    "licence: not established. The data set states none and its code repository has no licence file; "
    "check before you redistribute it."
)


class SourceError(RuntimeError):
    """The source does not provide the data; the message says what to do."""


def fetch(source: str) -> Any:
    """The rows, as a `datasets.Dataset`.

    Args:
        source: a local .parquet file; a local folder that holds such files, or a folder `db_bench` of them; or the id
            of a data set on the hub.
    Raises:
        SourceError: there are no such rows, they cannot be read, or the hub cannot be reached.
    """
    path = Path(source)
    if not path.exists():
        return _from_hub(source)
    files = [path] if path.is_file() else sorted(path.glob("*.parquet")) or sorted((path / PART).glob("*.parquet"))
    if not files:
        raise SourceError(f"{path}: no .parquet file in it or in {PART}/ below it; give the file or its folder")
    import datasets
    from datasets.exceptions import DatasetsError

    with tempfile.TemporaryDirectory() as cache:  # the same rows read again must not come from an older file's cache
        try:
            rows = datasets.load_dataset("parquet", data_files=[str(file) for file in files], cache_dir=cache)["train"]
            return datasets.Dataset.from_list(rows.to_list())  # rows are kept in memory, because the cache is removed
        except (DatasetsError, OSError, ValueError) as error:
            raise SourceError(
                f"{path}: not the parquet form of LifelongAgentBench ({error}); give the files of its folder {PART}"
            ) from None


def _from_hub(source: str) -> Any:
    if source.count("/") != 1 or source.startswith((".", "/")):
        raise SourceError(f"{source}: no such file or folder, and not the id of a data set; {HUB_ID} is one")
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        return datasets.load_dataset(source, data_dir=PART, split="train")
    except (DatasetsError, OSError, ValueError) as error:
        offline = [name for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE") if os.environ.get(name)]
        advice = f"unset {' and '.join(offline)}" if offline else "check the network"
        raise SourceError(
            f"{source} could not be fetched from the hub ({error}); {advice}, or download its folder {PART} on another "
            "machine and name it with --source FOLDER"
        ) from None


def entries(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows in the form of entry_dict.json: nested fields as values, keyed by `sample_index` as text.

    Raises:
        SourceError: a nested field is no Python literal, or an index is missing or repeated.
    """
    found: dict[str, Any] = {}
    for number, row in enumerate(rows):
        record = unpacked(RawRecord("", f"row {number}", dict(row), f"row {number}"))
        if isinstance(record, RowFault):
            raise SourceError(str(record))
        index = record.value.get("sample_index")
        if not isinstance(index, int) or str(index) in found:
            raise SourceError(f"row {number}, field sample_index: expected a number of its own, found {index!r}")
        found[str(index)] = record.value
    return found


def convert(source: str, output_dir: Path) -> list[str]:
    """Fetch, check and write the tasks; return the report in lines for a terminal.

    Raises:
        SourceError: see `fetch` and `entries`; or a row is bad, or there are not 500 rows.
        OutputError: an output exists already, or cannot be written.
    """
    target, copy = output_dir / "entry_dict.json", output_dir / f"{PART}.parquet"
    for file in (target, copy):
        check_output(file, "--output")
    dataset = fetch(source)
    found = entries(dataset.to_list())
    output_dir.mkdir(parents=True, exist_ok=True)
    with interruptible(), tempfile.TemporaryDirectory(dir=output_dir) as folder, failures_of_the_disk(output_dir):
        unchecked = Path(folder) / target.name
        unchecked.write_text(json.dumps(found, ensure_ascii=False) + "\n", "utf-8")
        report = check_task_file(unchecked)
        if report.faults:
            faults = "\n".join(map(str, report.faults))
            raise SourceError(f"{source}: these rows have faults; download the data again:\n{faults}")
        if report.num_rows != NUM_TASKS:
            raise SourceError(
                f"{source}: {report.num_rows} rows, expected the {NUM_TASKS} of LifelongAgentBench; give all files"
            )
        with written(copy) as part:
            dataset.to_parquet(str(part))
        unchecked.rename(target)
    report.path = target
    return [*report_lines(report), f"the same rows as on the hub: {copy}", LICENCE]


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description="Fetch LifelongAgentBench's DB-Bench tasks and check them.")
    parser.add_argument("--output", "--output-dir", type=Path, required=True, help="where entry_dict.json goes")
    parser.add_argument(
        "--source", default=HUB_ID, help=f"data set id, or a local parquet file or folder; default {HUB_ID}"
    )
    args = parser.parse_args(argv)
    try:
        lines = convert(args.source, args.output)
    except (SourceError, OutputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0
