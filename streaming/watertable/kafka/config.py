"""Say how to reach a Kafka cluster: once, for Spark, the admin and the Python client alike.

A `Cluster` keeps the address and the client options under Kafka's own (Java) names. `spark_options` hands them to Spark as `kafka.*`;
`client_config` translates them into librdkafka's words, which differ for JAAS, key stores and retry settings. An option that one
side can't express is refused there, never dropped: a client that silently connects without encryption is a defect.
Secrets ("env:NAME") are looked up at each of the two calls, i.e. when a connection is made, and show nowhere before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from watertable.errors import SettingsError
from watertable.settings import Secret, Settings, resolve

_SAME: Final = re.compile(
    r"""bootstrap\.servers|security\.protocol|sasl\.mechanism|client\.(id|rack)|ssl\.key\.password|ssl\.endpoint\.identification\.algorithm
    |sasl\.kerberos\.(service\.name|kinit\.cmd|min\.time\.before\.relogin)|sasl\.oauthbearer\.(token\.endpoint\.url|scope|client\.id|client\.secret
    |extensions)|metadata\.max\.age\.ms|socket\.connection\.setup\.timeout\.ms|re(connect|try)\.backoff\.(max\.)?ms|enable\.metrics\.push""",
    re.VERBOSE,
)
_RENAMED: Final = {
    "request.timeout.ms": "socket.timeout.ms",
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "ssl.cipher.suites": "ssl.cipher.suites",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_STORES: Final = {  # (store, its type) → librdkafka's name for the file
    ("truststore", "PEM"): "ssl.ca.location",
    ("keystore", "PKCS12"): "ssl.keystore.location",
}
_PASSWORD: Final = {"username": "sasl.username", "password": "sasl.password"}
_CLIENT: Final = {  # a JAAS line's words → librdkafka's names
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_EXTENSIONS: Final = "sasl.oauthbearer.extensions"
_EXTENSION: Final = "extension_"
"""Begins a JAAS line's word for what is said to the broker beside the token; librdkafka has one option for all of that, `name=value,…`."""
_HANDLER: Final = "sasl.login.callback.handler.class"
_ASKS_ENDPOINT: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
"""What a Java client gets its token with; by default it makes up one, unsigned. librdkafka asks the endpoint by itself."""
_HANDLED: Final = re.compile(r"ssl\.(trust|key)store\.(location|type|password)|sasl\.jaas\.config|sasl\.(username|password)")
_PAIRED: Final = ("username", "password", "clientId", "clientSecret", "keyTab", "principal")
_JAAS: Final = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")

Options = Mapping[str, str]
ClientConfig = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Name a Kafka cluster: bootstrap servers and client options by their Java names, secrets as "env:NAME".

    SASL credentials are either `sasl.jaas.config` whole, or what the JAAS line is made from: `sasl.username` with `sasl.password`; for
    OAUTHBEARER `sasl.oauthbearer.client.id` with `sasl.oauthbearer.client.secret`, and `sasl.oauthbearer.token.endpoint.url` in both cases.
    SASL extensions are `extension_name="value"` in the one, and `sasl.oauthbearer.extensions` ("name=value,...") beside the other.

    >>> Cluster("broker:9093", {"security.protocol": "SSL"}).spark_options()
    {'kafka.bootstrap.servers': 'broker:9093', 'kafka.security.protocol': 'SSL'}
    """

    bootstrap: str
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", {name.removeprefix("kafka."): value for name, value in self.options.items()})

    @classmethod
    def of(cls, settings: Settings) -> Cluster:
        """Take the cluster that the settings name."""
        return cls(settings.kafka, settings.kafka_options)

    def __hash__(self) -> int:
        return hash((self.bootstrap, tuple(sorted(self.options.items()))))

    def spark_options(self) -> dict[str, str]:
        """Give the options of Spark's Kafka source, secrets revealed: hand them to a reader and show them nowhere.

        Raises `SettingsError` where a secret isn't in the environment.
        """
        found = self._resolved()
        mechanism = found.get("sasl.mechanism", "GSSAPI")
        words = _CLIENT if mechanism == "OAUTHBEARER" else _PASSWORD
        login = {word: found.pop(name) for word, name in words.items() if name in found}
        if mechanism == "OAUTHBEARER":
            login |= _extensions(found.pop(_EXTENSIONS, ""))
        if login:
            found.setdefault("sasl.jaas.config", _jaas(mechanism, login))
        if _asks_endpoint(found):
            found.setdefault(_HANDLER, _ASKS_ENDPOINT)
        return {f"kafka.{name}": value for name, value in {"bootstrap.servers": self.bootstrap, **found}.items()}

    def client_config(self) -> ClientConfig:
        """Give the configuration of the Python client (librdkafka) and its admin, secrets revealed.

        Raises `SettingsError` for an option that librdkafka can't express, naming what to use instead, or a secret that isn't set.
        """
        found = self._resolved()
        config: ClientConfig = {
            "bootstrap.servers": self.bootstrap,
            "log_level": "2",
        }  # what fails is raised; its log would repeat each attempt
        if _asks_endpoint(found):
            config["sasl.oauthbearer.method"] = "oidc"
            found.pop(_HANDLER, None)
        for name, value in found.items():
            if _SAME.fullmatch(name):
                config[name] = value
            elif name in _RENAMED:
                config[_RENAMED[name]] = value
            elif not _HANDLED.fullmatch(name):
                raise SettingsError(
                    f"kafka option {name!r} has no counterpart in librdkafka, which the admin and the publisher use: leave it out"
                )
        config |= _credentials(found) | _stores(found)
        if config.get("ssl.endpoint.identification.algorithm") == "":
            config["ssl.endpoint.identification.algorithm"] = "none"  # how Java writes it, and how librdkafka does
        return config

    def hide(self, text: str) -> str:
        """Put *** for each secret in what a client says: librdkafka repeats a value that it can't use."""
        for value in self._looked_up().values():
            if isinstance(value, Secret) and value.reveal():
                text = text.replace(value.reveal(), str(value))
        return text

    def _looked_up(self) -> dict[str, str | Secret]:
        return {name: resolve(f"kafka option {name}", value) for name, value in self.options.items()}

    def _resolved(self) -> dict[str, str]:
        found = {name: value.reveal() if isinstance(value, Secret) else value for name, value in self._looked_up().items()}
        if _extensions(found.get(_EXTENSIONS, "")) and "sasl.jaas.config" in found:
            raise SettingsError(f'{_EXTENSIONS}: Java takes them from sasl.jaas.config alone: write {_EXTENSION}name="value" into it')
        return found


