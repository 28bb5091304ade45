"""Run a real Apache Kafka for development: one KRaft process, on loopback only, its data kept between starts.

A folder is a broker: data, configuration, log and `broker.json` (who runs it). `status` tells apart what can be on its port: this
folder's broker, one of another folder or another Kafka (*foreign*), a program that is no Kafka (*taken*), nothing though a
`broker.json` claims so (*stale*), nothing at all. `start` begins only from stopped or stale; it and `stop` may be called again at
will, and a file lock makes one of two simultaneous starts wait for the other. The process has a session of its own: Ctrl-C in a
terminal doesn't reach it half way through a write.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from watertable.errors import BrokerError
from watertable.jars import broker_classpath, find_java, java_locale, java_words, property_text

HOST: Final = "127.0.0.1"
PORT: Final = 9092
HEAP: Final = "384m"


class State(StrEnum):
    """Say what a broker's folder and port hold."""

    RUNNING = "running"
    STARTING = "starting"
    STOPPED = "stopped"
    STALE = "stale"
    FOREIGN = "foreign"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class Status:
    """Say how a broker stands; `detail` is a sentence for a person, with the way out where there is one."""

    state: State
    bootstrap: str
    folder: Path
    detail: str
    pid: int | None = None
    cluster_id: str | None = None

    @property
    def log(self) -> Path:
        """Give the broker's log file."""
        return self.folder / "broker.log"


def start(folder: Path, *, port: int = PORT, heap: str = HEAP, timeout: float = 60) -> Status:
    """Start the broker of a folder, or find it running; return when it serves.

    Raises `BrokerError` where the port is taken or a foreign broker's, where this folder's broker runs on another port, where Kafka can't
    have the folder, and where the process dies or doesn't answer in time, with the end of its log. Raises `SettingsError` when Java or the
    jars are missing.
    """
    folder = folder.resolve()
    if "," in str(folder):
        raise BrokerError(f"Kafka takes {folder} for two folders, since there is a comma in it: keep the broker's data in another one")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        now = status(folder, port=port)
        match now.state:
            case State.RUNNING | State.STARTING if now.bootstrap != f"{HOST}:{port}":
                raise BrokerError(
                    f"the broker of {folder} already runs on {now.bootstrap}, not on port {port}. Stop it first, or use it there."
                )
            case State.RUNNING:
                return now
            case State.STARTING:
                assert now.pid is not None
                return _await(folder, port, now.pid, timeout)
            case State.FOREIGN | State.TAKEN:
                raise BrokerError(now.detail)
            case State.STOPPED | State.STALE:
                return _launch(folder, port, heap, timeout)


def stop(folder: Path, *, port: int = PORT, timeout: float = 30) -> Status:
    """Stop the broker of a folder: ask, wait, kill at the time limit; one that doesn't run stays so, and a stale claim is removed.

    What it says then is of the port it was started on, else of the one given.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        return status(folder, port=port)
    with _locked(folder):
        claim = _claim(folder)
        if claim is not None and _is_ours(claim.pid, folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(claim.pid, signal.SIGTERM)
            if not _wait_until_gone(claim.pid, folder, timeout):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(claim.pid, signal.SIGKILL)
                _wait_until_gone(claim.pid, folder, 10)
        (folder / "broker.json").unlink(missing_ok=True)
        return status(folder, port=claim.port if claim else port)


def status(folder: Path, *, port: int = PORT) -> Status:
    """Say how the broker of a folder stands, on the port it was started on, else on the one given; change nothing."""
    folder = folder.resolve()
    claim = _claim(folder)
    if claim is not None and _is_ours(claim.pid, folder):
        bootstrap = f"{HOST}:{claim.port}"
        cluster = _cluster_id(bootstrap) if _speaks_kafka(claim.port) else None
        if cluster is not None:
            return Status(State.RUNNING, bootstrap, folder, f"running on {bootstrap}, process {claim.pid}", claim.pid, cluster)
        return Status(State.STARTING, bootstrap, folder, f"process {claim.pid} runs but doesn't serve on {bootstrap} yet", claim.pid)
    bootstrap = f"{HOST}:{port}"
    if _speaks_kafka(port):
        cluster = _cluster_id(bootstrap) or "unknown"
        return Status(
            State.FOREIGN, bootstrap, folder,
            f"another Kafka (cluster {cluster}) answers on {bootstrap}: it isn't the broker of {folder}. "
            f"To use it, start none: WATERTABLE_KAFKA={bootstrap}, and `watertable dev --no-broker`. "
            "To start ours beside it, choose another port, and name that by WATERTABLE_KAFKA.",
            cluster_id=cluster,
        )  # fmt: skip
    if _listens(port):
        return Status(
            State.TAKEN, bootstrap, folder,
            f"a program that is no Kafka listens on {bootstrap}. Stop it, or start the broker on another port and set WATERTABLE_KAFKA.",
        )  # fmt: skip
    if claim is not None:
        return Status(
            State.STALE,
            bootstrap,
            folder,
            f"not running: process {claim.pid} is gone and left broker.json behind; a start cleans it up",
            claim.pid,
        )
    return Status(State.STOPPED, bootstrap, folder, "not running")


def free_port() -> int:
    """Return a port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


# ---------------------------------------------------------------------------------------------------------------- the process


@dataclass(frozen=True, slots=True)
class _Claim:
    """What broker.json says: which process this folder's broker is, and its port."""

    pid: int
    port: int


