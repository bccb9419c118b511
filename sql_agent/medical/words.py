"""The words of invented entries, and of questions and answers about them; `words.yaml` lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from sql_agent.medical.datatypes import Language

_SAID = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
NOTICE: Sequence[str] = _SAID["notice"]
NAMES: Mapping[Language, Mapping[str, Sequence[str]]] = _SAID["names"]
WORDS: Mapping[Language, Mapping[str, Sequence[str]]] = _SAID["words"]
FIELDS: Mapping[Language, Mapping[str, str]] = _SAID["fields"]
LABELS: Mapping[Language, Mapping[str, str]] = _SAID["labels"]
ASK: Mapping[Language, Sequence[str]] = _SAID["ask"]
ANSWER: Mapping[Language, str] = _SAID["answer"]
REFUSALS: Mapping[Language, Sequence[str]] = _SAID["refusals"]
