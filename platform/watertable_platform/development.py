"""Run what a development machine needs, as one: the broker, Dagster's web page and daemon, and a watch on the user's code.

Law: what `develop` starts, it ends. Dagster has a process group of its own, so that Ctrl-C reaches it once, through us, and so that
whatever it started can be found and ended; a broker that ran before is left running. Saved code is loaded anew by asking Dagster, as
the button on its page does; a stream whose topology changed then hands over by itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from watertable.errors import SettingsError
from watertable.kafka import broker
from watertable.settings import Settings

Say = Callable[[str], None]
INSTANCE: Final = Path(__file__).with_name("dagster.yaml")
"""Settings of Dagster's own, for an instance that has none: streams count on its watch over runs, and acts on its pools."""
_GRACE: Final = 25.0
_WATCH: Final = 1.0
_FAILED: Final = "failed_to_load"
"""The last part of the key of an asset that stands for a broken folder, which says why under `reason`."""
_RELOAD: Final = "mutation { reloadWorkspace { __typename ... on PythonError { message } } }"
_LOADED: Final = """
{ workspaceOrError { __typename ... on PythonError { message } ... on Workspace { locationEntries { locationOrLoadError {
  ... on PythonError { message causes { message } }
  ... on RepositoryLocation { repositories { assetNodes {
    assetKey { path } metadataEntries { label ... on TextMetadataEntry { text } }
  } } }
} } } } }
"""
"""What the reload has made of it: it has to be asked by itself, since a mutation's answer is of the assets before it."""


def develop(settings: Settings, *, port: int, with_broker: bool, stop: threading.Event, say: Say) -> int:
    """Run until `stop` is set or Dagster ends, and return the exit code.

    Raises `SettingsError` when the port is taken or there is no workspace.yaml, and what the broker raises.
    """
    workspace = settings.project / "workspace.yaml"
    if not workspace.is_file():
        raise SettingsError(
            f"there is no {workspace}; Dagster loads a project from it. Run this in a project's folder, name one (--project), "
            "or make one: watertable init FOLDER"
        )
    if _listens(port):
        raise SettingsError(f"port {port} is taken: another Dagster may be running. Stop it, or choose another: --port {port + 1}")
    ours = with_broker and is_ours(settings)
    began = ours and broker.status(settings.home_folder / "kafka", port=kafka_port(settings)).state is not broker.State.RUNNING
    if ours:
        say(f"● Kafka {broker.start(settings.home_folder / 'kafka', port=kafka_port(settings)).detail}")
    try:
        return _dagster(settings, workspace, port, stop, say)
    finally:
        if began:
            say(f"○ Kafka {broker.stop(settings.home_folder / 'kafka').detail}")


def kafka_port(settings: Settings) -> int:
    """Give the port of the settings' first bootstrap server, which the development broker listens on; raise `SettingsError` for none."""
    text = settings.kafka.split(",")[0].rpartition(":")[2]
    port = int(text) if text.isdecimal() else broker.PORT
    if not 0 < port < 2**16:
        raise SettingsError(f"kafka = {settings.kafka!r}: there is no port {port}, they go from 1 to 65535")
    return port


def is_ours(settings: Settings) -> bool:
    """Tell whether the settings name a cluster on this machine without security: one that the development broker can be."""
    return settings.kafka.rpartition(":")[0] in (broker.HOST, "localhost") and not settings.kafka_options


def _dagster(settings: Settings, workspace: Path, port: int, stop: threading.Event, say: Say) -> int:
    home = Path(os.environ.get("DAGSTER_HOME") or settings.home_folder / "dagster")
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        (home / "dagster.yaml").write_bytes(INSTANCE.read_bytes())
    process = subprocess.Popen(
        [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", broker.HOST, "-p", str(port)],
        cwd=settings.project, start_new_session=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "DAGSTER_HOME": str(home), "WATERTABLE_PROJECT": str(settings.project), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    seen = _saved(settings)
    try:
        while not stop.wait(_WATCH):
            if process.poll() is not None:
                return process.returncode
            now = _saved(settings)
            if now != seen:
                changed = [_shown(p, settings.project) for p in sorted({*now, *seen}) if now.get(p) != seen.get(p)]
                say(f"↻ {', '.join(changed)}: {_reload(port)}")
                seen = now
        return 0
    finally:
        _end(process)


def _saved(settings: Settings) -> Mapping[Path, int]:
    files = (file for root in settings.assets for file in (settings.project / root).rglob("*.py"))
    found: dict[Path, int] = {}
    for file in files:
        try:
            found[file] = file.stat().st_mtime_ns
        except FileNotFoundError:  # an editor replaces files
            continue
    return found


def _shown(file: Path, project: Path) -> str:
    """Write a path from the project's folder on, where it is in it: an assets folder may be anywhere."""
    return str(file.relative_to(project) if file.is_relative_to(project) else file)


def _reload(port: int) -> str:
    try:
        said = _ask(port, _RELOAD)["reloadWorkspace"]
        return _told(_ask(port, _LOADED)["workspaceOrError"] if said["__typename"] == "Workspace" else said)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"Dagster doesn't answer ({error})"


def _ask(port: int, query: str) -> dict[str, Any]:
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"http://{broker.HOST}:{port}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback, a literal scheme
        return dict(json.load(answer)["data"])


def _told(said: Mapping[str, Any]) -> str:
    """Say what came of loading anew: Dagster calls a workspace loaded whatever is in it, be it an error, or folders shown as broken."""
    if said["__typename"] != "Workspace":
        return str(said.get("message", said["__typename"]))
    broken: list[str] = []
    for entry in said["locationEntries"]:
        found = entry["locationOrLoadError"] or {}
        if "message" in found:
            return f"not loaded: {[found, *found['causes']][-1]['message'].strip()}"
        nodes = [node for repository in found.get("repositories", ()) for node in repository["assetNodes"]]
        facts = [fact for node in nodes if node["assetKey"]["path"][-1] == _FAILED for fact in node["metadataEntries"]]
        broken += [fact["text"] for fact in facts if fact["label"] == "reason"]
    return "; broken: ".join(["loaded", *broken])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Dagster and all that it started: ask it, then its group, then insist."""
    for signum, patience in ((signal.SIGINT, _GRACE), (signal.SIGTERM, 5.0)):
        if process.poll() is None:
            (os.kill if signum == signal.SIGINT else os.killpg)(process.pid, signum)
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what outlived its parent
    except ProcessLookupError:
        pass
    process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((broker.HOST, port)) == 0
