"""Run a case on either engine, and give what came of it in one shape: equal results are equal values.

The compiler's side is what a job does, without a store: batch by batch it collects the changes of each table, looks up old rows among
the changes so far, and merges them all at the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.proofs import note
from tests.properties.strategies import Case
from watertable.interpreter import Interpreter
from watertable.plan.aggregates import state_schema
from watertable.plan.plan import TableDef, Topology
from watertable.plan.windows import EPOCH
from watertable.records import Advance, Headers, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from watertable.compiler import Keys

RECORDS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True)
class Result:
    """Hold all that an app computes."""

    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]]
    outputs: dict[str, list[tuple[bytes | None, bytes | None, datetime, Headers]]]
    quarantine: Counter[tuple[str, int, int, str, str]]
    late: Counter[tuple[str, str, int, int, datetime]]
    dropped: Counter[tuple[str, str]]
    peeks: Counter[str]

    def differences(self, other: Result) -> list[str]:
        """Name what differs from another result, as text to read."""
        found = []
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            for key in sorted({*mine, *theirs}, key=repr):
                if mine.get(key) != theirs.get(key) and equal(mine.get(key)) != equal(theirs.get(key)):
                    found.append(f"{field.name} {key}:\n    {mine.get(key)}\n    {theirs.get(key)}")
        return found


def equal(value: Any) -> Any:
    """Give a value, and all that is in it, so that it equals what SQL says it equals: a NaN another one."""
    match value:
        case float() if value != value:
            return "NaN"
        case dict():
            return {equal(key): equal(part) for key, part in value.items()}
        case list():
            return [equal(part) for part in value]
        case tuple():
            return tuple(equal(part) for part in value)
        case _:
            return value


def partitions_of(batches: Iterable[Sequence[Record | Advance]]) -> set[tuple[str, int]]:
    """List the partitions that there are, whenever they are first read."""
    return {(item.topic, item.partition) for batch in batches for item in batch}


def run_interpreter(topology: Topology, batches: Iterable[Sequence[Record | Advance]]) -> Result:
    """Run the oracle."""
    batches = list(batches)
    engine = Interpreter(topology, partitions=partitions_of(batches))
    for batch in batches:
        engine.read(batch)
    late = Counter((d.node, d.topic, d.partition, d.offset, d.window[0]) for d in engine.dropped if d.window)
    outputs: dict[str, list[tuple[bytes | None, bytes | None, datetime, Headers]]] = {}
    for o in engine.outputs:
        outputs.setdefault(o.topic, []).append((o.key, o.value, o.timestamp, o.headers))
    return Result(
        tables=engine.tables,
        outputs=outputs,
        quarantine=Counter((q.record.topic, q.record.partition, q.record.offset, q.node, q.location) for q in engine.quarantine),
        late=late,
        dropped=Counter((d.node, d.reason) for d in engine.dropped if not d.window),
        peeks=+engine.peeked,
    )


def run_compiler(spark: SparkSession, case: Case) -> Result:
    """Run the compiler over the same batches."""
    return CompilerRun(spark, case.topology).run(case.batches)


def as_frame(spark: SparkSession, batch: Sequence[Record]) -> DataFrame:
    """Give records as the source does."""
    rows = [{name: getattr(record, name) for name in RECORDS.names[:-1]} | {"headers": list(record.headers)} for record in batch]
    return spark.createDataFrame(pa.Table.from_pylist(rows, RECORDS)).coalesce(1)


def as_records(rows: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Write rows of a topic, a key, a value and milliseconds as records of one partition a topic, whose values are `{"v": value}`."""
    following, records = Counter[str](), list[Record]()
    for row in rows:
        topic, key, value = row["topic"], row["key"], row["value"]
        data = None if value is None else json.dumps({"v": value}).encode()
        at = EPOCH + timedelta(milliseconds=row["ts"])
        records.append(Record(topic, 0, following[topic], at, None if key is None else key.encode(), data))
        following[topic] += 1
    return records


