"""Count and sum by key with Quix Streams, as one would write it: its JSON, its RocksDB state, its changelog, standard settings.

Runs in an environment of its own, with one process a core in one consumer group, and speaks the protocol of race.py. All records are
visible when the processes have folded them and, under exactly-once, their offsets are committed.

Arguments: bootstrap, topic, records, warm-up topic, warm-up records, guarantee, processes, state folder.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from ctypes import c_int64
from multiprocessing.sharedctypes import RawValue
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from quixstreams import Application, State


def member(bootstrap: str, topic: str, group: str, guarantee: str, folder: str, seen: Any, begin: Any) -> None:
    """Be one process of the group."""
    app = Application(
        broker_address=bootstrap, consumer_group=group, auto_offset_reset="earliest", processing_guarantee=guarantee,
        state_dir=folder, loglevel="WARNING",
    )  # fmt: skip

    def fold(value: dict[str, Any], state: State) -> None:
        count, amount = state.get("total", (0, 0))
        state.set("total", (count + 1, amount + value["amount"]))
        seen.value += 1

    app.dataframe(app.topic(topic, value_deserializer="json")).update(fold, stateful=True)
    begin.wait()
    app.run()


def main() -> None:
    """Work off the warm-up topic, then the real one."""
    bootstrap, topic, records, warm, warm_records, guarantee, processes, folder = sys.argv[1:]
    work(bootstrap, warm, int(warm_records), guarantee, int(processes), f"{folder}/warm", warm_up=True)
    print('{"event": "ready"}', flush=True)
    if sys.stdin.readline().strip() != "go":
        raise SystemExit(2)
    work(bootstrap, topic, int(records), guarantee, int(processes), f"{folder}/real", warm_up=False)


def work(bootstrap: str, topic: str, records: int, guarantee: str, processes: int, folder: str, *, warm_up: bool) -> None:
    """Run the group until all is visible."""
    group = f"bench-{topic}-{guarantee}"
    context = multiprocessing.get_context("spawn")
    begin, seen = context.Event(), [RawValue(c_int64) for _ in range(processes)]
    arguments = [(bootstrap, topic, group, guarantee, f"{folder}/{n}", seen[n], begin) for n in range(processes)]
    members = [context.Process(target=member, args=a) for a in arguments]
    for process in members:
        process.start()
    time.sleep(3)  # they import; then they all join at once
    begin.set()
    while not any(s.value for s in seen):
        time.sleep(0.01)
    if not warm_up:
        print('{"event": "first"}', flush=True)
    while sum(s.value for s in seen) < records:
        time.sleep(0.01)
        if not all(p.is_alive() for p in members):
            raise SystemExit("a member of the group died")
    if guarantee == "exactly-once":
        wait_until_committed(bootstrap, group, topic)
    if not warm_up:
        print('{"event": "visible"}', flush=True)
    for process in members:
        process.terminate()  # it commits and ends
    for process in members:
        process.join(60)
    if not warm_up:
        print(json.dumps({"event": "answer", **answer(bootstrap, group)}), flush=True)


def wait_until_committed(bootstrap: str, group: str, topic: str) -> None:
    """Wait until the group's committed offsets are the ends of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    parts = [TopicPartition(topic, n) for n in consumer.list_topics(topic).topics[topic].partitions]
    ends = {p.partition: consumer.get_watermark_offsets(p)[1] for p in parts}
    while any(p.offset < ends[p.partition] for p in consumer.committed(parts, timeout=30)):
        time.sleep(0.02)
    consumer.close()


def answer(bootstrap: str, group: str) -> dict[str, int]:
    """Add up the state's changelog, read as a committed reader does: the newest value of each key."""
    client = {"bootstrap.servers": bootstrap, "group.id": f"{group}-answer", "enable.partition.eof": True}
    consumer = Consumer(client | {"isolation.level": "read_committed"})
    topics = {name: t for name, t in consumer.list_topics().topics.items() if name.startswith(f"changelog__{group}--")}
    parts = [TopicPartition(name, n, OFFSET_BEGINNING) for name, t in topics.items() for n in t.partitions]
    consumer.assign(parts)
    newest: dict[tuple[int, bytes], tuple[int, int]] = {}
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(parts):
        for message in consumer.consume(10_000, 0.2):
            if message.error():
                ended.add((message.topic(), message.partition()))
            elif message.key().endswith(b'"total"'):
                newest[message.partition(), message.key()] = json.loads(message.value())
    consumer.close()
    return {"keys": len(newest), "records": sum(n for n, _ in newest.values()), "amount": sum(a for _, a in newest.values())}


if __name__ == "__main__":
    main()
