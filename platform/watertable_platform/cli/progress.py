"""Show a running app: as a few live lines for a person, as plain lines in a log, as JSON for a program.

All three read the same events and add nothing: what the line says is what `--json` says. On a terminal three lines are redrawn four
times a second; where output goes to a file, one line is written for each batch, at most every two seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from watertable.plan.plan import Topology
from watertable.runtime.events import BatchCommitted, Event, Failed, Folded, Idle, Rewound, Started, Stopped, as_json

_BARS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 24
_LOG_EVERY: Final = 2.0


class View(Protocol):
    """Receive events, within a `with`."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End, and leave the last state standing."""

    def __call__(self, event: Event) -> None:
        """Take an event in."""


class JsonLines:
    """Write each event as one line of JSON; a reader that is gone stops the run."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Write the event."""
        try:
            print(as_json(event), flush=True)
        except BrokenPipeError:
            self._stop.set()


class Progress:
    """Show how a run goes, in words a person reads at a glance."""

    def __init__(self, console: Console, topology: Topology, log: Path, *, beside: bool = False) -> None:
        """Begin; `beside` tells that it is the app's shadow that runs."""
        self._console, self._topology, self._log, self._beside = console, topology, log, beside
        self._live: Live | None = None
        self._began = time.monotonic()
        self._rates: deque[float] = deque(maxlen=_WIDTH)
        self._batch: BatchCommitted | None = None
        self._state, self._style = "starting", "yellow"
        self._position = ""
        self._lag: dict[str, int] = {}
        self._committed_at = self._folded_at = self._told_at = 0.0
        self._problem = ""
        self._records = self._quarantined = 0
        self._dropped: dict[str, int] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)
            self._live.start()
        elif not self._beside:
            self._say(f"starting {self._topology.app}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Take an event in; on a terminal the next redraw shows it."""
        match event:
            case Started():
                self._state, self._style, self._position = "running", "green", event.position
                started = f"started at {event.position}, generation {event.generation}, fingerprint {event.fingerprint}"
                self._say(f"the shadow reads on from {event.position}" if self._beside else started)
            case BatchCommitted():
                self._batch, self._position, self._lag, self._committed_at = event, event.position, dict(event.lag), time.monotonic()
                self._state, self._style, self._problem = "running", "green", ""
                self._rates.append(event.records_per_second)
                self._records += event.records
                self._quarantined += event.quarantined
                for reason, count in event.dropped.items():
                    self._dropped[reason] = self._dropped.get(reason, 0) + count
                if time.monotonic() - self._told_at > _LOG_EVERY:
                    self._told_at = time.monotonic()
                    self._say(
                        f"{event.position}  {event.records:,} records in {event.seconds:.2f} s, "
                        f"{event.records_per_second:,.0f} records/s, lag {sum(event.lag.values()):,}"
                    )
            case Folded():
                self._folded_at = time.monotonic()
            case Idle():
                self._lag, self._problem = dict(event.lag) or self._lag, event.problem
                if event.problem:
                    self._state, self._style = "waiting", "yellow"
                else:
                    self._state, self._style = (f"running, {event.busy_s:.0f} s into a batch" if event.busy_s else "caught up"), "green"
            case Rewound():
                self._state, self._style, self._position = "replaying", "magenta", event.position
                self._batch = None
                self._say(f"{event.by}: from {event.before} to {event.position}, generation {event.generation}; going on from there")
            case Stopped():
                self._state, self._style, self._position = event.reason, "dim", event.position or self._position
                self._say(f"{event.reason} at {event.position}")
            case Failed():
                self._state, self._style, self._problem = "failed", "bold red", ""
                self._say("failed")

    def _say(self, text: str) -> None:
        if self._live is None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        now = time.monotonic()
        head = Table.grid(expand=True, padding=(0, 2, 0, 0))
        head.add_column(no_wrap=True)
        head.add_column(justify="right", no_wrap=True)
        name = Text.assemble(("● ", self._style), (self._topology.app, "bold"), "  ", (self._state, self._style))
        head.add_row(name, Text.assemble((self._position, "cyan"), f"  {_clock(now - self._began)}"))
        lines: list[RenderableType] = [head]
        if self._batch is not None:
            lines += [self._rate_line(self._batch, now), self._detail_line(self._batch)]
        elif self._state == "starting":
            lines.append(Text(f"  starting Spark; its log is {self._log}", style="dim"))
        if self._problem:
            lines.append(Text(f"  {self._problem}", style="yellow"))
        return Group(*lines)

    def _rate_line(self, batch: BatchCommitted, now: float) -> Text:
        behind = sum(self._lag.values())
        return Text.assemble(
            "  ", (f"{batch.records_per_second:>9,.0f}", "bold"), (" records/s ", "dim"), (_spark_line(self._rates), "green"),
            ("  lag ", "dim"), (f"{behind:,}", "bold yellow" if behind else "bold green"),
            ("  batch ", "dim"), f"{batch.seconds:.2f} s",
            ("  committed ", "dim"), f"{_age(now - self._committed_at)} ago",
            *((("  folded ", "dim"), f"{_age(now - self._folded_at)} ago") if self._folded_at else ()),
        )  # fmt: skip

    def _detail_line(self, batch: BatchCommitted) -> Text:
        parts = [f"{self._records:,} records"]
        parts += [f"{topic} {lag:,} behind" for topic, lag in self._lag.items() if lag]
        parts += [f"{table} +{rows:,}" for table, rows in batch.rows.items() if rows][:6]
        parts += [f"{reason} {count:,}" for reason, count in self._dropped.items()]
        line = Text("  ", style="dim", no_wrap=True, overflow="ellipsis")
        if self._quarantined:
            line.append(f"quarantined {self._quarantined:,}", style="yellow").append(" · ")
        return line.append(" · ".join(parts))


def _spark_line(rates: deque[float]) -> str:
    top = max(rates, default=0.0) or 1.0
    return "".join(_BARS[1 + round(rate / top * 7)] for rate in rates)


def _age(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{left:02}"
