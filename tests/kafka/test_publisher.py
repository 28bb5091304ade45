"""The outbox: each record once and in order for readers of committed records, whatever dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError
from rich.console import Console

from watertable import failpoints
from watertable.errors import Fenced, KafkaError, StoreError
from watertable.kafka import admin, publisher
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.kafka.publisher import OutboxPublisher, OutboxRow, Place, Published, published
from watertable.kafka.reading import read_records
from watertable_platform.cli import main as cli
from watertable_platform.cli import terminal

pytestmark = pytest.mark.kafka
Topics = Callable[..., str]
START = datetime(2010, 12, 1, tzinfo=UTC)


def outbox(topic: str, count: int, *, first: int = 0, epoch: int = 1, per_commit: int = 7) -> Iterator[OutboxRow]:
    for n in range(first, count):
        place = Place(epoch, n // per_commit, n % per_commit)
        yield OutboxRow(place, topic, b"k%d" % (n % 5), b"%d" % n, START + timedelta(seconds=n))


def committed(cluster: Cluster, topic: str) -> list[int]:
    """Read a topic as a read_committed consumer does, partition after partition."""
    consumer = Consumer(cluster.client_config() | {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True})
    values = []
    for topic_name, number in Admin(cluster).partitions([topic]):
        end = Admin(cluster).latest([(topic_name, number)])[topic_name, number]
        consumer.assign([TopicPartition(topic_name, number, 0)])
        while True:
            message = consumer.poll(10)
            assert message is not None
            if message.error() is None:
                values.append(int(message.value()))
            elif message.error().code() == ClientError._PARTITION_EOF and message.offset() >= end:
                break
    consumer.close()
    return values


@pytest.fixture
def app(topic: Topics) -> str:
    return topic("app")


def test_each_row_is_published_once_and_in_order(broker: Cluster, topic: Topics, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "CHUNK", 13)  # several transactions, cut across commits
    out = topic("reorders")
    sender = OutboxPublisher(broker, app)
    assert sender.published is None
    assert sender.publish(outbox(out, 100)) == 100
    assert sender.published == Published(Place(1, 14, 1))
    assert committed(broker, out) == list(range(100))


def test_a_record_is_published_with_its_headers_in_their_order(broker: Cluster, topic: Topics, app: str) -> None:
    out, headers = topic("reorders"), (("trace", b"t1"), ("sig", b"\x00\xff"), ("trace", b""))
    places = [Place(1, 1, n) for n in range(2)]
    rows = [OutboxRow(place, out, b"k", b"1", START, given) for place, given in zip(places, (headers, ()), strict=True)]
    OutboxPublisher(broker, app).publish(rows)
    OutboxPublisher(broker, app)  # waits until the transaction's end is in every topic
    admin = Admin(broker)
    ends = admin.latest(admin.partitions([out]))
    read = [record.headers for record in read_records(broker, dict.fromkeys(ends, 0), ends)]
    assert read == [headers, ()]


def test_what_is_published_is_found_by_the_next_publisher_and_not_sent_again(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("reorders")
    OutboxPublisher(broker, app).publish(outbox(out, 50))
    again = OutboxPublisher(broker, app)
    assert again.published == Published(Place(1, 7, 0))
    assert again.publish(outbox(out, 80)) == 30  # given the whole outbox again
    assert committed(broker, out) == list(range(80))


def test_what_was_published_from_another_changelog_is_no_place_in_this_one(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("reorders")
    OutboxPublisher(broker, app).publish(outbox(out, 10))
    OutboxPublisher(broker, app, "ours").publish(outbox(out, 20))  # what names none is taken as of ours
    assert published(broker, app, "ours") == published(broker, app) == Published(Place(1, 2, 5))
    told = f"published from another changelog .ours., and this one is theirs.*`watertable publish-anew {app}`"
    for look in (OutboxPublisher, published):
        with pytest.raises(StoreError, match=told):
            look(broker, app, "theirs")
    OutboxPublisher(broker, app).forget()
    assert published(broker, app, "theirs") is None
    assert OutboxPublisher(broker, app, "theirs").publish(outbox(out, 20)) == 20
    assert committed(broker, out) == [*range(20), *range(20)]


def test_a_person_may_have_all_published_anew(
    broker: Cluster, topic: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, out = topic("app").replace("-", "_"), topic("reorders")
    (tmp_path / "pyproject.toml").write_text(f"[tool.watertable]\nkafka = '{broker.bootstrap}'\n")
    (tmp_path / "assets" / "till").mkdir(parents=True)
    (tmp_path / "assets" / "till" / "app.py").write_text(
        f'import watertable as wt\napp = wt.App("{name}")\napp.topic("moves", key="k STRING", value="n BIGINT").stream().to("{out}")\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal, "out", Console(width=200))

    def said(*arguments: str) -> str:
        assert cli.main(["publish-anew", name, *arguments]) == 0
        return capsys.readouterr().out

    assert "has published nothing yet" in said("--apply")
    OutboxPublisher(broker, name, "wiped").publish(outbox(out, 10))
    assert f"{out}: published up to {name}@1.1. With --apply, all" in said()
    assert published(broker, name) == Published(Place(1, 1, 2)), "only told"
    assert f"{name}@1.1 is forgotten" in said("--apply")
    assert OutboxPublisher(broker, name, "anew").publish(outbox(out, 10)) == 10
    assert committed(broker, out) == [*range(10), *range(10)]


def test_a_record_may_be_as_large_as_its_topic_allows_and_one_beyond_that_is_named(broker: Cluster, topic: Topics, app: str) -> None:
    small, large = topic("small"), topic("large", **{"max.message.bytes": "4000000"})
    big = os.urandom(1_500_000)
    OutboxPublisher(broker, app).publish([OutboxRow(Place(1, 1, 0), large, b"k", big, START)])
    told = rf"topic '{small}': the record with the key b'k' is too large, with 1,500,001 bytes. Raise the topic's max.message.bytes"
    refused = [OutboxRow(Place(1, 2, 0), small, b"k", big, START)]
    with pytest.raises(KafkaError, match=told):
        OutboxPublisher(broker, app).publish(refused)
    limited = Cluster(broker.bootstrap, {"max.request.size": "1000000"})
    with pytest.raises(KafkaError, match=told):
        OutboxPublisher(limited, app).publish(refused)
    assert published(broker, app) == Published(Place(1, 1, 0))


def test_a_state_topic_that_an_administrator_made_is_not_made_again(
    broker: Cluster, app: str, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    Admin(broker).create_topic(f"watertable.{app}.outbox", 1, {"cleanup.policy": "compact"})
    monkeypatch.setattr(Admin, "create_topic", lambda *_: pytest.fail("it may create no topic"))
    assert OutboxPublisher(broker, app).published is None


def test_the_place_is_found_behind_many_aborted_transactions(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("reorders")
    sender = OutboxPublisher(broker, app)
    sender.publish(outbox(out, 10))
    aborting = Producer(broker.client_config() | {"transactional.id": f"watertable.{app}"})
    aborting.init_transactions(30)
    for n in range(70):  # two offsets each: more than one step back
        aborting.begin_transaction()
        aborting.produce(sender.state_topic, b"9.9.%d" % n, b"place")
        aborting.flush(10)
        aborting.abort_transaction(10)
    assert OutboxPublisher(broker, app).published == Published(Place(1, 1, 2))


def test_keys_keep_their_order_over_several_partitions_and_land_where_java_puts_them(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("reorders", partitions=3)
    OutboxPublisher(broker, app).publish(outbox(out, 100))
    values = committed(broker, out)
    assert sorted(values) == list(range(100))
    for key in range(5):
        assert [v for v in values if v % 5 == key] == list(range(key, 100, 5))
    # murmur2 of "k0".."k4" as Java's clients compute it, modulo 3
    assert {n: _partition_of(broker, out, n) for n in range(5)} == {n: _murmur2(b"k%d" % n) % 3 for n in range(5)}


def _partition_of(cluster: Cluster, topic: str, wanted: int) -> int:
    consumer = Consumer(cluster.client_config() | {"group.id": "reader", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
    while (message := consumer.poll(10)) is not None and int(message.value()) != wanted:
        pass
    consumer.close()
    assert message is not None
    return int(message.partition())


def _murmur2(data: bytes) -> int:
    """Compute org.apache.kafka.common.utils.Utils.murmur2, made positive."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_timestamps_and_tombstones_arrive_as_they_are(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("prices")
    rows = [
        OutboxRow(Place(1, 0, 0), out, b"k", None, START + timedelta(milliseconds=7)),
        OutboxRow(Place(1, 0, 1), out, None, b"{}", START),
    ]
    OutboxPublisher(broker, app).publish(rows)
    consumer = Consumer(broker.client_config() | {"group.id": "reader", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(out, 0, 0)])
    seen = [consumer.poll(10), consumer.poll(10)]
    assert [(m.key(), m.value(), m.timestamp()[1]) for m in seen if m is not None] == [
        (b"k", None, 1291161600007),
        (None, b"{}", 1291161600000),
    ]
    consumer.close()


