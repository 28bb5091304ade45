"""Hold failpoints to their law: each that is named is met somewhere, each that is met is named, and unarmed ones do nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from watertable import failpoints
from watertable.errors import SettingsError

SOURCES = Path(failpoints.__file__).parent


def met() -> set[str]:
    """List the points that the code meets."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in SOURCES.rglob("*.py") if p.name != "failpoints.py")
    prefixes = re.findall(r'point="([a-z.]+)"', text)
    return set(re.findall(r'hit\("([a-z_.]+)"\)', text)) | {f"{p}.{end}" for p in prefixes for end in ("before_write", "after_write")}


def test_every_named_point_is_met_and_every_point_met_is_named() -> None:
    assert met() == set(failpoints.POINTS)
    assert len(set(failpoints.POINTS)) == len(failpoints.POINTS)


def test_a_point_acts_at_its_nth_time_and_only_then() -> None:
    seen: list[int] = []
    with failpoints.armed("fold.after_pin", lambda: seen.append(1), nth=2):
        for expected in ([], [1], [1]):
            failpoints.hit("fold.after_pin")
            assert seen == expected
        failpoints.hit("fold.before_merge")
    failpoints.hit("fold.after_pin")
    assert seen == [1]


@pytest.mark.parametrize("wrong", ["nowhere:1:raise", "fold.after_pin:0:raise", "fold.after_pin:1:explode", "fold.after_pin"])
def test_a_specification_that_is_wrong_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError):
        failpoints.arm(wrong)


def test_the_environment_arms_a_process_of_its_own_and_a_kill_leaves_it_no_last_word() -> None:
    program = "from watertable import failpoints; failpoints.hit('fold.after_pin'); failpoints.hit('fold.after_pin'); print('survived')"
    env = {**os.environ, failpoints.VARIABLE: "fold.after_pin:2:kill-python"}
    ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == -9
    assert "survived" not in ended.stdout
    assert "watertable failpoint fold.after_pin: kill-python" in ended.stderr
