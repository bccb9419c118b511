"""Reads JSON that somebody else may have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Like `json.loads`, with one kind of error.

    Raises:
        json.JSONDecodeError: also for brackets that are nested too deeply, where `json.loads` has a RecursionError, and
            for integers of too many digits, where it has another ValueError.
    """
    try:
        return json.loads(text, **options)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None
    except RecursionError:
        raise json.JSONDecodeError("brackets are nested too deep", "", 0) from None
