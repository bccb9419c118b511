"""JSON that somebody else may have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes, **options: Any) -> Any:
    """As `json.loads`.

    Raises:
        json.JSONDecodeError: also where brackets are nested too deep, for which `json.loads` has a RecursionError.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise json.JSONDecodeError("brackets are nested too deep", "", 0) from None
