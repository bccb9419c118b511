from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, object]

# Brackets in one another that are read of requests and of the arguments of a call. Schemas of tools have about 10.
MAX_DEPTH = 64
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_NO_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_STEP = [0] * 256
for _open, _closed in (b"[]", b"{}"):
    _STEP[_open], _STEP[_closed] = 1, -1


def structure(text: bytes) -> bytes:
    """The brackets and commas outside of texts. The text need not be JSON."""
    return _TEXT.sub(b"", text).translate(None, _NO_STRUCTURE)


def depth(structure: bytes) -> int:
    """How many brackets are in one another, without the recursion by which a parser fails."""
    return max(itertools.accumulate(map(_STEP.__getitem__, structure)), default=0)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """`json.loads` with one kind of error.

    Raises:
        json.JSONDecodeError: the text is no JSON; or its brackets are nested too deeply, where `json.loads` raises a
        RecursionError; or an integer has too many digits, where it raises another ValueError.
    """
    try:
        return json.loads(text, **options)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None
    except RecursionError:
        raise json.JSONDecodeError("brackets are nested too deep", "", 0) from None
