"""Work beside a running app: `Folding` keeps the tables close behind the changelog, `Courier` brings to Kafka what commits hold.

Neither holds anything that isn't in the changelog, so either may die at any point and be begun again: a fold is found by its
transaction, what was published by the place in the producer's own. Each is one thread with a Spark session of its own, at low weight
beside the stream's. A worker that fails stops the run, through `check`; what Kafka refuses or doesn't answer only makes the courier late.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from watertable.errors import Fenced, KafkaError, StoreError, WatertableError
from watertable.kafka.publisher import OutboxPublisher, OutboxRow, Place, Published, publish_anew, published
from watertable.runtime.events import DaysTouched, Folded, Listener, TableFolded
from watertable.session import UPKEEP_POOL, job_group
from watertable.store.commits import Position

if TYPE_CHECKING:
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster
    from watertable.store.changelog import Outgoing
    from watertable.store.commits import Head, Lineage, Offsets
    from watertable.store.deltalog import Snapshot
    from watertable.store.touched import Touched
    from watertable.store.views import Known
    from watertable.store.writer import Store

_log = logging.getLogger(__name__)
_CLOSE: Final = 5.0
_AGAIN: Final = 3.0
_OUTAGE: Final = 60.0

Consumers = Callable[[], Iterable["Position"]]
"""Tell from which positions on somebody still reads the changelog, so that no trim takes it away."""


class Worker:
    """Run `_work` in a thread each time there is some, until closed."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"watertable-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread, its Spark jobs cancelled; what it was doing is left undone."""
        self._closed.set()
        self._wake.set()
        deadline = time.monotonic() + _CLOSE
        while self._thread.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                self._cancel()
            self._thread.join(0.2)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._wake.wait(self._patience())
                self._wake.clear()
                if not self._closed.is_set():
                    self._work()
        except BaseException as error:
            if not self._closed.is_set():
                self._error = error

    def _patience(self) -> float | None:
        return None

    def _work(self) -> None:
        raise NotImplementedError

    def _cancel(self) -> None:
        """Cancel the thread's Spark jobs."""


def next_round(began: float, ended: float, every: float) -> float:
    """Say when to fold next: `every` seconds after the last round began, and not before the stream had as long for itself as that took.

    >>> next_round(began=100, ended=110, every=30), next_round(began=100, ended=125, every=30)
    (130, 150)
    """
    return max(began + every, 2 * ended - began)


