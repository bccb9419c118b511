"""Reads MySQL and prints SQLite with sqlglot: it holds the two dialects, and errors in the words of MySQL's driver.

`rewrites` handles what a statement means, and `allowed_sql` what parses although MySQL refuses it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.tokenizer_core import TokenType

from dbbench_adapter.dialect.functions import FUNCTIONS
from dbbench_adapter.dialect.lexer import tokens
from dbbench_adapter.dialect.signatures import NODES
from dbbench_adapter.dialect.sql_types import sqlite_type
from dbbench_adapter.statement_clock import check_deadline, left_out

COLLATION = "mysql_ci"
# A longer statement is refused; this many characters take at most 0.7 s to parse and print (measured).
MAX_SQL_CHARS = 20_000
_REPLACE = re.compile(r"\s*REPLACE\s+(?:INTO\s+)?", re.IGNORECASE)
_RENAME = re.compile(r"\s*RENAME\s+TABLE\s+(`[^`]+`|\w+)\s+TO\s+(`[^`]+`|\w+)\s*+;?\s*+", re.IGNORECASE)
_OTHERS = (
    "analyze attach call check checksum detach execute explain flush grant handler help kill load lock optimize "
    "prepare purge rename repair replace reset revoke savepoint release set show shutdown start unlock vacuum pragma xa"
)
# MySQL or another engine knows these first words, but sqlglot does not parse such statements; others are errors.
_COMMANDS = frozenset(_OTHERS.split())
# sqlglot raises these over a text; the last three come from rules that expect a part which is missing.
PARSER_ERRORS = (SqlglotError, ValueError, AttributeError, TypeError, LookupError)
_CHANGES = frozenset(["low_priority", "high_priority", "quick"])
# By the word that they follow, the words that change no result.
_HINTS = {
    **dict.fromkeys(["insert", "replace", "update", "delete"], _CHANGES),
    "select": frozenset(["high_priority", "straight_join", "sql_no_cache", "sql_cache", "sql_calc_found_rows"])
    | {"sql_small_result", "sql_big_result", "sql_buffer_result"},
}
_HINT = re.compile("|".join(sorted(set[str]().union(*_HINTS.values()))), re.IGNORECASE)
_COMMA_FROM = re.compile(r",\s*FROM\b", re.IGNORECASE)

# The agent gets the error of an odd statement as its result; the log of the run does not need it.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class StatementError(Exception):
    """The text reads like the driver's."""


def syntax_error(near: str) -> StatementError:
    return StatementError(
        "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your MySQL server "
        f"version for the right syntax to use near '{near[:80]}' at line 1"
    )


def too_deep() -> StatementError:
    return StatementError("1064 (42000): the statement is nested too deeply")


def unsupported(what: str) -> StatementError:
    return StatementError(left_out(what))


def _shifted(node: type[exp.Expr], args: list[exp.Expr]) -> exp.Expr:
    """Read ADDDATE and SUBDATE, which also take a number of days."""
    by = args[1]
    if isinstance(by, exp.Interval):
        return node(this=args[0], expression=by.this, unit=by.args.get("unit"))
    return node(this=args[0], expression=by, unit=exp.Var(this="DAY"))


class _AgentMySQL(MySQL):
    """Parses MySQL, but functions that we register keep their names instead of becoming sqlglot's own nodes.

    On some texts sqlglot goes back over tokens for exponential time, so the deadline is checked when it does.
    """

    class Parser(MySQL.Parser):
        FUNCTIONS = {  # noqa: RUF012
            **{name: make for name, make in MySQL.Parser.FUNCTIONS.items() if name.lower() not in FUNCTIONS},
            "ADDDATE": lambda args: _shifted(exp.DateAdd, args),
            "SUBDATE": lambda args: _shifted(exp.DateSub, args),
        }

        def _retreat(self, index: int) -> None:
            if index != self._index:  # most calls go nowhere
                check_deadline()
                super()._retreat(index)

        def _parse_table_part(self, schema: bool = False) -> exp.Expr | None:
            if self._curr.token_type == TokenType.STRING:  # in MySQL quotes make texts and backquotes make names
                self.raise_error("a text where a table is named")
            return super()._parse_table_part(schema=schema)


_CASTS = {
    **{exp.DType.BIGINT: "cast_signed", exp.DType.UBIGINT: "cast_unsigned"},  # SIGNED, UNSIGNED
    **{exp.DType.DATE: "date_of"},
}


