"""Addresses of rows on the hub, `hf://ORG/SET[@REVISION][:[CONFIG/]SPLIT]`, and the files that hold them here.

The commit is a part of a file's path, so settings and records that name the file name the revision. Importing this is
instant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FORM = "hf://ORG/SET, hf://ORG/SET:SPLIT, hf://ORG/SET:CONFIG/SPLIT or hf://ORG/SET@REVISION:SPLIT"
# A `Path` keeps one slash of two.
_ADDRESS = re.compile(r"hf://?([\w.-]+/[\w.-]+)(?:@([^:]+))?(?::(?:([^/:]+)/)?([\w.-]+))?", re.ASCII)
_PLACE = re.compile(r"/agentgrpo/([\w.-]+?)--([\w.-]+)/([0-9a-f]{40})/([^/]+)/([\w.-]+)\.jsonl", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The configuration that a set has where it names none, and the split that is read where the user names none.
CONFIG, SPLIT = "default", "train"


@dataclass(frozen=True)
class HubRows:
    id: str
    revision: str | None
    """A branch, tag or commit; None: main."""
    config: str | None
    split: str | None

    @classmethod
    def parse(cls, address: str) -> HubRows:
        """Raises ValueError: the address is not of the form."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ValueError(f"{address} is no address of rows on the hub; expected {FORM}")
        return cls(*match.groups())

    def __str__(self) -> str:
        split = "/".join(filter(None, (self.config, self.split)))
        return f"hf://{self.id}" + (f"@{self.revision}" if self.revision else "") + (f":{split}" if split else "")

    def place(self, cache: Path) -> Path | None:
        """Where the rows of a known commit are, or will be; None if the revision is no commit."""
        if self.revision is None or not _COMMIT.fullmatch(self.revision):
            return None
        folder = cache / self.id.replace("/", "--") / self.revision / (self.config or CONFIG)
        return folder / f"{self.split or SPLIT}.jsonl"


def is_hub_rows(name: object) -> bool:
    return isinstance(name, str | Path) and str(name).startswith("hf:/")


def hub_address(file: object) -> str | None:
    """The address, with the commit, of a file that `HubRows.place` named; None for everything else."""
    match = _PLACE.search(str(file))
    if match is None or match.end() < len(str(file)):
        return None
    org, name, commit, config, split = match.groups()
    return str(HubRows(f"{org}/{name}", commit, None if config == CONFIG else config, split))


def hub_addresses(values: Iterable[object]) -> list[str]:
    return sorted({address for value in values if (address := hub_address(value))})


def shown_name(file: Path) -> str:
    """Name a file of rows without its folder, because models are passed on."""
    return hub_address(file) or file.name
