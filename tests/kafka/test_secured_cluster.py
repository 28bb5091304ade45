"""A cluster that wants TLS and a password: one set of options opens it for the admin, the publisher and Spark, and a wrong one for none."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from watertable.errors import KafkaError
from watertable.jars import broker_classpath, find_java
from watertable.kafka import broker as embedded
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.kafka.publisher import OutboxPublisher, OutboxRow, Place
from watertable.kafka.source import read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
PASSWORD = 'sp"am; \\eggs'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """Run a Kafka that serves SASL_SSL only, with a certificate of its own."""
    java, port, inner, controller = find_java().launcher, *(embedded.free_port() for _ in range(3))
    keytool = [
        str(Path(java).resolve().with_name("keytool")),
        "-keystore",
        str(folder / "server.p12"),
        "-storepass",
        "changeit",
        "-alias",
        "kafka",
    ]
    subprocess.run(
        [*keytool, "-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", "-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    certificate = subprocess.run([*keytool, "-exportcert", "-rfc"], check=True, capture_output=True).stdout
    (folder / "ca.pem").write_bytes(certificate)
    secret = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")  # once for JAAS, once for the properties file
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    (folder / "server.properties").write_text(
        f"""process.roles=broker,controller
node.id=1
listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner}
listener.security.protocol.map=CLIENT:SASL_SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INNER
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listener.name.client.sasl.enabled.mechanisms=PLAIN
listener.name.client.plain.sasl.jaas.config={login} user_me="{secret}";
listener.name.client.ssl.keystore.location={folder / "server.p12"}
listener.name.client.ssl.keystore.type=PKCS12
listener.name.client.ssl.keystore.password=changeit
log.dirs={folder / "data"}
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""
    )
    run = [java, "-Xmx384m", "-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, broker_classpath()))]
    properties = str(folder / "server.properties")
    subprocess.run(
        [*run, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", properties], check=True, capture_output=True
    )
    with (folder / "out.log").open("wb") as out, subprocess.Popen([*run, "kafka.Kafka", properties], stdout=out, stderr=out) as process:
        try:
            yield port
        finally:
            process.kill()


def cluster(folder: Path, port: int, **changed: str) -> Cluster:
    options = {
        "kafka.security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "env:SECURED_PASSWORD",
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "ca.pem"),
    }  # fmt: skip
    return Cluster(f"127.0.0.1:{port}", options | {name.replace("_", "."): value for name, value in changed.items()})


def test_one_set_of_options_opens_it_for_all_three_clients(
    spark: SparkSession, folder: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECURED_PASSWORD", PASSWORD)
    secured = cluster(folder, port)
    admin = Admin(secured, timeout=60)
    admin.create_topic("reorders", 1)
    row = OutboxRow(Place(1, 0, 0), "reorders", b"k", b"v", datetime(2010, 12, 1, tzinfo=UTC))
    assert OutboxPublisher(secured, "app", timeout=60).publish([row]) == 1
    (read,) = read_range(spark, secured, {("reorders", 0): 0}, {("reorders", 0): 1}).collect()
    assert bytes(read.value) == b"v"
    admin.mirror("app", {("reorders", 0): 1})
    assert admin.mirrored("app", [("reorders", 0)]) == {("reorders", 0): 1}


def test_the_jaas_line_alone_does_as_well(folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECURED_PASSWORD", PASSWORD)
    jaas = cluster(folder, port).spark_options()["kafka.sasl.jaas.config"]
    monkeypatch.setenv("SECURED_JAAS", jaas)
    options = {name: value for name, value in cluster(folder, port).options.items() if name not in ("sasl.username", "sasl.password")}
    assert Admin(Cluster(f"127.0.0.1:{port}", options | {"sasl.jaas.config": "env:SECURED_JAAS"}), timeout=60).cluster_id()


@pytest.mark.parametrize("changed", [{"sasl_username": "somebody"}, {"security_protocol": "PLAINTEXT"}], ids=str)
def test_wrong_options_open_it_for_nobody(folder: Path, port: int, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]) -> None:
    monkeypatch.setenv("SECURED_PASSWORD", PASSWORD)
    Admin(cluster(folder, port), timeout=60).topics()  # it's there
    with pytest.raises(KafkaError, match="can't list the topics"):
        Admin(cluster(folder, port, **changed), timeout=3).topics()
