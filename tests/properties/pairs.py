"""Each kind of table, each operator that takes one, and the app of a pair of them.

All apps read the same records: of several partitions, two topics, with late ones, tombstones and nulls, cut into batches. Their keys, and
what tables are grouped and joined by, are texts, or values of another type.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import watertable as wt
from tests.spark.runs import cut
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.errors import DefinitionError
from watertable.plan.plan import Topology
from watertable.plan.processors import StoreShape
from watertable.plan.windows import Windows
from watertable.records import Record

START = datetime(2024, 3, 1, 12, tzinfo=UTC)
GRACE = wt.seconds(20)
WINDOWS: Mapping[str, Windows] = {
    "tumbling": wt.tumbling(seconds=10, grace=GRACE),
    "hopping": wt.hopping(seconds=10, every=wt.seconds(4), grace=GRACE),
    "unlimited": wt.unlimited(start=START),
    "sessions": wt.sessions(gap=wt.seconds(5), grace=GRACE),
    "sliding": wt.sliding(difference=wt.seconds(6), grace=GRACE),
}  # fmt: skip
LONGER = wt.tumbling(seconds=10, grace=2 * GRACE)
SUMS = {"n": wt.count(), "g": wt.last("g")}
TYPES: Mapping[str, list[Any]] = {  # as JSON has them: three of each, at its bounds
    "STRING": ["a", "b", "c"],
    "BOOLEAN": [True, False, True],
    "TINYINT": [-128, 0, 127],
    "BIGINT": [-(2**63), 0, 2**63 - 1],
    "DECIMAL(9, 2)": ["0.00", "-1.10", "9999999.99"],
    "DECIMAL(38, 6)": ["0", "-0.000001", "99999999999999999999999999999999.999999"],
    "DATE": ["0001-01-01", "1582-10-15", "9999-12-31"],
    "TIMESTAMP": ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"],
    "BINARY": ["", "AA==", "//4="],
    "DOUBLE": ["NaN", -0.0, 1.5],
    "FLOAT": ["NaN", 0.1, "-Infinity"],
    "STRUCT<a: INT, b: ARRAY<STRING>>": [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}, {"a": 2, "b": []}],
    "ARRAY<DATE>": [[], ["2024-01-01", None], ["0001-01-01"]],
    "MAP<STRING, INT>": [{}, {"x": 1}, {"y": None, "x": 2}],
}
KEYS = list(TYPES)[: list(TYPES).index("DOUBLE")]
"""The types that keys can have; columns can have all."""


def changes(table: Table) -> Stream:
    return table.to_stream().map_values(n="new.n", g="new.g")


def put(record: wt.Record, context: wt.Context) -> None:
    if record.value is not None:
        context.store("store").put({"n": record.value["n"], "g": record.value["g"]})


class Scene:
    """Hold an app of two topics and what tables are made of; every table that it makes has the columns n and g.

    `new` are changes of its code that change nothing which it computes: `watched` (a peek, a rule that warns, an archive, an output and a
    table besides) and `wider` (a column more in its topics). `of` is the type of its keys, and of the column g.
    """

    def __init__(self, *new: str, of: str = "STRING") -> None:
        self.app, self.of = wt.App("pairs"), of
        value, watched = ("early INT, " if "wider" in new else "") + f"g {of}, n BIGINT", "watched" in new
        key = f"k {of if of in KEYS else 'STRING'}"
        self.left, self.right = (self.app.topic(name, key=key, value=value, archive=watched) for name in ("left", "right"))
        self.stream, self.other = self.left.stream(), self.right.stream()
        if watched:
            self.stream, self.other = (s.peek("seen").expect("small", "n < 3", on_fail="warn") for s in (self.stream, self.other))
            self.stream.filter("n > 4").to("more")
            self.stream.group_by(by="g").agg(n=wt.count()).materialized_as("more")

    def counted(self, windows: str | Windows = "", stream: Stream | None = None) -> Table:
        grouped = (stream or self.stream).group_by_key()
        return (grouped.windowed_by(WINDOWS[windows] if isinstance(windows, str) else windows) if windows else grouped).agg(**SUMS)

    def cogrouped(self, windows: str = "") -> Table:
        both = self.stream.group_by_key().cogroup(**SUMS).cogroup(self.other.group_by_key(), m=wt.sum("n"))
        return (both.windowed_by(WINDOWS[windows]) if windows else both).agg()

    def told(self, table: Table) -> Table:
        return changes(table.materialized_as("before")).to_table()

    def merged(self, one: Table, other: Table) -> Table:
        return changes(one.materialized_as("one")).merge(changes(other.materialized_as("two"))).to_table()

    def joined(self, one: Table, other: Table, join: Callable[..., Table] = Table.outer_join) -> Table:
        return join(one, other, n="coalesce(left.n, 0) + coalesce(right.n, 0)", g="coalesce(left.g, right.g)")

    def kept(self, shape: StoreShape) -> Table:
        return self.stream.process(put, stores={"store": shape}, children={"out": "n BIGINT"}).tables["store"]


TABLES: Mapping[str, Callable[[Scene], Table]] = {
    "a topic's": lambda s: s.left.table(),
    "versioned": lambda s: s.left.table().materialized_as("old", history=wt.seconds(30)),
    "of a stream": lambda s: s.stream.map_values(n="n + 1", g="g").to_table(),
    "filtered": lambda s: s.counted().filter("n > 1"),
    "mapped": lambda s: s.counted().map_values(n="n * 2", g="concat(g, '!')" if s.of == "STRING" else "g"),
    "reduced": lambda s: s.stream.group_by_key().reduce(n="acc.n + n", g="value.g"),
    "reduced in windows": lambda s: s.stream.group_by_key().windowed_by(WINDOWS["hopping"]).reduce(n="acc.n + n", g="value.g"),
    "counted": lambda s: s.counted(),
    "cogrouped": lambda s: s.cogrouped(),
    "grouped": lambda s: s.counted().materialized_as("first").group_by(k="g").agg(n=wt.sum("n"), g=wt.max("g")),
    "grouped windows": lambda s: s.counted("sliding").materialized_as("first").group_by(k="g").agg(n=wt.sum("n"), g=wt.max("g")),
    **{name: partial(Scene.counted, windows=name) for name in WINDOWS},
    **{f"cogrouped {name}": partial(Scene.cogrouped, windows=name) for name in ("hopping", "sessions", "sliding")},
    **{f"told of {name}": partial(lambda s, name: s.told(s.counted(name)), name=name) for name in WINDOWS},
    "told": lambda s: s.told(s.counted()),
    "told of two windows": lambda s: s.merged(s.counted("tumbling"), s.counted(LONGER, s.other)),
    "told of two kinds of windows": lambda s: s.merged(s.counted("hopping"), s.counted("tumbling", s.other)),
    "told of windows and of final ones": lambda s: (lambda t: s.merged(t, t.suppress(wt.until_window_closes())))(s.counted("tumbling")),
    "joined": lambda s: s.joined(s.counted(), s.right.table()),
    "joined with itself": lambda s: (lambda t: s.joined(t, t, Table.join))(s.counted()),
    "joined windows": lambda s: s.joined(s.counted("hopping"), s.counted("hopping", s.other), Table.left_join),
    "joined with told": lambda s: (lambda t: s.joined(t, s.told(t)))(s.counted("hopping")),
    "joined by name": lambda s: s.counted().materialized_as("rows").left_join(
        s.right.table().materialized_as("names"), on="g", n="left.n", g="coalesce(right.g, left.g)"),
    "final": lambda s: s.counted("tumbling").suppress(wt.until_window_closes()),
    "final sessions": lambda s: s.counted("sessions").suppress(wt.until_window_closes()),
    "calm": lambda s: s.counted().materialized_as("first").suppress(wt.until_time_limit(wt.seconds(8))),
    "calm windows": lambda s: s.counted("sliding").materialized_as("first").suppress(wt.until_time_limit(wt.seconds(8))),
    "mortal": lambda s: s.counted().materialized_as("first").ttl(wt.seconds(12)),
    "mortal windows": lambda s: s.counted("hopping").materialized_as("first").ttl(wt.seconds(12)),
    "deduped": lambda s: s.stream.dedupe(name="seen", within=wt.seconds(10), grace=GRACE).to_table(),
    "a store": lambda s: s.kept(wt.key_value_store(f"n BIGINT, g {s.of}")),
    "a store by time": lambda s: s.kept(wt.window_store(f"n BIGINT, g {s.of}", retention=wt.seconds(30))),
    "a versioned store": lambda s: s.kept(wt.versioned_store(f"n BIGINT, g {s.of}", history=wt.seconds(30))),
}  # fmt: skip


def remember(record: wt.Record, context: wt.Context) -> None:
    store = context.store("told")
    seen = (store.get() or {"seen": 0})["seen"] + 1
    store.put({"seen": seen})
    context.forward({"seen": seen})


def processed(s: Scene, table: Table) -> None:
    made = changes(table).process(remember, stores={"told": wt.key_value_store("seen INT")}, children={"out": "seen INT"})
    made.children["out"].to("out")


def counted(s: Scene, table: Table, windows: str) -> None:
    changes(table).group_by(by="g").windowed_by(WINDOWS[windows]).agg(**SUMS).materialized_as("last")


def paired(s: Scene, table: Table) -> None:
    within = wt.join_windows(before=wt.seconds(4), after=wt.seconds(4))
    changes(table).outer_join(changes(table).filter("n > 1"), within=within, n="left.n", m="right.n").to("out")


USES: Mapping[str, Callable[[Scene, Table], object]] = {
    "read": lambda s, t: s.app,
    "streamed": lambda s, t: t.to_stream().to("out"),
    "told": lambda s, t: changes(t).to_table().materialized_as("last"),
    "told and streamed": lambda s, t: changes(t).to_table().materialized_as("last").to_stream().to("out"),
    "merged": lambda s, t: changes(t).merge(changes(t).filter("n > 1")).to("out"),
    "taken apart": lambda s, t: changes(t).map_values(g="g", each="array(n, n + 1)").flat_map_values(g="g", each="each").to("out"),
    "counted by another key": lambda s, t: t.to_stream().group_by(by="new.g").agg(n=wt.count(), m=wt.max("old.n")).materialized_as("last"),
    **{f"counted in {name}": partial(counted, windows=name) for name in WINDOWS},
    "grouped": lambda s, t: t.group_by(by="g").agg(n=wt.sum("n"), m=wt.count()).materialized_as("last"),
    "grouped and streamed": lambda s, t: t.group_by(by="g").agg(n=wt.sum("n"), m=wt.count()).materialized_as("last").to_stream().to("out"),
    "joined with itself": lambda s, t: s.joined(t, t, Table.join).materialized_as("last").to_stream().to("out"),
    "joined with its changes": lambda s, t: s.joined(t, changes(t).to_table()).materialized_as("last").to_stream().to("out"),
    "beside names": lambda s, t: t.join(s.right.table().materialized_as("beside"), on="g", n="left.n", m="right.n").materialized_as("last"),
    "named": lambda s, t: s.right.table().materialized_as("naming").left_join(t, on="g", n="left.n", m="right.n").materialized_as("last"),
    "looked up by its changes": lambda s, t: changes(t).left_join(t, n="value.n", m="right.n").to("out"),
    "looked up by a stream": lambda s, t: s.other.left_join(t, n="value.n", m="right.n").to("out"),
    "as of then": lambda s, t: s.other.left_join(t, n="value.n", m="right.n", grace=wt.seconds(5)).to("out"),
    "paired": paired,
    "final": lambda s, t: t.suppress(wt.until_window_closes()).materialized_as("last").to_stream().to("out"),
    "calm": lambda s, t: t.suppress(wt.until_time_limit(wt.seconds(8))).materialized_as("last"),
    "mortal": lambda s, t: t.ttl(wt.seconds(12)).materialized_as("last").to_stream().to("out"),
    "deduped": lambda s, t: changes(t).dedupe(name="seen_too", within=wt.seconds(10), grace=GRACE, by="g").to("out"),
    "processed": processed,
}  # fmt: skip


def topology(table: str, use: str, *new: str, of: str = "STRING") -> Topology | str:
    """Write the app of a pair, with new code where it is wanted; or say why it is refused."""
    scene = Scene(*new, of=of)
    try:
        made = TABLES[table](scene)
        USES[use](scene, made if made.name else made.materialized_as("kept"))
        return scene.app.topology()
    except DefinitionError as error:
        return str(error)


def partitions(topics: set[str]) -> list[tuple[str, int]]:
    """List the partitions that the records are of."""
    return [(topic, number) for topic in sorted(topics) for number in range(2)]


def key_bytes(value: Any, of: str) -> bytes:
    """Write a key as records have it."""
    return value.encode() if of == "STRING" else base64.b64decode(value) if of == "BINARY" else json.dumps({"k": value}).encode()


def batches(topics: set[str], of: str = "STRING") -> list[list[Record]]:
    """Write records of two partitions a topic, about in order, and cut them anywhere; always the same ones."""
    rng, keyed = random.Random(1), of if of in KEYS else "STRING"
    records, offsets = [], dict.fromkeys(partitions({"left", "right"}), 0)
    for number in range(36):
        key = rng.choice("abc")
        place = (rng.choice(["left", "left", "right"]), ord(key) % 2)
        value = {"g": rng.choice([*TYPES[of], None]), "n": rng.choice([1, 2, 5, None])}
        data = None if rng.random() < 0.15 else json.dumps(value).encode()
        when = START + timedelta(seconds=2 * number - rng.choice([0, 0, 0, 3, 9, 50]))
        data_of_key = key_bytes(TYPES[keyed]["abc".index(key)], keyed)
        records.append(Record(*place, offsets[place], when, None if rng.random() < 0.05 else data_of_key, data))
        offsets[place] += 1
    return cut([record for record in records if record.topic in topics], rng, 3)


def pairs(*uses: str) -> dict[str, Topology]:
    """Write the apps of all pairs that are no bad definitions; of all uses, unless some are named."""
    made = {f"{table}: {use}": topology(table, use) for table in TABLES for use in uses or USES}
    return {name: app for name, app in made.items() if isinstance(app, Topology)}