def _asks_endpoint(options: Options) -> bool:
    return options.get("sasl.mechanism") == "OAUTHBEARER" and "sasl.oauthbearer.token.endpoint.url" in options


def _extensions(said: str) -> dict[str, str]:
    """Read what librdkafka takes as SASL extensions, as words of a JAAS line."""
    pairs = [part.partition("=") for part in said.split(",")] if said else []
    if not all(re.fullmatch(r"\s*[A-Za-z]+\s*", name) and value.strip() for name, _, value in pairs):
        raise SettingsError(f"{_EXTENSIONS} wants name=value,name=value, in which a name is of letters")
    return {f"{_EXTENSION}{name.strip()}": value.strip() for name, _, value in pairs}


def _jaas(mechanism: str, login: Mapping[str, str]) -> str:
    kind = mechanism.partition("-")[0]
    module = {"SCRAM": "scram.ScramLoginModule", "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule"}.get(kind, "plain.PlainLoginModule")
    escaped = {word: value.replace("\\", "\\\\").replace('"', '\\"') for word, value in login.items()}
    said = "".join(f' {word}="{value}"' for word, value in escaped.items())
    return f"org.apache.kafka.common.security.{module} required{said};"


def _credentials(options: Options) -> dict[str, str]:
    """Take user and password, or OAuth's client, out of the options or their JAAS line."""
    found = {name: options[name] for name in ("sasl.username", "sasl.password") if name in options}
    jaas = options.get("sasl.jaas.config")
    if jaas is None:
        return found
    said = {name: re.sub(r"\\(.)", r"\1", next(v for v in values if v or v is values[-1])) for name, *values in _JAAS.findall(jaas)}
    match said:
        case {"username": username, "password": password}:
            return {"sasl.username": username, "sasl.password": password}
        case {"clientId": _, "clientSecret": _}:
            config = {"sasl.oauthbearer.method": "oidc"} | {name: said[word] for word, name in _CLIENT.items() if word in said}
            extensions = {word.removeprefix(_EXTENSION): value for word, value in said.items() if word.startswith(_EXTENSION)}
            if unsaid := [name for name, value in extensions.items() if "," in value]:
                raise SettingsError(f"sasl.jaas.config: librdkafka takes no comma in a SASL extension, and {', '.join(unsaid)} has one")
            return config | ({_EXTENSIONS: ",".join(f"{name}={value}" for name, value in extensions.items())} if extensions else {})
        case {"keyTab": keytab, "principal": principal}:
            return {"sasl.kerberos.keytab": keytab, "sasl.kerberos.principal": principal}
    halves = [word for word in _PAIRED if word in said]  # and no other: of a line with a quote too few, a word may be a secret
    raise SettingsError(
        "sasl.jaas.config holds none of username and password, clientId and clientSecret, keyTab and principal: "
        f"librdkafka needs one of these pairs; it names {', '.join(halves) or 'none of them'}"
    )


def _stores(options: Options) -> dict[str, str]:
    config: dict[str, str] = {}
    for store in ("truststore", "keystore"):
        location = options.get(f"ssl.{store}.location")
        if location is None:
            continue
        kind = options.get(f"ssl.{store}.type", "JKS").upper()
        if store == "keystore" and kind == "PEM":  # one file holds the key and its certificates
            config |= {"ssl.certificate.location": location, "ssl.key.location": location}
        elif (store, kind) in _STORES:
            config[_STORES[store, kind]] = location
            if f"ssl.{store}.password" in options:
                config[f"ssl.{store}.password"] = options[f"ssl.{store}.password"]
        else:
            raise SettingsError(
                f"ssl.{store}.type is {kind}, which librdkafka can't read; set ssl.{store}.type to "
                f"{'PEM' if store == 'truststore' else 'PEM or PKCS12'} and ssl.{store}.location to such a file, which Spark reads as well"
            )
    return config
