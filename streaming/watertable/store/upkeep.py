"""Keep a store small and quick: rewrite small files, drop the changelog that nobody can need, delete files that no version has.

Everything here races safely with the writer: its appends are blind, OPTIMIZE changes no row, and a trim drops whole partitions by their
names. One worker per app does it all, after its folds. The law of trimming: what `at=` and `changes` could read before within the
horizon, they can read after; and an epoch never begins where a trim is at work: one of them sees the other, and gives way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from delta.tables import DeltaTable

from watertable import failpoints
from watertable.errors import Fenced, StoreError
from watertable.store.archive import Archives
from watertable.store.bases import BEFORE, Base, base_name, file_bytes, forgets
from watertable.store.changelog import EPOCH_LINE, QUARANTINE_TABLE, past_of
from watertable.store.commits import BUCKET, CommitInfo, FoldMark, Head, Lineage, Position
from watertable.store.deltalog import JVM_ERRORS, DeltaLog, conflict
from watertable.store.reader import Reader
from watertable.store.views import View

if TYPE_CHECKING:
    from watertable.plan.plan import TableDef


_SIZES: Final = "spark.databricks.delta.optimize.minFileSize", "spark.databricks.delta.optimize.maxFileSize"
"""What OPTIMIZE leaves as it is, and how large it makes what it writes."""


class Upkeep:
    """Do the upkeep of one app's store; in the folder's session, at low weight."""

    def __init__(self, reader: Reader, horizon: timedelta, readers: timedelta, archived: Iterable[str] = ()) -> None:
        self._reader, self._horizon, self._readers = reader, horizon, readers
        self._archives = Archives(reader.changelog.spark, reader.changelog.warehouse, archived)

    def maintain(self, consumers: Iterable[Position] = (), *, vacuum: bool = True) -> int:
        """Trim, then OPTIMIZE changelog and tables, then VACUUM them; give the number of the first bucket that's kept."""
        kept = self.trim(consumers)
        self.optimize()
        if vacuum:
            self.vacuum()
        return kept

    def optimize(self) -> None:
        """Rewrite small files as large ones: those of the changelog by epoch, table and bucket, those of each table.

        Of a table, as files of the size that it's worth, and what is an eighth of that is left alone: for each row that changes, a round
        would else write all of it anew, and what it was stays for the horizon. Of one of windows, the last would be among all the others.
        """
        for log in self._logs():
            try:
                with nullcontext() if log is self._reader.changelog.log else _short_files(log):
                    DeltaTable.forPath(log.spark, log.path).optimize().executeCompaction()
            except JVM_ERRORS as error:
                if conflict(error) is None:
                    raise  # a fold or a trim was quicker: the next round finds what is left
        for archive in self._archives:
            archive.optimize()
        failpoints.hit("upkeep.after_optimize")

    def vacuum(self) -> None:
        """Delete the files that no version within the horizon holds, and what of the tables' logs is older.

        A table was made under the horizon that was set then; it is told of another one first. A short log is for whoever looks at it for
        the first time: Delta lists the folder then, and at each checkpoint.
        """
        for log in self._logs():
            kept = self._readers
            if log is not self._reader.changelog.log:
                kept = self._horizon + BEFORE
                log.describe(past_of(kept))
            DeltaTable.forPath(log.spark, log.path).vacuum()
            log.clean(kept)
        for archive in self._archives:
            archive.vacuum()
            archive.log.clean(self._readers)
        failpoints.hit("upkeep.after_vacuum")

    def trim(self, consumers: Iterable[Position] = (), *, now: datetime | None = None) -> int:
        """Drop the changelog's oldest buckets; give the number of the first that's kept of the app's own lineage.

        Kept is every commit from the least of these on: the first one within the horizon; that of the oldest base that a position within
        the horizon reads from, since what tells of the base is beside it, or of a table that is read there from nothing the last one before
        it was kept, which tells that; the first tombstone that it needs; every consumer's position (publishers, readers of changes). So it
        is along the app's own lineage, and along that of each epoch that was left within the horizon, to which an undo leads back. Beside
        them all that a shadow has written, and what it is read with: what came before its fork, from the base before that on; and what the
        app's own lineage has quarantined, whose bytes may be nowhere else. What begins while this is at work is nobody's to trim.
        """
        view = self._reader.view()
        head, oldest = view.head, _before(now or datetime.now(UTC), self._horizon)
        marks = [m for row in self._reader.changelog.rows(view.snapshot, "c.kind = 'fold'") for m in row.folds]
        own = min([self._limit(view, marks, oldest), *(p.seq + 1 for p in consumers)])
        limits = dict.fromkeys((row.epoch for row in (*head.forks, *head.shadows)), own) | {1: own}

        def keep(lineage: Lineage, least: int) -> None:
            limits.update({span.epoch: min(limits[span.epoch], least) for span in lineage.spans})

        for epoch in (epoch for epoch, row in head.left.items() if row.commit_time >= oldest):
            end = self._reader.changelog.head(view.snapshot, epoch=epoch).position
            least = 0
            with suppress(StoreError):  # it may be of code that keeps other states, under which it can be gone back to
                least = self._limit(self._reader.view(at=end), marks, oldest)
            keep(head.lineage_of(epoch), least)
        if (shadow := head.shadow) is not None:
            limits[shadow.epoch] = 0
        if shadow is not None and shadow.fork:
            with suppress(StoreError):  # one that outlived its base can't be read any more, and needs nothing
                forked = self._reader.view(at=Position(view.position.app, shadow.epoch, shadow.fork))
                # where nothing was folded by then, it is read with all there is from the first commit on
                keep(forked.lineage, min((n for b in forked.bases.values() for n in (b.seq or 1, b.tombstones_from) if n), default=own))
        failpoints.hit("trim.before_delete")
        ours = {span.epoch for span in view.lineage.spans}
        goes = [f"(epoch = {epoch} AND bucket < {limit // BUCKET})" for epoch, limit in sorted(limits.items()) if limit >= BUCKET]
        if goes:
            spared = f"(`table` <> '{QUARANTINE_TABLE}' OR epoch NOT IN ({', '.join(map(str, sorted(ours)))}))"
            where = f"bucket >= 0 AND {spared} AND ({' OR '.join(goes)})"
            if self._note_what_goes(view, where):
                self._drop(where, head)
        failpoints.hit("trim.after_delete")
        return min(limits[epoch] for epoch in ours) // BUCKET

    def _limit(self, view: View, marks: Sequence[FoldMark], oldest: datetime) -> int:
        """Give the first commit that has to be kept along a view's lineage, for positions up to it that are not older than a time."""
        first = self._reader.changelog.first(
            view.snapshot, view.lineage, 0, view.position.seq, lambda info: info.commit_time >= oldest
        )  # fmt: skip
        wanted = view.position.seq if first is None else first.seq
        limits = [wanted]
        for name, base in view.bases.items():
            table = self._reader.tables[name]
            known = [m for m in marks if m.table == base_name(table) and view.lineage.passes(m.epoch, m.seq)]
            if (read := self._oldest_base(table, base, known, wanted, view)) is None:  # all that came to it, and what tells since when
                limits.append(self._reader.begun(table, view.lineage.of_table(name, wanted), wanted, view.snapshot))
                continue
            limits.append(read)  # with its own commit, beside which its fold is noted
            if forgets(table):  # those that it needs: later ones need what came later
                limits.append(max((m.tombstones_from for m in known if m.seq <= read), default=0))
        return min(limits)

    def drop(self, epoch: int) -> None:
        """Drop all that a shadow has written that was given up, but for the rows that say so; where another is quicker, trims do it."""
        head = self._reader.changelog.head()
        if not any(row.parent == epoch for row in (*head.forks, *head.shadows)):
            self._drop(f"bucket >= 0 AND epoch = {epoch}", head)

    def _drop(self, where: str, head: Head) -> None:
        """Drop rows by their partitions, as nobody needed them where the app stood.

        Where an epoch or a shadow has begun or ended since, or somebody changes the same files meanwhile, it is left to the next trim.
        """
        try:
            self._reader.changelog.log.drop(where, line=EPOCH_LINE, number=head.position.epoch, since=head.version)
        except Fenced:
            return
        except JVM_ERRORS as error:
            if conflict(error) is None:
                raise

    def _note_what_goes(self, view: View, goes: str) -> bool:
        """Write where no trim takes it what of the commits that go is needed for longer: advances, and where the app began to read.

        A replay of an archive reaches back further than the horizon, and what the app never read can't be lost to it. False where a start
        that adds columns has won, and they are to stay until the next trim.
        """
        changelog, ids = self._reader.changelog, view.commit.topic_ids if view.commit else {}
        advances = changelog.advances(ids, goes)
        begins, noted = self._reader.begins(view.snapshot, view.lineage, goes)
        info = CommitInfo(
            kind="advances", epoch=view.lineage.epoch_of(1), seq=1, begin={} if noted else begins, topic_ids=ids, advances=advances
        )  # fmt: skip
        return not (info.advances or info.begin) or changelog.note(info, "what is trimmed")

    def _oldest_base(self, table: TableDef, base: Base, marks: Sequence[FoldMark], wanted: int, view: View) -> int | None:
        """Give the seq of the newest base at or below the first commit wanted, else of the oldest that can still be read.

        None where there is none at or below it and the table is read there from nothing, as all that came to it is kept.
        """
        log, known = self._reader.log(base_name(table)), [(m.seq, m.version) for m in marks]
        for seq, version in sorted((m for m in known if m[0] <= wanted), reverse=True)[:1]:
            if log.at(version) is not None:
                return seq
        if base.seq > wanted and self._reader.is_whole(table, view.lineage.of_table(table.name, wanted), wanted, view.snapshot):
            return None
        above = (seq for seq, version in sorted(known) if seq > wanted and log.at(version) is not None)
        return next(above, base.seq)  # each version is a look at the log, and there is a fold in each half minute

    def _logs(self) -> list[DeltaLog]:
        logs = [self._reader.log(name) for t in self._reader.tables.values() for name in dict.fromkeys((base_name(t), t.name))]
        return [log for log in (self._reader.changelog.log, *logs) if log.exists()]


def _before(now: datetime, horizon: timedelta) -> datetime:
    """Give the time at which a horizon ends; the first that there is where it ends before that."""
    first = datetime.min.replace(tzinfo=UTC)
    return now - horizon if horizon < now - first else first


@contextmanager
def _short_files(log: DeltaLog) -> Iterator[None]:
    """Have a table optimized to files of a part of its size, as folds write them of windows, and what is an eighth of one left alone."""
    newest = log.latest()
    most = file_bytes(newest.bytes if newest else 0)
    for name, size in zip(_SIZES, (most // 8, most), strict=True):
        log.spark.conf.set(name, size)
    try:
        yield
    finally:
        for name in _SIZES:
            log.spark.conf.unset(name)