def test_a_record_that_goes_with_another_that_is_refused_says_nothing_of_why(broker: Cluster, app: str) -> None:
    publisher = OutboxPublisher(broker, app)
    for code in (ClientError._PURGE_QUEUE, ClientError._PURGE_INFLIGHT):
        publisher._delivered(ClientError(code), None)
        assert publisher._failed == ""
    publisher.close()


@pytest.mark.parametrize(
    ("setting", "days", "told"),
    [
        (
            "message.timestamp.after.max.ms",
            1,
            r"the record with the key b'last' has .* further ahead .*message\.timestamp\.after\.max\.ms:",
        ),
        ("message.timestamp.before.max.ms", 9, r"the record with the key b'first' has .* further behind .*\.before\.max\.ms:"),
    ],
    ids=["ahead", "behind"],
)
def test_a_record_whose_time_a_topic_does_not_take_is_named_and_sent_once_it_does(
    broker: Cluster, app: str, setting: str, days: int, told: str
) -> None:
    """Others are a little ahead, or long ago, and the topic takes those."""
    out, now, limits = f"{app}.out", datetime.now(UTC), [f"message.timestamp.{end}.max.ms" for end in ("before", "after")]
    wide = dict.fromkeys(limits, str(10**12))
    Admin(broker).create_topic(out, 1, wide | {setting: str(days * 24 * 3_600_000)})
    times = {b"a": timedelta(), b"last": timedelta(days=3), b"first": timedelta(days=-10), b"b": timedelta(seconds=30)}
    rows = [OutboxRow(Place(1, n, 0), out, key, b"0", now + time) for n, (key, time) in enumerate(times.items())]
    with pytest.raises(KafkaError, match=told) as refused:
        OutboxPublisher(broker, app).publish(rows)
    assert len([limit for limit in limits if limit in str(refused.value)]) == 1
    Admin(broker).delete_topic(out)
    Admin(broker).create_topic(out, 1, wide)
    assert OutboxPublisher(broker, app).publish(rows) == 4


