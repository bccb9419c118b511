"""The model that a user names: in its folder, in the Hugging Face cache, or on the hub. Importing it is instant.

The hub is asked only for a model that the user named by its id, ORG/NAME, and that is not complete in the cache.
Everything else in a run stays offline. Only the revision main is read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from agentgrpo.json_text import parse_json
from agentgrpo.model_kinds import other_kind
from agentgrpo.printed_commands import agentgrpo_command, program_command
from agentgrpo.spelling import did_you_mean

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
# Our commands write to these folders; a name below them is a path, even if nothing exists there yet.
OWN_FOLDERS = ("models", "outputs", "runs")
FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
# Formats of weights; the first one that a model has is fetched.
WEIGHTS = ["*.safetensors", "pytorch_model*.bin"]
# Subfolders hold checkpoints and copies for other software.
BELOW = ["*/*"]
TRAIN = "give the output of agentgrpo reward train or of agentgrpo reward merge"
MAKE = f"make a small one with `{agentgrpo_command('tiny-policy')}`"

# True if this process set HF_HUB_OFFLINE, and not the user.
_set_here = False


class ModelError(ValueError):
    """A model cannot be used; the message says why and what to do."""


class ModelNotFoundError(ModelError):
    """The name is neither a folder nor a model in the cache or on the hub."""


def go_offline() -> None:
    """From here on only `model_folder` asks the hub, unless the user set HF_HUB_OFFLINE=0. Call this before anything
    imports huggingface_hub, which reads the variable at import."""
    global _set_here
    if "HF_HUB_OFFLINE" not in os.environ:
        os.environ["HF_HUB_OFFLINE"] = "1"
        _set_here = True


def user_forbids() -> bool:
    """Whether the user set HF_HUB_OFFLINE, so that nothing may be fetched."""
    from huggingface_hub import constants

    return constants.is_offline_mode() and not _set_here


def model_folder(
    name: str | Path, *, fetch: bool = True, say: Callable[[str], None] | None = None, otherwise: str = MAKE
) -> Path:
    """
    Args:
        name: a folder, or the id of a model on the hub, ORG/NAME.
        fetch: whether the hub may be asked if the model is not complete in the cache.
        say: a function that gets a line before anything is fetched; None writes the line to standard error.
        otherwise: the alternative that the message names if there is no such model.
    Raises:
        ModelNotFoundError: no such folder or model exists, or the hub cannot be reached.
    """
    if Path(name).is_dir():
        return Path(name)
    if Path(name).is_file() and (other := other_kind(Path(name))):
        raise ModelNotFoundError(str(other))
    id = str(name)
    if not may_be_id(id):
        raise ModelNotFoundError(
            f"{id} is no folder; give a model's folder or its id on the hub, ORG/NAME, or {otherwise}"
            f"{did_you_mean(Path(id))}"
        )
    import httpx
    from huggingface_hub import constants

    folder = _cached(id)
    if folder is not None:
        return folder
    meant = did_you_mean(Path(id))
    cache = constants.HF_HUB_CACHE
    nowhere = f"{id} is no folder, and no model of that name is whole in the Hugging Face cache ({cache})"
    download = program_command("hf", "download", id)
    by_hand = f"fetch it elsewhere with `{download}` and bring the folder that it prints, or {otherwise}"
    if "/" not in id:
        raise ModelNotFoundError(
            f"{nowhere}; a model on the hub has an id of two parts, ORG/NAME; or {otherwise}{meant}"
        )
    if not fetch:
        raise ModelNotFoundError(f"{nowhere}; fetch it with `{download}`{meant}")
    if user_forbids():
        raise ModelNotFoundError(f"{nowhere}, and HF_HUB_OFFLINE forbids to fetch it; unset that, {by_hand}{meant}")
    (say or print_error)(f"{nowhere}: fetching it from {constants.ENDPOINT}")
    try:
        return _fetch(id)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{nowhere}, {error}, or {otherwise}{meant}") from None
    except (OSError, httpx.HTTPError) as error:
        cause = error.__cause__ or error
        failed = f"it could not be fetched from {constants.ENDPOINT} ({type(cause).__name__}: {first_line(cause)})"
        raise ModelNotFoundError(f"{nowhere}, and {failed}; look at the network, {by_hand}{meant}") from None


def may_be_id(name: str) -> bool:
    # Old ids such as `gpt2` have one part.
    first = name.split("/", 1)[0]
    whole = HUB_ID.fullmatch(name if "/" in name else f"any/{name}") is not None
    return whole and not ("/" in name and (first in (".", "..", *OWN_FOLDERS) or Path(first).is_dir()))


def _cached(id: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = Path(snapshot_download(id, local_files_only=True, allow_patterns=FILES, ignore_patterns=BELOW))
    except (OSError, HFValidationError):
        return None
    return folder if _is_whole(folder) else None


def _is_whole(folder: Path) -> bool:
    if (folder / "adapter_config.json").is_file():
        return _has_weights(folder)
    named = any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json"))
    return (folder / "config.json").is_file() and named and _has_weights(folder)


def _has_weights(folder: Path) -> bool:
    for index in (folder / "model.safetensors.index.json", folder / "pytorch_model.bin.index.json"):
        if index.is_file():
            try:
                names = set(parse_json(index.read_text("utf-8"))["weight_map"].values())
            except (ValueError, KeyError, AttributeError):
                return False
            return all((folder / name).is_file() for name in names)
    return any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))


def _fetch(id: str) -> Path:
    """
    Raises:
        ModelNotFoundError: the hub has no such model, or refuses access; the message ends with the remedy.
        OSError, httpx.HTTPError: the hub cannot be reached, or the cache cannot be written.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    log_in = f"`{program_command('hf', 'auth', 'login')}`"
    try:
        with online():
            there = [file.rfilename for file in HfApi().model_info(id).siblings or ()]
            weights = next((kind for kind in WEIGHTS if any(fnmatch(file, kind) for file in there)), None)
            if weights is None:
                what = f"at {constants.ENDPOINT} it has no weights of a form that is read here ({', '.join(WEIGHTS)})"
                raise ModelNotFoundError(f"and {what}; take another model")
            return Path(snapshot_download(id, allow_patterns=[*FILES, weights], ignore_patterns=BELOW))
    except GatedRepoError:
        page = f"{constants.ENDPOINT}/{id}"
        raise ModelNotFoundError(f"and its terms have to be accepted; do so at {page}, then {log_in}") from None
    except RepositoryNotFoundError:
        what = f"nor is there one at {constants.ENDPOINT}"
        raise ModelNotFoundError(f"{what}; look at the spelling, and if it is private do {log_in}") from None


@contextmanager
def online() -> Iterator[None]:
    # huggingface_hub reads this constant before each request.
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, False
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def print_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
