"""Hold the plan of a rewind: a value that says all that one will do, in numbers and in words, and can be kept as JSON.

`rewind.plan` makes it and `rewind.apply` carries it out; whoever shows it (the command line, Dagster) takes its words from here, so that
the same is said everywhere. The law: a plan read from its JSON is the plan that was written, also where an older release wrote it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from watertable.acts.estimates import Disk, Estimate, disk_text, eta_text
from watertable.acts.targets import Target
from watertable.errors import RewindRefused
from watertable.store.commits import Position

EMITTING: Final = ", emitting"
"""In the words of an epoch's row: that it publishes again."""
_NAMES: Final = ("sinks", "again", "accepted", "refusals", "rebuilds", "checks", "assets")
"""The members of a plan that are tuples of text: JSON has lists for them."""


@dataclass(frozen=True, slots=True)
class Range:
    """Hold what is read again of one partition: [begin, end), of which all that comes from `available` on is to be had.

    What comes before `archived` is in the topic's archive, the rest in Kafka. `compacted` says what may be missing there that counts, where
    Kafka compacts it.
    """

    topic: str
    partition: int
    begin: int
    end: int
    available: int
    archived: int = 0
    compacted: str = ""

    @property
    def name(self) -> str:
        """Name the partition as `--accept-loss` takes it: sales/0."""
        return f"{self.topic}/{self.partition}"

    @property
    def lost(self) -> int:
        """Count the offsets that can't be had any more."""
        return max(0, self.available - self.begin)

    @property
    def records(self) -> int:
        """Count the offsets that are read again."""
        return max(0, self.end - max(self.begin, self.available))

    @property
    def thinned(self) -> bool:
        """Tell whether records among these may be gone that count."""
        return bool(self.compacted) and self.records > self.of_archive

    @property
    def of_archive(self) -> int:
        """Count those of them that are read from the archive."""
        return max(0, min(self.end, self.archived) - max(self.begin, self.available))


@dataclass(frozen=True, slots=True)
class Effect:
    """Say what happens to one table."""

    table: str
    effect: str


