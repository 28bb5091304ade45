"""Bound the numbers by which what is made of one record keeps its order, and refuse plans whose numbers don't fit into 64 bits.

Whatever is made of a record stands at the record's place in log order, with a number of its own among the others (`Place.ord`). A step that
makes several of one multiplies the number and counts from there, so order is kept without a look at what else was made; steps
that are nested need room for the product.
"""

from __future__ import annotations

from typing import Final

from watertable.errors import DefinitionError
from watertable.plan import nodes
from watertable.plan.nodes import Stream, Table
from watertable.plan.plan import leaves_of, walk
from watertable.plan.windows import SessionWindows, SlidingWindows
from watertable.processing import MOST

FAN_OUT: Final = 1 << 15
"""Bounds what one record can become in one step; the n-th element of a record comes at `ord * FAN_OUT + n` in log order."""
PAIRS: Final = 1 << 28
"""Bounds the numbers of the pairs of one record: two more steps that fan out still fit behind them."""
TOO_MANY: Final = f"the array has more than {FAN_OUT:,} elements"
"""Says why a record isn't taken apart."""
_LARGEST: Final = 1 << 63


def check_room(end: Stream | Table) -> None:
    """Refuse what needs numbers of more than 64 bits somewhere above its end: raise `DefinitionError` at the first such step."""
    known: dict[int, int] = {}
    for node in walk(end):
        if _room(node, known) > _LARGEST:
            raise DefinitionError(
                f"{node.location}: too many steps that make several records of one follow each other: what keeps their order takes "
                f"{(_room(node, known) - 1).bit_length()} bits here, of 63; write a topic before (to), and go on from it in another app"
            )


def _room(node: Stream | Table, known: dict[int, int]) -> int:
    """Give what the numbers of a node's records, or of a table's Changes, are below; `known` are those of nodes met before."""
    if id(node) not in known:
        known[id(node)] = _made(node, known)
    return known[id(node)]


def _made(node: Stream | Table, known: dict[int, int]) -> int:
    match node:
        case nodes.Source() | nodes.FinalRows():  # a final row has a place of its own
            return 1
        case nodes.FlatMapValues():
            return _room(node.parent, known) * FAN_OUT
        case nodes.Process():
            return _room(node.parent, known) * MOST
        case nodes.MergeStreams():
            return max(_room(parent, known) for parent in node.parents) * len(node.parents)
        case nodes.StreamStreamJoin():
            sides = 2 * max(_room(side, known) for side in (node.left, node.right))  # while they wait, of either side
            return PAIRS if sides <= _LARGEST else sides
        case nodes.Cogroup() | nodes.TableJoin() | nodes.ForeignJoin() | nodes.JoinBuffer():
            leaves = leaves_of(node)
            touched = FAN_OUT if isinstance(node, nodes.ForeignJoin) else 1
            return max(_room(leaf, known) for leaf in leaves) * len(leaves) * touched
        case nodes.TableAggregate():  # a Change is its old row and its new one
            return _room(node.parent, known) * 2
        case nodes.Aggregate() if node.windows is not None:
            told = FAN_OUT if isinstance(node.windows, SessionWindows | SlidingWindows) else 1
            return _room(node.parent, known) * node.windows.per_record * told
        case _:
            return _room(node.parent, known)
