"""Say which names an expression may use, by the node that it is written at."""

from __future__ import annotations

from watertable.plan.nodes import Expect, Filter, MergeStreams, Peek, Repartition, Stream, Table, ToStream
from watertable.plan.plan import WINDOW, key_of, value_of, windows_of
from watertable.schema import Schema
from watertable.sql.expressions import Scope


def is_change(node: Stream) -> bool:
    """Tell whether the stream carries Changes, with `old` and `new`, rather than plain records."""
    match node:
        case ToStream():
            return True
        case Filter() | Expect() | Peek() | Repartition():
            return is_change(node.parent)
        case MergeStreams():
            return is_change(node.parents[0])
        case _:
            return False


def scope_of(node: Stream | Table) -> Scope:
    """Give the names that an expression on this node's records, Changes or rows may use."""
    spaces: dict[str, Schema] = {"key": key_of(node)}
    if windows_of(node):
        spaces["window"] = WINDOW
    if isinstance(node, Table) or not is_change(node):
        return Scope({"value": value_of(node), **spaces}, bare=("value", "key"), udfs=not isinstance(node, Table))
    return Scope({"new": value_of(node), "old": value_of(node), **spaces}, bare=("new", "key"), udfs=True)


def join_scope(left: Table, right: Table) -> Scope:
    """Give the names that the columns of a join may use; a bare name is a key column."""
    spaces = {"left": value_of(left), "right": value_of(right), "key": key_of(left)}
    return Scope(spaces | ({"window": WINDOW} if windows_of(left) else {}), bare=("key",))


def lookup_scope(stream: Stream, right: Table) -> Scope:
    """Give the names that the columns of a stream's join with a table may use: the stream's, and `right`."""
    scope = scope_of(stream)
    return Scope({**scope.namespaces, "right": value_of(right)}, scope.bare, udfs=True)


def pair_scope(left: Stream, right: Stream) -> Scope:
    """Give the names that the columns of a join of streams may use; a bare name is a key column."""
    return Scope({"left": value_of(left), "right": value_of(right), "key": key_of(left)}, bare=("key",), udfs=True)
