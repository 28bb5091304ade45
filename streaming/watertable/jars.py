"""Hold the jars watertable runs on: pinned by hash, fetched once, verified before every use.

The list is `jars.lock` beside this module. `fetch` is the only function that reaches a network, and only for what the cache lacks;
it runs Ivy from PySpark's own jars, so it needs nothing but Java. `classpath` only reads: it returns local paths whose SHA-256 is the
pinned one, or raises. Neither is called by Spark: a session is given a finished classpath and resolves nothing.

The repository is the user's: the setting `maven_mirror` (`WATERTABLE_MAVEN_MIRROR`), else a mirror of central in
`~/.m2/settings.xml`, else Ivy's own default. A jar already in `~/.m2/repository` is taken from there. Since the hash decides,
where a jar came from doesn't matter.

`python -m watertable.jars [spark|broker|bench ...]` fetches; with `--pin` it rewrites the hashes of the list (for maintainers).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import locale
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from watertable.errors import SettingsError

JarSet = Literal["spark", "broker", "bench"]
SETS: Final[tuple[JarSet, ...]] = ("spark", "broker", "bench")
LOCK: Final = Path(__file__).with_name("jars.lock")
JAVA_MAJORS: Final = (17, 21)  # Spark 4.1 and Kafka 4.3 both run on these


@dataclass(frozen=True, slots=True)
class Jar:
    """Name one pinned jar by its Maven coordinates and the SHA-256 of its bytes."""

    used_by: JarSet
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """Write the coordinates as Maven does."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def path(self) -> str:
        """Give the path below a Maven repository's root; the cache uses the same layout."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class Java:
    """Name a Java launcher and its major version."""

    launcher: str
    major: int


def find_java() -> Java:
    """Return Java 17 or 21 from JAVA_HOME, else from PATH; raise `SettingsError` saying what was found and how to get one."""
    home = os.environ.get("JAVA_HOME")
    launcher = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    way_out = "Install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
    if launcher is None:
        raise SettingsError(f"No Java: JAVA_HOME is not set and there is no `java` on PATH. {way_out}")
    try:
        banner = subprocess.run([launcher, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        raise SettingsError(f"{launcher} does not run ({error}). {way_out}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', banner)
    major = int(found.group(1)) if found else 0
    if major not in JAVA_MAJORS:
        raise SettingsError(f"{launcher} is Java {major or 'of unknown version'}, wanted 17 or 21. {way_out}")
    return Java(launcher, major)


def java_locale() -> dict[str, str]:
    """Give what the environment of a JVM needs for files to have the names that Python gives them.

    Under LC_ALL=C Python keeps to UTF-8, and Java to ASCII: it would write to `K?se` what belongs in `Käse`, or not start there at all.
    """
    apart = sys.getfilesystemencoding() == "utf-8" and locale.getencoding().upper() != "UTF-8"
    return {"LC_ALL": "C.UTF-8"} if apart else {}


def java_words(text: str) -> list[str]:
    r"""Give the lines of what a JVM wrote that say something: the places in its code, of which there are dozens, leave no room for them.

    >>> java_words("Exception: no room\n  at a.b.C.d(C.java:1)\n\t... 3 more")
    ['Exception: no room']
    """
    return [line for line in text.splitlines() if line.strip() and not re.match(r"\s+(at \S+\(|\.\.\. \d+ more)", line)]


def property_text(text: str) -> str:
    r"""Escape a name or value for a Java properties file: in ASCII, since Java reads some of them as Latin-1.

    >>> print(property_text("a:b = José"))
    a\:b \= Jos\u00e9
    """
    return re.sub("([=:#!])", r"\\\1", json.dumps(text)[1:-1])  # JSON's escapes are among a properties file's


def pinned(*sets: JarSet, lock: Path = LOCK) -> tuple[Jar, ...]:
    """Read the list of jars of the sets named, all of them if none is; raise `SettingsError` at a line that isn't one."""
    jars = []
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        match line.replace(":", " ").split():
            case [("spark" | "broker" | "bench") as used_by, group, artifact, version, sha256] if re.fullmatch("[0-9a-f]{64}", sha256):
                jars.append(Jar(used_by, group, artifact, version, sha256))
            case _:
                raise SettingsError(f"{lock}:{number}: wanted `set group:artifact:version sha256`, got {line!r}")
    return tuple(jar for jar in jars if not sets or jar.used_by in sets)


