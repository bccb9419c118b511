"""Checkpoints with a signature: a record names every file with its hash and is signed with the user's key.

Resuming from a checkpoint unpickles files (verl and torch do so), and a pickle is a program that runs when it is
loaded. Therefore only files that this user wrote are loaded: they belong to the user, not everybody may write to their
folder, and a record with the user's signature (HMAC-SHA256) names all of them. `agentgrpo accept` signs a folder that
the user trusts. It does not protect against other programs of the same user. Imports nothing heavy.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import shlex
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.json_text import parse_json
from agentgrpo.machine import settings_folder
from agentgrpo.printed_commands import agentgrpo_command

log = logging.getLogger(__name__)

Record = dict[str, Any]
SIGNATURE = "signature"
KEY_BYTES = 32


class NotOursError(ValueError):
    """This user did not write the checkpoint, or nothing proves it; the message says what to do."""


def key_file() -> Path:
    return settings_folder() / "key"


def user_key() -> bytes:
    """The first call makes the key.

    Raises:
        NotOursError: the key cannot be made or read, or others can read it.
    """
    path = key_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_key(path)
        mode, key = path.stat().st_mode, bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise NotOursError(
            f"the key that signs checkpoints, {path}, cannot be made or read ({type(error).__name__}: {error}); set "
            "XDG_CONFIG_HOME to a folder of yours that stays"
        ) from None
    if mode & 0o077 or len(key) != KEY_BYTES:
        raise NotOursError(
            f"the key that signs checkpoints, {path}, has to be {2 * KEY_BYTES} hexadecimal digits that nobody else "
            f"can read; remove it, and the next run makes another (`{accept_command('RUN_DIR')}` signs with it)"
        )
    return key


def _make_key(path: Path) -> None:
    handle, part = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(KEY_BYTES))
        os.link(part, path)
        log.warning("made %s, which signs checkpoints: keep it, a run goes on only where its key is", path)
    except FileExistsError:
        pass
    finally:
        os.unlink(part)


# Writing --------------------------------------------------------------------------------------------------------------


def files_in(folder: Path, record: str) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file by its path in the folder, without the record itself."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / record)
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in paths
    }


def signed(record: Mapping[str, Any]) -> Record:
    return {**record, SIGNATURE: _signature(record)}


def seal(folder: Path, name: str, facts: Mapping[str, Any]) -> None:
    part = folder / f"{name}.part"
    part.write_text(json.dumps(signed({**facts, "files": files_in(folder, name)}), indent=2) + "\n")
    part.replace(folder / name)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _signature(record: Mapping[str, Any]) -> str:
    facts = {name: value for name, value in record.items() if name != SIGNATURE}
    # JSON changes numbers and names, so they go through it once before they are signed
    text = json.dumps(json.loads(json.dumps(facts)), sort_keys=True, separators=(",", ":"))
    return hmac.new(user_key(), b"agentgrpo checkpoint\n" + text.encode(), "sha256").hexdigest()


# Reading --------------------------------------------------------------------------------------------------------------


def read_record(folder: Path, name: str) -> Record | str:
    try:
        record = parse_json((folder / name).read_text())
        {path: (about["bytes"], about["sha256"]) for path, about in record.get("files", {}).items()}
    except FileNotFoundError:
        return f"{name} is missing, so it was not written to its end"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{name} cannot be read ({type(error).__name__}: {error})"
    return record


def why_not_loadable(folder: Path, name: str, *, run_dir: Path) -> str | None:
    """
    Args:
        name: the name of its record.
        run_dir: the folder of the run, which contains the checkpoint.
    Raises:
        NotOursError: the checkpoint has a record, but this user did not write it.
    """
    record = read_record(folder, name)
    if isinstance(record, str):
        return record
    check_ours(folder, name, record, run_dir=run_dir)
    return check_record_files(folder, record)


def check_ours(folder: Path, name: str, record: Record, *, run_dir: Path) -> None:
    """
    Args:
        record: the content of `folder/name`.
        run_dir: the folder of the run, which contains this one.
    Raises:
        NotOursError: a file belongs to another user, may be changed by everybody, or is not signed by this user.
    """
    check_owner(folder, run_dir=run_dir)
    sent, expected = str(record.get(SIGNATURE, "")), _signature(record)
    if not hmac.compare_digest(sent.encode(), expected.encode()):
        how = "bears another signature than this user's" if sent else "is not signed"
        raise NotOursError(
            f"{folder / name} {how}, and to go on from a checkpoint runs the programs that its pickles are. Did you "
            f"write it on another machine? Then copy {key_file()} from there. `{accept_command(run_dir)}` signs it if "
            "you trust whoever wrote it"
        )
    present = {str(path.relative_to(folder)) for path in _all_in(folder) if not path.is_dir()}
    if unknown := sorted(present - {name, *record["files"]}):
        raise NotOursError(f"{folder} holds what {name} does not name: {', '.join(unknown[:5])}; move it away")


def check_owner(folder: Path, *, run_dir: Path) -> None:
    """Raises NotOursError: something in `folder`, or above it up to `run_dir`, does not belong to this user alone."""
    above = [folder, *(path for path in folder.parents if path.is_relative_to(run_dir))]
    owner, everybody = _ownership(folder)
    for path, about in [*((path, path.stat()) for path in above), *((path, path.lstat()) for path in _all_in(folder))]:
        if about.st_uid != owner:
            what = f"belongs to user {about.st_uid}, not to you ({owner})"
        elif not (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)):
            what = "is no plain file"
        elif about.st_mode & everybody and not _is_sticky(about.st_mode):
            what = "may be written by everybody"
        else:
            continue
        raise NotOursError(
            f"{path} {what}, and to go on from a checkpoint runs the programs that its pickles are. If you trust "
            f"whoever wrote it: `cp -rL {shlex.quote(str(run_dir))} COPY`, then `{accept_command('COPY')}`"
        )


def accept_command(run_dir: Path | str) -> str:
    return agentgrpo_command("accept", run_dir)


def check_record_files(folder: Path, record: Record, *, hashes: bool = True) -> str | None:
    """
    Args:
        hashes: False compares sizes only, without reading the files.
    """
    try:
        for name, expected in record["files"].items():
            size = (folder / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes, expected {expected['bytes']}"
        for name, expected in record["files"].items() if hashes else ():
            if file_sha256(folder / name) != expected["sha256"]:
                return f"{name} holds something else than was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except OSError as error:
        return f"a file cannot be read ({type(error).__name__}: {error})"
    return None


def _all_in(folder: Path) -> list[Path]:
    found = os.walk(folder)
    return [Path(place, name) for place, folders, files in found for name in (*folders, *files)]


def _is_sticky(mode: int) -> bool:
    return stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)


def _ownership(folder: Path) -> tuple[int, int]:
    """Owner that files of this user get there, and the mode bit that marks files that everybody may write. Some file
    systems give every file to one user, or make every file writable for everybody; then the bit is 0.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:  # mode 0600
            about = os.fstat(probe.fileno())
    except OSError:  # the folder is read-only
        return os.geteuid(), stat.S_IWOTH
    return about.st_uid, stat.S_IWOTH & ~about.st_mode
