"""Hand the user's own functions to Spark: its Python workers call them, with columns as Arrow has them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.pandas.functions import arrow_udf

from watertable import processing
from watertable.compiler.algebra import company
from watertable.compiler.layout import moment
from watertable.compiler.run import Lookup
from watertable.plan import plan
from watertable.plan.aggregates import NUMBER, placed
from watertable.plan.nodes import Process
from watertable.plan.windows import EPOCH
from watertable.processing import PLACE
from watertable.schema import Schema, quote
from watertable.session import work_with_this_python
from watertable.sql import udfs
from watertable.sql.udfs import Udf, arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watertable.plan.plan import TableDef

_OF_RECORD = Schema.parse("ts TIMESTAMP, st TIMESTAMP, topic STRING, partition INT, offset BIGINT, ord BIGINT")


def register(spark: SparkSession, functions: Iterable[Udf]) -> None:
    """Let this session's SQL call functions by their names in expressions: each gives `made`, and what it `raised`, if so."""
    work_with_this_python(spark)  # in a session of the user's own, too
    for function in functions:
        spark.udf.register(function.token, _arrow_udf(function))


def _arrow_udf(udf: Udf) -> Any:
    """Make Spark's function of the user's.

    What goes to the workers is pickled by value, so that they need neither the user's files nor this package; nothing that was stored
    anywhere is ever unpickled.
    """
    import pyarrow as pa

    packed = _by_value((udfs.caught_columns, udf.function), (udfs, *_beside(udf.function)))
    place, over, nulls, returns = udf.place, udf.over, udf.nulls, udfs.arrow_type(udf.returns)
    opened: list[Any] = []

    def call(*columns: Any) -> Any:
        if not opened:
            import pickle

            opened.append(pickle.loads(packed))  # noqa: S301 (packed above, by this driver)
        caught, function = opened[0]
        return caught(function, place, over, nulls, returns, columns)

    call.__annotations__ = {"columns": pa.Array, "return": pa.Array}  # as types, not as text: Spark goes by them
    wrap: Any = arrow_udf
    return wrap(call, f"STRUCT<made: {udf.returns.sql()}, raised: STRING>")


def visited(
    node: Process, tables: Sequence[TableDef], rows: DataFrame, lookup: Lookup, reached: processing.Times, clocks: processing.Clocks
) -> DataFrame:
    """Call a processor for records, key by key in log order, in one pass over the rows of all keys; see `processing.visits_in`.

    With what its `tables` keep of their keys; and for the keys whose punctuators are due now that partitions have `reached` their times,
    or by the recorded `clocks`.
    """
    processor, key, keys = node.processor, plan.key_of(node), lambda: rows.select("key").distinct()
    if processor.punctuators:
        timers, now = plan.timers_of(node), max((time for time in reached.values() if time is not None), default=EPOCH)
        clock = max((clock for known in clocks.values() for _, clock in known), default=None)
        are_due = f"since IS NULL AND at <= {moment(now)}" + ("" if clock is None else f" OR since IS NOT NULL AND at <= {moment(clock)}")
        known = lookup(timers, keys, now if clock is None else max(now, clock)).selectExpr("key", "state.row.value.*")
        due = known.where(are_due).selectExpr(f"{company(timers)} AS key")
        tables, keys = [*tables, timers], lambda: rows.select("key").unionByName(due).distinct()
    kept = [lookup(table, keys) for table in tables]
    for number, ((_, shape), states) in enumerate(zip(processor.kept, kept, strict=True)):
        entry = "".join(f", '__{n}', key.{quote(name)}" for n, name in enumerate(shape.key.names))
        own = "named_struct(" + ", ".join(f"'{name}', key.{quote(name)}" for name in key.names) + ") AS key"
        row = f"named_struct('number', state.row.order.n, 'value', state.row.value{entry}) AS store_{number}"
        rows = rows.unionByName(states.selectExpr("FALSE AS present", own, row), allowMissingColumns=True)
    if kept:
        rows = rows.repartition("key").sortWithinPartitions("key", "present", *PLACE)
    made = Schema.parse("present BOOLEAN, output INT, reason STRING") + Schema.of([("key", key.struct())])
    made += Schema.of((f"child_{n}", value.struct()) for n, (_, value) in enumerate(processor.children))
    for n, (_, shape) in enumerate(processor.kept):
        put = Schema.of([("key", (key + shape.key).struct()), ("value", placed(shape.value.struct(), NUMBER))])
        made += Schema.of([(f"put_{n}", put.struct())])
    made += _OF_RECORD
    return rows.mapInArrow(_visiting(processor.step, arrow_type(made.struct()), reached, clocks), made.sql())


def _visiting(
    step: processing.Step, columns: Any, reached: processing.Times, clocks: processing.Clocks
) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Make the function that Spark's workers call, pickled by value as those of `_arrow_udf` are."""
    import pyarrow as pa

    packed = _by_value(
        (processing.visits_in, step, pa.schema(list(columns)), dict(reached), dict(clocks)),
        (processing, *_beside(step.function, *step.punctuators.values())),
    )

    def call(batches: Iterable[Any]) -> Iterable[Any]:
        import pickle

        visits_in, step, schema, reached, clocks = pickle.loads(packed)  # noqa: S301 (packed above, by this driver)
        yield from visits_in(step, schema, reached, clocks, batches)

    return call


def _beside(*functions: Any) -> list[ModuleType]:
    """List the modules of the functions' own folders: the user's, which workers can't import."""
    folders = {Path(function.__code__.co_filename).parent for function in functions}
    files = ((module, getattr(module, "__file__", None)) for module in list(sys.modules.values()))
    return [module for module, file in files if file and Path(file).parent in folders]


def _by_value(what: object, modules: Iterable[ModuleType]) -> bytes:
    """Pickle with what is of these modules in it, and not their names."""
    pickler: Any = cloudpickle
    known = pickler.list_registry_pickle_by_value()
    named = [m for m in modules if sys.modules.get(m.__name__) is m and m.__name__ != "__main__" and m.__name__ not in known]
    for module in named:
        pickler.register_pickle_by_value(module)
    try:
        return bytes(pickler.dumps(what))
    finally:
        for module in named:
            pickler.unregister_pickle_by_value(module)