class Folding(Worker):
    """Fold each table at least once per interval, at once when too many rows wait, and tidy up now and then."""

    def __init__(
        self, store: Store, fold_seconds: float, tail_rows: int, tidy_seconds: float, emit: Listener, consumers: Consumers,
        touched: Touched | None = None,
    ) -> None:  # fmt: skip
        super().__init__("fold")
        self._touched = touched
        self._consumers = consumers
        self._store, self._every, self._bound, self._tidy_every, self._emit = store, fold_seconds, tail_rows, tidy_seconds, emit
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}
        self._oldest: float | None = None  # when the oldest commit was made that waits for a fold
        self._underway: float | None = None  # and that of those that are being folded
        self._known: Known | None = None
        self._due = self._tidy_due = 0.0
        self._finishing = self._tidying = False

    @property
    def tail(self) -> int:
        """Give the number of rows that wait for the fold of one table, at most."""
        with self._lock:
            return max(self._waiting.values(), default=0)

    @property
    def unfolded(self) -> float:
        """Give the age in seconds of the oldest commit whose fold hasn't ended; 0.0 when all are folded."""
        with self._lock:
            oldest = self._oldest if self._underway is None else self._underway
        return 0.0 if oldest is None else max(0.001, round(time.monotonic() - oldest, 3))

    def waiting(self, known: Known, rows: Mapping[str, int]) -> None:
        """Hear of a commit from its writer, and of how many rows it added to each table's tail."""
        with self._lock:
            self._known = known
            self._oldest = self._oldest or time.monotonic()
            for table, count in rows.items():
                self._waiting[table] = self._waiting.get(table, 0) + count
        if self.tail > self._bound:
            self._wake.set()

    def hurry(self) -> None:
        """Fold what was committed as soon as that can be, and not only when the interval is over."""
        self._due = time.monotonic()
        self._wake.set()

    def finish(self, stop: threading.Event) -> None:
        """Fold all there is, now; return when it's done, or as soon as a stop is asked for."""
        self._idle.clear()  # first: else a round that sees the flag at once could end before it is waited for
        self._finishing = True
        self._await(stop)

    def tidy(self, stop: threading.Event) -> None:
        """Tidy up now, whenever that was done before; return when it's done, or as soon as a stop is asked for."""
        self._idle.clear()
        self._tidying = True
        self._await(stop)

    def _await(self, stop: threading.Event) -> None:
        self._wake.set()
        while not self._idle.wait(0.1) and self._thread.is_alive() and not stop.is_set():
            pass

    def _patience(self) -> float:
        now = time.monotonic()
        self._due = self._due or now + self._every
        self._tidy_due = self._tidy_due or now + self._tidy_every
        return max(0.0, min(self._due, self._tidy_due) - now)

    def _work(self) -> None:
        now, finishing = time.monotonic(), self._finishing  # a fold that began before the end was asked for may lack the last commit
        tidying = self._tidying
        if finishing or now >= self._due or self.tail > self._bound:
            self._fold(beside=not finishing)
            self._due = next_round(now, time.monotonic(), self._every)
        if tidying or (now >= self._tidy_due and not finishing):
            with self._group("tidy"):
                self._store.upkeep.maintain(self._consumers())
            self._tidy_due = time.monotonic() + self._tidy_every
        if finishing or tidying:
            self._finishing = self._tidying = False
            self._idle.set()

    def _fold(self, *, beside: bool) -> None:
        with self._lock:
            oldest = self._underway = self._oldest
            self._oldest, self._waiting, known = None, {}, self._known
        if known is None:
            return  # nothing was ever committed
        began = time.monotonic()
        with self._group("fold"):
            done = self._store.fold_all(known, self._closed.is_set, beside=beside)
        with self._lock:
            self._underway = None
        if done:
            lag = 0.0 if oldest is None else time.monotonic() - oldest
            folded = str(known.position)
            shown = {name: fold for name, fold in done.items() if not name.startswith("__")}  # the buffers of joins are nobody's tables
            tables = {name: TableFolded(version=fold.mark.version, folded=folded, ms=fold.ms) for name, fold in shown.items()}
            self._emit(Folded(tables=tables, fold_ms=_ms(began), fold_lag_s=round(lag, 3), unfolded_s=self.unfolded))
        if self._touched is not None and self._touched.told != known.position and not self._closed.is_set():
            with self._group("days"):
                days = self._touched.upto(known.position, known.head.lineage)
            reached = self._touched.reached(known.head.last)
            self._emit(DaysTouched(position=str(known.position), stream_time=reached, days=days, lineage=known.head.lineage))

    def _group(self, what: str) -> contextlib.AbstractContextManager[object]:
        return job_group(self._store.spark, self._group_id, what, UPKEEP_POOL)

    @property
    def _group_id(self) -> str:
        return f"{self._store.app} upkeep"

    def _cancel(self) -> None:
        self._store.spark.sparkContext.cancelJobGroup(self._group_id)


def consumers(store: Store, cluster: Cluster) -> Iterable[Position]:
    """Name the place up to which an app's outbox is published, for upkeep by another process than the app's run; nobody is disturbed.

    Raises `KafkaError` when the cluster, which knows the place, can't be asked, `StoreError` when it is no place of this changelog.
    """
    done = published(cluster, store.app, store.changelog.snapshot().table)
    snapshot = store.changelog.snapshot()  # after that look: the app goes on meanwhile
    head = store.changelog.head(snapshot)
    _refuse_beyond(done, head, head.position)
    lineage, waiting = head.lineage, head.position.seq
    if done is not None and done.place.epoch != lineage.epoch:  # the next run takes the place over, from there
        waiting = done.place.seq
    else:
        rows = _to_send(store, snapshot, lineage, waiting, done, head.emitting(lineage.epoch))
        waiting = next((seq for seq, *_ in rows), waiting)
    return (Position(store.app, lineage.epoch, max(0, waiting - 1)),)


def _to_send(
    store: Store, snapshot: Snapshot, lineage: Lineage, upto: int, done: Published | None, again: Collection[int], read: int = 0
) -> Iterator[Outgoing]:
    """Read what a lineage's commits hold up to a seq, beyond the place and above the floor of what is published, and behind `read`."""
    if done is None:
        return store.changelog.outbox(snapshot, lineage, read, upto, again=again)
    place = done.place.seq, done.place.ordinal
    whole = done.place.ordinal >= 0 and store.changelog.outgoing(snapshot, lineage, done.place.seq) == done.place.ordinal + 1
    after = max(read, done.place.seq if whole else done.place.seq - 1)
    return store.changelog.outbox(snapshot, lineage, after, upto, done.floor, again, place)


