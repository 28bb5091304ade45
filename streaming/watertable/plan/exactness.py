"""Tell what in a table's rows adds up floating point: its last digits depend on the order, which cuts between batches change.

What takes from a group, or from a join, the row that it gave before must find it as it was. So whoever reads the Changes of a table
reads nothing of that; what else is in the rows doesn't matter to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watertable.errors import DefinitionError
from watertable.plan import nodes
from watertable.plan.aggregates import BoundAggregate, SignedField, StateField
from watertable.sql.expressions import Expr


@dataclass(frozen=True, slots=True)
class Inexact:
    """Name the columns of a table that hang on sums of floating point, and those of them by which it has a row or not."""

    columns: frozenset[str] = frozenset()
    rows: frozenset[str] = frozenset()

    def read_by(self, exprs: Iterable[Expr], space: str = "value") -> frozenset[str]:
        """Name those of the columns that one of the expressions reads, as `value.x`, say."""
        return self.columns & {ref.removeprefix(f"{space}.") for expr in exprs for ref in expr.refs if ref.startswith(f"{space}.")}


def inexact(node: nodes.Table) -> Inexact:
    """Tell what in the rows of a table is inexact. What a table keeps of a record stays as it came."""
    match node:
        case nodes.Aggregate() | nodes.TableAggregate():
            return Inexact(frozenset(a.name for a in node.aggregates if not a.exact))
        case nodes.Cogroup():
            return Inexact(frozenset[str]().union(*(inexact(part).columns for part in node.inputs)))
        case nodes.TableFilter():
            above = inexact(node.parent)
            return Inexact(above.columns, above.rows | above.read_by([node.condition]))
        case nodes.TableMapValues():
            above = inexact(node.parent)
            return Inexact(frozenset(name for name, expr in node.columns if above.read_by([expr])), above.rows)
        case nodes.TableJoin():
            left, right = inexact(node.left), inexact(node.right)
            read = (name for name, expr in node.columns if left.read_by([expr], "left") or right.read_by([expr], "right"))
            return Inexact(frozenset(read), left.rows | right.rows)
        case _:
            return Inexact()


def reads_of(aggregates: Iterable[BoundAggregate | StateField]) -> list[Expr]:
    """Give what aggregates, or single fields of states, read of a row that comes and goes."""
    fields = [f for a in aggregates for f in (a.state if isinstance(a, BoundAggregate) else (a,))]
    read = [e for f in fields for e in (f.lift, f.retract if isinstance(f, SignedField) else None)]
    return [expr for expr in read if expr is not None]


def check_exact(table: str, node: nodes.Table, exprs: Iterable[Expr], said: str) -> None:
    """Raise `DefinitionError` where whoever reads this of a table's Changes couldn't take a row back as it gave it."""
    found = inexact(node)
    if names := found.rows | found.read_by(exprs):
        raise DefinitionError(
            f"{said}: {', '.join(sorted(names))} of {table} adds up floating point, whose last digits depend on the order: "
            "a row couldn't leave its group as it entered it; leave it out here, or aggregate a DECIMAL instead"
        )
