"""Ask a cluster about topics and offsets, and notice what changed behind our back.

A topic is known by its id, not by its name: a topic deleted and made again under one name is another topic. Offsets are what an app
has read (`position`), what is there (`earliest`, `latest`) and what a time means (`at_time`); the ends are those of read_committed
consumers, so an open transaction isn't counted as there. `check_topics` compares what an app knew with what is: each difference is a
loss, named in a `TopicChanged`. `mirror` copies an app's position to a consumer group, for everybody's lag exporters; nobody reads it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as ClientError
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from watertable.errors import KafkaError, SettingsError, TopicChanged
from watertable.kafka.config import ClientConfig, Cluster

TIMEOUT: Final = 15.0
_NO_LEADER_YET: Final = (
    ClientError.NOT_LEADER_FOR_PARTITION, ClientError.LEADER_NOT_AVAILABLE, ClientError.UNKNOWN_TOPIC_OR_PART,
    ClientError.UNKNOWN_LEADER_EPOCH, ClientError.FENCED_LEADER_EPOCH,  # who leads it, the client knows before the broker, or after it
    ClientError._NOENT,  # nobody does yet, as the client was told
)  # fmt: skip
START_OVER: Final = "To start over from what the topic holds, `watertable rewind {} --to earliest`"
"""The way out of what has become of a topic, for an app of this name."""
BEHIND: Final = "message.timestamp.before.max.ms"
AHEAD: Final = "message.timestamp.after.max.ms"
_ANY: Final = str((1 << 63) - 1)
Partition = tuple[str, int]
Offsets = Mapping[Partition, int]
T = TypeVar("T")


def connected(kind: Callable[[ClientConfig], T], config: ClientConfig, cluster: Cluster) -> T:
    """Make a client of a cluster; raise `SettingsError` where a value among its options is wrong."""
    try:
        return kind(config)
    except KafkaException as error:
        raise SettingsError(f"kafka_options: the Kafka client refuses them: {cluster.hide(error.args[0].str())}") from None


@dataclass(frozen=True, slots=True)
class TopicState:
    """Say which topic a name means, and how many partitions it has."""

    id: str
    partitions: int


def partitions_of(topics: Mapping[str, TopicState]) -> tuple[Partition, ...]:
    """List the partitions of topics whose states are known.

    >>> partitions_of({"sales": TopicState("a1", 2), "rates": TopicState("b2", 1)})
    (('sales', 0), ('sales', 1), ('rates', 0))
    """
    return tuple((name, number) for name, state in topics.items() for number in range(state.partitions))


class Admin:
    """Ask one cluster; keeps one connection. Every method raises `KafkaError` naming the cluster when it can't be reached or refuses."""

    def __init__(self, cluster: Cluster, timeout: float = TIMEOUT) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._client = connected(AdminClient, cluster.client_config(), cluster)
        self._groups: dict[str, Consumer] = {}

    def cluster_id(self) -> str:
        """Return the cluster's own id."""
        try:
            return str(self._client.list_topics(timeout=self._timeout).cluster_id)
        except KafkaException as error:
            raise self._failed("reach the cluster", error) from None

    def topics(self) -> tuple[str, ...]:
        """List the names of all topics, sorted."""
        try:
            return tuple(sorted(self._client.list_topics(timeout=self._timeout).topics))
        except KafkaException as error:
            raise self._failed("list the topics", error) from None

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> TopicState:
        """Create a topic and return once it is there to use; one that is there already is returned as it is.

        Raises `KafkaError` where a topic of that name has another number of partitions.
        """
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))  # -1: as the broker is set
        try:
            self._client.create_topics([new], request_timeout=self._timeout)[name].result(self._timeout)
        except (KafkaException, TimeoutError) as error:
            if not isinstance(error, KafkaException) or error.args[0].code() != ClientError.TOPIC_ALREADY_EXISTS:
                raise self._failed(f"create topic {name!r}", error) from None
        deadline = time.monotonic() + self._timeout
        while (found := self.describe([name]).get(name)) is None or found.partitions < partitions:  # brokers hear of it a little later
            if found is not None and found.partitions:
                break
            if time.monotonic() > deadline:
                raise KafkaError(f"topic {name!r} was created on {self._cluster.bootstrap} but didn't appear within {self._timeout:.0f} s")
            time.sleep(0.02)
        if found.partitions != partitions:
            raise KafkaError(f"topic {name!r} is there already, with {found.partitions} partitions; wanted {partitions}")
        return found

    def create_outputs(self, names: Iterable[str], partitions: int) -> None:
        """Create those of the topics that aren't there, for records of any event time: a broker's default refuses those an hour ahead."""
        wanted = set(names)
        for name in sorted(wanted - set(self.describe(wanted))):
            try:
                self.create_topic(name, partitions, {AHEAD: _ANY})
            except KafkaError as error:
                if AHEAD not in str(error):
                    raise
                self.create_topic(name, partitions)  # a broker before Kafka 3.6 has no such limit, and knows no such setting

    def delete_topic(self, name: str) -> None:
        """Delete a topic and return once it is gone."""
        self._result(f"delete topic {name!r}", self._client.delete_topics([name], request_timeout=self._timeout)[name])
        deadline = time.monotonic() + self._timeout
        while self.describe([name]) and time.monotonic() < deadline:
            time.sleep(0.02)

    def add_partitions(self, name: str, total: int) -> None:
        """Raise a topic's number of partitions to a total, and return once they are there."""
        self._result(f"add partitions to {name!r}", self._client.create_partitions([NewPartitions(name, total)])[name])
        deadline = time.monotonic() + self._timeout
        while self.describe([name])[name].partitions < total and time.monotonic() < deadline:
            time.sleep(0.02)

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Return the state of those of the named topics that exist."""
        asked = list(dict.fromkeys(names))
        if not asked:
            return {}
        found: dict[str, TopicState] = {}
        for name, future in self._client.describe_topics(TopicCollection(asked), request_timeout=self._timeout).items():
            try:
                about = future.result(self._timeout)
            except KafkaException as error:
                if error.args[0].code() in (ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC):
                    continue
                raise self._failed(f"describe topic {name!r}", error) from None
            except TimeoutError as error:
                raise self._failed(f"describe topic {name!r}", error) from None
            found[name] = TopicState(str(about.topic_id), len(about.partitions))
        return found

    def compacted(self, names: Iterable[str]) -> frozenset[str]:
        """Name those of the topics that Kafka compacts; one whose settings may not be read counts as one that it doesn't. One request."""
        return frozenset(name for name, settings in self._settings(names).items() if "compact" in settings["cleanup.policy"])

    def time_limits(self, name: str) -> tuple[int, int] | None:
        """Say by how many milliseconds a topic's records may be behind and ahead of its broker's clock; None where that can't be read."""
        found = self._settings([name]).get(name, {})
        return (int(found[BEHIND]), int(found[AHEAD])) if {BEHIND, AHEAD} <= found.keys() else None  # Kafka has them since 3.6

    def _settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Give the settings of those of the topics of which they may be read, in one request."""
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in dict.fromkeys(names)]
        found = dict[str, dict[str, str]]()
        for topic, future in self._client.describe_configs(asked, request_timeout=self._timeout).items() if asked else ():
            try:
                found[topic.name] = {setting: str(entry.value) for setting, entry in future.result(self._timeout).items()}
            except (KafkaException, TimeoutError) as error:
                if not isinstance(error, KafkaException) or error.args[0].code() != ClientError.TOPIC_AUTHORIZATION_FAILED:
                    raise self._failed(f"ask for the settings of topic {topic.name!r}", error) from None
        return found

    def states(self, names: Iterable[str]) -> dict[str, TopicState]:
        """Return the state of the named topics, in their order; raise `KafkaError` naming those that don't exist."""
        asked = list(dict.fromkeys(names))
        found = self.describe(asked)
        missing = [name for name in asked if name not in found]
        if missing:
            raise KafkaError(f"no such topic on {self._cluster.bootstrap}: {', '.join(missing)}")
        return {name: found[name] for name in asked}

    def partitions(self, names: Iterable[str]) -> tuple[Partition, ...]:
        """List the partitions of topics; raise `KafkaError` naming those that don't exist."""
        return partitions_of(self.states(names))

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset of each partition's first record that is still there."""
        return self._offsets(partitions, OffsetSpec.earliest(), "ask for the first offsets")

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after each partition's last record that a read_committed consumer may see."""
        return self._offsets(partitions, OffsetSpec.latest(), "ask for the end offsets")

    def at_time(self, partitions: Iterable[Partition], when: datetime) -> dict[Partition, int]:
        """Return each partition's first offset whose record timestamp is at or after a time, its end where there is none.

        Raises `ValueError` for a naive datetime.
        """
        if when.tzinfo is None:
            raise ValueError(f"{when!r} has no time zone; times are UTC, e.g. datetime(2011, 1, 1, tzinfo=UTC)")
        asked = list(partitions)
        found = self._offsets(
            asked, OffsetSpec.for_timestamp(int(when.astimezone(UTC).timestamp() * 1000)), f"ask for the offsets at {when}"
        )
        ends = self.latest([partition for partition, offset in found.items() if offset < 0])
        return {partition: ends.get(partition, offset) for partition, offset in found.items()}

    def delete_records(self, before: Offsets) -> None:
        """Delete each partition's records before an offset."""
        futures = self._client.delete_records([TopicPartition(topic, number, offset) for (topic, number), offset in before.items()])
        for partition, future in futures.items():
            self._result(f"delete records of {partition.topic}-{partition.partition}", future)

    def mirror(self, app: str, position: Offsets) -> None:
        """Copy an app's position to the consumer group `watertable.<app>`, whose lag exporters then show the app's."""
        if position:
            asked = [TopicPartition(topic, number, offset) for (topic, number), offset in sorted(position.items())]
            commit = self._group(app).commit
            answer = self._group_result(
                f"mirror the position to group 'watertable.{app}'", lambda: commit(offsets=asked, asynchronous=False)
            )
            refused = [p for p in answer or () if p.error is not None]
            if refused:
                raise KafkaError(
                    f"group 'watertable.{app}' refused the position of {refused[0].topic}-{refused[0].partition}: {refused[0].error}"
                )

    def mirrored(self, app: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the position that the consumer group `watertable.<app>` shows, of those partitions that it has one of."""
        asked = [TopicPartition(topic, number) for topic, number in partitions]
        committed = self._group(app).committed
        found = self._group_result(f"read the offsets of group 'watertable.{app}'", lambda: committed(asked, timeout=self._timeout))
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def _group(self, app: str) -> Consumer:
        # A consumer that never joins: the admin's own calls for group offsets crash in librdkafka 2.16 when a coordinator moves.
        if app not in self._groups:
            config = self._cluster.client_config() | {"group.id": f"watertable.{app}", "enable.auto.commit": False}
            self._groups[app] = connected(Consumer, config, self._cluster)
        return self._groups[app]

    def check_topics(self, expected: Mapping[str, TopicState], position: Offsets, way_out: str = START_OVER.format("APP")) -> None:
        """Compare topics with what an app knew of them and with its position (the next offset to read of each partition).

        Raises `TopicChanged`, naming the loss and the way out, for a topic that was deleted or re-created, that got more partitions, whose
        records at our position are deleted, or that ends before our position.
        """
        now = self.describe(expected)
        for name, known in expected.items():
            is_now = now.get(name)
            if is_now is None:
                raise TopicChanged(
                    f"topic {name!r} was deleted (it was {known.id}, read up to {_where(position, name)}): what came after is lost. "
                    f"{way_out} once the topic is back."
                )
            if is_now.id != known.id:
                raise TopicChanged(
                    f"topic {name!r} was re-created: it was {known.id}, read up to {_where(position, name)}, and is {is_now.id} now. "
                    f"Our offsets mean nothing in it, and what the old one held after them is lost. {way_out}."
                )
            if is_now.partitions != known.partitions:
                raise TopicChanged(
                    f"topic {name!r} has {is_now.partitions} partitions, it had {known.partitions}: its keys moved between partitions, "
                    f"so the order of the changes of one key is lost across the move. {way_out}."
                )
        first = self.earliest(position)
        for (name, number), offset in position.items():
            if first[name, number] > offset:
                raise TopicChanged(
                    f"topic {name!r} was truncated past us: partition {number} starts at offset {first[name, number]}, "
                    f"we had read up to {offset}; {first[name, number] - offset} offsets are lost unread (retention, or deleted records). "
                    f"{way_out}, and raise the topic's retention.ms or retention.bytes so that it outlasts the longest stop."
                )
        ends = self._offsets(position, OffsetSpec.latest(), "ask for the end offsets", IsolationLevel.READ_UNCOMMITTED)
        for (name, number), offset in position.items():
            if ends[name, number] < offset:
                raise TopicChanged(
                    f"topic {name!r} lost its end: partition {number} ends at offset {ends[name, number]}, we had read up to {offset}; "
                    f"{offset - ends[name, number]} offsets that our tables hold are gone from Kafka (a leader without all records "
                    f"took over, or a restored disk). {way_out}."
                )

    def _offsets(
        self, partitions: Iterable[Partition], spec: OffsetSpec, what: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[Partition, int]:
        asked = {TopicPartition(topic, number): spec for topic, number in partitions}
        if not asked:
            return {}
        found: dict[Partition, int] = {}
        deadline, pause = time.monotonic() + self._timeout, 0.02
        while asked:
            futures = self._client.list_offsets(asked, isolation_level=isolation, request_timeout=self._timeout)
            for partition, future in futures.items():
                try:
                    found[partition.topic, partition.partition] = future.result(self._timeout).offset
                except (KafkaException, TimeoutError) as error:  # a partition just created or moved has no leader for a moment
                    if time.monotonic() > deadline or not (isinstance(error, KafkaException) and error.args[0].code() in _NO_LEADER_YET):
                        self._connect_anew()
                        raise self._failed(f"{what} of {partition.topic}-{partition.partition}", error) from None
            asked = {p: spec for p in asked if (p.topic, p.partition) not in found}
            if asked:
                time.sleep(pause)
                pause = min(1.0, 2 * pause)
                self._connect_anew()
        return found

    def _connect_anew(self) -> None:
        """Go on with a client that has learned nothing yet: one goes for minutes by who led a partition before an election."""
        self._client = connected(AdminClient, self._cluster.client_config(), self._cluster)

    def _group_result(self, what: str, ask: Callable[[], T]) -> T:
        """Ask a group's coordinator, again while it moves or loads: it does so whenever a broker starts."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in _COORDINATOR_MOVES or time.monotonic() > deadline:
                    raise self._failed(what, error) from None
                time.sleep(0.05)

    def _result(self, what: str, future: Future[T]) -> T:
        try:
            return future.result(self._timeout)
        except (KafkaException, TimeoutError) as error:
            raise self._failed(what, error) from None

    def _failed(self, what: str, error: Exception) -> KafkaError:
        said = error.args[0].str() if isinstance(error, KafkaException) else f"no answer within {self._timeout:.0f} s"
        return KafkaError(
            f"can't {what} on {self._cluster.bootstrap}: {said}. Is it running? `watertable broker status`, or set WATERTABLE_KAFKA."
        )


_COORDINATOR_MOVES: Final = (ClientError.NOT_COORDINATOR, ClientError.COORDINATOR_NOT_AVAILABLE, ClientError.COORDINATOR_LOAD_IN_PROGRESS)


def _where(position: Offsets, topic: str) -> str:
    return ", ".join(f"{number}:{offset}" for (name, number), offset in sorted(position.items()) if name == topic) or "nothing"