class CompilerRun:
    """Hold what a job would keep between batches: the changes so far and the stream times."""

    def __init__(self, spark: SparkSession, topology: Topology) -> None:
        from watertable.compiler import Compiler

        self.spark, self.topology, self.compiler = spark, topology, Compiler(topology)
        self.carry: dict[tuple[str, int], datetime | None] = {}
        self.deltas: dict[str, list[pa.Table]] = {table.name: [] for table in topology.kept}
        self.result = Result({}, {}, Counter(), Counter(), Counter(), Counter())
        self.batches = 0
        self.reasons: list[tuple[tuple[str, int, int, str, str], str]] = []

    def run(self, batches: Iterable[Sequence[Record | Advance]]) -> Result:
        """Run every batch, then read the tables; advances come before the records of their batch."""
        batches = list(batches)
        note("cuts" if len(batches) > 1 else "one batch", self.topology)
        self.carry = dict.fromkeys(partitions_of(batches)) | self.carry
        for batch in batches:
            since, clocks = dict(self.carry), dict[tuple[str, int], list[tuple[datetime, datetime]]]()
            for item in batch:
                if isinstance(item, Advance):
                    now = self.carry[item.topic, item.partition] = max(
                        item.stream_time, self.carry[item.topic, item.partition] or item.stream_time
                    )
                    if item.clock is not None:
                        clocks.setdefault((item.topic, item.partition), []).append((now, item.clock))
            self.read([item for item in batch if isinstance(item, Record)], since, clocks)
        self._tables()
        return self.result

    def read(
        self, batch: Sequence[Record], since: Mapping[tuple[str, int], datetime | None] | None = None,
        clocks: Mapping[tuple[str, int], Sequence[tuple[datetime, datetime]]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Compile and run one batch, collecting all its frames in one job."""
        self.carry |= {(r.topic, r.partition): None for r in batch if (r.topic, r.partition) not in self.carry}
        self.batches += 1
        made = self.compiler.batch(as_frame(self.spark, batch), self.batches, self.carry, self._lookup, since, clocks, self._write)
        frames = {f"t_{name}": frame.select("key", "state", "st") for name, frame in made.tables.items()}
        more = [("outbox", made.outbox), ("bad", made.quarantine), ("dropped", made.dropped)]
        found = collect_together(frames | {name: frame for name, frame in more if frame is not None})
        for name in made.tables:
            self.deltas[name].append(found.pop(f"t_{name}"))
        outbox, bad, dropped = (found[name].to_pylist() if name in found else [] for name, _ in more)
        for row in sorted(outbox, key=lambda r: (r["topic"], r["ordinal"])):
            headers = tuple((h["key"], h["value"]) for h in row["headers"] or ())
            self.result.outputs.setdefault(row["topic"], []).append((row["key"], row["value"], row["timestamp"], headers))
        sent = {(record.topic, record.partition, record.offset): record for record in batch}
        for row in bad:
            of = sent.get((row["topic"], row["partition"], row["offset"]))  # none, where a record of before or the time made it
            brought = (None, None, None) if of is None else (of.timestamp, of.key, of.value)
            assert (row["timestamp"], row["key"], row["value"]) == brought, f"a refused record comes with its bytes: {row}"
            place = row["topic"], row["partition"], row["offset"], row["node"], row["location"]
            self.result.quarantine[place] += 1
            self.reasons.append((place, row["reason"]))
        for row in dropped:
            if row["reason"] == "late":
                self.result.late[row["node"], row["topic"], row["partition"], row["offset"], row["window_start"]] += row["count"]
            else:
                self.result.dropped[row["node"], row["reason"]] += row["count"]
        told = Counter[tuple[str, str]]()
        for row in dropped:
            told[row["node"], row["reason"]] += row["count"]
        assert (made.stats.quarantined, made.stats.dropped) == (len(bad), told), "a commit counts what it tells of"
        self.result.peeks.update(+Counter(made.stats.peeks))  # without zeros
        assert made.stats.records == len(batch)
        self.carry.update(made.stats.stream_times)
        made.close()

    def _write(self, table: TableDef, rows: DataFrame, /) -> None:
        self.deltas[table.name].append(collect_together({table.name: rows.select("key", "state", "st")})[table.name])

    def _lookup(self, table: TableDef, keys: Keys | None, due: datetime | None = None, /) -> DataFrame:
        from watertable.compiler.algebra import company

        if keys is None:
            return self._merged(table).localCheckpoint(eager=False)
        known = self._merged(table).selectExpr("*", f"{company(table)} AS wanted")
        if due is not None:
            return known.drop("wanted").localCheckpoint(eager=False)
        cut = known.join(keys().withColumnRenamed("key", "wanted"), "wanted", "left_semi").drop("wanted")
        return cut.localCheckpoint(eager=False)  # its lineage cut, as a store's look-up has it

    def _merged(self, table: TableDef) -> DataFrame:
        """Give the absolute states that all changes so far make."""
        from watertable.compiler.algebra import merge, spread

        if not self.deltas[table.name]:
            ddl = f"key {table.state_key.struct().sql()}, state {state_schema(table.state).struct().sql()}, st TIMESTAMP"
            return merge(table, spread(table, self.spark.createDataFrame([], ddl)))
        changes = pa.concat_tables(self.deltas[table.name]).combine_chunks()  # PySpark loses what follows an empty chunk
        return merge(table, spread(table, self.spark.createDataFrame(changes).coalesce(1)))

    def _tables(self) -> None:
        from watertable.compiler.algebra import finish

        frames = {t.name: finish(t, self._merged(t)).where("alive").select("row.*") for t in self.topology.tables}
        for name, found in collect_together(frames).items():
            rows, key = found.to_pylist(maps_as_pydicts="strict"), self.topology.table(name).key.names
            self.result.tables[name] = {tuple(row[part] for part in key): row for row in rows}
            assert len(rows) == len(self.result.tables[name]), f"a key of {name} has two rows"


def collect_together(frames: dict[str, DataFrame]) -> dict[str, pa.Table]:
    """Collect several frames in one job: each becomes a struct column of a union."""
    from pyspark.sql import functions as F

    if not frames:
        return {}
    tagged = [f.select(F.lit(name).alias("of"), F.struct("*").cast(_nullable(f.schema)).alias(name)) for name, f in frames.items()]
    rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), tagged).coalesce(1).toArrow()
    return {name: pa.Table.from_struct_array(rows.filter(pc.equal(rows["of"], name)).column(name)) for name in frames}


def _nullable(schema: StructType) -> StructType:
    """Let everything be null: in a union, a struct column is null in the rows of the other frames."""
    text = schema.json().replace('"nullable":false', '"nullable":true').replace('ContainsNull":false', 'ContainsNull":true')
    return type(schema).fromJson(json.loads(text.replace('"containsNull":false', '"containsNull":true')))


TINY = {  # a batch here has a dozen rows: shuffling it takes longer than all else
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def tiny(spark: SparkSession) -> SparkSession:
    """Give a session of the same Spark that is quick with batches of a dozen rows."""
    session = spark.newSession()
    for name, value in TINY.items():
        session.conf.set(name, value)
    return session
