"""A cluster that wants TLS and a login: one set of options opens it for the admin, the publisher and Spark, and a wrong one for none."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

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
SIGNED_WITH = b"what the token endpoint and the broker know, and nobody else"


def base64url(of: bytes) -> str:
    return base64.urlsafe_b64encode(of).decode().rstrip("=")


class Tokens(BaseHTTPRequestHandler):
    """Give who asks with the client's secret a signed token, and write down who did."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        known = self.headers["Authorization"] == f"Basic {base64.b64encode(b'me:s3cret').decode()}"
        self.asked.append(f"{'Java' if 'Java' in self.headers.get('User-Agent', '') else 'librdkafka'} {known}")
        now = int(time.time())
        parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": "me", "iat": now, "exp": now + 3600})
        signed = ".".join(base64url(json.dumps(part).encode()) for part in parts)
        token = f"{signed}.{base64url(hmac.digest(SIGNED_WITH, signed.encode(), hashlib.sha256))}"
        answer = json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 3600} if known else {"error": "invalid_client"})
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Serve tokens; give the address."""
    Tokens.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


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
    bearer = "org.apache.kafka.common.security.oauthbearer"
    (folder / "keys.json").write_text(json.dumps({"keys": [{"kty": "oct", "alg": "HS256", "k": base64url(SIGNED_WITH)}]}))
    (folder / "server.properties").write_text(
        f"""process.roles=broker,controller
node.id=1
listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENT://127.0.0.1:{port},INNER://127.0.0.1:{inner}
listener.security.protocol.map=CLIENT:SASL_SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INNER
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listener.name.client.sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
listener.name.client.plain.sasl.jaas.config={login} user_me="{secret}";
listener.name.client.oauthbearer.sasl.jaas.config={bearer}.OAuthBearerLoginModule required;
listener.name.client.oauthbearer.sasl.server.callback.handler.class={bearer}.OAuthBearerValidatorCallbackHandler
listener.name.client.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={(folder / "keys.json").as_uri()}
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
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(folder / 'keys.json').as_uri()}"
    run = [java, "-Xmx384m", allowed, "-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, broker_classpath()))]
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


def with_token(folder: Path, port: int, endpoint: str, **login: str) -> Cluster:
    options = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": endpoint,
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "ca.pem"),
    }  # fmt: skip
    return Cluster(f"127.0.0.1:{port}", options | {name.replace("_", "."): value for name, value in login.items()})


@pytest.mark.parametrize(
    "login",
    [
        {
            "sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": "env:SECURED_SECRET",
            "sasl_oauthbearer_extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
        },
        {"sasl_jaas_config": "env:SECURED_JAAS"},
    ],
    ids=["a client and its secret", "a JAAS line"],
)  # fmt: skip
def test_all_three_clients_ask_the_token_endpoint(
    spark: SparkSession, folder: Path, port: int, endpoint: str, monkeypatch: pytest.MonkeyPatch, login: dict[str, str]
) -> None:
    monkeypatch.setenv("SECURED_SECRET", "s3cret")
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    monkeypatch.setenv("SECURED_JAAS", f'{module} required clientId="me" clientSecret="s3cret" extension_logicalCluster="lkc-1";')
    cluster = with_token(folder, port, endpoint, **login)
    topic = f"tokens_{len(login)}"
    Admin(cluster, timeout=60).create_topic(topic, 1)
    row = OutboxRow(Place(1, 0, 0), topic, b"k", b"v", datetime(2010, 12, 1, tzinfo=UTC))
    assert OutboxPublisher(cluster, f"app_{topic}", timeout=60).publish([row]) == 1
    (read,) = read_range(spark, cluster, {(topic, 0): 0}, {(topic, 0): 1}).collect()
    assert bytes(read.value) == b"v"
    assert {"librdkafka True", "Java True"} == set(Tokens.asked)


def test_a_client_that_the_token_endpoint_does_not_know_gets_nowhere(
    folder: Path, port: int, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECURED_SECRET", "another")
    cluster = with_token(folder, port, endpoint, sasl_oauthbearer_client_id="me", sasl_oauthbearer_client_secret="env:SECURED_SECRET")
    with pytest.raises(KafkaError, match="can't list the topics"):
        Admin(cluster, timeout=3).topics()
    assert set(Tokens.asked) == {"librdkafka False"}