def _refuse_beyond(done: Published | None, head: Head, ended: Position) -> None:
    """Raise `StoreError` where more is published than a changelog held when it ended there: it is a copy of before.

    What it commits from there on takes the places of what was published, and would be passed over.
    """
    if done is None:
        return
    place, current = done.place, done.place.epoch == head.lineage.epoch
    if place.epoch >= head.next_epoch or (current and (place.seq if place.ordinal >= 0 else place.seq - 1) > ended.seq):
        raise StoreError(
            f"the output topics of {ended.app!r} hold what was published up to {ended.app}@{place.epoch}.{place.seq}, and its changelog "
            f"ends at {ended}: it was restored from an older copy. {publish_anew(ended.app)}"
        )


class Courier(Worker):
    """Mirror the position to the app's consumer group, and publish the outbox, each record once and in order.

    What Kafka doesn't take waits, and is tried again; `problem` says so. So does what another publisher is said to have fenced: that may
    have been a transaction whose time ran out while this process was suspended, or a writer of this very run, begun again a moment ago.
    Whether another run took over, its writer finds out; a publisher is only made, and used, where no other writer has begun since this
    run's. Whoever published before it had begun before it was made: what it finds published is of an epoch that it knows.

    An epoch that a rewind began publishes from where the one before it stopped, by the records' own places in the source: what came
    from records before that, its parent has published. Where the rewind asks for it, it publishes all that it makes.
    """

    def __init__(self, store: Store, admin: Admin, cluster: Cluster, *, publishes: bool) -> None:
        super().__init__("courier")
        self._store, self._admin, self._cluster, self._publishes = store, admin, cluster, publishes
        self._lock = threading.Lock()
        self._order: tuple[Position, Offsets] | None = None
        self._outbox = False
        self._publisher: OutboxPublisher | None = None
        self._head: Head | None = None
        self._read = 0
        self._sent: Position | None = None
        self._began: Position | None = None
        """Where the app stood at its start, until that was held against the place."""
        self._since = time.monotonic()
        self.generation = 0
        self._refused: WatertableError | None = None

    @property
    def problem(self) -> str:
        """Say what keeps it from delivering; empty when nothing does."""
        return str(self._refused or "")

    @property
    def consumers(self) -> Iterable[Position]:
        """Name the place up to which the outbox is published: a trim must leave what comes after it."""
        if not self._publishes:
            return ()
        sent = self._sent or Position(self._store.app, 1, 0)
        return (Position(sent.app, sent.epoch, max(0, sent.seq - 1)),)  # its own commit says where a rewound epoch goes on publishing

    def deliver(self, position: Position, offsets: Offsets, outbox: Mapping[str, int] | None) -> None:
        """Hear of a commit and how many records it has to publish; None stands for not known, at a start."""
        with self._lock:
            self._order = (position, dict(offsets))
            self._began = position if outbox is None else self._began
            self._outbox = self._publishes and (self._outbox or outbox is None or bool(outbox))
            self._idle.clear()
        self._wake.set()

    def finish(self, stop: threading.Event) -> None:
        """Return when all is delivered, or as soon as a stop is asked for; raise what keeps it from that, when it does for a minute."""
        while not self._idle.wait(0.1) and self._thread.is_alive() and not stop.is_set():
            if self._refused is not None and time.monotonic() - self._since > _OUTAGE:
                raise self._refused

    def close(self) -> None:
        """End the thread; what it hasn't published is published by the next run."""
        super().close()
        self._leave_publisher()

    def _leave_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _patience(self) -> float | None:
        return None if self._refused is None else _AGAIN

    def _work(self) -> None:
        with self._lock:
            order, outbox = self._order, self._outbox
        if order is None:
            return
        position, offsets = order
        refused: WatertableError | None = None
        try:
            self._admin.mirror(self._store.app, offsets)
        except KafkaError as error:  # it's a copy for others: what is to be published doesn't wait for it
            refused = error
        try:
            if outbox:
                self._publish(position, offsets)
            self._sent = position
        except (KafkaError, Fenced) as error:
            refused = error
            self._leave_publisher()
        if refused is not None:
            _log.warning("not delivered, will be tried again: %s", refused)
            self._since = time.monotonic() if self._refused is None else self._since
        self._refused = refused
        if refused is not None:
            return
        with self._lock:
            if self._order is order:
                self._outbox = False
                self._idle.set()

    def _publish(self, upto: Position, offsets: Offsets) -> None:
        snapshot = self._store.changelog.snapshot()
        with job_group(self._store.spark, self._group_id, "publish", UPKEEP_POOL):
            if self._publisher is None or self._head is None:
                self._refuse_overtaken(snapshot)  # to make a publisher is to fence the one before: only the last run may
                self._publisher, self._read = OutboxPublisher(self._cluster, self._store.app, snapshot.table), 0
                snapshot = self._store.changelog.snapshot()  # that one may have been another run's, if this process slept meanwhile
                self._head = self._refuse_overtaken(snapshot)
                self._settle(self._publisher, snapshot, self._head)
            self._send(self._publisher, snapshot, self._head, self._head.lineage, upto.seq)
        done = self._publisher.published
        if done is not None and done.floor and all(offsets.get(p, offset) >= offset for p, offset in done.floor.items()):
            self._publisher.mark(Published(Place(upto.epoch, upto.seq + 1, -1)))

    def _refuse_overtaken(self, snapshot: Snapshot) -> Head:
        """Raise `Fenced` where another run has begun since this one; give where the app stands."""
        head = self._store.changelog.head(snapshot)
        if head.generation > self.generation:
            raise Fenced(f"another run of {self._store.app!r} took over, as generation {head.generation}; it publishes from now on")
        return head

    def _send(self, publisher: OutboxPublisher, snapshot: Snapshot, head: Head, lineage: Lineage, upto: int) -> None:
        """Publish what a lineage's commits hold up to a seq, beyond the place and above the floor of what is published.

        The floor is none for the commits of epochs that publish again.
        """
        rows = _to_send(self._store, snapshot, lineage, upto, publisher.published, head.emitting(lineage.epoch), self._read)
        publisher.publish(
            OutboxRow(Place(lineage.epoch, seq, number), topic, key, value, timestamp, headers)
            for seq, number, topic, key, value, timestamp, headers in rows
        )
        self._read = upto

    def _settle(self, publisher: OutboxPublisher, snapshot: Snapshot, head: Head) -> None:
        """Take the place over from an epoch that was left, by way of those since then; who has published nothing began in the first.

        Of those that were to publish again and never came to it, as much is published as the app has kept.
        """
        done = publisher.published
        _refuse_beyond(done, head, self._began or head.position)
        self._began = None
        if done is None and head.forks:
            publisher.mark(done := Published(Place(1, 1, -1)))
        if done is None:
            return
        for row in (row for row in head.forks if row.epoch > done.place.epoch):
            way, again = head.lineage_of(row.epoch), head.emitting(row.epoch)
            self._take_over(publisher, snapshot, head, way)
            kept = head.lineage.common(way)
            if row.epoch != head.lineage.epoch and again and kept > min(span.after for span in way.spans if span.epoch in again):
                self._send(publisher, snapshot, head, way, kept)
        self._read = 0

    def _take_over(self, publisher: OutboxPublisher, snapshot: Snapshot, head: Head, lineage: Lineage) -> None:
        """Make the place one of this lineage, where it's one of another.

        What was left has published all that it made of the records up to its first row that waits, be that nothing. Where both have the
        commit before that row, the place is the same. Else the commit that it was in is sent to its end, along the lineage that was left,
        and where the commit before the row ended in the topics becomes the floor. That is kept where all is published again, too, for
        whoever comes after.
        """
        done = publisher.published
        if done is None or done.place.epoch == lineage.epoch:
            return
        left, place, self._read = head.lineage_of(done.place.epoch), done.place, 0
        last = place.seq if place.ordinal >= 0 else place.seq - 1
        shared, again = lineage.common(left), head.emitting(left.epoch)
        if last > shared or again:  # what it was to publish again, and the app has kept, nobody else would
            self._send(publisher, snapshot, head, left, max(last, shared))
            done = publisher.published or done
        end = self._store.changelog.head(snapshot, epoch=left.epoch).position.seq
        waits = next((seq for seq, *_ in _to_send(self._store, snapshot, left, end, done, again)), end + 1)
        upto = max(last, waits - 1)
        self._read = 0
        if upto <= shared:
            publisher.mark(Published(Place(lineage.epoch, done.place.seq, done.place.ordinal), done.floor))
            return
        found = self._store.changelog.commits(snapshot, left, upto - 1, upto)
        if not found:  # trimmed, and so all that comes before the first one kept is published
            found = self._store.changelog.rows(snapshot, f"c.kind = 'batch' AND {left.where(upto, 1 << 40)}")
        kept = min(found, key=lambda c: c.seq, default=None)
        floor = dict(done.floor)
        if kept is not None:
            for partition, offset in (kept.next if kept.seq == upto else kept.begin).items():
                floor[partition] = max(floor.get(partition, 0), offset)
            now = self._admin.describe({topic for topic, _ in floor})  # of a topic that was made anew, offsets mean nothing
            same = {topic for topic, state in now.items() if state.id == kept.topic_ids.get(topic)}
            floor = {p: offset for p, offset in floor.items() if p[0] in same}
        publisher.mark(Published(Place(lineage.epoch, shared + 1, -1), floor))

    @property
    def _group_id(self) -> str:
        return f"{self._store.app} courier"

    def _cancel(self) -> None:
        self._store.spark.sparkContext.cancelJobGroup(self._group_id)


def _ms(since: float) -> int:
    return round((time.monotonic() - since) * 1000)
