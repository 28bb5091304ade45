"""Compare what a run left behind with what it should have: no JVM, no code of the engine that ran.

What should be is the interpreter's fold of the input topics, read here by a consumer of our own, up to the offsets that the changelog
says are committed. What is, is read from the Delta tables by delta-rs. Four things are compared: the commits (offsets tile without
gap or overlap, seq counts by one), the archives (each record once, none missing that is committed), every table (base ⊕ tail at the
committed position, and the base alone at its folded position), and what a read_committed consumer finds in the output topics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from watertable.interpreter import Interpreter
from watertable.interpreter.merges import MERGE
from watertable.plan.aggregates import Merge
from watertable.plan.plan import TableDef, Topology
from watertable.records import Place, Record

Partition = tuple[str, int]
FOLD_LINE = "watertable/fold"
SEQ_MASK = (1 << 40) - 1


@dataclass(frozen=True, slots=True)
class Commit:
    seq: int
    begin: Mapping[Partition, int]
    next: Mapping[Partition, int]


@dataclass(slots=True)
class Lake:
    """Read one app's store as any Delta reader would."""

    warehouse: Path
    topology: Topology
    _changelog: DeltaTable | None = field(default=None)

    @property
    def folder(self) -> Path:
        return self.warehouse / self.topology.app

    def rows(self, path: Path, query: str) -> list[dict[str, Any]]:
        found = QueryBuilder().register("t", DeltaTable(str(path))).execute(query).read_all()
        return list(pa.table(found).to_pylist())

    def exists(self, name: str = "changelog") -> bool:
        return DeltaTable.is_deltatable(str(self.folder / name))

    def commits(self) -> list[Commit]:
        """List the batches in the changelog, oldest first; those that were trimmed are gone."""
        found = self.rows(self.folder / "changelog", "SELECT seq, commit_v1 FROM t WHERE \"table\" = '__commit'")
        batches = [(row["seq"], row["commit_v1"]["partitions"]) for row in found if row["commit_v1"]["kind"] == "batch"]
        return [
            Commit(
                seq,
                {(p["topic"], p["partition"]): p["begin"] for p in partitions},
                {(p["topic"], p["partition"]): p["next"] for p in partitions},
            )
            for seq, partitions in sorted(batches, key=lambda batch: batch[0])
        ]

    def archived(self, topic: str) -> list[tuple[Any, ...]]:
        """List an archive's records by their offsets, as they are kept."""
        path = self.warehouse / "topics" / topic
        rows = self.rows(path, 'SELECT "partition", "offset", key, value FROM t') if DeltaTable.is_deltatable(str(path)) else []
        return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in rows)

    def folded(self, table: TableDef) -> int:
        """Give the seq up to which a table's Delta table is folded, by its transaction."""
        number = DeltaTable(str(self.folder / table.name)).transaction_version(FOLD_LINE) if self.exists(table.name) else None
        return 0 if number is None else number & SEQ_MASK

    def base(self, table: TableDef) -> list[dict[str, Any]]:
        """Read a table as any Delta reader sees it, its bookkeeping included."""
        return self.rows(self.folder / table.name, "SELECT * FROM t") if self.exists(table.name) else []

    def states(self, table: TableDef) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Merge base and tail, deleted rows included: the state of each key at the newest commit."""
        states: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.base(table):
            self._add(table, states, tuple(row[n] for n in table.key.names), row["_wt"]["state"])
        column = table.state_column
        tail = self.rows(self.folder / "changelog", f'SELECT seq, "{column}" AS c FROM t WHERE "table" = \'{table.name}\'')
        folded, forgets = self.folded(table), all(f.merge is Merge.LAST for f in table.state)
        for row in tail:
            if row["seq"] > folded or forgets:  # a latest value may be merged twice; its tombstones are in the changelog alone
                self._add(table, states, tuple(row["c"]["key"][n] for n in table.key.names), row["c"]["state"])
        return states

    @staticmethod
    def _add(table: TableDef, states: dict[tuple[Any, ...], dict[str, Any]], key: tuple[Any, ...], raw: Mapping[str, Any]) -> None:
        state = {f.name: _python(f.merge, raw[f.name]) for f in table.state}
        old = states.get(key)
        states[key] = state if old is None else {f.name: MERGE[f.merge](f, old[f.name], state[f.name]) for f in table.state}


@dataclass(slots=True)
class Verdict:
    """Collect what is wrong; nothing wrong is what a campaign wants."""

    differences: list[str] = field(default_factory=list)
    checked: int = 0

    def same(self, what: str, found: object, wanted: object) -> None:
        self.checked += 1
        if found != wanted:
            self.differences.append(f"{what}: {_difference(found, wanted)}")


def verify_store(lake: Lake, records: Sequence[Record], verdict: Verdict, *, complete: bool = False) -> None:
    """Check the commits and every table at the committed position, and each base at its folded one."""
    commits = lake.commits() if lake.exists() else []
    for before, after in pairwise(commits):
        verdict.same(f"commit after {before.seq}", (after.seq, after.begin), (before.seq + 1, before.next))
    if not commits:
        return
    for topic in lake.topology.archived:
        verify_archive(lake, topic, [r for r in records if r.topic == topic], commits[-1].next, verdict)
    expected = fold(lake.topology, records, commits[-1].next)
    found = Interpreter(lake.topology)
    found.states = {table.name: lake.states(table) for table in lake.topology.tables}
    for table in lake.topology.tables:
        verdict.same(f"table {table.name} at seq {commits[-1].seq}", found.tables[table.name], expected.tables[table.name])
        seq = lake.folded(table)
        at = next((commit.next for commit in commits if commit.seq == seq), None)
        if complete:
            verdict.same(f"fold of {table.name}", seq, commits[-1].seq)
        if at is not None:
            wanted = fold(lake.topology, records, at).tables[table.name]
            base = {tuple(r[n] for n in table.key.names): {n: r[n] for n in table.columns.names} for r in lake.base(table)}
            verdict.same(f"base of {table.name} at seq {seq}", base, wanted)


def verify_archive(lake: Lake, topic: str, records: Sequence[Record], committed: Mapping[Partition, int], verdict: Verdict) -> None:
    """Check that an archive holds each record once, from the first to a last that no commit is beyond."""
    kept = lake.archived(topic)
    reached = {p: offset for (name, p), offset in committed.items() if name == topic}
    for partition, offset, *_ in kept:
        reached[partition] = max(reached.get(partition, 0), offset + 1)
    wanted = sorted((r.partition, r.offset, r.key, r.value) for r in records if r.offset < reached.get(r.partition, 0))
    verdict.same(f"archive of {topic}", kept, wanted)


def verify_outputs(topology: Topology, records: Sequence[Record], published: Sequence[Record], verdict: Verdict) -> None:
    """Check that consumers of the output topics saw each record once, in the order of its key."""
    engine = fold(topology, records, None)
    for sink in topology.sinks:
        wanted = _by_key((o.key, o.value) for o in engine.outputs if o.topic == sink.topic)
        found = _by_key((r.key, r.value) for r in published if r.topic == sink.topic)
        verdict.same(f"topic {sink.topic}", found, wanted)


def verify_counts(lake: Lake, records: Sequence[Record], verdict: Verdict) -> None:
    """Check that each refused record is in quarantine once, and that every late window was counted; only while nothing was trimmed."""
    engine = fold(lake.topology, records, None)
    refused = lake.rows(lake.folder / "changelog", "SELECT quarantine_v1 AS q FROM t WHERE \"table\" = '__quarantine'")
    wanted = sorted((r.record.topic, r.record.partition, r.record.offset) for r in engine.quarantine)
    verdict.same("quarantine", sorted((r["q"]["topic"], r["q"]["partition"], r["q"]["offset"]) for r in refused), wanted)
    dropped = lake.rows(lake.folder / "changelog", "SELECT dropped_v1 AS d FROM t WHERE \"table\" = '__dropped'")
    late = sorted((r["d"]["topic"], r["d"]["partition"], r["d"]["offset"]) for r in dropped if r["d"]["reason"] == "late")
    verdict.same("late", late, sorted((d.topic, d.partition, d.offset) for d in engine.dropped if d.reason == "late"))


def fold(topology: Topology, records: Iterable[Record], upto: Mapping[Partition, int] | None) -> Interpreter:
    """Let the interpreter fold the records below some offsets."""
    engine = Interpreter(topology)
    engine.read([r for r in records if upto is None or r.offset < upto.get((r.topic, r.partition), 0)])
    return engine


def _by_key(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def _python(merge: Merge, value: Any) -> Any:
    if merge in (Merge.FIRST, Merge.LAST) and value is not None:
        return {"order": Place(**value["order"]), "value": value["value"]}
    return value


def _difference(found: object, wanted: object) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
        shown = "; ".join(f"{k}: found {_short(found.get(k))}, wanted {_short(wanted.get(k))}" for k in keys[:3])
        return f"{len(keys)} of {len(wanted)} keys differ: {shown}"
    return f"found {_short(found)}, wanted {_short(wanted)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}... ({len(text)})"
