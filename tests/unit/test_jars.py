"""The jars: only the pinned bytes are used, and when they can't be had the message says what to do."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from watertable import jars
from watertable.errors import SettingsError

BYTES = b"a jar, as far as Ivy knows"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a home folder of its own: the user's Maven repository must not answer."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    digest = hashlib.sha256(BYTES).hexdigest()
    path = tmp_path / "jars.lock"
    path.write_text(f"# two\nspark org.example:one:1.0 {digest}\nbroker org.example:two_2.13:2.0 {digest}\n")
    return path


@pytest.fixture
def mirror(tmp_path: Path, lock: Path) -> Path:
    root = tmp_path / "mirror"
    for jar in jars.pinned(lock=lock):
        (root / jar.path).parent.mkdir(parents=True)
        (root / jar.path).write_bytes(BYTES)
    return root


def test_every_pinned_jar_has_a_whole_hash_and_no_address() -> None:
    pinned = jars.pinned()
    assert len(jars.pinned("spark")) == 7
    assert len(jars.pinned("broker")) == 46
    assert len({(jar.used_by, jar.group, jar.artifact) for jar in pinned}) == len(pinned)
    assert all(len(jar.sha256) == 64 for jar in pinned)
    assert "://" not in jars.LOCK.read_text()


def test_a_line_that_is_no_jar_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.lock").write_text("# ok\nspark org.example:one 123\n")
    with pytest.raises(SettingsError, match=r"bad\.lock:2"):
        jars.pinned(lock=tmp_path / "bad.lock")


def test_jars_are_fetched_once_from_the_mirror_named(tmp_path: Path, lock: Path, mirror: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(SettingsError, match=r"1 of 1 jars are not in .*org\.example:one:1\.0.*Fetch them once: watertable jars fetch$"):
        jars.classpath("spark", cache=cache, lock=lock)
    fetched = jars.fetch("spark", "broker", cache=cache, mirror=mirror.as_uri(), lock=lock)
    assert [path.read_bytes() for path in fetched] == [BYTES, BYTES]
    assert jars.fetch("spark", "broker", cache=cache, mirror="file:///nowhere", lock=lock) == fetched  # nothing left to fetch
    assert jars.classpath("broker", cache=cache, lock=lock) == fetched[1:]
    assert sorted(p.name for p in cache.iterdir()) == ["org"]  # no leftovers


def test_a_flipped_bit_in_the_cache_is_refused(tmp_path: Path, lock: Path, mirror: Path) -> None:
    cache = tmp_path / "cache"
    (one,) = jars.fetch("spark", cache=cache, mirror=mirror.as_uri(), lock=lock)
    one.write_bytes(bytes([BYTES[0] ^ 1]) + BYTES[1:])
    with pytest.raises(SettingsError, match=r"not the pinned org\.example:one:1\.0"):
        jars.classpath("spark", cache=cache, lock=lock)
    with pytest.raises(SettingsError, match="Delete it, fetch again"):
        jars.fetch("spark", cache=cache, mirror=mirror.as_uri(), lock=lock)


def test_a_mirror_that_serves_other_bytes_never_reaches_the_cache(tmp_path: Path, lock: Path, mirror: Path) -> None:
    (mirror / jars.pinned("spark", lock=lock)[0].path).write_bytes(b"something else")
    cache = tmp_path / "cache"
    with pytest.raises(SettingsError, match="not the pinned"):
        jars.fetch("spark", cache=cache, mirror=mirror.as_uri(), lock=lock)
    assert list(cache.rglob("*.jar")) == []


def test_jars_that_can_not_be_had_are_named_with_the_mirror_setting(tmp_path: Path, lock: Path, mirror: Path) -> None:
    (mirror / jars.pinned("broker", lock=lock)[0].path).unlink()
    with pytest.raises(SettingsError, match=r"1 of 2 jars can't be had from file://.*org\.example:two_2\.13:2\.0.*WATERTABLE_MAVEN_MIRROR"):
        jars.fetch("spark", "broker", cache=tmp_path / "cache", mirror=mirror.as_uri(), lock=lock)


def test_the_users_own_maven_repository_and_mirror_are_used(tmp_path: Path, lock: Path, mirror: Path, home: Path) -> None:
    (home / ".m2").mkdir(parents=True)
    (mirror / jars.pinned("spark", lock=lock)[0].path).unlink()
    local = home / ".m2" / "repository" / jars.pinned("spark", lock=lock)[0].path
    local.parent.mkdir(parents=True)
    local.write_bytes(BYTES)
    (home / ".m2" / "settings.xml").write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors><mirror><id>ours</id><mirrorOf>other, central</mirrorOf>'
        f"<url>{mirror.as_uri()}</url></mirror></mirrors></settings>"
    )
    assert len(jars.fetch("spark", "broker", cache=tmp_path / "cache", lock=lock)) == 2


def test_the_command_takes_the_mirror_from_the_settings_and_says_what_failed(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "watertable.jars", "bench"],
        env=os.environ | {"WATERTABLE_CACHE": str(tmp_path), "WATERTABLE_MAVEN_MIRROR": (tmp_path / "empty").as_uri()},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.startswith("watertable: 3 of 3 jars can't be had from file://")


@pytest.mark.parametrize(
    ("banner", "said"),
    [
        ('openjdk version "11.0.2" 2019-01-15', r"is Java 11, wanted 17 or 21\. Install Java"),
        ('java version "1.8.0_202"', r"is Java 8, wanted 17 or 21"),
        ("hello", r"is Java of unknown version"),
    ],
)
def test_a_wrong_java_is_named_with_the_way_to_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str, said: str
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match=said):
        jars.find_java()


def test_no_java_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"No Java.*Install Java 17 or 21"):
        jars.find_java()
