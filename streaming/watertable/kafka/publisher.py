"""Publish an app's outbox: each record once, in order, for everyone who reads committed records.

The outbox is rows of the changelog, so what is to be sent never changes; all there is to know is how far it is sent. That *place* is
sent with the records, in the same transaction, to the app's own compacted topic `watertable.<app>.outbox`: records and place appear
together or not at all, whatever dies in between. (Offsets of a consumer group would be the usual home of such a place, but they expire when
an app rests for a week; see docs/decisions.) Beside it stands the *floor*, where a rewind has made one: the offset of each source
partition before which everything is published, by an epoch that was left. A header names the changelog: in another one, of a warehouse
that was begun anew, the same place is another row's, so it's refused there. A new publisher fences the one before it and waits for that
one's last transaction to be decided, and only then reads the place.

A publisher that raised is done for: whether its last transaction was committed, only a new one can tell.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError

from watertable import failpoints
from watertable.errors import Fenced, KafkaError, StoreError
from watertable.kafka.admin import AHEAD, BEHIND, Admin, Offsets, connected
from watertable.kafka.config import ClientConfig, Cluster
from watertable.records import Headers

CHUNK: Final = 10_000
"""Records of one transaction at most: enough to make its fixed cost small, few enough to fit the producer's queue."""
_KEY: Final = b"place"
_CHANGELOG: Final = "changelog"
"""The header that names the changelog. What was published before there was one is taken as of any."""
_CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.1", "retention.ms": "-1"}
_LARGEST: Final = 1_000_000_000
"""Bytes of a record at most, as far as the client goes: what is too large for a topic, its own limit says, which a person can raise."""
_WITH_OTHERS: Final = (ClientError._PURGE_QUEUE, ClientError._PURGE_INFLIGHT)
"""What is said of records that go with one that is refused, maybe before anything is said of that one."""
_FENCED: Final = (ClientError._FENCED, ClientError.PRODUCER_FENCED, ClientError.INVALID_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Name one row of an app's outbox, by the epoch that publishes it; places are ordered as the rows are published.

    >>> Place.parse("3.48211.17") < Place(3, 48212, 0)
    True
    """

    epoch: int
    seq: int
    ordinal: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes."""
        epoch, seq, ordinal = map(int, text.split("."))
        return cls(epoch, seq, ordinal)

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}.{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Published:
    """Say how far an outbox is sent: up to `place`, and by epochs left behind all that comes from source records before `floor`.

    >>> done = Published(Place(2, 501, -1), {("sales", 0): 7})
    >>> str(done), Published.parse(str(done)) == done, Published.parse("3.48211.17").floor
    ('2.501.-1 {"sales": {"0": 7}}', True, {})
    """

    place: Place
    floor: Offsets = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes."""
        place, _, floor = text.partition(" ")
        by_topic = json.loads(floor or "{}")
        return cls(Place.parse(place), {(topic, int(p)): offset for topic, parts in by_topic.items() for p, offset in parts.items()})

    def __str__(self) -> str:
        if not self.floor:
            return str(self.place)
        by_topic: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.floor.items()):
            by_topic.setdefault(topic, {})[str(partition)] = offset
        return f"{self.place} {json.dumps(by_topic)}"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """Hold a record to publish, and its place."""

    place: Place
    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: datetime
    headers: Headers = ()


class OutboxPublisher:
    """Send the outbox of one app. Making one takes over from any other publisher of that app, wherever it runs."""

    def __init__(self, cluster: Cluster, app: str, changelog: str = "", *, timeout: float = 30.0) -> None:
        """Fence earlier publishers of the app and find out what they published, of the changelog of this id.

        Raises `KafkaError` when the cluster can't be reached or refuses, `StoreError` when they published from another changelog.
        """
        self.app = app
        self.state_topic = _state_topic(app)
        self._cluster, self._changelog, self._timeout = cluster, changelog, timeout
        self._failed = ""
        self._sending: list[OutboxRow] = []
        self._admin = Admin(cluster, timeout)
        if not self._admin.describe([self.state_topic]):  # an administrator may have made it, for us who may make none
            self._admin.create_topic(self.state_topic, 1, _CONFIG)
        self._known: set[str] = set()
        config: ClientConfig = {
            "message.max.bytes": _LARGEST,
            **cluster.client_config(),
            "transactional.id": f"watertable.{app}",
            "partitioner": "murmur2_random",  # as Java clients do, so that topics of one key stay co-partitioned
            "compression.type": "lz4",
            "linger.ms": 5,
        }
        self._producer = connected(Producer, config, cluster)
        self._attempt("take over from earlier publishers", lambda: self._producer.init_transactions(timeout))
        self._done = _last_committed(cluster, app, changelog, timeout)

    @property
    def published(self) -> Published | None:
        """Say how far the outbox is sent; None before the first row."""
        return self._done

    def mark(self, published: Published) -> None:
        """Note how far the outbox counts as sent, in a transaction of its own: where an epoch begins, and where its floor is passed."""
        self._transaction([], published)

    def forget(self) -> None:
        """Leave no place, so that the next publisher sends all that its changelog holds, behind what is in the topics."""
        self._transaction([], None)

    def publish(self, rows: Iterable[OutboxRow]) -> int:
        """Send rows, in transactions of some thousand; return how many were sent once all of them are committed.

        Rows up to the place that is `published` are passed over. Raises `Fenced` when another publisher of the app took over, `KafkaError`
        when the cluster can't be reached, lacks a topic or refuses a record, `ValueError` for rows out of order; what was committed before
        stays published.
        """
        left = iter(rows)
        sent = 0
        while chunk := list(islice(left, CHUNK)):
            done = self._done
            if rest := [row for row in chunk if done is None or row.place > done.place]:
                self._transaction(rest, Published(rest[-1].place, done.floor if done else {}))
                sent += len(rest)
        return sent

    def close(self) -> None:
        """Let go of the connection; what isn't committed by now never will be."""
        with contextlib.suppress(KafkaException):  # one that is fenced refuses even that
            self._producer.purge()
            self._producer.flush(0)

    def _transaction(self, rows: list[OutboxRow], done: Published | None) -> None:
        if self._failed:
            raise KafkaError(
                f"this publisher of {self.app!r} failed before ({self._failed}); make a new one to find out what was published"
            )
        if any(a.place >= b.place for a, b in pairwise(rows)):
            raise ValueError(f"outbox rows of {self.app!r} come out of order, between {rows[0].place} and {rows[-1].place}")
        if new := {row.topic for row in rows} - self._known:
            self._admin.partitions(sorted(new))  # a client would look for a topic that isn't there until its time limit
            self._known |= new
        self._sending = rows
        failpoints.hit("publish.begin")
        self._attempt("begin a transaction", self._producer.begin_transaction)
        try:
            for row in rows:
                self._send(row.topic, row.key, row.value, _milliseconds(row.timestamp), row.headers)
            self._send(self.state_topic, _KEY, str(done).encode() if done else None, 0, ((_CHANGELOG, self._changelog.encode()),))
            failpoints.hit("publish.after_produce")
            self._attempt(
                f"publish up to {done.place}" if done else "forget what is published",
                lambda: self._producer.commit_transaction(self._timeout),
            )
        except BaseException:
            self._abort()
            raise
        self._done = done
        failpoints.hit("publish.after_commit")

    def _send(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers = ()) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._producer.produce(topic, value, key, timestamp=timestamp, headers=list(headers), on_delivery=self._delivered)
                return
            except BufferError:  # the queue is full: let it drain
                self._producer.poll(0.1)
                if time.monotonic() > deadline:
                    raise self._error(f"send to {topic!r}", "the producer's queue doesn't drain") from None
            except KafkaException as error:
                self._failed = self._failed or _refusal(error.args[0], topic, key, value)
                raise self._error(f"send to {topic!r}", error.args[0]) from None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and not self._failed and error.code() not in _WITH_OTHERS:
            topic = message.topic()
            if error.code() == ClientError.INVALID_TIMESTAMP:  # said of all that were sent together
                limits = None
                with contextlib.suppress(KafkaError):
                    limits = self._admin.time_limits(topic)
                self._failed = _untimely([row for row in self._sending if row.topic == topic], datetime.now(UTC), limits)
            else:
                self._failed = _refusal(error, topic, message.key(), message.value())

    def _attempt(self, what: str, act: Any) -> None:
        """Do one step of a transaction, again while the cluster asks to."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                act()
                return
            except KafkaException as error:
                problem = error.args[0]
                if not problem.retriable() or time.monotonic() > deadline:
                    raise self._error(what, problem) from None
                time.sleep(0.05)

    def _abort(self) -> None:
        """Abort what is open, if it can be reached; else its time limit or the next publisher does."""
        self._failed = self._failed or "its transaction was aborted"
        try:
            self._producer.purge()
            self._producer.abort_transaction(min(5.0, self._timeout))
        except KafkaException:
            pass

    def _error(self, what: str, problem: Any) -> KafkaError | Fenced:
        code = problem.code() if isinstance(problem, ClientError) else None
        if code in _FENCED:
            self._failed = "fenced"
            return Fenced(f"another publisher of {self.app!r} took over, or a transaction of this one took too long; a new one goes on")
        said = self._failed or (problem.str() if isinstance(problem, ClientError) else str(problem))
        self._failed = said
        return KafkaError(f"can't {what} for {self.app!r} on {self._cluster.bootstrap}: {said}")


def _refusal(problem: Any, topic: str, key: bytes | None, value: bytes | None) -> str:
    """Say why a record can't be sent; of one that is too large, which it is and what to do."""
    if problem.code() != ClientError.MSG_SIZE_TOO_LARGE:
        return f"topic {topic!r}: {problem.str()}"
    size = len(key or b"") + len(value or b"")
    return (
        f"topic {topic!r}: the record with the key {key!r} is too large, with {size:,} bytes. Raise the topic's max.message.bytes "
        "(and max.request.size, where kafka_options has it): it's sent then, and all that waits behind it"
    )


def _untimely(rows: list[OutboxRow], now: datetime, limits: tuple[int, int] | None) -> str:
    """Say which of a topic's records has a time that the topic doesn't take, and what to do: the first or the last, as its limits say.

    Where both are within them, as far as we know, both are named: the limits can't be read, or the broker's clock isn't ours.
    """
    first, last = (choose(rows, key=lambda row: row.timestamp) for choose in (min, max))
    told = [f"the record with the key {row.key!r} has the event time {row.timestamp.isoformat()}" for row in (first, last)]
    clock = _milliseconds(now)
    beyond = limits and (clock - _milliseconds(first.timestamp) - limits[0], _milliseconds(last.timestamp) - clock - limits[1])
    if beyond is None or max(beyond) <= 0:
        return (
            f"topic {first.topic!r}: {', and '.join(dict.fromkeys(told))}; that is further behind or ahead than the topic takes. Raise the "
            f"topic's {BEHIND} or {AHEAD}: it's sent then, and all that waits behind it"
        )
    said, way, limit = (told[0], "behind", BEHIND) if beyond[0] > beyond[1] else (told[1], "ahead", AHEAD)
    return (
        f"topic {first.topic!r}: {said}, which is further {way} than the topic takes. Raise the topic's {limit}: "
        "it's sent then, and all that waits behind it"
    )


def published(cluster: Cluster, app: str, changelog: str = "", timeout: float = 30.0) -> Published | None:
    """Find out how far an app's outbox is sent, and disturb nobody who sends it; None where nothing of it ever was.

    Raises `KafkaError` when the cluster can't be asked, `StoreError` when another changelog than the one of this id was published.
    """
    there = Admin(cluster, timeout).describe([_state_topic(app)])
    return _last_committed(cluster, app, changelog, timeout) if there else None


def _state_topic(app: str) -> str:
    return f"watertable.{app}.outbox"


def _last_committed(cluster: Cluster, app: str, changelog: str, timeout: float) -> Published | None:
    """Read the last committed record of the state topic, stepping backward from its end: most of it is markers and old places."""
    topic = _state_topic(app)
    config = cluster.client_config() | {
        "group.id": topic,  # required by the client; never joined, nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = connected(Consumer, config, cluster)
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout)
        step = 100
        while True:
            begin = max(first, end - step)
            found = _last_message(consumer, topic, begin, end, timeout)
            if found is not None or begin <= first:
                break
            step *= 16
    except KafkaException as error:
        raise KafkaError(f"can't read how far the outbox of {app!r} is published on {cluster.bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()
    if found is None or found.value() is None:
        return None
    of = dict(found.headers() or ()).get(_CHANGELOG, b"").decode()
    if of and changelog and of != changelog:
        raise StoreError(
            f"the output topics of {app!r} hold what was published from another changelog ({of}), and this one is {changelog}: "
            f"its warehouse is another one, or was begun anew. {publish_anew(app)}"
        )
    return Published.parse(found.value().decode())


def publish_anew(app: str) -> str:
    """Say how to publish a changelog of which nobody knows what is published."""
    return f"`watertable publish-anew {app}` has all that this one holds published, behind what is in the topics"


def _last_message(consumer: Any, topic: str, begin: int, end: int, timeout: float) -> Any:
    """Return the last committed record in a range of a topic's one partition."""
    last = None
    deadline = time.monotonic() + timeout
    consumer.assign([TopicPartition(topic, 0, begin)])
    while begin < end:
        message = consumer.poll(0.5)
        if message is None:
            pass
        elif message.error() is None:
            last = message
        elif message.error().code() != ClientError._PARTITION_EOF:
            raise KafkaException(message.error())
        elif message.offset() >= end:
            break
        if time.monotonic() > deadline:
            raise KafkaException(ClientError(ClientError._TIMED_OUT, f"no end of {topic!r} within {timeout:.0f} s"))
    return last


def _milliseconds(when: datetime) -> int:
    # 0 means "now" to the client, so the first millisecond of 1970 becomes the second
    return max(1, int((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000))
