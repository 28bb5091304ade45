"""The embedded broker: a real Kafka that starts, stops, keeps its data, and can be told apart from what else is on its port."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from watertable.errors import BrokerError
from watertable.kafka import broker as embedded
from watertable.kafka.admin import Admin
from watertable.kafka.broker import State
from watertable.kafka.config import Cluster

pytestmark = pytest.mark.kafka

_START = """
import sys
from pathlib import Path
from watertable.kafka import broker

print(broker.start(Path(sys.argv[1]), port=int(sys.argv[2])).state)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "José's own broker"  # as home folders are called, and Java reads its files as Latin-1
    yield folder
    embedded.stop(folder)
    assert set(tmp_path.iterdir()) <= {folder}, "nothing is written beside it"


def port_of(cluster: Cluster) -> int:
    return int(cluster.bootstrap.rpartition(":")[2])


def test_it_starts_serves_and_keeps_its_data_until_the_next_start(folder: Path) -> None:
    port = embedded.free_port()
    assert embedded.status(folder, port=port).state is State.STOPPED
    first = embedded.start(folder, port=port)
    assert first.state is State.RUNNING
    assert embedded.start(folder, port=port) == first  # again: nothing happens
    cluster = Cluster(first.bootstrap)
    topic = Admin(cluster).create_topic("kept")
    producer = Producer(cluster.client_config())
    producer.produce("kept", b"value", timestamp=1291161600000)  # of 2010: no retention takes it
    assert producer.flush(10) == 0

    assert embedded.stop(folder).state is State.STOPPED
    assert embedded.stop(folder, port=port).state is State.STOPPED  # again: nothing happens
    other = embedded.free_port()
    second = embedded.start(folder, port=other)
    assert second.cluster_id == first.cluster_id
    cluster = Cluster(second.bootstrap)
    assert Admin(cluster).describe(["kept"]) == {"kept": topic}
    consumer = Consumer(cluster.client_config() | {"group.id": "g"})
    consumer.assign([TopicPartition("kept", 0, 0)])
    message = consumer.poll(10)
    assert message is not None
    assert message.value() == b"value"
    consumer.close()


def test_it_listens_on_loopback_only(broker: Cluster) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing; names this machine's own outward address
        outward = probe.getsockname()[0]
    if outward.startswith(("127.", "0.")):
        pytest.skip("this machine has no other address")
    with socket.socket() as caller:
        caller.settimeout(2)
        assert caller.connect_ex((outward, port_of(broker))) != 0


def test_a_taken_port_is_named_and_left_alone(folder: Path) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]

        def answer() -> None:  # like a web server: not in Kafka's words
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = squatter.accept()
                    peer.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                    peer.close()

        threading.Thread(target=answer, daemon=True).start()
        assert embedded.status(folder, port=port).state is State.TAKEN
        with pytest.raises(BrokerError, match=rf"no Kafka listens on 127\.0\.0\.1:{port}"):
            embedded.start(folder, port=port)


def test_a_foreign_broker_on_the_port_is_named_with_both_ways_out(broker: Cluster, folder: Path) -> None:
    port = port_of(broker)
    now = embedded.status(folder, port=port)
    assert now.state is State.FOREIGN
    assert now.cluster_id == Admin(broker).cluster_id()
    ways = rf"WATERTABLE_KAFKA=127\.0\.0\.1:{port}.*dev --no-broker.*another port.*WATERTABLE_KAFKA"
    with pytest.raises(BrokerError, match=rf"another Kafka \(cluster {now.cluster_id}\).*{ways}"):
        embedded.start(folder, port=port)
    embedded.stop(folder)
    assert embedded.status(folder, port=port).state is State.FOREIGN  # stopping ours leaves it alone


def test_a_killed_broker_leaves_a_stale_claim_that_a_start_cleans_up(folder: Path) -> None:
    port = embedded.free_port()
    first = embedded.start(folder, port=port)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    while embedded.status(folder, port=port).state in (State.RUNNING, State.STARTING):
        time.sleep(0.05)
    assert embedded.status(folder, port=port).state is State.STALE
    second = embedded.start(folder, port=port)
    assert second.state is State.RUNNING
    assert second.pid != first.pid
    assert second.cluster_id == first.cluster_id


def test_a_pid_that_was_used_again_is_not_taken_for_the_broker(folder: Path) -> None:
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as somebody:
        (folder / "broker.json").write_text(json.dumps({"pid": somebody.pid, "port": embedded.free_port()}))
        assert embedded.status(folder, port=embedded.free_port()).state is State.STALE
        embedded.stop(folder)
        assert somebody.poll() is None  # nobody else's process is stopped
        somebody.kill()


def test_a_broker_that_runs_on_another_port_is_named(folder: Path) -> None:
    port = embedded.free_port()
    embedded.start(folder, port=port)
    with pytest.raises(BrokerError, match=rf"already runs on 127\.0\.0\.1:{port}"):
        embedded.start(folder, port=embedded.free_port())


def test_a_broker_that_can_not_start_says_why(folder: Path) -> None:
    port = embedded.free_port()
    embedded.start(folder, port=port)
    embedded.stop(folder)
    (folder / "data" / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")
    with pytest.raises(BrokerError, match=r"died while it started(?s:.*)node"):
        embedded.start(folder, port=port)
    assert embedded.status(folder, port=port).state is State.STOPPED


def test_why_it_can_not_start_is_said_however_deep_in_its_code_that_was(folder: Path) -> None:
    folder.mkdir()
    deep = [f"\tat org.example.Deep.down(Deep.java:{line})" for line in range(40)]
    (folder / "broker.log").write_text("\n".join(["INFO  it starts", "ERROR no room for it", *deep, "\t... 7 more"]), encoding="utf-8")
    assert embedded._tail(folder / "broker.log") == "ERROR no room for it"


def test_it_starts_in_a_folder_whose_name_the_machines_locale_has_no_letters_for(folder: Path) -> None:
    folder.mkdir()
    told = subprocess.run(
        [sys.executable, "-c", _START, str(folder), str(embedded.free_port())], env=os.environ | {"LC_ALL": "C"}, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.stdout == "running\n", told.stderr[-2000:]


def test_a_folder_that_kafka_takes_for_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="comma"):
        embedded.start(tmp_path / "one, two")
    assert not any(tmp_path.iterdir())


def test_ctrl_c_in_the_terminal_does_not_reach_it(folder: Path) -> None:
    running = embedded.start(folder, port=embedded.free_port())
    assert running.pid is not None
    assert os.getsid(running.pid) == running.pid != os.getsid(0)


def test_the_controller_never_gets_the_brokers_port(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([41001, 41001, 41002])
    monkeypatch.setattr(embedded, "free_port", lambda: next(free))
    folder.mkdir(parents=True, exist_ok=True)
    embedded._write_configuration(folder, 41001)
    assert "listeners=PLAINTEXT\\://127.0.0.1\\:41001,CONTROLLER\\://127.0.0.1\\:41002\n" in (folder / "server.properties").read_text()


def test_of_two_simultaneous_starts_one_starts_and_the_other_finds_it(folder: Path) -> None:
    port = embedded.free_port()
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(embedded.start(folder, port=port))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [embedded.status(folder, port=port)] * 2
