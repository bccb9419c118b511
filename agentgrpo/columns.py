"""Which columns of a user's rows are read: those of a known form, in any case, or those that `--columns` names.

Nothing is guessed. A row of no known form is refused with the `--columns` to type, and so is a row with a column that
looks like something that would be left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentgrpo.chat.conversations import RowError, short_repr
from agentgrpo.json_text import JsonObject

Columns = Mapping[str, Sequence[str]]
"""The user's columns by what they hold; the texts of several are joined with line breaks."""
# How the last word of a column's name may call what the column holds, of a database the first one. They fill in the
# `--columns` of a refusal, and no column is read by them.
_LIKELY = {
    "question": "question utterance prompt input instruction problem request nl",
    "query": "query sql gold reference target output solution label statement code completion response truth answer",
    "db_id": "db dbname dbid database",
    "evidence": "evidence hint knowledge background context definition note formula glossary term terminology meaning "
    "rule comment remark info doc documentation history interaction previous turn message conversation dialogue",
    "prompt": "prompt question query input instruction context history problem request",
    "completion": "completion answer response output reply solution target",
    "chosen": "chosen preferred better accepted positive winner output",
    "rejected": "rejected dispreferred worse negative loser output",
    "messages": "message conversation dialog dialogue chat turn",
    "system": "system persona",
    "tools": "tool function api plugin",
}
_JOINED = ("question", "evidence", "prompt")
# A column with a schema: the prompt has the database's own.
_SCHEMA = re.compile(r"\s*CREATE\s", re.IGNORECASE)


def parse_columns(text: str | None) -> Columns:
    """Read `question=utterance,evidence=hint+notes`.

    Raises:
        ValueError: a part is not of this form.
    """
    pairs = [part.partition("=") for part in (text or "").split(",") if part.strip()]
    if any(not name.strip() or not held.strip() for name, _, held in pairs):
        raise ValueError(f"--columns {text!r}: expected what=COLUMN, what=COLUMN+COLUMN, separated by commas")
    return {name.strip(): [each.strip() for each in held.split("+")] for name, _, held in pairs}


def known_columns(
    row: object, known: Collection[str], given: Columns, aliases: Mapping[str, str] | None = None
) -> dict[str, object]:
    """The row's columns under the names of `known`, without those that hold nothing.

    Args:
        given: the user's `--columns`, and nothing else is read then.
        aliases: other names of known columns, in lower case.
    Raises:
        RowError: the row is no object, two columns are one, or `given` names nothing that is known.
    """
    if not isinstance(row, dict):
        raise RowError("row", f"expected an object, found {short_repr(row)}")
    if unknown := [name for name in given if name not in known]:
        raise RowError("row", f"--columns {unknown[0]}=...: what is read is {', '.join(known)}")
    if given:
        held = {name: _joined(row, columns) for name, columns in given.items()}
        return {name: value for name, value in held.items() if value is not None}
    found: dict[str, Any] = {}
    for name, value in row.items():
        own = (aliases or {}).get(name.lower(), name.lower()) if isinstance(name, str) else ""
        if own not in known or value is None or (own != name.lower() and not isinstance(value, str | list)):
            continue
        if own in found and _plain(found[own]) != _plain(value):
            raise RowError(name, f"holds something else than another column with {own}; keep one of them")
        found.setdefault(own, value)
    return found


def _joined(row: JsonObject, columns: Sequence[str]) -> object:
    values = [row[column] for column in columns if row.get(column) not in (None, "")]
    if len(values) < 2:
        return values[0] if values else None
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise RowError(columns[0], "columns that --columns joins with + have to hold texts")
    return "\n".join(texts)


def _plain(value: object) -> object:
    return " ".join(value.split()).rstrip("; ") if isinstance(value, str) else value


def no_form(row: JsonObject, forms: Sequence[Sequence[str]], also: Sequence[str] = ()) -> RowError:
    """What to say about a row that has the columns of no form."""
    found = ", ".join(map(short_repr, list(row)[:12])) or "no column"
    expected = ", or ".join(" and ".join(form) for form in forms)
    best = max(forms, key=lambda form: len(_filled(row, form, ())) / len(form))
    return RowError("row", f"found {found}; expected {expected}; name yours: {columns_flag(row, best, also)}")


def check_unread(row: JsonObject, form: Sequence[str], known: Collection[str], guarded: Sequence[str]) -> None:
    """
    Args:
        form: what was read.
        known: names of columns that are read or passed over knowingly, in lower case.
    Raises:
        RowError: another column looks like one of `guarded`; the message has the flags that read it, or leave it out.
    """
    for name, value in row.items():
        if str(name).lower() in known:
            continue
        if (what := next((each for each in guarded if _looks_like(name, value, each)), None)) is not None:
            with_it, without = columns_flag(row, form, [what]), columns_flag(row, form, ())
            raise RowError(
                str(name), f"is not read, and looks like {what}; to read it: {with_it}; to leave it out: {without}"
            )


def columns_flag(row: JsonObject, form: Sequence[str], also: Sequence[str]) -> str:
    filled = _filled(row, form, also)
    parts = [f"{what}={'+'.join(filled.get(what, ['COLUMN']))}" for what in dict.fromkeys((*form, *also))]
    return f"--columns {shlex.quote(','.join(part for part in parts if part.partition('=')[0] in (*form, *filled)))}"


def _filled(row: JsonObject, form: Sequence[str], also: Sequence[str]) -> dict[str, list[str]]:
    own = {str(name).lower(): str(name) for name in row}
    filled: dict[str, list[str]] = {}
    for what in dict.fromkeys((*form, *also)):
        taken = {*own} & {*form} | {name.lower() for names in filled.values() for name in names}
        likely = [n for n in row if str(n).lower() not in taken and _looks_like(n, row[n], what)]
        names = ([own[what]] if what in own else []) + (likely if what not in own or what in also else [])
        if names:
            filled[what] = list(dict.fromkeys(names if what in _JOINED else names[:1]))
    return filled


def _looks_like(name: object, value: object, what: str) -> bool:
    if not value or not isinstance(value, str | list | dict) or (isinstance(value, str) and not value.strip()):
        return False
    words = words_of(str(name))
    if not words or (isinstance(value, str) and _SCHEMA.match(value)):
        return False
    word, likely = words[0 if what == "db_id" else -1], _LIKELY.get(what, "").split()
    return word in likely or word.removesuffix("s") in likely


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