def test_where_the_limits_of_times_can_not_be_read_both_ends_are_named(
    broker: Cluster, topic: Topics, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "BEHIND", "message.timestamp.no.such.ms")
    out, years = topic("prices"), (2099, 2010)
    rows = [OutboxRow(Place(1, n, 0), out, b"%d" % year, b"0", datetime(year, 1, 1, tzinfo=UTC)) for n, year in enumerate(years)]
    with pytest.raises(KafkaError, match=r"b'2010' has .* 2010-.*b'2099' has .* 2099-.*before\.max\.ms or .*after\.max\.ms"):
        OutboxPublisher(broker, app).publish(rows)


def test_a_broker_that_knows_no_limit_of_times_makes_an_output_topic_as_well(
    broker: Cluster, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "AHEAD", "message.timestamp.no.such.ms")
    Admin(broker).create_outputs([f"{app}.out"], 2)
    assert Admin(broker).describe([f"{app}.out"])[f"{app}.out"].partitions == 2


def test_a_new_publisher_fences_the_old_one(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("reorders")
    old = OutboxPublisher(broker, app)
    old.publish(outbox(out, 10))
    new = OutboxPublisher(broker, app)
    with pytest.raises(Fenced, match="another publisher"):
        old.publish(outbox(out, 20))
    assert new.publish(outbox(out, 20)) == 10
    assert committed(broker, out) == list(range(20))


def test_a_publisher_that_raised_refuses_to_go_on(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("reorders")
    sender = OutboxPublisher(broker, app)
    with failpoints.armed("publish.after_produce", "raise"), pytest.raises(failpoints.FailpointHit):
        sender.publish(outbox(out, 3))
    with pytest.raises(KafkaError, match="make a new one"):
        sender.publish(outbox(out, 3))
    assert committed(broker, out) == []
    OutboxPublisher(broker, app).publish(outbox(out, 3))
    assert committed(broker, out) == [0, 1, 2]


def test_an_output_topic_that_is_not_there_is_named_at_once(broker: Cluster, topic: Topics, app: str) -> None:
    sender = OutboxPublisher(broker, app)
    with pytest.raises(KafkaError, match=r"no such topic.*nowhere"):
        sender.publish(outbox("nowhere", 3))
    assert sender.publish(outbox(topic("reorders"), 3)) == 3  # nothing was begun, so it may go on


def test_rows_out_of_order_are_refused_before_anything_is_sent(broker: Cluster, topic: Topics, app: str) -> None:
    out = topic("reorders")
    sender = OutboxPublisher(broker, app)
    with pytest.raises(ValueError, match="out of order"):
        sender.publish(reversed(list(outbox(out, 3))))
    assert committed(broker, out) == []


def _publish(cluster: Cluster, app: str, out: str, point: str, nth: int) -> None:
    publisher.CHUNK = 13
    with failpoints.armed(point, lambda: os.kill(os.getpid(), signal.SIGKILL), nth=nth):
        OutboxPublisher(cluster, app).publish(outbox(out, 100))


@pytest.mark.parametrize("point", ["publish.begin", "publish.after_produce", "publish.after_commit"])
@pytest.mark.parametrize("nth", [1, 4])
def test_a_publisher_killed_at_any_point_loses_and_repeats_nothing(
    broker: Cluster, topic: Topics, app: str, point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "CHUNK", 13)
    out = topic("reorders")
    child = multiprocessing.get_context("spawn").Process(target=_publish, args=(broker, app, out, point, nth))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    began = time.monotonic()
    heir = OutboxPublisher(broker, app)
    assert time.monotonic() - began < 10  # it doesn't wait for the dead one's transaction to time out
    done = nth if point == "publish.after_commit" else nth - 1
    assert heir.publish(outbox(out, 100)) == 100 - 13 * done
    assert committed(broker, out) == list(range(100))
