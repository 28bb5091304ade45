"""Tell what depends on arrival: on how the topics' records came, and not on the records alone."""

from __future__ import annotations

from enum import StrEnum

from watertable.plan.nodes import (
    Aggregate,
    FinalRows,
    Latest,
    Map,
    OuterStreamJoin,
    Process,
    Root,
    Source,
    Stored,
    Stream,
    StreamJoin,
    StreamStreamJoin,
    Table,
    TableAggregate,
    ToStream,
    WaitingJoin,
)
from watertable.plan.plan import key_of, leaves_of, parents_of, root_of, walk, windows_of
from watertable.plan.scopes import is_change
from watertable.plan.windows import Stretches


class Purity(StrEnum):
    """Tell whether a result follows from the records alone, or also from the recorded cuts between batches."""

    PURE = "pure"
    ARRIVAL = "arrival"


def purity_of(node: Stream | Table, _known: dict[int, Purity] | None = None) -> Purity:
    """Tell whether a node depends on arrival.

    Streaming a table's changes does, where one of its keys may be fed by several partitions, as it is in a join of two topics: each
    batch is put in log order, but the order between batches is that of arrival. So does a stream's look at a table that is not fed by
    the stream's own partitions. Grouping a table's rows doesn't: whatever the order of a row's changes, what they bring and take away
    adds up to the row as it is. Nor does a join of streams: which records pair, or pair with nothing, and at what place, follows
    from the records alone. But what pairs with nothing comes when its window has closed, after others of its partition; so do the rows of a
    suppressed table. A processor with stores depends on arrival unless each key is of one partition; without any, each record is by itself.
    Which version of a table's row a record finds that waits for the table's time follows from the records, too.
    """
    known = {} if _known is None else _known
    if id(node) not in known:
        known[id(node)] = _judged(node, known)
    return known[id(node)]


def _judged(node: Stream | Table, known: dict[int, Purity]) -> Purity:
    if isinstance(node, TableAggregate):
        return purity_of(node.parent.parent, known)
    if any(purity_of(parent, known) is Purity.ARRIVAL for parent in parents_of(node)):
        return Purity.ARRIVAL
    if isinstance(node, ToStream):
        return Purity.PURE if _keeps_partition(root_of(node.parent)) else Purity.ARRIVAL
    if isinstance(node, StreamJoin) and not isinstance(node, WaitingJoin):
        return Purity.PURE if node.on is None and _keeps_partition(root_of(node.right)) and of_one_topic(node) else Purity.ARRIVAL
    if isinstance(node, Process) and node.processor.kept:
        return Purity.PURE if of_one_topic(node) else Purity.ARRIVAL
    return Purity.PURE


def _keeps_partition(root: Root) -> bool:
    if isinstance(root, Latest | Aggregate) and _comes_in_order(root.parent):
        return True
    for leaf in leaves_of(root):
        if isinstance(leaf, TableAggregate):
            return False
        if isinstance(leaf, Aggregate):
            key = key_of(leaf.parent)
            if is_change(leaf.parent) or tuple(e.refs for _, e in leaf.group) != tuple((f"key.{n}",) for n in key.names):
                return False
    return of_one_topic(root)


def _comes_in_order(node: Stream) -> bool:
    """Tell whether final rows come once, or, of stretches of stream time, one stretch after the other."""
    if isinstance(node, Map) and isinstance(node.parent, FinalRows):
        return isinstance(windows_of(node.parent.parent), Stretches)
    return isinstance(node, FinalRows)


def of_one_topic(node: Stream | Table) -> bool:
    """Tell whether all records here are of one topic and have its keys: then those of one key are of one partition, in its order."""
    nodes = tuple(walk(node))
    late = Map | WaitingJoin | OuterStreamJoin | FinalRows
    return not any(isinstance(n, late) for n in nodes) and len({n.topic.name for n in nodes if isinstance(n, Source)}) == 1


def told_out_of_time(node: Stream, _seen: set[int] | None = None) -> ToStream | None:
    """Find what gives records here an event time that doesn't order what they say of a key.

    A Change of an aggregate or a join says what the row is by all records so far, at the event time of one of them.
    """
    seen = set[int]() if _seen is None else _seen
    if id(node) in seen:
        return None
    seen.add(id(node))
    match node:
        case ToStream():
            root = root_of(node.parent)
            return told_out_of_time(root.parent, seen) if isinstance(root, Latest) and not isinstance(root, Stored) else node
        case _:
            above = (told_out_of_time(parent, seen) for parent in parents_of(node) if isinstance(parent, Stream))
            return next((found for found in above if found is not None), None)


def told_by_arrival(node: Stream) -> bool:
    """Tell whether records here say what a row is by all that came before them, whatever their places in log order.

    So do the Changes of a row that several partitions feed, and what a processor makes of what it keeps of a key.
    """
    if purity_of(node) is Purity.PURE:
        return False
    return told_out_of_time(node) is not None or any(isinstance(n, Process) and n.processor.kept for n in walk(node))


def of_records_alone(node: Stream | Table) -> bool:
    """Tell whether each record comes to a node as itself: no table, join or processor on the way puts what came before into it."""
    return not any(isinstance(n, ToStream | StreamJoin | StreamStreamJoin | FinalRows | Process) for n in walk(node))
