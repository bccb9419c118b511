"""Fetches rows of a data set on the hub that the user named by its address (`agentgrpo.hub_address`).

`local_rows` writes one split as JSON Lines into the Hugging Face cache, so that every command reads it as a file of the
user's. Only data files of the set are read: parquet, JSON, JSON Lines and CSV. No code of a set is run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from agentgrpo.hub import first_line, go_offline, online, print_error, user_forbids
from agentgrpo.hub_address import CONFIG, SPLIT, HubRows, hub_address, is_hub_rows
from agentgrpo.outputs import named_path, written
from agentgrpo.printed_commands import program_command
from agentgrpo.row_files import RowFileError, iter_rows
from agentgrpo.spelling import did_you_mean

KINDS = (".parquet", ".json", ".jsonl", ".csv")
_TIMEOUT_S = 30.0
# Another command may be writing the same rows.
_WAIT_S = 600.0

Say = Callable[[str], None]
Config = TypeVar("Config", bound=BaseModel)


def with_local_rows(cfg: Config, begun_with: Sequence[str] = ()) -> Config:
    """The settings with a file in place of each address of rows on the hub.

    Args:
        begun_with: the addresses that the run read which is resumed (`agentgrpo.run_folder.begun_with`); it goes on
            with their revisions.
    Raises:
        RowFileError: see `local_rows`.
    """
    found: dict[str, Any] = {}
    for name in type(cfg).model_fields:
        value = getattr(cfg, name)
        if isinstance(value, BaseModel):
            found[name] = with_local_rows(value, begun_with)
        elif is_hub_rows(value):
            found[name] = type(value)(local_rows(value, begun_with))
    return cfg.model_copy(update={name: value for name, value in found.items() if value != getattr(cfg, name)})


def named_rows(text: str) -> Path:
    """The type of a flag that names a file of rows, or their address on the hub."""
    try:
        return local_rows(named_path(text))
    except RowFileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def local_rows(name: Path | str, begun_with: Sequence[str] = (), say: Say | None = None) -> Path:
    """
    Args:
        name: a file, which is returned as it is, or an address on the hub. Without a revision it is main; without a
            split it is `train`, or the only one.
        begun_with: see `with_local_rows`.
        say: a function that gets a line before anything is fetched; None writes the line to standard error.
    Raises:
        RowFileError: there are no such rows, or they cannot be fetched; the message says what to do.
    """
    if not is_hub_rows(name):
        return Path(name)
    say = say or print_error
    try:
        asked = HubRows.parse(str(name))
    except ValueError as error:
        raise RowFileError(str(error)) from None
    go_offline()
    begun = _begun(asked, begun_with) if asked.revision is None else None
    place = (begun or asked).place(_cache())
    if begun is not None and not user_forbids():
        _say_if_moved(begun, say)
    if place is not None and place.is_file():
        return place
    if user_forbids():
        return _newest(asked, say)
    return _reached(begun or asked, say)


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "agentgrpo"


def _begun(asked: HubRows, begun_with: Sequence[str]) -> HubRows | None:
    read = map(HubRows.parse, begun_with)
    return next((replace(asked, revision=rows.revision) for rows in read if rows.id == asked.id), None)


def _say_if_moved(begun: HubRows, say: Say) -> None:
    import httpx

    try:
        now = _commit(replace(begun, revision=None))
    except (OSError, httpx.HTTPError):  # nobody knows, and the rows are here
        return
    if now != begun.revision:
        say(f"hf://{begun.id} has changed since this run began and is at {now} now; the run continues with {begun}")


def _newest(asked: HubRows, say: Say) -> Path:
    commits = [asked.revision] if asked.revision else ["?" * 40]
    pattern = f"{commits[0]}/{asked.config or CONFIG}/{asked.split or SPLIT}.jsonl"
    found = sorted((_cache() / asked.id.replace("/", "--")).glob(pattern), key=lambda file: file.stat().st_mtime)
    if not found:
        raise RowFileError(
            f"{asked} is not in the Hugging Face cache ({_cache()}), and HF_HUB_OFFLINE forbids to fetch it; unset "
            "that, or name a file"
        )
    say(f"HF_HUB_OFFLINE is set: {hub_address(found[-1])} is read from the cache")
    return found[-1]


# The hub --------------------------------------------------------------------------------------------------------------


@contextmanager
def _online() -> Iterator[None]:
    from datasets import config

    with online():
        before, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, False
        try:
            yield
        finally:
            config.HF_HUB_OFFLINE = before


def _commit(rows: HubRows) -> str:
    from huggingface_hub import HfApi

    with online():
        return str(HfApi().dataset_info(rows.id, revision=rows.revision, timeout=_TIMEOUT_S).sha)


def _reached(rows: HubRows, say: Say) -> Path:
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    log_in = f"`{program_command('hf', 'auth', 'login')}`"
    try:
        return _fetch(rows, say)
    except GatedRepoError:
        page = f"{constants.ENDPOINT}/datasets/{rows.id}"
        raise RowFileError(
            f"{rows}: the terms of the data set have to be accepted; do so at {page}, then {log_in}"
        ) from None
    except RepositoryNotFoundError:
        raise RowFileError(
            f"{rows}: there is no data set {rows.id} at {constants.ENDPOINT}; look at the spelling, and if it is "
            f"private do {log_in}"
        ) from None
    except RevisionNotFoundError:
        raise RowFileError(
            f"{rows}: the data set has no revision {rows.revision}; give a branch, tag or commit"
        ) from None
    except (OSError, httpx.HTTPError) as error:
        cause = error.__cause__ or error
        download = program_command("hf", "download", rows.id, "--repo-type", "dataset")
        raise RowFileError(
            f"{rows} could not be fetched from {constants.ENDPOINT} ({type(cause).__name__}: {first_line(cause)}); "
            f"look at the network, or fetch it elsewhere with `{download}` and name its file"
        ) from None


def _fetch(rows: HubRows, say: Say) -> Path:
    from huggingface_hub import HfApi, constants, hf_hub_download
    from huggingface_hub.utils import WeakFileLock

    commit = _commit(rows)
    place = replace(rows, revision=commit).place(_cache())
    assert place is not None
    if place.is_file():
        return place
    with _online():
        HfApi().auth_check(rows.id, repo_type="dataset")
        split, names = _data_files(rows, commit)
        place = place.with_name(f"{split}.jsonl")
        if place.is_file():
            return place
        say(f"{hub_address(place)}: fetching {len(names)} file{'s' * (len(names) > 1)} from {constants.ENDPOINT}")
        files = [Path(hf_hub_download(rows.id, name, repo_type="dataset", revision=commit)) for name in names]
    place.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(place.with_suffix(".lock"), timeout=_WAIT_S), written(place) as part, part.open("w") as out:
        for name, file in zip(names, files, strict=True):
            out.writelines(json.dumps(row, default=str) + "\n" for row in _rows(file, f"{rows}, {name}"))
    return place


def _data_files(rows: HubRows, commit: str) -> tuple[str, list[str]]:
    """The split to read, and its files' names in the set."""
    from datasets import load_dataset_builder
    from datasets.exceptions import DatasetNotFoundError

    try:
        with tempfile.TemporaryDirectory() as unused:
            builder = load_dataset_builder(rows.id, rows.config, revision=commit, cache_dir=unused)
    except DatasetNotFoundError as error:
        raise error.__cause__ or error from None
    except (FileNotFoundError, RuntimeError) as error:  # no data files, or a program that makes the rows
        raise RowFileError(
            f"{rows}: the data set has no rows in {', '.join(KINDS)} ({first_line(error)}); the hub may have a copy in "
            f"parquet, hf://{rows.id}@refs/convert/parquet"
        ) from None
    except ValueError as error:
        raise _unknown_config(rows, commit, error) from None
    by_split = {str(split): [*map(str, files)] for split, files in (builder.config.data_files or {}).items()}
    split = rows.split or (SPLIT if SPLIT in by_split or len(by_split) != 1 else next(iter(by_split)))
    if split not in by_split:
        raise RowFileError(
            f"{rows}: there is no split {split}; the data set has {', '.join(by_split)}: name one, "
            f"{replace(rows, split=next(iter(by_split)))}{did_you_mean(split, [*by_split])}"
        )
    return split, [_name_in_set(url, rows, commit) for url in by_split[split]]


