"""Hold an app's tables against what its records make: read anew by the loaded code, in other batches, beside the app that goes on.

    begin = parity.begins(store, topology)             # as far back as that code goes
    held = parity.hold(store, topology, admin, begin, replay)
    held.apart, held.says

It is a shadow that is compared, as `shadow.diff` does it, and then given up, whatever came of it: readers, the app and its offsets notice
nothing, and its rows go at once. The law: of tables that follow from the records alone no row differs. What depends on arrival is
compared too, and no failure: a replay cuts its batches otherwise.

Where the app has rows of other code it begins after the last commit by that: what is older is taken as it is, and only what was made since
is held. So it is after tables were rebuilt alone, and where commits are gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from watertable.acts import rewind, shadow
from watertable.acts.rewind import Target
from watertable.acts.shadow import Diff
from watertable.errors import NothingToRewind, RewindRefused
from watertable.plan.deployment import Kind, classify
from watertable.settings import BATCH_RECORDS
from watertable.store.commits import JOINED, Position

if TYPE_CHECKING:
    from watertable.kafka.admin import Admin
    from watertable.plan.plan import Topology
    from watertable.store.writer import Store

REASON: Final = "parity"
"""Why its shadow is there, as people read it."""
HELD: Final = "held"
"""In the counters of its shadow's row: one that was left by a process that died is known by it."""


@dataclass(frozen=True, slots=True)
class Held:
    """Say what came of it: the app at a position against what its records from `since` on make; `apart` names the tables that differ.

    Those that depend on arrival aren't among them, nor is what can't be compared row by row; what `found` notes of them says why.
    """

    since: str
    found: Diff

    @property
    def apart(self) -> tuple[str, ...]:
        """Name the tables that have other rows than their records make."""
        return self.found.apart

    @property
    def by_arrival(self) -> tuple[str, ...]:
        """Name those that differ by arrival, or aren't compared row by row."""
        return tuple(t.table for t in self.found.tables if (t.by_arrival and t.rows) or t.note)

    @property
    def says(self) -> str:
        """Say in one line what came of it."""
        records = f"records since {self.since}" if Position.parse(self.since).seq else "records"
        if self.apart:
            has = f"{', '.join(self.apart)} {'has' if len(self.apart) == 1 else 'have'}"
            return f"at {self.found.live}, {has} other rows than the {records} make: one of both is wrong"
        but = f", but for {', '.join(self.by_arrival)}, which can't be held to that" if self.by_arrival else ""
        return f"at {self.found.live}, every table has the rows that the {records} make{but}"


def begins(store: Store, topology: Topology) -> Target:
    """Say from where on an app's rows are the loaded code's alone: earliest, or the last commit by any other code.

    Raises `NothingToRewind` where the app has committed nothing, `RewindRefused` where all that it has is by other code.
    """
    changelog = store.changelog
    snapshot = changelog.snapshot()
    head = changelog.head(snapshot)
    if head.last is None:
        raise NothingToRewind(f"{store.app} at {head.position} has committed nothing: there is nothing to hold its tables against")
    upto = head.position.seq
    others = {code: seq for code, seq in changelog.codes(snapshot, head.lineage, upto).items() if not _is_loaded(store, topology, code)}
    after = max(others.values(), default=0)
    first = changelog.extent(snapshot, head.lineage, 0, upto).first or 1
    if first > 1:
        after = max(after, first)  # whose code was what is gone, nobody knows
    if after:
        joins = (fork.seq + 1 for fork in head.forks if JOINED in fork.counters and head.lineage.holds(fork.epoch, fork.seq + 1))
        after = max(after, *joins, 0)
    if after >= upto:
        raise RewindRefused(
            f"{store.app} at {head.position} has nothing yet that the loaded code {topology.fingerprint} has made by itself: commits up to "
            f"{after:,} are by other code, or are those that tables were rebuilt in"
        )
    return Target("commit", str(after)) if after else Target("earliest")


def hold(
    store: Store, topology: Topology, kafka: Admin, begin: Target, replay: Callable[[], None], *, batch_records: int = BATCH_RECORDS,
    samples: int = shadow.SAMPLES, despite_disk: bool = False,
) -> Held:  # fmt: skip
    """Replay beside the app from a target on, and say what differs; nothing of it stays.

    `replay` brings the shadow to where the app stands. One of these that died, or runs elsewhere, is given up for it. Raises
    `RewindRefused` where somebody has a shadow already, or what is to be read isn't there any more; whatever `replay` raises.
    """
    _clear(store)
    plan = rewind.plan(
        store, topology, kafka, begin, batch_records=batch_records, shadow=True, keep_old_code_before=True, reason=REASON,
        despite_disk=despite_disk,
    )  # fmt: skip
    if thinned := {r.topic: r.compacted for r in plan.ranges if r.thinned}:
        lacking = "; ".join(f"Kafka compacts topic {name}: {lack}" for name, lack in sorted(thinned.items()))
        raise RewindRefused(
            f"{store.app} can't be held against its records {begin}: {lacking}. What is in an archive (archive=True) can be held, "
            "from when it is there on"
        )
    if plan.refusals:
        raise RewindRefused(
            f"{store.app} can't be held against its records {begin}: {'; '.join(plan.refusals)}. What can be had can be held: say from "
            "where on, with --to, --by or --shift-by"
        )
    _, begun = rewind.apply(store, plan, topology.fingerprint, kafka, follow=True, mark=HELD)
    epoch = begun.epoch
    try:
        replay()
        found = shadow.diff(store, topology, samples)
    finally:
        _clear(store, epoch)
    if Position.parse(found.shadow).epoch != epoch:
        raise RewindRefused(
            f"{store.app} is held against its records by another, for which this one was given up: ask again when it has ended"
        )
    if not found.exact:
        raise RewindRefused(
            f"{store.app} was rewound while it was held against its records, or hasn't read partitions that a topic was given: nothing can "
            "be said of it; ask again when it has gone on"
        )
    return Held(plan.fork, found)


def _is_loaded(store: Store, topology: Topology, code: str) -> bool:
    """Tell whether a code keeps what the loaded one does."""
    if code == topology.fingerprint:
        return True
    outline = store.changelog.code(code)
    return outline is not None and classify(outline, topology).kind is Kind.SAME


def _clear(store: Store, epoch: int | None = None) -> None:
    """Give up the shadow that one of these has begun, or the one of this epoch and no other, and drop what it wrote."""
    row = store.head().shadow
    if row is not None and HELD in row.counters and epoch in (None, row.epoch):
        with contextlib.suppress(RewindRefused):  # another of these was quicker
            shadow.abandon(store, REASON, row.epoch)
        store.upkeep.drop(row.epoch)
