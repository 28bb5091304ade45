"""Random plans that both watertable and Kafka Streams run: drawn, written with watertable's operators, and as JSON for Plans.java.

Keys are texts `k`, values numbers `v`. Topics have one partition each and are read in log order, so that the order of arrival, which Kafka
Streams goes by, is that of the law. What differs all the same (docs/kafka-streams.md) isn't drawn: `fits` says it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate
from random import Random
from typing import Any, Final, NamedTuple

import watertable as wt
from tests.properties.engines import as_records
from watertable.dsl.tables import Table
from watertable.plan.plan import Topology
from watertable.plan.windows import TimeWindows, Windows
from watertable.records import Record

JOINED: Final = "(COALESCE(left.v, 1) * 7 + COALESCE(right.v, 2)) % 101"
LOOKED_UP: Final = JOINED.replace("left.v", "v")
FOREIGN: Final = "CASE WHEN v <= 7 THEN CAST(v % 4 AS STRING) END"
GROUP: Final = "CAST(v % 3 AS STRING)"
END: Final = 5000
"""Milliseconds after which each topic has one more record: all windows are closed by it."""
LAST: Final = "last"
"""Its key, which no other record has."""
LONG: Final = 1000
"""A grace for which no record is late."""


@dataclass(frozen=True, eq=False)
class Node:
    """Name an operator, what it reads and how it is set."""

    name: str
    op: str
    of: tuple[Node, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def above(self) -> set[Node]:
        """List the node and all that it reads from."""
        return {self}.union(*(node.above for node in self.of))

    @property
    def ops(self) -> set[str]:
        """Name the operators of it and of all that it reads from."""
        return {node.op for node in self.above}

    @property
    def topics(self) -> set[str]:
        """Name the topics that it reads from."""
        return {node.more["topic"] for node in self.above if node.op in SOURCES}

    @property
    def shown(self) -> bool:
        """Tell whether what it sends is compared: not what keeps nothing, nor what a history sends, which has old versions among it."""
        passes_on = self.op in ("versioned", "table_filter", "table_map_values")
        return self.op not in STATELESS and not (passes_on and "versioned" in self.ops)

    def json(self) -> dict[str, Any]:
        """Write the node for Plans.java."""
        return {"name": self.name, "op": self.op, "of": [node.name for node in self.of], "shown": self.shown, **self.more}


class Operator(NamedTuple):
    """Say what an operator reads (s: a stream, t: a table, w: the windows drawn right before), what others read of it, and its code."""

    reads: str
    gives: str
    write: Callable[[list[Any], dict[str, Any]], Any]


def ms(n: int) -> timedelta:
    return wt.milliseconds(n)


def folded(of: list[Any], windows: Windows, more: dict[str, Any]) -> Any:
    """Count records in windows, or add them up."""
    return of[0].group_by_key().windowed_by(windows).agg(v=wt.count() if more["fold"] == "count" else wt.sum("v"))


def cogrouped(of: list[Any], _: dict[str, Any]) -> Any:
    both = of[0].group_by_key().cogroup(a=wt.sum("v")).cogroup(of[1].group_by_key(), b=wt.max("v"))
    return both.agg().map_values(v="COALESCE(a, 0) * 3 + COALESCE(b, 0)")


def within(more: dict[str, Any]) -> dict[str, Any]:
    return {"within": wt.join_windows(**{part: ms(more[part]) for part in ("before", "after", "grace")}), "v": JOINED}


OPERATORS: dict[str, Operator] = {
    "filter": Operator("s", "s", lambda of, _: of[0].filter("v % 2 = 0")),
    "map_values": Operator("s", "s", lambda of, _: of[0].map_values(v="v + 3")),
    "select_key": Operator("s", "s", lambda of, _: of[0].select_key(k=GROUP)),
    "flat_map_values": Operator("s", "s", lambda of, _: of[0].flat_map_values(v="array(v, v + 1)")),
    "merge": Operator("ss", "s", lambda of, _: of[0].merge(of[1])),
    "look_up": Operator("st", "s", lambda of, _: of[0].join(of[1], v=LOOKED_UP)),
    "left_look_up": Operator("st", "s", lambda of, _: of[0].left_join(of[1], v=LOOKED_UP)),
    "pair": Operator("ss", "s", lambda of, more: of[0].join(of[1], **within(more))),
    "left_pair": Operator("ss", "s", lambda of, more: of[0].left_join(of[1], **within(more))),
    "outer_pair": Operator("ss", "s", lambda of, more: of[0].outer_join(of[1], **within(more))),
    "to_table": Operator("s", "t", lambda of, _: of[0].to_table()),
    "count": Operator("s", "t", lambda of, _: of[0].group_by_key().agg(v=wt.count())),
    "sum": Operator("s", "t", lambda of, _: of[0].group_by_key().agg(v=wt.sum("v"))),
    "max": Operator("s", "t", lambda of, _: of[0].group_by_key().agg(v=wt.max("v"))),
    "first": Operator("s", "t", lambda of, _: of[0].group_by_key().agg(v=wt.first("v"))),
    "reduce": Operator("s", "t", lambda of, _: of[0].group_by_key().reduce(v="(acc.v * 3 + v) % 101")),
    "cogroup": Operator("ss", "t", cogrouped),
    "table_filter": Operator("t", "t", lambda of, _: of[0].filter("v % 2 = 0")),
    "table_map_values": Operator("t", "t", lambda of, _: of[0].map_values(v="v + 3")),
    "join": Operator("tt", "t", lambda of, _: of[0].join(of[1], v=JOINED)),
    "left_join": Operator("tt", "t", lambda of, _: of[0].left_join(of[1], v=JOINED)),
    "outer_join": Operator("tt", "t", lambda of, _: of[0].outer_join(of[1], v=JOINED)),
    "foreign_join": Operator("tt", "t", lambda of, _: of[0].join(of[1], on=FOREIGN, v=JOINED)),
    "foreign_left_join": Operator("tt", "t", lambda of, _: of[0].left_join(of[1], on=FOREIGN, v=JOINED)),
    "table_count": Operator("t", "", lambda of, _: of[0].group_by(k=GROUP).agg(v=wt.count())),
    "table_sum": Operator("t", "", lambda of, _: of[0].group_by(k=GROUP).agg(v=wt.sum("v"))),
    "to_stream": Operator("t", "s", lambda of, _: of[0].to_stream()),
    "time_windows": Operator("s", "", lambda of, m: folded(of, TimeWindows(ms(m["size"]), ms(m["every"]), ms(m["grace"])), m)),
    "sliding": Operator("s", "", lambda of, m: folded(of, wt.sliding(difference=ms(m["size"]), grace=ms(m["grace"])), m)),
    "sessions": Operator("s", "", lambda of, m: folded(of, wt.sessions(gap=ms(m["size"]), grace=ms(m["grace"])), m)),
    "final": Operator("w", "", lambda of, _: of[0].suppress(wt.until_window_closes())),
    "of_all_windows": Operator("w", "t", lambda of, _: of[0].group_by(k="k").agg(v=wt.sum("v"))),
}
SOURCES: Final = ("stream", "table", "versioned")
STATELESS: Final = ("stream", "filter", "map_values", "select_key", "flat_map_values", "merge")
PAIRS: Final = ("pair", "left_pair", "outer_pair")
WINDOWS: Final = ("time_windows", "sliding", "sessions")
BY_KEY: Final = ("join", "left_join", "outer_join", "look_up", "left_look_up")


def fits(op: str, of: tuple[Node, ...], *, late: bool) -> bool:
    """Tell whether Kafka Streams gives for this what the law does, and watertable takes it."""
    ops = set[str]().union(*(node.ops for node in of))
    if len(of) == 2 and (of[0] is of[1] if op in PAIRS else of[0].topics & of[1].topics):
        return False  # of what one record changes twice, it's the topology that says which comes first, and joins may keep what is deleted
    if op in BY_KEY and ops & {"foreign_join", "foreign_left_join"}:
        return False  # the rows of such a join can't be found by their key
    if op in (*PAIRS, *WINDOWS) and not ops <= {"stream", "map_values", "select_key"}:
        return False  # Kafka Streams' stream time is that of the records that come as far
    if op in ("left_pair", "outer_pair") and late:
        return False  # a late record comes alone at once, and a pair may follow
    if op in ("first", "reduce", "to_table") and ops & {*PAIRS}:
        return False  # the pairs of one record come in the order of the others' times
    if op in ("look_up", "left_look_up") and ops & {"left_pair", "outer_pair"}:
        return False  # what comes alone looks up what is there when its window closes
    if op in ("table_count", "table_sum") and ops & {"count", "cogroup"}:
        return False  # of these the first change says that the initial 0 was a row, which is then taken out of its group
    if op == "final" and of[0].op == "sessions":
        return False  # a session closes a gap earlier there, and may go on after that
    if op == "of_all_windows":  # those of the others are taken back wrongly, and a count begins with a 0
        return of[0].op == "time_windows" and of[0].more["fold"] == "sum"
    if op in ("foreign_join", "foreign_left_join") and ops & {"of_all_windows", "flat_map_values", *PAIRS}:
        return False  # where one record changes a row twice, a deletion may be lost
    if op == "to_stream" and "of_all_windows" in ops:
        return False  # one record changes such a row once for each of its windows
    return op != "to_stream" or not ops & {"versioned", "foreign_left_join"}  # which tells of deletions of rows that never were


def settings(op: str, draw: Random, *, late: bool, nulls: bool) -> dict[str, Any]:
    """Draw windows."""
    if op in PAIRS:
        return {"before": draw.choice([0, 10, 50]), "after": draw.choice([0, 10, 50]), "grace": LONG}
    if op not in WINDOWS:
        return {}
    size = draw.choice([5, 10, 30, 100])
    every = {"every": draw.choice([size, size // 2, size // 3])} if op == "time_windows" else {}
    grace = LONG if late and op != "time_windows" else draw.choice([0, 10, 50, LONG])
    return {"size": size, "grace": grace, "fold": "count" if nulls else draw.choice(["count", "sum"])} | every


@dataclass(frozen=True)
class Plan:
    """Hold a plan and the records that it reads, in log order: topic, key, value and milliseconds."""

    nodes: tuple[Node, ...]
    records: tuple[dict[str, Any], ...]

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Draw a plan of a few operators, and records, some of them late, some without a value."""
        draw = Random(seed)
        late, nulls = draw.choice([0, 0.25, 0.5]), draw.choice([0, 0, 0.2])
        nodes = [Node(f"n{n}", "stream", more={"topic": topic}) for n, topic in enumerate("SR")]
        for topic in "TU":
            history = {"history": draw.choice([60, 100_000])} if draw.random() < 0.3 else {}
            nodes.append(Node(f"n{len(nodes)}", "versioned" if history else "table", more={"topic": topic, **history}))
        kinds = {"s": nodes[:2], "t": nodes[2:]}
        size = len(nodes) + draw.randint(1, 5)
        while len(nodes) < size or not any(node.shown for node in nodes):
            follows = nodes[-1].op in WINDOWS and draw.random() < 0.7
            op = draw.choice(["final", "of_all_windows"] if follows else [*OPERATORS])
            reads, gives, _ = OPERATORS[op]
            if reads == "w" and nodes[-1].op not in WINDOWS:
                continue
            of = (nodes[-1],) if reads == "w" else tuple(draw.choice(kinds[kind]) for kind in reads)
            if op == "merge":  # few streams have no topic in common, and fewer merges are read by what is shown
                of = (of[0], draw.choice([node for node in kinds["s"] if not node.topics & of[0].topics] or of))
            if fits(op, of, late=late > 0):
                node = Node(f"n{len(nodes)}", op, of, settings(op, draw, late=late > 0, nulls=nulls > 0))
                nodes.append(node)
                if gives:
                    kinds[gives].append(node)
        used = set[Node]().union(*(node.above for node in nodes if node.shown))
        nodes = [node for node in nodes if node in used]
        placed = list[tuple[int, str, int, dict[str, Any]]]()
        for node in nodes:
            if node.op in SOURCES:
                rows = cls._rows(node, draw, late=late, nulls=nulls if node.op == "stream" else 0.25)
                reached = accumulate((row["ts"] for row in rows), max)
                placed += [(at, row["topic"], n, row) for n, (at, row) in enumerate(zip(reached, rows, strict=True))]
        return cls(tuple(nodes), tuple(row for *_, row in sorted(placed, key=lambda row: row[:3])))

    @staticmethod
    def _rows(node: Node, draw: Random, *, late: float, nulls: float) -> list[dict[str, Any]]:
        now, rows, taken = 0, list[dict[str, Any]](), set[tuple[str, int]]()
        for _ in range(draw.randint(4, 14)):
            now += draw.choice([0, 0, 1, 3, 10, 40])
            when = max(0, now - (draw.choice([1, 5, 10, 30, 60]) if draw.random() < late else 0))
            key, value = draw.choice("0123"), None if draw.random() < nulls else draw.randint(0, 9)
            if node.op == "versioned" and (key, when) in taken:
                continue  # a history forgets a tombstone of the same time as what it deletes
            taken.add((key, when))
            rows.append({"topic": node.more["topic"], "key": key, "value": value, "ts": when})
        return [*rows, {"topic": node.more["topic"], "key": LAST, "value": 1, "ts": END}]

    def json(self) -> str:
        """Write the plan for Plans.java."""
        return json.dumps({"nodes": [node.json() for node in self.nodes], "records": self.records})

    def topology(self) -> Topology:
        """Write the plan with watertable: each table has its node's name, and each stream that is shown goes to a topic of that name."""
        app, made = wt.App("beside"), dict[Node, Any]()
        for node in self.nodes:
            if node.op in SOURCES:
                topic = app.topic(node.more["topic"], key="k STRING", value="v BIGINT")
                result: Any = topic.stream() if node.op == "stream" else topic.table()
            else:
                result = OPERATORS[node.op].write([made[parent] for parent in node.of], node.more)
            if isinstance(result, Table):
                result = result.materialized_as(node.name, history=ms(node.more["history"]) if "history" in node.more else None)
            elif node.shown:
                result.to(node.name)
            made[node] = result.map_values(v="new.v") if node.op == "to_stream" else result
        return app.topology()

    def read(self) -> list[Record]:
        """Give the records as watertable reads them."""
        return as_records(self.records)
