"""One description of a cluster, in Kafka's own words, reaches Spark and librdkafka alike."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from watertable.errors import SettingsError
from watertable.kafka.admin import Admin
from watertable.kafka.config import ClientConfig, Cluster

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="p\\"w;d";'


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", 'p"w;d')
    monkeypatch.setenv("JAAS", PLAIN)


def client(**options: str) -> ClientConfig:
    config = Cluster("b:9093", {name.replace("_", "."): value for name, value in options.items()}).client_config()
    return {name: value for name, value in config.items() if name not in ("bootstrap.servers", "log_level")}


@pytest.mark.parametrize(
    ("option", "value"), [("security.protocol", "SSLL"), ("ssl.truststore.location", "/nowhere"), ("request.timeout.ms", "a minute")]
)
def test_a_wrong_value_is_a_wrong_setting_and_no_traceback_of_the_client(option: str, value: str) -> None:
    options = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", option: value}
    with pytest.raises(SettingsError, match="kafka_options: the Kafka client refuses them: "):
        Admin(Cluster("b:1", options))


def test_names_may_carry_sparks_prefix() -> None:
    assert Cluster("b:1", {"kafka.security.protocol": "SSL"}) == Cluster("b:1", {"security.protocol": "SSL"})


def test_user_and_password_become_the_jaas_line_that_java_wants() -> None:
    cluster = Cluster("b:1", {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "env:PASSWORD"})
    assert cluster.spark_options() == {
        "kafka.bootstrap.servers": "b:1", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": PLAIN,
    }  # fmt: skip
    assert client(sasl_mechanism="PLAIN", sasl_username="me", sasl_password="env:PASSWORD") == {
        "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": 'p"w;d',
    }  # fmt: skip


def test_a_scram_mechanism_gets_its_own_login_module() -> None:
    cluster = Cluster("b:1", {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me", "sasl.password": "env:PASSWORD"})
    assert "scram.ScramLoginModule required" in cluster.spark_options()["kafka.sasl.jaas.config"]


ENDPOINT = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token"}
OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.mark.parametrize(
    "login",
    [
        {"sasl.oauthbearer.client.id": "c", "sasl.oauthbearer.client.secret": "env:PASSWORD", "sasl.oauthbearer.scope": "k"},
        {"sasl.jaas.config": "env:JAAS"},
        {"sasl.jaas.config": "env:JAAS", "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler"},
    ],
    ids=["a client and its secret", "a JAAS line", "Java's handler too"],
)
def test_both_sides_ask_a_token_endpoint_as_one_client(login: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    jaas = f'{OAUTH}.OAuthBearerLoginModule required clientId="c" clientSecret="p\\"w;d" scope="k";'
    monkeypatch.setenv("JAAS", jaas)
    cluster = Cluster("b:1", ENDPOINT | login)
    assert cluster.spark_options() == {
        "kafka.bootstrap.servers": "b:1", "kafka.sasl.mechanism": "OAUTHBEARER", "kafka.sasl.jaas.config": jaas,
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/token",
        "kafka.sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
    }  # fmt: skip
    assert client(**ENDPOINT | login) == ENDPOINT | {
        "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "c", "sasl.oauthbearer.client.secret": 'p"w;d',
        "sasl.oauthbearer.scope": "k",
    }  # fmt: skip
    AdminClient(cluster.client_config() | {"security.protocol": "SASL_SSL"})  # librdkafka knows them all


def test_a_handler_of_the_users_own_asks_an_endpoint_for_java_and_nothing_else_for_librdkafka() -> None:
    own = {"sasl.login.callback.handler.class": "com.example.Handler"}
    assert Cluster("b:1", ENDPOINT | own).spark_options()["kafka.sasl.login.callback.handler.class"] == "com.example.Handler"
    assert client(**ENDPOINT | own) == ENDPOINT | {"sasl.oauthbearer.method": "oidc"}
    with pytest.raises(SettingsError, match=r"'sasl\.login\.callback\.handler\.class' has no counterpart"):
        client(sasl_mechanism="OAUTHBEARER", **own)


@pytest.mark.parametrize(
    "login",
    [
        {
            "sasl.oauthbearer.client.id": "c", "sasl.oauthbearer.client.secret": "env:PASSWORD",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool=1",
        },
        {"sasl.jaas.config": "env:JAAS"},
    ],
    ids=["an option", "a JAAS line"],
)  # fmt: skip
def test_sasl_extensions_reach_both_sides(login: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'clientId="c" clientSecret="p\\"w;d" extension_logicalCluster="lkc-1" extension_identityPoolId="pool=1"'
    monkeypatch.setenv("JAAS", jaas := f"{OAUTH}.OAuthBearerLoginModule required {said};")
    found = Cluster("b:1", ENDPOINT | login).spark_options()
    assert found["kafka.sasl.jaas.config"] == jaas
    assert "kafka.sasl.oauthbearer.extensions" not in found
    config = client(**ENDPOINT | login)
    assert str(config["sasl.oauthbearer.extensions"]).replace(", ", ",") == "logicalCluster=lkc-1,identityPoolId=pool=1"
    AdminClient({"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL"} | config)


def test_sasl_extensions_that_would_reach_one_side_only_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAAS", 'OAuthBearerLoginModule required clientId="c" clientSecret="s" extension_pool="a,b";')
    both = Cluster("b:1", ENDPOINT | {"sasl.jaas.config": "env:JAAS", "sasl.oauthbearer.extensions": "pool=a"})
    for ask in (both.spark_options, both.client_config):
        with pytest.raises(SettingsError, match='alone: write extension_name="value" into it'):
            ask()
    with pytest.raises(SettingsError, match="no comma in a SASL extension, and pool has one"):
        client(**ENDPOINT, sasl_jaas_config="env:JAAS")
    for broken in ("pool", "pool=", "=a", "pool=a,", "p1=a"):
        with pytest.raises(SettingsError, match="wants name=value,name=value"):
            client(**ENDPOINT | {"sasl.oauthbearer.extensions": broken})


def test_a_jaas_line_becomes_the_user_and_password_that_librdkafka_wants() -> None:
    assert client(sasl_mechanism="PLAIN", sasl_jaas_config="env:JAAS") == {
        "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": 'p"w;d',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("jaas", "config"),
    [
        (
            'OAuthBearerLoginModule required clientId="c" clientSecret="s" scope="k";',
            {
                "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "c", "sasl.oauthbearer.client.secret": "s",
                "sasl.oauthbearer.scope": "k",
            },
        ),
        (
            'Krb5LoginModule required useKeyTab=true keyTab="/me.keytab" principal="me@REALM";',
            {"sasl.kerberos.keytab": "/me.keytab", "sasl.kerberos.principal": "me@REALM"},
        ),
    ],
)  # fmt: skip
def test_other_logins_are_taken_from_their_jaas_line(jaas: str, config: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAAS", jaas)
    assert client(sasl_jaas_config="env:JAAS") == config


def test_a_jaas_line_without_credentials_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for jaas, names in (
        ('Module required token="s3cret";', "none of them"),
        ('PlainLoginModule required username="me" password="s3cret==;', "username"),  # the quote that is missing makes a word of it
    ):
        monkeypatch.setenv("JAAS", jaas)
        with pytest.raises(SettingsError, match=f"it names {names}$") as refused:
            client(sasl_jaas_config="env:JAAS")
        assert "s3cret" not in str(refused.value)


def test_a_secret_that_the_client_repeats_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISPLACED", "s3cret")
    with pytest.raises(SettingsError, match=r"""refuses them: Invalid value "\*\*\*" for.*"security\.protocol"$"""):
        Admin(Cluster("b:1", {"security.protocol": "env:MISPLACED"}))


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({"ssl_truststore_location": "/ca.pem", "ssl_truststore_type": "PEM"}, {"ssl.ca.location": "/ca.pem"}),
        (
            {"ssl_keystore_location": "/me.p12", "ssl_keystore_type": "PKCS12", "ssl_keystore_password": "env:PASSWORD"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": 'p"w;d'},
        ),
        (
            {"ssl_keystore_location": "/me.pem", "ssl_keystore_type": "PEM"},
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem"},
        ),
        ({"ssl_truststore_certificates": "PEM"}, {"ssl.ca.pem": "PEM"}),
        ({"ssl_endpoint_identification_algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"request_timeout_ms": "20000"}, {"socket.timeout.ms": "20000"}),
    ],
    ids=str,
)
def test_stores_and_time_limits_are_translated(options: dict[str, str], config: dict[str, str]) -> None:
    assert client(**options) == config


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ssl_truststore_location": "/ca.jks"}, r"ssl\.truststore\.type is JKS.*set ssl\.truststore\.type to PEM"),
        ({"ssl_truststore_location": "/ca.p12", "ssl_truststore_type": "PKCS12"}, r"is PKCS12, which librdkafka can't read"),
        ({"fetch_max_bytes": "1"}, r"'fetch\.max\.bytes' has no counterpart.*: leave it out$"),
        ({"ssl_enabled_protocols": "TLSv1.3"}, r"'ssl\.enabled\.protocols' has no counterpart.*: leave it out$"),
    ],
    ids=str,
)
def test_what_one_side_can_not_express_is_refused_not_dropped(options: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        client(**options)


def test_librdkafka_takes_what_we_translate() -> None:
    options = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "env:JAAS", "request.timeout.ms": "20000",
        "connections.max.idle.ms": "540000", "send.buffer.bytes": "65536", "receive.buffer.bytes": "65536", "metadata.max.age.ms": "60000",
        "reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "1000", "retry.backoff.ms": "100", "retry.backoff.max.ms": "1000",
        "client.id": "us", "client.rack": "r1", "ssl.endpoint.identification.algorithm": "https", "enable.metrics.push": "false",
        "socket.connection.setup.timeout.ms": "10000", "ssl.cipher.suites": "ALL",
    }  # fmt: skip
    AdminClient(Cluster("127.0.0.1:1", options).client_config())  # raises at a name or value that librdkafka doesn't know
