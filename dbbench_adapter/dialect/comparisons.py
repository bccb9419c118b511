"""Makes SQLite compare as MySQL does: each comparison by the kinds of its sides, and arguments in their context.

MySQL compares two texts by the collation, anything with a number by number, a date with a text as dates, a time with a
text as times. Where a side's kind is unknown, which only columns can be, the values that SQLite finds decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dbbench_adapter.dialect.functions.dates import moment, seconds_of
from dbbench_adapter.dialect.kind_finder import KindFinder, branches
from dbbench_adapter.dialect.kinds import BINARY, DATE, DATETIME, DOUBLE, NULL, TEXT, Kind, as_number
from dbbench_adapter.dialect.literals import COMPARED, number_of, settle_literals
from dbbench_adapter.dialect.signatures import called
from dbbench_adapter.dialect.syntax import COLLATION, StatementError, call, read_through, unsupported

COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_MATCHES = (exp.Like, exp.RegexpLike)
_COMPARING = (*COMPARED, exp.Case, *_MATCHES)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div)
# SQLite gives these the precedence of a comparison, MySQL a higher one.
_PREDICATES = (exp.In, exp.Between, exp.Like, exp.RegexpLike, exp.Escape, exp.Is, exp.Not)
_SHIFTS = (exp.DateAdd, exp.DateSub, exp.TimestampAdd)
_CONDITIONS = (exp.Where, exp.Having, exp.Not)
_ROWS = (exp.Tuple, exp.Any, exp.All)


def compare(node: exp.Expr, finder: KindFinder) -> None:
    """Make a node compare as in MySQL, in place; other nodes stay as they are.

    Raises:
        StatementError: SQLite cannot compare these kinds as MySQL does.
    """
    if not isinstance(node, _COMPARING):
        return
    settle_literals(node, finder)
    if isinstance(node, COMPARISONS):
        _compare_two(node, finder)
    elif isinstance(node, exp.Between):
        _compare_range(node, finder)
    elif isinstance(node, exp.In):
        _compare_list(node, finder)
    elif isinstance(node, exp.Case) and node.this is not None:
        _compare_case(node, finder)
    elif isinstance(node, exp.Nullif):
        value, other = node.this, node.args["expression"]
        how = exp.Literal.string(_how(finder.kind(value), finder.kind(other)))
        node.replace(call("null_if", how, value, other))
    elif isinstance(node, _MATCHES):
        _match_bytes(node)


def take_arguments(node: exp.Expr, finder: KindFinder) -> None:
    # MySQL takes decimals as texts with all digits, and dates as numbers.
    for condition in _conditions(node):
        _take(condition, "n", finder)
    found = called(node)
    if isinstance(node, exp.Round) and as_number(finder.kind(node.this)) == DOUBLE:
        digits = node.args.get("decimals")
        node.replace(call("round_double", node.this, *([digits] if digits else [])))
    elif isinstance(node, exp.Sum) and finder.kind(node.this) == TEXT:  # SQLite would add whole numbers as such
        put(node.this, lambda value: exp.Cast(this=value, to=exp.DataType.build("double")))
    elif found is not None:
        signature, values = found
        for place, value in enumerate(values):
            if signature.taken(place) == "." and finder.kind(value) == BINARY and not _reads_bytes(node):
                raise unsupported("bytes as an argument of this function")
            _take(value, signature.taken(place), finder)
    elif isinstance(node, exp.Cast) and node.to.is_type(*exp.DataType.TEXT_TYPES):
        _take(node.this, "s", finder)
    elif isinstance(node, exp.Cast) and node.to.is_type(*exp.DataType.NUMERIC_TYPES):
        _take(node.this, "n", finder)
        if finder.kind(node.this) == DOUBLE and node.to.is_type(*exp.DataType.INTEGER_TYPES):
            put(node.this, lambda value: call("round_double", value))
    elif isinstance(node, exp.SetOperation):
        _same_kinds(node, finder)
    elif isinstance(node, _ARITHMETIC):
        for value in (node.this, node.expression):
            _take(value, "n", finder)
    elif chosen := branches(node):
        common = finder.kind(node)
        for value in chosen:
            kind = finder.kind(value)
            if common == TEXT:
                _take(value, "s", finder)
            elif common == DATETIME and kind == DATE:
                put(value, lambda value: call("datetime_of", value))


def _reads_bytes(node: exp.Expr) -> bool:
    return isinstance(node, exp.Nullif) or node.name.lower() == "hex"


def _same_kinds(union: exp.SetOperation, finder: KindFinder) -> None:
    """Write the numbers of one side as texts where the other side has texts.

    Raises:
        StatementError: they are computed decimals, of which MySQL's versions write different digits.
    """
    kinds = finder.kinds_of(union)
    for side in (union.left.unnest(), union.right.unnest()):
        if type(side) is exp.Select and not side.is_star and len(side.selects) == len(kinds):
            for item, kind in zip(list(side.selects), kinds, strict=True):
                own = finder.kind(item)
                if kind != TEXT or own is None:
                    continue
                if own.scale and not isinstance(item.unalias(), exp.Column):
                    raise unsupported("a union of texts and computed decimals")
                _take(item.unalias(), "s", finder)


def _conditions(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.If):
        compared = isinstance(node.parent, exp.Case) and node.parent.this is not None
        return [] if compared else [node.this]
    if isinstance(node, exp.Connector):
        return [node.left, node.right]
    return [node.this] if isinstance(node, _CONDITIONS) else []


def _count_by_origin(value: exp.Expr, kind: Kind | None) -> None:
    """Turn GREATEST and LEAST of texts, in place, to those of the numbers in them, as MySQL does in sums.

    Raises:
        StatementError: it is DATE_ADD of a text, which MariaDB counts as a date and MySQL 8 as a text.
    """
    if kind != TEXT:
        return
    while isinstance(value, exp.Paren | exp.Collate):
        value = value.this
    if isinstance(value, _SHIFTS):
        raise unsupported("DATE_ADD of a text as a number")
    if isinstance(value, exp.Anonymous) and value.name.lower() in ("greatest", "least"):
        value.set("this", f"{value.name.lower()}_number")


def _take(value: exp.Expr, context: str, finder: KindFinder) -> None:
    kind = finder.kind(value)
    if context == "n":
        _count_by_origin(value, kind)
        kind = finder.kind(value)
    if kind is None or kind == NULL:
        return
    if context == "n" and kind == BINARY:
        value.replace(number_of(value.unnest()))
    elif context == "n" and kind.is_temporal:
        put(value, lambda value: call("temporal_number", value))
    elif (context == "t" and kind.is_number and kind.scale) or (context == "s" and kind.is_number):
        digits = [exp.Literal.number(kind.scale)] if kind.name == "decimal" or kind.scale else []
        put(value, lambda value: call("as_text", value, *digits))


# One pair -------------------------------------------------------------------------------------------------------------


def _how(left: Kind | None, right: Kind | None) -> str:
    """How MySQL compares two kinds: `t` texts, `n` numbers, `d` dates, `s` times, `?` as the values turn out.

    Raises:
        StatementError: a time is compared with a date or a number.
    """
    if NULL in (left, right):
        return "t"
    if left is None or right is None:
        return "?"
    if left.is_number or right.is_number:
        if "time" in (left.name, right.name):
            raise unsupported("a comparison of a time with a number")
        return "n"
    if left == right == TEXT:
        return "t"
    names = {left.name, right.name}
    if "time" not in names:
        return "d"
    if names <= {"time", "text"}:
        return "s"
    raise unsupported("a comparison of a time with a date")


def _as(how: str, value: exp.Expr, kind: Kind | None) -> exp.Expr:
    if kind == NULL or how in "t?":
        return value
    if how == "n":
        if kind is not None and kind.is_number:
            return value
        if kind is not None and kind.is_temporal:
            return call("temporal_number", value)
        _count_by_origin(value, kind)
        return exp.Cast(this=value, to=exp.DataType.build("double"))
    read, name, called_name = {
        "d": (moment, "DATETIME", "moment_of"),
        "s": (seconds_of, "TIME", "seconds_of"),
    }[how]
    if isinstance(value, exp.Literal) and read(value.name) is None:
        raise StatementError(f"1525 (HY000): Incorrect {name} value: '{value.name[:80]}'")
    return call(called_name, value)


def _compare_two(node: exp.Expr, finder: KindFinder) -> None:
    left, right = node.this, node.expression
    if isinstance(right, COMPARISONS):  # MySQL reads a = b > c from the left, SQLite and the parser do not
        raise unsupported("comparisons in a row without parentheses")
    for side in (left, right):
        if isinstance(side, _PREDICATES):
            put(side, lambda side: exp.Paren(this=side))
    left, right = node.this, node.expression
    if isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple):
        _compare_rows(left, right, finder)
        return
    if isinstance(left, _ROWS) or isinstance(right, _ROWS):
        return
    kinds = finder.kind(left), finder.kind(right)
    how = _how(*kinds)
    if how == "?":
        if not any(isinstance(side, exp.Column) and finder.is_foreign(side) for side in (left, right)):
            _compare_values(node)
    elif how == "t":
        _collate(node.this, (left, right), finder)
    elif not (how == "d" and kinds[0] == kinds[1]):
        node.set("this", _as(how, left, kinds[0]))
        node.set("expression", _as(how, right, kinds[1]))


def _compare_values(node: exp.Expr) -> None:
    left, right = node.this, node.expression
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        node.set("this", call("same_or_null", left, right))
        node.set("expression", exp.Literal.number(1))
    else:
        node.set("this", call("compare_values", left, right))
        node.set("expression", exp.Literal.number(0))


def _compare_rows(left: exp.Tuple, right: exp.Tuple, finder: KindFinder) -> None:
    if len(left.expressions) != len(right.expressions):
        raise StatementError(f"1241 (21000): Operand should contain {len(left.expressions)} column(s)")
    for first, second in zip(list(left.expressions), list(right.expressions), strict=True):
        kinds = finder.kind(first), finder.kind(second)
        how = _how(*kinds)
        if how == "t":
            _collate(first, (first, second), finder)
        elif how != "?":
            put(first, lambda value, how=how, kind=kinds[0]: _as(how, value, kind))
            put(second, lambda value, how=how, kind=kinds[1]: _as(how, value, kind))


# Several at once ------------------------------------------------------------------------------------------------------


def _compare_range(node: exp.Between, finder: KindFinder) -> None:
    sides = [node.this, node.args["low"], node.args["high"]]
    kinds = [finder.kind(side) for side in sides]
    hows = {_how(kinds[0], kind) for kind in kinds[1:] if NULL not in (kinds[0], kind)}
    if "n" in hows and not any(kind is not None and kind.is_temporal for kind in kinds):
        hows = {"n"}  # one number makes all three numbers
    if "?" in hows or len(hows) > 1:
        each = "".join(_how(kinds[0], kind) for kind in kinds[1:])
        node.replace(call("between_by", exp.Literal.string(each), *sides))
        return
    for how in hows:
        if how == "t":
            _collate(node.this, sides, finder)
        else:
            for name, side, kind in zip(("this", "low", "high"), sides, kinds, strict=True):
                node.set(name, _as(how, side, kind))


def _compare_list(node: exp.In, finder: KindFinder) -> None:
    query = node.args.get("query")
    if query is not None:
        query.set("this", query.unnest())  # SQLite takes a sub-query in two parentheses for a value
        _compare_query(node, query, finder)
    if query is not None or not node.expressions:
        return
    items = node.expressions
    if isinstance(node.this, exp.Tuple):
        _compare_row_list(node, finder)
        return
    left, kinds = finder.kind(node.this), [finder.kind(item) for item in items]
    hows = [_how(left, kind) for kind in kinds]
    distinct = {how for how, kind in zip(hows, kinds, strict=True) if kind != NULL} if left != NULL else set()
    if len(distinct) > 1 or distinct == {"?"}:
        node.replace(call("in_list", exp.Literal.string("".join(hows)), node.this, *items))
    elif distinct == {"t"}:
        _collate(node.this, [node.this, *items], finder)
    else:
        for how in distinct:
            node.set("this", _as(how, node.this, left))
            node.set("expressions", [_as(how, item, kind) for item, kind in zip(items, kinds, strict=True)])


def _compare_row_list(node: exp.In, finder: KindFinder) -> None:
    # Every row has to compare in one way, since the left side is written once.
    width = len(node.this.expressions)
    if not all(isinstance(item, exp.Tuple) and len(item.expressions) == width for item in node.expressions):
        raise StatementError(f"1241 (21000): Operand should contain {width} column(s)")
    for place, left in enumerate(list(node.this.expressions)):
        values = [item.expressions[place] for item in node.expressions]
        kind = finder.kind(left)
        hows = {_how(kind, finder.kind(value)) for value in values}
        if len(hows) > 1:
            raise unsupported("a row compared with texts and numbers in one list")
        how = hows.pop()
        if how == "t":
            _collate(left, (left, *values), finder)
        elif how != "?":
            for value in (left, *values):
                put(value, lambda value, how=how: _as(how, value, finder.kind(value)))


def _compare_query(node: exp.In, query: exp.Expr, finder: KindFinder) -> None:
    inner = query.unnest()
    kinds = finder.kinds_of(inner) if isinstance(inner, exp.Query) else ()
    lefts = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
    if len(kinds) != len(lefts):  # a star, whose columns SQLite compares by their declared types
        if len(lefts) == 1 and not isinstance(lefts[0], exp.Column):
            _collate(lefts[0], (), finder)
        return
    hows = [_how(finder.kind(left), kind) for left, kind in zip(lefts, kinds, strict=True)]
    names = [f"listed_{place}" for place in range(len(kinds))]
    if any(how in "nds" for how in hows):
        values = [_as(how, exp.column(name), kind) for how, name, kind in zip(hows, names, kinds, strict=True)]
        node.set("query", exp.Subquery(this=read_through(inner, "listed_rows", names, values)))
    for left, how in zip(list(lefts), hows, strict=True):
        if how == "t":
            _collate(left, (left,), finder)
        else:
            put(left, lambda value, how=how: _as(how, value, finder.kind(value)))


def _compare_case(node: exp.Case, finder: KindFinder) -> None:
    kind, ifs = finder.kind(node.this), node.args["ifs"]
    kinds = [finder.kind(branch.this) for branch in ifs]
    hows = [_how(kind, other) for other in kinds]
    if set(hows) == {"t"}:
        return  # `queries` sees to it
    if set(hows) == {"n"}:
        node.set("this", _as("n", node.this, kind))
        for branch, other in zip(ifs, kinds, strict=True):
            branch.set("this", _as("n", branch.this, other))
        return
    values = [branch.this for branch in ifs]
    node.set("this", call("first_same", exp.Literal.string("".join(hows)), node.this, *values))
    for place, branch in enumerate(ifs, 1):
        branch.set("this", exp.Literal.number(place))


# ANY and ALL ----------------------------------------------------------------------------------------------------------


def quantified(node: exp.Binary, finder: KindFinder) -> exp.Expr:
    """Turn `x > ANY (SELECT y ...)` into an aggregate over the comparisons with all y, which also tells NULL."""
    query = node.expression.this.unnest()
    if not isinstance(query, exp.Query) or len(query.selects) != 1 or query.is_star:
        raise unsupported("ANY or ALL of this")
    kinds = finder.kind(node.this), next(iter(finder.kinds_of(query)), None)
    how = exp.Literal.string(_how(*kinds))
    order = call("compare_by", how, node.this, exp.column("any_value"))
    fits = type(node)(this=order, expression=exp.Literal.number(0))
    name = "any_is" if isinstance(node.expression, exp.Any) else "all_are"
    return exp.Subquery(this=read_through(query, "any_of", ["any_value"], [call(name, fits)]))


# Texts ----------------------------------------------------------------------------------------------------------------


def _match_bytes(node: exp.Expr) -> None:
    # SQLite's operators LIKE and REGEXP do not see the collation.
    if not any(is_binary(side) for side in (node.this, node.expression)):
        return
    outer = node.parent if isinstance(node.parent, exp.Escape) else node
    escape = [outer.expression] if isinstance(outer, exp.Escape) else []
    name = "like_bin" if isinstance(node, exp.Like) else "regexp_bin"
    sides = [side.this if isinstance(side, exp.Cast | exp.Collate) else side for side in (node.expression, node.this)]
    matched = call(name, *sides, *escape)
    outer.replace(exp.Not(this=matched) if node.args.get("negate") else matched)


def is_binary(value: exp.Expr) -> bool:
    """Whether a value is compared byte by byte: BINARY x, or x COLLATE with a binary collation."""
    value = value.unnest()
    if isinstance(value, exp.Cast):
        return value.to.this == exp.DType.BINARY
    return isinstance(value, exp.Collate) and value.expression.name.lower().endswith(("_bin", "binary"))


def _collate(left: exp.Expr, sides: Sequence[exp.Expr], finder: KindFinder) -> None:
    """Compare without regard to case and accents, unless a side has a collation of its own."""
    own = any(isinstance(side.unnest(), exp.Collate | exp.Tuple) or is_binary(side) for side in sides)
    if not own and not any(isinstance(side, exp.Column) and not finder.is_computed(side) for side in sides):
        put(left, collated)


def collated(value: exp.Expr) -> exp.Collate:
    return exp.Collate(this=exp.paren(value, copy=False), expression=exp.Var(this=COLLATION))


def put(value: exp.Expr, made_of: Callable[[exp.Expr], exp.Expr]) -> None:
    # Other nodes keep their references to the node.
    parent, key, index = value.parent, value.arg_key, value.index
    assert parent is not None and key is not None
    parent.set(key, made_of(value), index=index)