def _cast_sql(generator: SQLite.Generator, node: exp.Cast) -> str:
    value, target = node.this, node.to
    if target.this in _CASTS:
        return generator.func(_CASTS[target.this], value)
    if target.this == exp.DType.DECIMAL:
        params = target.expressions
        scale = params[1].this if len(params) > 1 else exp.Literal.number(0)
        return generator.func("cast_decimal", value, scale, params[0].this if params else exp.Literal.number(10))
    if target.this == exp.DType.BINARY:
        return f"(CAST({generator.sql(value)} AS TEXT) COLLATE BINARY)"
    if target.is_type(*exp.DataType.TEMPORAL_TYPES):
        return generator.func("datetime_of", value)
    name = "REAL" if target.is_type(*exp.DataType.REAL_TYPES) else "TEXT"
    name = "INTEGER" if target.is_type(*exp.DataType.INTEGER_TYPES) else name
    return f"CAST({generator.sql(value)} AS {name})"


def _collate_sql(generator: SQLite.Generator, node: exp.Collate) -> str:
    wanted = node.expression.name.lower()
    collation = "BINARY" if wanted.endswith("_bin") or wanted == "binary" else COLLATION
    return f"{generator.sql(node, 'this')} COLLATE {collation}"


def _on_conflict_sql(generator: SQLite.Generator, node: exp.OnConflict) -> str:
    return f" ON CONFLICT DO UPDATE SET {generator.expressions(node, flat=True)}"


def _trim_sql(generator: SQLite.Generator, node: exp.Trim) -> str:
    # MySQL's TRIM removes a whole text, SQLite's every character of a set.
    end = {"LEADING": "L", "TRAILING": "R"}.get(node.text("position").upper(), "")
    piece = node.expression
    return generator.func(f"{end}TRIM_PIECE" if piece else f"{end}TRIM", node.this, piece)


def _shift(sign: str) -> Callable[[SQLite.Generator, exp.Expr], str]:
    def shift_sql(generator: SQLite.Generator, node: exp.Expr) -> str:
        unit = exp.Literal.string(node.args["unit"].name if node.args.get("unit") else "DAY")
        return generator.func("date_shift", node.this, exp.Literal.string(sign), node.expression, unit)

    return shift_sql


# SQLite calls the functions that these nodes are by the names of their rows.
_OURS = (exp.CurrentUser, exp.Left, exp.Right, exp.Hex, exp.Mod, exp.IntDiv, exp.Substring, exp.Stuff)


def _call_sql(generator: SQLite.Generator, node: exp.Expr) -> str:
    name, parts = NODES[type(node)]
    return generator.func(name, *(node.args.get(part) for part in parts))


class MysqlOnSqlite(SQLite):
    # SQLite reads an unknown name in double quotes as a text, so names stand in backquotes. sqlglot knows dialects by
    # their class names: one called `Sqlite` would take the place of its own.

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS = ["`"]  # noqa: RUF012

    class Generator(SQLite.Generator):
        TRANSFORMS = {  # noqa: RUF012
            **SQLite.Generator.TRANSFORMS,
            exp.Cast: _cast_sql,
            exp.Collate: _collate_sql,
            exp.DateAdd: _shift("+"),
            exp.DateSub: _shift("-"),
            exp.TimestampAdd: _shift("+"),
            exp.Extract: lambda self, node: self.func("date_part", exp.Literal.string(node.name), node.expression),
            exp.OnConflict: _on_conflict_sql,
            exp.Round: lambda self, node: self.func("mysql_round", node.this, node.args.get("decimals")),
            exp.Trim: _trim_sql,
            exp.TimestampDiff: lambda self, node: self.func(
                "timestamp_diff", exp.Literal.string(node.text("unit")), node.expression, node.this
            ),
            **dict.fromkeys(_OURS, _call_sql),
            exp.DataType: lambda self, node: sqlite_type(node.sql("mysql")),
            exp.Xor: lambda self, node: f"(({self.sql(node, 'this')}) <> 0) <> (({self.sql(node, 'expression')}) <> 0)",
        }


_READER, _PRINTER = _AgentMySQL(), MysqlOnSqlite()


def parse_statements(sql: str) -> list[exp.Expr | None]:
    """
    Raises:
        RecursionError: the text is nested too deeply.
        PARSER_ERRORS: the text does not parse; one of these is raised.
        StatementTimeout: parsing takes too long.
    """
    return _READER.parse(sql)


def printed(tree: exp.Expr) -> str:
    """The tree as SQLite's SQL; it may change."""
    return _PRINTER.generate(tree, copy=False, identify=True, unsupported_level=ErrorLevel.IGNORE)


