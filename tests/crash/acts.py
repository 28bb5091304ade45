"""Kill an act (rewind, undo, shadow, promote, join, abandon) at its points, and compare what is left with the old state and the new.

A chain is one app through many acts, one a cell. A child does the act and dies in it; the store is looked at without a JVM; a second
child reads with the product's own reader, asks for the same act again, and lets the app catch up; then all is compared once more. The
app's two codes make other rows of two of its tables, so that tables of different acts can't be mistaken for each other.

Laws: the app is where it was, or where the act was to bring it; every table, by `wt.read` and alone, is the interpreter's fold, by the
code of its commit, of what that commit had read; a promote moves no offset; asked for again, an act that had landed says so and changes
nothing, and one that hadn't is done.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.crash.campaign import Chain, Child, last_words
from tests.crash.ledger import topology
from tests.crash.verify import FOLD_LINE, SEQ_MASK, Lake, Partition, Verdict, fold, verify_outputs
from watertable.interpreter import Interpreter
from watertable.kafka.admin import Admin
from watertable.plan.plan import Topology
from watertable.records import Record

Rows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Deed:
    """Name one kill of an act: at a point, the nth time that it is met, some seconds later; the app may run in the same process."""

    act: str
    point: str
    how: str
    to: str = "earliest"
    nth: int = 1
    delay: float = 0.0
    beside: bool = False

    def __str__(self) -> str:
        more = [f"to {self.to}"] if self.act == "rewind" else []
        more += ["beside the app"] if self.beside else []
        return " ".join([self.act, *more, self.point, self.how, *([f"{self.delay} s later"] if self.delay else [])])

    @property
    def lands(self) -> bool | None:
        """Say whether the act's row is there at the kill; None where that is for the clock to say."""
        if self.point.startswith("rewind.") and not self.point.endswith("after_commit"):
            return None if self.delay else False
        if self.point.startswith("rewind."):
            return True
        return self.act not in ("promote", "join")  # their replay comes before their row, any other's after it


@dataclass(frozen=True, slots=True)
class Place:
    """Hold where an app stood: the position, by which code, and the offsets up to which it had read."""

    epoch: int
    seq: int
    code: str
    offsets: Mapping[Partition, int]


@dataclass(frozen=True)
class History:
    """Hold the rows of `__commit` at one look, and read lineages from them, by the book and not by the product's code."""

    rows: tuple[dict[str, Any], ...]
    codes: Mapping[str, str]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] in kinds]

    @cached_property
    def parents(self) -> dict[int, tuple[int, int]]:
        return {row["epoch"]: (row["parent"], row["fork"]) for row in self.of("epoch", "shadow")}

    @property
    def current(self) -> int:
        """Give the epoch that the newest row in the line of writers made current."""
        epochs = sorted(self.of("epoch"), key=lambda row: row["generation"])
        return epochs[-1]["epoch"] if epochs else 1

    def spans(self, epoch: int) -> list[tuple[int, int, float]]:
        """List (epoch, after, upto) of a lineage."""
        found, upto = [], float("inf")
        while epoch in self.parents:
            parent, fork = self.parents[epoch]
            found.append((epoch, fork, upto))
            epoch, upto = parent, min(upto, fork)
        return [(epoch, 0, upto), *reversed(found)]

    def on(self, epoch: int, row: Mapping[str, Any], upto: float = float("inf")) -> bool:
        """Tell whether a row is of a lineage, up to a seq."""
        return any(e == row["epoch"] and after < row["seq"] <= min(end, upto) for e, after, end in self.spans(epoch))

    def began(self, epoch: int, table: str) -> int:
        """Give the seq behind which a table of a lineage begins anew: where a shadow of it was joined last."""
        spans = {e: after for e, after, upto in self.spans(epoch) if after < upto}
        joins = (row["epoch"] for row in self.of("epoch") if f"of:{table}" in row["counters"])
        return max((spans[joined] for joined in joins if joined in spans), default=0)

    def batches(self, epoch: int) -> list[dict[str, Any]]:
        return sorted((row for row in self.of("batch") if self.on(epoch, row)), key=lambda row: row["seq"])

    def place(self, epoch: int, seq: int | None = None) -> Place:
        """Give the place of a commit, the newest of an epoch's lineage by default; by its code, and where there is none by its epoch's."""
        batches = [row for row in self.batches(epoch) if seq is None or row["seq"] <= seq]
        began = next((row for row in self.of("epoch", "shadow") if row["epoch"] == epoch), None)
        if not batches:
            return Place(epoch, 0, self.codes[began["fingerprint"]] if began else "a", {})
        return Place(epoch, batches[-1]["seq"], self.codes[batches[-1]["fingerprint"]], batches[-1]["next"])

    @property
    def head(self) -> Place:
        return self.place(self.current)

    @property
    def shadow(self) -> int | None:
        """Give the epoch of the shadow there is."""
        over = {row["epoch"] for row in self.of("abandoned")} | {row["parent"] for row in self.of("epoch")}
        over |= {row["counters"].get("joined") for row in self.of("epoch")}
        return max((row["epoch"] for row in self.of("shadow") if row["epoch"] not in over), default=None)