def cache_folder() -> Path:
    """Return the folder that keeps the jars: WATERTABLE_CACHE, else `watertable` in the user's cache folder."""
    named = os.environ.get("WATERTABLE_CACHE")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "watertable"
    return base / "jars"


def spark_classpath() -> tuple[Path, ...]:
    """Return the verified jars of a Spark session; see `classpath`."""
    return classpath("spark")


def broker_classpath() -> tuple[Path, ...]:
    """Return the verified jars of the embedded broker; see `classpath`."""
    return classpath("broker")


def classpath(*sets: JarSet, cache: Path | None = None, lock: Path = LOCK) -> tuple[Path, ...]:
    """Return local paths of the jars of some sets, each verified against its pinned hash; never fetch.

    Raises `SettingsError` naming the jars that are missing or whose bytes are not the pinned ones, and the command that gets them.
    """
    folder = cache or cache_folder()
    jars = pinned(*sets, lock=lock)
    missing = [jar for jar in jars if not (folder / jar.path).is_file()]
    if missing:
        fetches = "watertable jars fetch" if "bench" not in sets else f"python -m watertable.jars {' '.join(sets)}"
        raise SettingsError(
            f"{len(missing)} of {len(jars)} jars are not in {folder} (first: {missing[0].name}). Fetch them once: {fetches}"
        )
    for jar in jars:
        _verify(jar, folder / jar.path)
    return tuple(folder / jar.path for jar in jars)


def fetch(*sets: JarSet, cache: Path | None = None, mirror: str | None = None, lock: Path = LOCK) -> tuple[Path, ...]:
    """Bring the jars of some sets into the cache, verify them and return their paths; reach the network only for what is missing.

    `mirror` is the address of a Maven repository (https://... or file:///...), the setting `maven_mirror`. Raises `SettingsError` when
    jars can't be had, naming the first and the mirror setting, or when one has other bytes than the pinned ones: such a jar never
    enters the cache.
    Safe to run in several processes at once.
    """
    folder = cache or cache_folder()
    wanted = [jar for jar in pinned(*sets, lock=lock) if not (folder / jar.path).is_file()]
    if wanted:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as work:
            for jar, arrived in _download(wanted, mirror, Path(work)).items():
                _verify(jar, arrived)
                target = folder / jar.path
                target.parent.mkdir(parents=True, exist_ok=True)
                arrived.replace(target)
    return classpath(*sets, cache=folder, lock=lock)


