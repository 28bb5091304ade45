"""Turn Ctrl-C and SIGTERM into an event, for the commands that run until they are stopped."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

STOPS_WITHIN: Final = 15.0
"""Seconds that a command which reads may take to stop."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SAME: Final = 0.5
"""Seconds within which a second Ctrl-C is the first one: a terminal gives it to a wrapper (`uv run`, `timeout`) too, which passes it on."""


@contextmanager
def stop_on_signals(within: float | None = None, unfinished: str = "", *, at_once: bool = True) -> Iterator[threading.Event]:
    """Turn Ctrl-C and SIGTERM into an event; a second Ctrl-C means now, and `within` seconds are the most that a stop may take.

    To be cut short is safe: the JVM ends when our end of its pipe closes, and what isn't committed by then never was. A command that was
    to get something done says then what is `unfinished`, and fails; for one that goes on until it is stopped, that is its end. Where
    nothing should end `at_once`, since there is more to be ended than this process, a second Ctrl-C changes nothing.

    A thread sets the event, told of each signal by the file that Python writes its number to: a handler would run within the main
    thread, and wait for ever where that is itself asking the event, whose lock it then holds.
    """
    stop, (told, telling) = threading.Event(), socket.socketpair()
    telling.setblocking(False)  # as Python wants it

    def cut_short() -> None:
        try:
            if unfinished:
                Console(stderr=True, emoji=False).print(unfinished, style="bold red", markup=False, highlight=False, soft_wrap=True)
        finally:
            os._exit(1 if unfinished else 0)

    cut = threading.Timer(within or 0.0, cut_short)
    cut.daemon = True

    def heed() -> None:
        first: float | None = None
        while number := told.recv(1):
            if number[0] not in _SIGNALS:
                continue
            now = time.monotonic()
            if first is None:
                first = now
                if within is not None:
                    cut.start()
                stop.set()
            elif at_once and number[0] == signal.SIGINT and now - first > _SAME:
                os._exit(130)

    heeding = threading.Thread(target=heed, name="signals", daemon=True)
    heeding.start()
    before = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
    kept = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}  # a signal without a handler tells nothing
    try:
        yield stop
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        telling.close()
        heeding.join()
        told.close()
        cut.cancel()
