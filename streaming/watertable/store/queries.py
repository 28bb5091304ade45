"""Run SQL that a person wrote over tables at one position, and over nothing else.

Spark's SQL reaches further than tables: to any file that the process can read, to other catalogs, to static methods of Java, to programs
(TRANSFORM), and to the environment, whose variables it puts in where it finds `${env:NAME}`. And whatever it is asked for it does at once,
be it to drop a table. So a text is parsed first, by Spark's own parser, and each leaf of it is one that can be nothing else than rows of
the text's own or of a table of the app; then it runs in a session of its own, in which there is nothing but these tables, each a view, and
no function that reaches out. Views of one query are nobody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from watertable.errors import QueryRefused
from watertable.session import handed_to, in_jvm, in_words
from watertable.settings import HELD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.store.commits import Position
    from watertable.store.reader import At, Reader

Parameters = Mapping[str, object] | Sequence[object]
"""Values for a query's `:name`s, or for its `?`s: bound, never written into it."""
_NOTHING_ELSE: Final = {
    **HELD,
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",  # bound in the plan: Delta's parser knows no other way
}
_ROWS_OF_ITS_OWN: Final = frozenset({"OneRowRelation", "LocalRelation", "UnresolvedInlineTable", "UnresolvedTableValuedFunction"})
"""Leaves of a parsed query that are made of the query's text alone."""
_TABLE_FUNCTIONS: Final = frozenset({
    "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "range", "stack",
    "variant_explode", "variant_explode_outer",
})  # fmt: skip
"""What makes rows of its arguments; others read a table's changes at any path, or a log of Spark's."""
_REACHING: Final = ("reflect", "java_method", "try_reflect", "input_file_name", "input_file_block_start", "input_file_block_length")
"""Functions that call Java, or say where files are."""


class Query:
    """Hold one query over an app's tables, checked, and those that it names pinned at one position.

    Raises `SparkError` for what Spark can't parse, `QueryRefused` for what reads anything but the app's tables, and what
    `Reader.view` raises.
    """

    def __init__(self, reader: Reader, text: str, at: At | None = None) -> None:
        self._reader, self._text = reader, text
        self._spark = _closed(reader.changelog.spark)
        names = {name.lower(): name for name in reader.tables}  # as Spark takes names
        self._view = reader.view([names[name] for name in _named(self._spark, text, names)], at)

    @property
    def position(self) -> Position:
        """Give the position that it reads at."""
        return self._view.position

    def frame(self, parameters: Parameters = ()) -> DataFrame:
        """Give its rows."""
        for name in self._view.bases:
            handed_to(self._spark, self._view.rows(self._reader.tables[name])).createTempView(name)
        bound: Any = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
        return self._spark.sql(self._text, args=bound)


def _closed(spark: SparkSession) -> SparkSession:
    """Make a session in which SQL finds nothing that it isn't given."""
    made = spark.newSession()
    for name, value in _NOTHING_ELSE.items():
        made.conf.set(name, value)
    state, identifier = made._jsparkSession.sessionState(), in_jvm(made, "org.apache.spark.sql.catalyst.FunctionIdentifier")
    for name in _REACHING:
        state.functionRegistry().dropFunction(identifier(name))
    for function in _each(state.tableFunctionRegistry().listFunction()):
        if function.funcName() not in _TABLE_FUNCTIONS:
            state.tableFunctionRegistry().dropFunction(function)
    return made


def _named(spark: SparkSession, text: str, tables: Mapping[str, str]) -> list[str]:
    """Name the tables that a query reads; raise `QueryRefused` for one that reads anything else."""
    with in_words(spark):
        nodes = list(_nodes(spark._jsparkSession.sessionState().sqlParser().parseQuery(text)))
    own = {str(each._1()).lower() for kind, node in nodes if kind == "UnresolvedWith" for each in _each(node.cteRelations())}
    read: dict[str, None] = {}
    for kind, node in nodes:
        if kind == "UnresolvedRelation":
            parts = [str(part) for part in _each(node.multipartIdentifier())]
            if len(parts) > 1 or parts[0].lower() not in {*tables, *own}:
                raise QueryRefused(
                    f"a query reads the tables of one app, each by its name alone: there is no {'.'.join(parts)!r} among "
                    f"{', '.join(sorted(tables.values())) or 'none'}"
                )
            read |= {parts[0].lower(): None} if parts[0].lower() in tables else {}
        elif kind == "ScriptTransformation" or (node.children().isEmpty() and kind not in _ROWS_OF_ITS_OWN):
            what = {"ScriptTransformation": "runs a program (TRANSFORM)", "RelationTimeTravel": "names a version: at= says where to read"}
            raise QueryRefused(f"a query reads tables and does nothing else; this one {what.get(kind, f'has a {kind} in it')}")
    return list(read)


def _nodes(plan: Any) -> Iterator[tuple[str, Any]]:
    """Go through a parsed plan, with what stands in its WITH and in its expressions; each node with its kind."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield str(node.getClass().getSimpleName()), node
        for more in (node.children(), node.subqueries(), node.innerChildren()):
            waiting += _each(more)


def _each(sequence: Any) -> Iterator[Any]:
    """Go through a sequence of Scala's."""
    for index in range(sequence.size()):
        yield sequence.apply(index)