def _launch(folder: Path, port: int, heap: str, timeout: float) -> Status:
    _write_configuration(folder, port)
    launcher = find_java().launcher
    classes = os.pathsep.join(map(str, broker_classpath()))
    options = [f"-Xmx{heap}", f"-Xms{heap}", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Xss512k", "-Djava.awt.headless=true"]
    logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
    properties = str(folder / "server.properties")
    environment = {**os.environ, **java_locale()}
    with (folder / "broker.out").open("wb") as out:
        if not (folder / "data" / "meta.properties").exists():
            # Kafka's ids are 22 characters of base64; one that starts with - would read as an option.
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
            # A format that was cut short left no meta.properties but may have left the metadata log: nothing was ever served from it.
            shutil.rmtree(folder / "data", ignore_errors=True)
            done = subprocess.run(
                [launcher, "-Xmx128m", "-XX:TieredStopAtLevel=1", logging, "-cp", classes, "kafka.tools.StorageTool",
                 "format", "-t", cluster, "-c", properties],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False, env=environment,
            )  # fmt: skip
            if done.returncode != 0:
                raise BrokerError(f"can't format {folder / 'data'} for Kafka:\n{_tail(folder / 'broker.out')}")
        process = subprocess.Popen(
            [launcher, *options, logging, "-cp", classes, "kafka.Kafka", properties],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, start_new_session=True, env=environment,
        )  # fmt: skip
    claim = folder / "broker.json.new"
    claim.write_text(json.dumps({"pid": process.pid, "port": port}), encoding="utf-8")
    claim.replace(folder / "broker.json")
    return _await(folder, port, process.pid, timeout)


def _await(folder: Path, port: int, pid: int, timeout: float) -> Status:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not _alive(pid):
            (folder / "broker.json").unlink(missing_ok=True)
            log = folder / "broker.log"
            raise BrokerError(f"the broker died while it started; the end of {log}:\n{_tail(log, folder / 'broker.out')}")
        if _speaks_kafka(port) and (now := status(folder, port=port)).state is State.RUNNING:
            return now
        time.sleep(0.05)
    now = status(folder, port=port)
    raise BrokerError(f"not serving after {timeout:.0f} s, it may still come: {now.detail}. The end of {now.log}:\n{_tail(now.log)}")


def _write_configuration(folder: Path, port: int) -> None:
    # Voters are configuration, not data: the port may differ from start to start. The broker's own is free, too, until it listens there.
    controller = next(found for found in iter(free_port, None) if found != port)
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",  # a topic nobody declared is a mistake
        "log.retention.ms": -1,  # development replays history: records of 2010 would be deleted at once under the default
        "offsets.retention.minutes": 525600,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 16 << 20,  # 128 MB of a 384 MB heap by default
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "metadata.max.idle.interval.ms": 5000,  # an idle controller writes a no-op record twice a second by default
    }
    lines = (f"{name}={property_text(str(value))}\n" for name, value in properties.items())
    (folder / "server.properties").write_text("".join(lines), encoding="ascii")
    log = property_text(str(folder / "broker.log"))
    (folder / "log4j2.properties").write_text(
        f"""rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}}{{UTC}}Z %-5p %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
""",
        encoding="ascii",
    )


def _claim(folder: Path) -> _Claim | None:
    try:
        said = json.loads((folder / "broker.json").read_text(encoding="utf-8"))
        return _Claim(int(said["pid"]), int(said["port"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise BrokerError(f"{folder / 'broker.json'} is not ours to read: delete it if no broker of this folder runs") from None


def _is_ours(pid: int, folder: Path) -> bool:
    """Tell whether a process lives and is this folder's broker: pids are used again."""
    return _alive(pid) and str(folder / "server.properties") in _command_line(pid)


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended is a zombie until it's waited for
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _command_line(pid: int) -> str:
    proc = Path(f"/proc/{pid}/cmdline")
    if proc.parent.parent.joinpath("self").exists():
        with contextlib.suppress(OSError):
            return proc.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""
    return subprocess.run(["ps", "-o", "command=", "-ww", "-p", str(pid)], capture_output=True, text=True, check=False).stdout


def _wait_until_gone(pid: int, folder: Path, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if not _is_ours(pid, folder):
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "broker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tail(*files: Path, lines: int = 12) -> str:
    written = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
    found = [line for text in written for line in java_words(text)[-lines:]]
    telling = [line for line in found if re.search(r"ERROR|FATAL|Exception|error", line)]
    return "\n".join(telling or found)


# ------------------------------------------------------------------------------------------------------------------- the port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _speaks_kafka(port: int) -> bool:
    """Ask for ApiVersions (protocol: api key 18, version 0), which every Kafka answers before anything else."""
    request = struct.pack(">hhih", 18, 0, 7, 0)
    try:
        with socket.create_connection((HOST, port), timeout=1) as peer:
            peer.sendall(struct.pack(">i", len(request)) + request)
            answer = b""
            while len(answer) < 10 and (more := peer.recv(4096)):
                answer += more
    except OSError:
        return False
    if len(answer) < 10:
        return False
    size, correlation, error = struct.unpack(">iih", answer[:10])
    return bool(correlation == 7 and error == 0 and 10 <= size < 65_536)


def _cluster_id(bootstrap: str) -> str | None:
    """Return the cluster's id once a broker of it is registered, else None."""
    try:
        about = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2000}).list_topics(timeout=2)
    except KafkaException:
        return None
    return str(about.cluster_id) if about.brokers else None
