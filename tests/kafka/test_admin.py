"""Topics and offsets, against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from watertable.errors import KafkaError, TopicChanged
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster

pytestmark = pytest.mark.kafka
Topics = Callable[..., str]


def send(cluster: Cluster, topic: str, values: list[bytes], times: list[int] | None = None) -> None:
    producer = Producer(cluster.client_config())
    for value, timestamp in zip(values, times or [0] * len(values), strict=True):
        producer.produce(topic, value, partition=0, timestamp=timestamp)
    assert producer.flush(10) == 0


@pytest.fixture
def admin(broker: Cluster) -> Admin:
    return Admin(broker)


def test_a_topic_made_again_under_its_name_is_another_topic(admin: Admin, topic: Topics) -> None:
    name = topic("sales", partitions=3)
    was = admin.describe([name])[name]
    assert was.partitions == 3
    admin.delete_topic(name)
    assert admin.describe([name]) == {}
    now = admin.create_topic(name, partitions=3)
    assert now.partitions == 3
    assert now.id != was.id


def test_creating_a_topic_again_changes_nothing_unless_its_partitions_differ(admin: Admin, topic: Topics) -> None:
    name = topic("sales", partitions=2)
    assert admin.create_topic(name, partitions=2) == admin.describe([name])[name]
    for other in (1, 3):
        with pytest.raises(KafkaError, match=rf"with 2 partitions; wanted {other}"):
            admin.create_topic(name, partitions=other)


def test_offsets_are_first_end_and_by_time(admin: Admin, broker: Cluster, topic: Topics) -> None:
    name = topic(partitions=2)
    send(broker, name, [b"a", b"b", b"c"], times=[1000, 2000, 3000])
    both = admin.partitions([name])
    assert both == ((name, 0), (name, 1))
    assert admin.latest(both) == {(name, 0): 3, (name, 1): 0}
    assert admin.earliest(both) == {(name, 0): 0, (name, 1): 0}
    assert admin.at_time(both, datetime.fromtimestamp(2, UTC)) == {(name, 0): 1, (name, 1): 0}
    assert admin.at_time(both, datetime.fromtimestamp(9, UTC)) == {(name, 0): 3, (name, 1): 0}
    with pytest.raises(ValueError, match="no time zone"):
        admin.at_time(both, datetime(2011, 1, 1))


def test_an_open_transaction_is_not_there_yet(admin: Admin, broker: Cluster, topic: Topics) -> None:
    name = topic()
    producer = Producer({**broker.client_config(), "transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(name, b"x")
    producer.flush(10)
    assert admin.latest([(name, 0)]) == {(name, 0): 0}
    producer.commit_transaction(10)
    deadline = time.monotonic() + 10
    while not (end := admin.latest([(name, 0)])[name, 0]) and time.monotonic() < deadline:  # markers follow the commit's answer
        time.sleep(0.02)
    assert end == 2  # the record and the transaction's marker


def test_the_position_is_mirrored_to_the_apps_consumer_group(admin: Admin, broker: Cluster, topic: Topics) -> None:
    name = topic(partitions=2)
    both = admin.partitions([name])
    send(broker, name, [b"a", b"b"])
    assert admin.mirrored(f"app_{name}", both) == {}
    admin.mirror(f"app_{name}", {(name, 0): 2, (name, 1): 0})
    assert Admin(broker).mirrored(f"app_{name}", both) == {(name, 0): 2, (name, 1): 0}
    admin.mirror(f"app_{name}", {(name, 0): 1})  # a rewind mirrors backward too
    assert admin.mirrored(f"app_{name}", both) == {(name, 0): 1, (name, 1): 0}


def test_topics_that_kafka_compacts_are_known(admin: Admin, topic: Topics) -> None:
    policies = ("delete", "compact", "compact,delete")
    names = [topic(**{"cleanup.policy": policy}) for policy in policies]
    assert admin.compacted(names) == set(names[1:])
    assert admin.compacted([]) == frozenset()


def test_unchanged_topics_pass(admin: Admin, broker: Cluster, topic: Topics) -> None:
    name = topic(partitions=2)
    send(broker, name, [b"a", b"b"])
    admin.check_topics(admin.describe([name]), {(name, 0): 2, (name, 1): 0})


def test_a_deleted_topic_is_noticed(admin: Admin, topic: Topics) -> None:
    name = topic()
    known = admin.describe([name])
    admin.delete_topic(name)
    with pytest.raises(TopicChanged, match=rf"{name}.* was deleted .*read up to 0:7.*start over"):
        admin.check_topics(known, {(name, 0): 7})


def test_a_recreated_topic_is_noticed_even_at_the_same_offset(admin: Admin, broker: Cluster, topic: Topics) -> None:
    name = topic()
    send(broker, name, [b"a"])
    known = admin.describe([name])
    admin.delete_topic(name)
    admin.create_topic(name)
    send(broker, name, [b"a"])
    with pytest.raises(TopicChanged, match="was re-created"):
        admin.check_topics(known, {(name, 0): 1})


def test_added_partitions_are_noticed(admin: Admin, topic: Topics) -> None:
    name = topic(partitions=1)
    known = admin.describe([name])
    admin.add_partitions(name, 2)
    with pytest.raises(TopicChanged, match="has 2 partitions, it had 1"):
        admin.check_topics(known, {(name, 0): 0})


def test_records_deleted_before_we_read_them_are_noticed_and_counted(admin: Admin, broker: Cluster, topic: Topics) -> None:
    name = topic()
    send(broker, name, [b"a", b"b", b"c", b"d"])
    known = admin.describe([name])
    admin.delete_records({(name, 0): 3})
    admin.check_topics(known, {(name, 0): 3})  # at the new start: nothing of ours is lost
    with pytest.raises(TopicChanged, match=r"starts at offset 3, we had read up to 1; 2 offsets are lost unread"):
        admin.check_topics(known, {(name, 0): 1})


def test_a_topic_that_ends_before_our_position_is_noticed(admin: Admin, broker: Cluster, topic: Topics) -> None:
    name = topic()
    send(broker, name, [b"a"])
    with pytest.raises(TopicChanged, match=r"ends at offset 1, we had read up to 5"):
        admin.check_topics(admin.describe([name]), {(name, 0): 5})


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1\b.*WATERTABLE_KAFKA"):
        Admin(Cluster("127.0.0.1:1"), timeout=1).topics()
    with pytest.raises(KafkaError, match="can't create topic 't' on"):
        Admin(Cluster("127.0.0.1:1"), timeout=0.1).create_topic("t")


def test_an_unknown_topic_is_named(admin: Admin) -> None:
    with pytest.raises(KafkaError, match=r"no such topic.*nowhere"):
        admin.partitions(["nowhere"])
