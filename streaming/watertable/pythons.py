"""Hand the user's own functions to Spark: its Python workers call them, with columns as Arrow has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.pandas.functions import arrow_udf

from watertable import udfs
from watertable.udfs import Udf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, functions: Iterable[Udf]) -> None:
    """Let this session's SQL call functions by their names in expressions: each gives `made`, and `failed` where it raised.

    On one machine the workers are this interpreter again, and not the first `python3` of the path, unless PYSPARK_PYTHON says otherwise.
    """
    if (spark.sparkContext.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable
    for function in functions:
        spark.udf.register(function.token, _arrow_udf(function))


def _arrow_udf(udf: Udf) -> Any:
    """Make Spark's function of the user's.

    What goes to the workers is pickled by value, so that they need neither the user's files nor this package; nothing that was stored
    anywhere is ever unpickled.
    """
    import pyarrow as pa

    packed = _by_value((udfs.caught_columns, udf.function), (udfs, *_beside(udf)))
    over, nulls, returns = udf.over, udf.nulls, udfs.arrow_type(udf.returns)
    opened: list[Any] = []

    def call(*columns: Any) -> Any:
        if not opened:
            import pickle

            opened.append(pickle.loads(packed))  # noqa: S301 (packed above, by this driver)
        caught, function = opened[0]
        return caught(function, over, nulls, returns, columns)

    call.__annotations__ = {"columns": pa.Array, "return": pa.Array}  # as types, not as text: Spark goes by them
    wrap: Any = arrow_udf
    return wrap(call, f"STRUCT<made: {udf.returns.sql()}, failed: BOOLEAN>")


def _beside(udf: Udf) -> list[ModuleType]:
    """List the modules of the function's own folder: the user's, which workers can't import."""
    folder = Path(udf.function.__code__.co_filename).parent
    files = ((module, getattr(module, "__file__", None)) for module in list(sys.modules.values()))
    return [module for module, file in files if file and Path(file).parent == folder]


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