@dataclass(frozen=True, slots=True)
class Emission:
    """Say what an output topic gets again: all that is made of the ranges of these topics."""

    topic: str
    of: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """Say all that a rewind will do; made by `plan`, carried out by `apply`, and never changed in between.

    `head`, `generation` and `recorded` say where the app stood and by which code; `fingerprint` is that of the code that goes on.
    `fork` is the newest commit at or before the target; `becomes` the position right after `apply`. `refusals` say why `apply` won't do
    it: each with its way out.
    """

    app: str
    target: Target
    head: str
    generation: int
    recorded: str
    fingerprint: str
    fork: str
    becomes: str
    parent: int
    back: int
    commits: int
    records: int
    ranges: tuple[Range, ...]
    tables: tuple[Effect, ...]
    sinks: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    """The output topics that get what comes after the fork once more."""
    emits: tuple[Emission, ...] = ()
    """What they get where that was asked for; none stands for not asked."""
    eta: Estimate | None = None
    disk: Disk = field(default_factory=Disk)
    checks: tuple[str, ...] = ()
    """The checks of the tables that move, table/check, and, below, the assets that are made from them: as the project's graph has them."""
    assets: tuple[str, ...] = ()
    partial: bool = False
    accepted: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    reason: str = ""
    made_at: str = ""
    shadow: bool = False
    rebuilds: tuple[str, ...] = ()
    """The tables that are made anew beside the app, and then joined, or of which the shadow is; none stands for a rewind of the app."""
    days: str = ""
    """The days whose windows alone are made anew of them, first/last."""
    until: int = 0
    """The commit at which these windows were closed, or where a shadow's replay stops for now; 0 where it reads as far as the app is."""

    @property
    def is_beside(self) -> bool:
        """Tell whether it begins a shadow, to be promoted at once or when somebody says so."""
        return self.shadow or bool(self.rebuilds)

    @property
    def words(self) -> str:
        """Say in one line what is done and why, as the epoch's row keeps it."""
        what = "undo" if self.target.kind == "undo" else f"{'shadow rewind' if self.shadow else 'rewind'} {self.target}"
        if self.rebuilds:
            of = f"{', '.join(self.rebuilds)}{f' on {self.days}' if self.days else ''}"
            what = f"{'shadow rebuild' if self.shadow else 'rebuild'} of {of}"
        what += EMITTING if self.emits else ""
        thinned = sorted({r.topic for r in self.ranges if r.thinned})  # accepted, where this is done at all
        what += f", of what Kafka's compaction left of {', '.join(thinned)}" if thinned else ""
        return f"{what}: {self.reason}" if self.reason else what

    @property
    def stops(self) -> str:
        """Say where a shadow stops for now, or that nobody can say how far it reads; "" where it reads as far as the app is."""
        if self.is_beside and not self.recorded and not self.until:
            return f"up to where {self.app} is by then: it has read nothing since it was rewound, so how much that is isn't known yet"
        return f"up to commit {self.until:,}, where it can be compared; it goes on from there when asked" if self._pauses else ""

    @property
    def _pauses(self) -> bool:
        return self.until > 0 and not self.days

    @property
    def left_behind(self) -> str:
        """Say how many of the app's commits are no part of it any more."""
        if self.is_beside:
            return "nothing is left behind"
        return f"{self.commits:,} commit{' is' if self.commits == 1 else 's are'} left behind"

    @property
    def touches(self) -> tuple[str, ...]:
        """Say which checks and assets stand behind the tables that move; a line each, none where nobody has looked them up."""
        said = [f"checks: {'; '.join(checks_text(self.checks))}"] if self.checks else []
        return (*said, f"made from them: {', '.join(self.assets)}") if self.assets else tuple(said)

    @property
    def way(self) -> str:
        """Say from where to where it leads, as Markdown."""
        if self.is_beside:
            return f"at `{self.becomes}`, beside `{self.head}`" + ("" if self.rebuilds else f", forked at `{self.fork}`")
        return f"from `{self.head}` to `{self.becomes}`, forked at `{self.fork}`"

    def publishing(self, sink: str) -> str:
        """Say what the replay publishes to an output topic."""
        for emission in self.emits:
            if emission.topic == sink:
                when = ", once it is promoted" if self.shadow else ""
                return f"all that is made of {', '.join(emission.of)} from these offsets on is published again, as asked{when}"
        if sink in self.again:
            return "what comes after the fork is published again: it is of several records, or has waited, so no one place tells if it was"
        return "nothing that was published is published again"

    @property
    def losses(self) -> tuple[Range, ...]:
        """List the ranges of which Kafka has deleted something."""
        return tuple(r for r in self.ranges if r.lost)

    @property
    def readers(self) -> str:
        """Say what readers will see."""
        if self.rebuilds:
            until, names = "promoted" if self.shadow else "level with the app", ", ".join(self.rebuilds)
            return (
                f"nothing of it until it is {until}: then wt.read has {names} as made anew from one moment to the next, all together, and "
                "every other table as it is; offsets don't move, and output topics get nothing of it. Other Delta readers keep each table "
                f'as it is until the first fold after that. What was can still be read: at="{self.head}".'
            )
        if self.shadow:
            return f"nothing of it until it is promoted; {self.app} goes on as it is. What it makes can be read from {self.becomes} on."
        empty = Position.parse(self.fork).seq == 0
        return (
            f"wt.read is at {self.becomes} from one moment to the next, all tables together{', and they are empty then' if empty else ''}; "
            f"it moves forward commit by commit as the replay does. Other Delta readers keep each table as it is until the first fold "
            f'after that. What was can still be read: at="{self.head}".'
        )

    def to_json(self) -> str:
        """Write the plan as JSON; `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote; raise `RewindRefused` for anything else."""
        try:
            body: dict[str, Any] = json.loads(text)
            body.pop("event", None)
            return cls(**body | {
                "target": Target(**body["target"]), "ranges": tuple(Range(**r) for r in body["ranges"]),
                "tables": tuple(Effect(**t) for t in body["tables"]),
                "emits": tuple(Emission(e["topic"], tuple(e["of"])) for e in body.get("emits", ())),
                "eta": Estimate(**body["eta"]) if body["eta"] else None, "disk": Disk(**body.get("disk", {})),
                **{name: tuple(body.get(name, ())) for name in _NAMES},
            })  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RewindRefused(
                f"this is no plan of a rewind: {type(error).__name__}: {error}; make one with `watertable rewind ... --json`"
            ) from None

    def markdown(self) -> str:
        """Write the plan as Markdown, as Dagster shows it."""
        lines = [
            f"**{self.words}** of `{self.app}`: {self.way}.",
            "",
            f"{self.left_behind}, {self.records:,} records are read again, {eta_text(self.eta)}.",
            *([f"It reads {self.stops}."] if self.stops else []),
            f"Disk: {disk_text(self.disk)}.",
            "",
            "| topic | partition | from | to | records | where from |", "|---|--:|--:|--:|--:|---|",
            *(f"| {r.topic} | {r.partition} | {r.begin:,} | {r.end:,} | {r.records:,} | {source_text(r)} |" for r in self.ranges),
            "",
            "| table | |", "|---|---|",
            *(f"| {t.table} | {t.effect} |" for t in self.tables),
            "",
            *([*(f"- output topic {sink}: {self.publishing(sink)}" for sink in self.sinks), ""] if self.sinks else []),
            *([*(f"- {line}" for line in self.touches), ""] if self.touches else []),
            f"Readers: {self.readers}",
        ]  # fmt: skip
        if self.refusals:
            lines += ["", "**It will be refused:**", *(f"- {r}" for r in self.refusals)]
        return "\n".join(lines)


def checks_text(checks: Sequence[str]) -> list[str]:
    """Write checks, table/check, by their names: those together that are of the same tables.

    >>> checks_text(["a/alive", "a/fresh", "a/positive", "b/alive", "b/fresh"])
    ['alive, fresh of a, b', 'positive of a']
    """
    of: dict[str, list[str]] = {}
    for table, _, check in (name.partition("/") for name in checks):
        of.setdefault(check, []).append(table)
    groups: dict[str, list[str]] = {}
    for check, tables in of.items():
        groups.setdefault(", ".join(tables), []).append(check)
    return [f"{', '.join(names)} of {tables}" for tables, names in groups.items()]


def source_text(part: Range) -> str:
    """Say where a range comes from, and what of it can't be had.

    >>> source_text(Range("sales", 0, 10, 90, 20, archived=60)), source_text(Range("sales", 0, 10, 90, 10))
    ('10 gone, then the archive up to 60, then Kafka', 'Kafka')
    """
    found = [f"{part.lost:,} gone"] if part.lost else []
    if part.of_archive:
        found.append(f"the archive up to {part.archived:,}" if part.archived < part.end else "the archive")
    if part.records > part.of_archive:
        found.append("Kafka, which compacts it" if part.thinned else "Kafka")
    return ", then ".join(found) or "nothing to read"