def _verify(jar: Jar, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256:
        raise SettingsError(f"{path} is not the pinned {jar.name}: its SHA-256 is {found}, wanted {jar.sha256}. Delete it, fetch again.")


def _download(jars: Iterable[Jar], mirror: str | None, work: Path) -> dict[Jar, Path]:
    """Bring jars into a work folder, unverified: from the user's Maven repository where it has them, else by one run of Ivy."""
    arrived: dict[Jar, Path] = {}
    for jar in jars:
        local = Path.home() / ".m2" / "repository" / jar.path
        arrived[jar] = work / f"{jar.artifact}-{jar.version}.jar"
        if local.is_file() and hashlib.sha256(local.read_bytes()).hexdigest() == jar.sha256:
            shutil.copyfile(local, arrived[jar])
    lacking = [jar for jar, path in arrived.items() if not path.is_file()]
    if lacking:
        _ivy(lacking, mirror or _maven_mirror(), work)
    return arrived


def _ivy(jars: list[Jar], mirror: str | None, work: Path) -> None:
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    (work / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>'
    )
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="watertable" module="jars"/><dependencies>'
        + "".join(f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false"/>' for jar in jars)
        + '</dependencies><conflicts><manager name="all"/></conflicts></ivy-module>'  # two versions of kafka-clients, side by side
    )
    run = subprocess.run(
        [find_java().launcher, "-cp", f"{_pyspark_jars()}{os.sep}*", "org.apache.ivy.Main",
         "-settings", str(work / "ivysettings.xml"), "-cache", str(work / "ivy"), "-ivy", str(work / "ivy.xml"),
         "-retrieve", f"{work}{os.sep}[artifact]-[revision].[ext]"],
        capture_output=True, text=True, check=False, env={**os.environ, **java_locale()},
    )  # fmt: skip
    if all((work / f"{jar.artifact}-{jar.version}.jar").is_file() for jar in jars):
        return
    output = run.stdout + run.stderr
    missing = [
        jar for jar in jars if f"{jar.group}#{jar.artifact};{jar.version}: not found" in output
    ] or jars  # one lacks: Ivy brings none
    problem = re.search(r".*(?:Exception|access error|refused|timed out).*", output) or re.search(r".*not found.*", output)
    raise SettingsError(
        f"{len(missing)} of {len(jars)} jars can't be had from {mirror or 'the default Maven repository'} (first: {missing[0].name}"
        + (f"; Ivy said: {problem.group().strip()[:300]}" if problem else "")
        + "). Behind a proxy or a mirror, name your Maven repository: WATERTABLE_MAVEN_MIRROR=https://... "
        "or `maven_mirror` under [tool.watertable] in pyproject.toml."
    )


def _maven_mirror() -> str | None:
    """Read the user's own mirror of Maven Central from ~/.m2/settings.xml, if there is one."""
    settings = Path.home() / ".m2" / "settings.xml"
    if not settings.is_file():
        return None
    try:
        tree = ElementTree.parse(settings)  # noqa: S314
    except ElementTree.ParseError:
        return None
    for mirror in tree.iterfind("{*}mirrors/{*}mirror"):
        of = (mirror.findtext("{*}mirrorOf") or "").split(",")
        if {"*", "central", "external:*"} & {name.strip() for name in of}:
            return mirror.findtext("{*}url")
    return None


def _pyspark_jars() -> Path:
    spec = find_spec("pyspark")  # finds the package's folder without importing it
    if spec is None or spec.origin is None:
        raise SettingsError("PySpark is not installed; its jars hold Ivy, which fetches ours")
    return Path(spec.origin).parent / "jars"


def _pin() -> None:
    """Rewrite the hashes of the list from what the repository serves: a maintainer's act, whose diff is read by a person."""
    with tempfile.TemporaryDirectory() as work:
        arrived = _download([replace(jar, sha256="") for jar in pinned()], os.environ.get("WATERTABLE_MAVEN_MIRROR"), Path(work))
        digests: dict[tuple[str, str], str] = {
            (jar.used_by, jar.name): hashlib.sha256(path.read_bytes()).hexdigest() for jar, path in arrived.items()
        }
    lines = []
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        match line.split():
            case [used_by, name, _] if (used_by, name) in digests:
                lines.append(f"{used_by} {name} {digests[used_by, name]}")
            case _:
                lines.append(line)
    LOCK.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Fetch the jars of the sets named (spark and broker if none is), or rewrite the pinned hashes."""
    parser = argparse.ArgumentParser(prog="python -m watertable.jars", description="Fetch the pinned jars into the cache, once.")
    parser.add_argument("sets", nargs="*", metavar="spark|broker|bench", help="default: spark and broker")
    parser.add_argument("--pin", action="store_true", help="rewrite the hashes in jars.lock from what the repository serves")
    given = parser.parse_args(arguments)
    unknown = set(given.sets) - set(SETS)
    if unknown:
        parser.error(f"no such set of jars: {', '.join(sorted(unknown))}; there are {', '.join(SETS)}")
    try:
        if given.pin:
            _pin()
            return 0
        from watertable.settings import Settings  # here: only this command needs them, and what they are read with

        paths = fetch(*(given.sets or ("spark", "broker")), mirror=Settings.load().maven_mirror)
    except SettingsError as error:
        print(f"watertable: {error}", file=sys.stderr)
        return 1
    print(f"{len(paths)} jars, {sum(path.stat().st_size for path in paths) / 1e6:.0f} MB, verified in {cache_folder()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
