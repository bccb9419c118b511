"""Words and sentences of the plain tasks, in English.

`WORDS` names tables and columns and fills text cells; every fourth word is held out. `PHRASINGS` holds the questions.
`phrasebook.yaml` lists them; `dbbench_adapter.generator` puts the pieces together and checks the result.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from dbbench_adapter.generate.themes import read_data

_BOOK = read_data("phrasebook")
WORDS: tuple[str, ...] = tuple(_BOOK["words"])
HELD_OUT_WORDS = WORDS[::4]
TRAIN_WORDS = tuple(word for word in WORDS if word not in set(HELD_OUT_WORDS))
PHRASINGS: Mapping[str, Sequence[str]] = _BOOK["phrasings"]
EXTREMES: Mapping[str, str] = _BOOK["extremes"]
SUMMARIES: Mapping[str, str] = _BOOK["summaries"]
COMPARISONS: Mapping[str, str] = _BOOK["comparisons"]

_ONSETS = [*"bcdfghjklmnprstvwz", "st", "tr", "pl", "br", "ch", "sh", "gr", "fl"]
_VOWELS = [*"aeiou", "ai", "ea", "ou"]
_CODAS = ["", "", "n", "r", "s", "t", "l", "m", "ck", "nd"]


def pseudo_word(rng: random.Random) -> str:
    """Make a pronounceable word that is most likely new, from syllables or from halves of two train words.

    A policy that is warm-started on a few hundred real words learns those words; on pseudo-words it learns to copy.
    """
    if rng.random() < 0.5:
        first, second = rng.choice(TRAIN_WORDS), rng.choice(TRAIN_WORDS)
        return first[: rng.randint(2, max(2, len(first) - 2))] + second[-rng.randint(2, max(2, len(second) - 2)) :]
    syllables = rng.randint(1, 3)
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