def parse_one(sql: str) -> exp.Expr:
    """Parse exactly one statement.

    Raises:
        StatementError: the text is too long, empty, has several statements or does not parse.
    """
    if len(sql) > MAX_SQL_CHARS:
        raise StatementError(f"1153 (08S01): Got a packet of {len(sql)} characters, at most {MAX_SQL_CHARS} are taken")
    sql = _without_hints(sql)
    renamed = _RENAME.fullmatch(sql)
    replacing = _REPLACE.match(sql)
    if renamed:
        sql = f"ALTER TABLE {renamed[1]} RENAME TO {renamed[2]}"
    elif replacing:  # sqlglot does not read REPLACE
        sql = f"INSERT INTO {sql[replacing.end() :]}"
    elif _COMMA_FROM.search(sql) and _COMMA_FROM.search(_bare_code(sql)):
        raise syntax_error(_COMMA_FROM.split(sql, maxsplit=1)[1])
    try:
        trees = [tree for tree in parse_statements(sql) if tree is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        raise syntax_error(f"{first.get('highlight') or ''}{first.get('end_context') or ''}") from None
    except RecursionError:
        raise too_deep() from None
    except PARSER_ERRORS:
        # MySQL quotes the text that follows an unclosed quote or comment
        raise syntax_error(next((token.text for token in tokens(sql) if token.kind == "unclosed"), sql)) from None
    if not trees:
        raise StatementError("1065 (42000): Query was empty")
    if len(trees) > 1:
        raise syntax_error(trees[1].sql("mysql", unsupported_level=ErrorLevel.IGNORE))
    if replacing and isinstance(trees[0], exp.Insert):
        trees[0].set("alternative", "REPLACE")
    if isinstance(trees[0], exp.Command) and trees[0].name.lower() not in _COMMANDS:
        raise syntax_error(sql)
    return trees[0]


def _without_hints(sql: str) -> str:
    # The parser reads as names the words that only tell MySQL how to run a statement.
    if not _HINT.search(sql):
        return sql
    kept, before = [], ""
    for token in tokens(sql):
        word = token.text.lower() if token.kind == "word" else ""
        if word in _HINTS.get(before, ()):
            continue
        kept.append("JOIN" if word == "straight_join" else token.text)
        before = before if token.kind == "blank" else word
    return "".join(kept)


def _bare_code(sql: str) -> str:
    return "".join(token.text if token.kind in ("word", "sign") else " " for token in tokens(sql))


def nodes_of(tree: exp.Expr) -> list[exp.Expr]:
    """The nodes in the order of `tree.walk()`, in a tenth of its time."""
    found = [tree]
    for node in found:
        for part in node.args.values():
            if type(part) is list:
                found += [each for each in part if isinstance(each, exp.Expr)]
            elif isinstance(part, exp.Expr):
                found.append(part)
    return found


def anonymous_call(name: str, *values: object) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(values))


def read_through(query: exp.Expr, name: str, columns: Sequence[str], values: Sequence[exp.Expr]) -> exp.Select:
    """`WITH name (columns) AS (query) SELECT values FROM name`."""
    alias = exp.TableAlias(this=exp.to_identifier(name), columns=[exp.to_identifier(column) for column in columns])
    outer = exp.select(*values, copy=False).from_(name, copy=False)
    outer.set("with_", exp.With(expressions=[exp.CTE(this=query, alias=alias)]))
    return outer


def unparenthesised(tree: exp.Expr) -> exp.Expr:
    """Remove the parentheses around a query, which SQLite does not read.

    If the parentheses enclose an ORDER BY, a LIMIT or a union, their content becomes a derived table.
    """
    if isinstance(tree, exp.Subquery) and not tree.alias:
        inner = unparenthesised(tree.this)
        if not any(tree.args.get(part) for part in _CLAUSES):
            return inner
        query = as_table(inner)
        for part in _CLAUSES:
            query.set(part, tree.args.get(part))
        return query
    return tree


def unparenthesise_operands(union: exp.SetOperation) -> None:
    for side in ("this", "expression"):
        operand = union.args[side]
        if isinstance(operand, exp.Subquery):
            inner = unparenthesised(operand)
            alone = isinstance(inner, exp.Select) and not any(inner.args.get(part) for part in _CLAUSES)
            union.set(side, inner if alone else as_table(inner))


_CLAUSES = ("order", "limit", "offset")


def as_table(query: exp.Expr) -> exp.Select:
    source = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier("part")))
    return exp.select("*").from_(source, copy=False)