class ActLake(Lake):
    """Read a store with several epochs and codes as any Delta reader would."""

    def history(self) -> History:
        codes = {topology(self.suffix, code).fingerprint: code for code in ("a", "b")}
        found = self.rows(self.folder / "changelog", "SELECT epoch, seq, commit_v1 FROM t WHERE \"table\" = '__commit'")
        rows = []
        for row in found:
            commit = row.pop("commit_v1")
            parts = {(p["topic"], p["partition"]): p for p in commit["partitions"]}
            begin, after = ({p: o[name] for p, o in parts.items() if o[name] is not None} for name in ("begin", "next"))
            rows.append(row | commit | {"begin": begin, "next": after, "counters": dict(commit["counters"])})
        return History(tuple(rows), codes)

    @property
    def suffix(self) -> str:
        return self.topology.app.removeprefix("ledger")

    def merged(self, wanted: Topology, history: History, epoch: int) -> Interpreter:
        """Merge all changes of a lineage, as they are in the changelog; nothing is trimmed in this campaign."""
        found = Interpreter(wanted)
        columns = set(DeltaTable(str(self.folder / "changelog")).schema().to_arrow().names)
        for table in wanted.tables:
            column, states = table.state_column, {}
            if column in columns:
                began = history.began(epoch, table.name)
                query = f'SELECT epoch, seq, "{column}" AS c FROM t WHERE "table" = \'{table.name}\''
                for row in self.rows(self.folder / "changelog", query):
                    if history.on(epoch, row) and row["seq"] > began:
                        self._add(table, states, tuple(row["c"]["key"][n] for n in table.key.names), row["c"]["state"])
            found.states[table.name] = states
        return found

    def folds(self) -> Iterator[tuple[str, int, int]]:
        """List what each table's Delta table has folded: (table, epoch, seq)."""
        for table in self.topology.tables:
            number = DeltaTable(str(self.folder / table.name)).transaction_version(FOLD_LINE) if self.exists(table.name) else None
            if number is not None:
                yield table.name, number >> 40, number & SEQ_MASK


