"""Ctrl-C and SIGTERM become an event: once, whatever the main thread does, and in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from watertable_platform.stopping import stop_on_signals

SOON = 10.0


class Ends(list[int]):
    """Hold the exit codes that a process would have ended with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.one = threading.Event()
        monkeypatch.setattr(os, "_exit", lambda code: (self.append(code), self.one.set()))


def test_a_ctrl_c_that_comes_twice_at_once_is_one_and_a_later_one_means_now(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    with stop_on_signals(within=60) as stop:
        for _ in range(2):  # the terminal's, and the wrapper's that passes its own on
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.is_set()  # at the block's end, all signals were heeded
    assert ends == []
    with stop_on_signals(within=60) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(SOON)
        later = time.monotonic() + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        os.kill(os.getpid(), signal.SIGINT)
        assert ends.one.wait(SOON)
    assert ends == [130]


def test_a_later_ctrl_c_changes_nothing_where_more_than_a_process_is_being_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch)
    with stop_on_signals(at_once=False) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(SOON)
        later = time.monotonic() + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        os.kill(os.getpid(), signal.SIGINT)
    assert ends == []


@pytest.mark.parametrize("unfinished", ["stopped before it was done", ""])
def test_a_stop_that_is_cut_short_fails_and_says_what_is_unfinished_where_something_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unfinished: str
) -> None:
    ends = Ends(monkeypatch)
    with stop_on_signals(within=0.01, unfinished=unfinished) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert ends.one.wait(SOON)
    assert stop.is_set()
    assert (ends, capsys.readouterr().err.strip()) == ([1 if unfinished else 0], unfinished)


def test_a_signal_stops_a_command_that_is_just_asking_whether_to_stop() -> None:
    with stop_on_signals() as stop:
        with stop._cond:  # as within `stop.wait`: what would set the event here and now, in this thread, would wait for ever
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(SOON)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT mean what it does at a terminal: what a shell starts in the background is born to ignore it."""
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, kept)


@pytest.mark.usefixtures("ctrl_c")
def test_after_the_block_signals_mean_what_they_meant_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signals() as outer:
        with stop_on_signals() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner.wait(SOON)
        assert not outer.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert outer.wait(SOON)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert "signals" not in [thread.name for thread in threading.enumerate()]


def test_what_a_command_starts_takes_signals_as_if_it_were_started_alone() -> None:
    with stop_on_signals() as stop:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        child.send_signal(signal.SIGTERM)
        assert child.wait(SOON) == -signal.SIGTERM
        assert not stop.is_set()
