"""Which statements run on SQLite, and what CREATE and ALTER may define: stored columns, keys, plain CHECKs.

The authorizer (`sqlite.sandbox`) decides what an allowed statement may touch. SQLite evaluates a schema whenever a
table is read or changed, also for the judge, and does not ask the authorizer then. Therefore a definition may hold only
the nodes listed here. A CHECK may only compare; generated columns, indexes on expressions and defaults that are no
constants are refused.
"""

from __future__ import annotations

from sqlglot import exp

from dbbench_adapter.dialect.syntax import syntax_error, unsupported

_RUN = (exp.Query, exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Drop, exp.Alter, exp.TruncateTable)
# Statements of MySQL or another engine that are refused; a tree of any other type is no statement at all.
_LEFT_OUT = (exp.Command, exp.Describe, exp.Pragma, exp.Attach, exp.Detach, exp.Kill, exp.Analyze)
_CONSTRAINTS = (
    *(exp.NotNullColumnConstraint, exp.PrimaryKeyColumnConstraint, exp.UniqueColumnConstraint, exp.ColumnConstraint),
    *(exp.AutoIncrementColumnConstraint, exp.CommentColumnConstraint, exp.CharacterSetColumnConstraint),
    *(exp.CollateColumnConstraint, exp.OnUpdateColumnConstraint, exp.IndexColumnConstraint, exp.Constraint),
    *(exp.PrimaryKey, exp.ForeignKey, exp.Reference, exp.InvisibleColumnConstraint),
)
_TABLE_PARTS = (
    *(exp.Create, exp.Alter, exp.Schema, exp.Table, exp.Identifier, exp.ColumnDef, exp.DataType, exp.DataTypeParam),
    *(exp.Properties, exp.Property, exp.Index, exp.IndexParameters, exp.Column, exp.ColumnPrefix),
    *(exp.ColumnPosition, exp.Drop, exp.ModifyColumn, exp.RenameColumn, exp.AlterRename, exp.AddConstraint),
    *(exp.AlterColumn, exp.Literal, exp.Var, exp.Null, exp.Boolean),
)
_CONSTANTS = (exp.Literal, exp.Null, exp.Boolean, exp.HexString, exp.BitString)
_MOMENTS = (exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime)
_CHECKED = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.Is, exp.Between, exp.In, exp.Tuple),
    *(exp.And, exp.Or, exp.Not, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Column, exp.Identifier),
    *_CONSTANTS,
)


def refuse_other_kinds(tree: exp.Expr, sql: str) -> None:
    """SHOW, SET, USE and transactions never get here.

    Raises:
        StatementError: the kind is not supported, or `sql` is no statement.
    """
    if not isinstance(tree, _RUN):
        raise unsupported(sql.split(maxsplit=1)[0].upper()) if isinstance(tree, _LEFT_OUT) else syntax_error(sql)


def refuse_definitions(tree: exp.Create | exp.Alter) -> None:
    """The query of CREATE TABLE ... AS is not checked.

    Raises:
        StatementError: the message names what is not supported.
    """
    query = tree.args.get("expression") if isinstance(tree, exp.Create) else None
    for node in tree.walk(prune=lambda node: node is query or isinstance(node, _WITH_VALUES)):
        if isinstance(node, exp.DefaultColumnConstraint | exp.OnUpdateColumnConstraint):
            if not _is_constant(node.this):
                raise unsupported("defaults that are expressions")
        elif isinstance(node, exp.CheckColumnConstraint):
            if not all(isinstance(part, _CHECKED) for part in node.this.walk()):
                raise unsupported("CHECK with more than comparisons")
        elif isinstance(node, exp.ComputedColumnConstraint | exp.GeneratedAsRowColumnConstraint):
            raise unsupported("generated columns")
        elif isinstance(node, exp.Ordered | exp.Where):
            if not (isinstance(node.this, exp.Column) or _is_prefix(node.this)):
                raise unsupported("indexes on expressions")
        elif node is not query and not isinstance(node, _TABLE_PARTS + _CONSTRAINTS):
            raise unsupported(f"{type(node).__name__} in the definition of a table")


_WITH_VALUES = (
    *(exp.DefaultColumnConstraint, exp.OnUpdateColumnConstraint, exp.CheckColumnConstraint),
    *(exp.ComputedColumnConstraint, exp.Ordered, exp.Where),
)


def _is_constant(value: exp.Expr) -> bool:
    value = value.unnest()
    if isinstance(value, exp.Neg | exp.Collate):
        return isinstance(value.this.unnest(), _CONSTANTS)
    return isinstance(value, _CONSTANTS) or (isinstance(value, _MOMENTS) and not value.this)


def _is_prefix(call: exp.Expr) -> bool:
    return isinstance(call, exp.Anonymous) and all(
        isinstance(length, exp.Literal) and length.is_int for length in call.expressions
    )