def _unknown_config(rows: HubRows, commit: str, error: ValueError) -> RowFileError:
    from datasets import get_dataset_config_names

    there = get_dataset_config_names(rows.id, revision=commit)
    if rows.config in there:
        return RowFileError(f"{rows}: {first_line(error)}; name the file itself")
    example = replace(rows, config=there[0], split=rows.split or SPLIT)
    lacking = f"there is no configuration {rows.config}" if rows.config else "the data set has several configurations"
    return RowFileError(
        f"{rows}: {lacking}; name one of {', '.join(there)}: {example}{did_you_mean(rows.config or '', there)}"
    )


def _name_in_set(url: str, rows: HubRows, commit: str) -> str:
    inside = f"hf://datasets/{rows.id}@{commit}/"
    if not url.startswith(inside):
        raise RowFileError(f"{rows}: its rows are elsewhere, in {url}; name a data set that holds them itself")
    if not url.endswith(KINDS):
        raise RowFileError(f"{rows}: {url.removeprefix(inside)} is read nowhere here; expected {', '.join(KINDS)}")
    return url.removeprefix(inside)


def _rows(file: Path, name: str) -> Iterator[Any]:
    if file.suffix == ".csv":
        yield from _table_rows(file, name)
        return
    try:
        for row in iter_rows(file):
            if fault := row.fault():
                raise RowFileError(f"{name}, {fault}")
            yield _without_nulls(row.value) if file.suffix == ".parquet" else row.value
    except RowFileError as error:
        raise RowFileError(str(error).replace(str(file), name)) from None


def _table_rows(file: Path, name: str) -> Sequence[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import csv

    empty = csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=True)
    try:
        table = csv.read_csv(file, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=empty)
    except pa.ArrowInvalid as error:
        raise RowFileError(f"{name}: the table cannot be read ({first_line(error)}); name another set") from None
    return _without_nulls(table.to_pylist())


def _without_nulls(value: Any) -> Any:
    # parquet gives every object the fields of all, as nulls
    if isinstance(value, dict):
        return {name: _without_nulls(held) for name, held in value.items() if held is not None}
    return [_without_nulls(held) for held in value] if isinstance(value, list) else value
