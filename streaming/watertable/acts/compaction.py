"""Say what a topic that Kafka compacts may lack of what was read from it, and whether a replay can do without.

Of each key such a topic keeps the newest record; of a deletion, after a while, nothing. The law: rows that go by each key's newest record
alone come out the same, from the first record on. So it is of a table of a topic, and of all that is made of the rows of such tables as
they are: filters and columns, joins by key and by foreign key, and groups, whose aggregates go by rows, and by those in the order of their
keys, never of their records. Everything else counts records, or goes by their order.

It supposes what compaction itself does: that the records of a key are in one partition, and that the app has read what Kafka compacts.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from enum import StrEnum
from typing import TYPE_CHECKING

from watertable.plan import nodes
from watertable.plan.plan import walk

if TYPE_CHECKING:
    from watertable.plan.plan import Topology


class Lack(StrEnum):
    """Name what of a compacted topic may be missing that counts, as people read it."""

    RECORDS = "it may hold the newest record of each key alone of what was read, and sums or counts of it become others"
    DELETIONS = "deletions may be gone from it, and rows that were deleted since the fork would stay; from earliest on, it lacks nothing"
    OLDER = "it may hold the newest record of each key alone, and some were refused when they were read: rows of those before them are gone"


def lacks(topology: Topology, compacted: Set[str], *, forked: Set[str], refused: Callable[[], Set[str]]) -> dict[str, Lack]:
    """Say what compacted topics may lack that counts, by topic; those that lack nothing aren't there.

    `forked` names the topics of which a replay goes on from rows that are there; `refused` those of which records couldn't be read.
    """
    counted = by_all(topology)
    found = {name: Lack.RECORDS if name in counted else Lack.DELETIONS for name in compacted if name in forked or name in counted}
    if rest := compacted - found.keys():
        found |= dict.fromkeys(rest & refused(), Lack.OLDER)
    return found


def by_all(topology: Topology) -> frozenset[str]:
    """Name the topics whose records all count: all but those of which nothing but each key's newest does."""
    found = set[str]()
    for root in topology.roots:
        made = list(walk(root))
        grouped = {id(n.parent) for n in made if isinstance(n, nodes.TableAggregate)}
        if not all(id(n) in grouped or _goes_by_rows(n) for n in made):
            found.update(n.topic.name for n in made if isinstance(n, nodes.Source))
    return frozenset(found)


def _goes_by_rows(node: nodes.Stream | nodes.Table) -> bool:
    """Tell whether a node makes something of rows as they are, or is a table of a topic, or that topic."""
    if type(node) is nodes.Latest:
        return isinstance(node.parent, nodes.Source)
    of_rows = nodes.TableFilter | nodes.TableMapValues | nodes.TableJoin | nodes.ForeignJoin | nodes.TableAggregate
    return isinstance(node, nodes.Source | of_rows)