@dataclass(slots=True)
class ActChain(Chain):
    """Hold one app through its acts."""

    told: dict[Deed, str] = field(default_factory=dict)
    """What each act said when it was asked for again."""

    def __post_init__(self) -> None:
        Chain.__post_init__(self)
        self.lake = ActLake(self.lake.warehouse, topology(self.name))

    @property
    def acts(self) -> ActLake:
        assert isinstance(self.lake, ActLake)
        return self.lake

    def deed(self, deed: Deed) -> Verdict:
        """Let a child die in an act, another come after it, and compare all that there is on the way."""
        verdict, seen = Verdict(), self.home / "read.json"
        self.ledger.feed(150)
        child = self.start(act=deed.act, to=deed.to, point=deed.point, nth=deed.nth, how=deed.how, delay=deed.delay, beside=deed.beside,
                           batch_records=80)  # fmt: skip
        landed = self._die(child, deed, verdict)
        if verdict.differences:
            return verdict
        self.verify_acts(verdict)
        there = self.acts.history()
        self.ledger.feed(30)
        after = self.start(act=deed.act, again=True, read=str(seen), batch_records=100, beside=deed.beside)
        code = after.wait()
        verdict.same("exit code after the death", (code, last_words(after) if code else ""), (0, ""))
        if code:
            return verdict
        again = after.first("again") or {}
        verdict.same("what the act says of itself when asked for again", again.get("outcome"), "was done" if landed else "done now")
        verdict.same("it names what happened", bool(again.get("said")), landed)
        self.told[deed] = f"{deed}: {again.get('outcome')} {again.get('said')}"
        if (diff := after.first("diff")) is not None:
            verdict.same("the shadow has read what the app has", diff["exact"], True)
        self._verify_read(json.loads(Path(f"{seen}.before").read_text()), there, verdict)
        self.verify_acts(verdict)
        self._verify_read(json.loads(seen.read_text()), self.acts.history(), verdict)
        verdict.same("committed offsets", dict(self.acts.history().head.offsets), self.ledger.ends())
        return verdict

    def finish(self) -> Verdict:
        """Compare what consumers of the output topics saw through all of it, and what is left of the children."""
        verdict, records = Verdict(), self.ledger.records(self.ledger.inputs)
        verify_outputs(self.lake.topology, records, self.ledger.records(self.ledger.outputs), verdict)
        ends = self.ledger.ends()
        verdict.same("mirrored position", Admin(self.cluster).mirrored(self.lake.topology.app, ends), ends)
        self.verify_ended(verdict)
        return verdict

    def verify_acts(self, verdict: Verdict) -> None:
        """Compare the changelog of the current lineage, each table's own Delta table, and each promote with what they should be."""
        history, records = self.acts.history(), self.ledger.records(self.ledger.inputs)
        head, name = history.head, self.lake.topology.app
        for before, row in pairwise(history.batches(history.current)):
            verdict.same(f"commit after {before['seq']}", (row["seq"], row["begin"]), (before["seq"] + 1, before["next"]))
        wanted, found = self._fold(head, records), self.acts.merged(topology(self.name, head.code), history, history.current)
        for table in self.lake.topology.tables:
            verdict.same(f"{table.name} at {name}@{head.epoch}.{head.seq}", found.tables[table.name], wanted.tables[table.name])
        for table_name, epoch, seq in self.acts.folds():
            place, table = history.place(epoch, seq), self.lake.topology.table(table_name)
            rows = self.acts.rows(self.acts.folder / table_name, "SELECT * FROM t")
            base = {tuple(r[n] for n in table.key.names): {n: r[n] for n in table.columns.names} for r in rows}
            verdict.same(f"{table_name} alone, folded at {epoch}.{seq}", base, self._fold(place, records).tables[table_name])
        for row in history.of("epoch"):
            if row["parent"] in {began["epoch"] for began in history.of("shadow")}:
                ours, theirs = history.place(row["parent"], row["fork"]), history.place(row["counters"]["back"])
                verdict.same(f"offsets of the promote to epoch {row['epoch']}", ours.offsets, theirs.offsets)
            elif (joined := row["counters"].get("joined")) is not None:
                ours, theirs = history.place(joined), history.place(row["parent"], row["fork"])
                moved = {p: offset for p, offset in ours.offsets.items() if theirs.offsets.get(p) != offset}
                verdict.same(f"offsets of the shadow joined to epoch {row['epoch']} that are not the app's", moved, {})

    def _die(self, child: Child, deed: Deed, verdict: Verdict) -> bool:
        """Wait for the child's death; say whether its act had landed by then."""
        try:
            told = child.follow("kill")
            code = child.wait()
        except AssertionError as error:
            child.kill()
            verdict.differences.append(str(error))
            return False
        verdict.same("the point was met", (told is not None, "" if told else last_words(child)), (True, ""))
        verdict.same("exit code", code, 1 if deed.how == "kill-jvm" else -signal.SIGKILL)
        history = self.acts.history()
        if deed.act == "shadow":
            landed = history.shadow is not None
        elif deed.act == "abandon":
            landed = history.shadow is None
        else:
            kept = json.loads((self.home / "deed.json").read_text())
            plan = json.loads(kept["plan"]) if kept["plan"] else None
            landed = history.shadow is None if plan is None else history.current == int(plan["becomes"].rpartition("@")[2].split(".")[0])
        if deed.lands is not None:
            verdict.same(f"the row of the act is there after {deed.point}", landed, deed.lands)
        return landed

    def _fold(self, place: Place, records: list[Record]) -> Interpreter:
        return fold(topology(self.name, place.code), records, place.offsets)

    def _verify_read(self, found: Mapping[str, Any], history: History, verdict: Verdict) -> None:
        """Compare what `wt.read` gave of all tables with the fold at the position that it names, which is the app's."""
        head, records = history.head, self.ledger.records(self.ledger.inputs)
        verdict.same("position of wt.read", found["position"], f"{self.lake.topology.app}@{head.epoch}.{head.seq}")
        wanted = self._fold(head, records)
        for table in self.lake.topology.tables:
            rows = sorted(json.dumps(row, sort_keys=True) for row in found["tables"][table.name])
            should = sorted(json.dumps(_plain(row), sort_keys=True) for row in wanted.tables[table.name].values())
            verdict.same(f"wt.read of {table.name} at {found['position']}", rows, should)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write a row as Spark's toJSON does."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        match value:
            case None:
                continue
            case datetime():
                found[name] = f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"
            case Decimal():
                found[name] = float(value)
            case _:
                found[name] = value
    return found
