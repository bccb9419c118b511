from __future__ import annotations

import json
from typing import Any


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
