"""Take the steps from some frames to another once, and put each batch's frames where the first ones were.

Spark analyses each select when it's asked for, in some milliseconds however little there is to it, and a small batch is made in a hundred
of them: a quarter of its time. But they are the same in each batch, over other rows. So they are taken over empty frames, and kept as the
plan that Spark's analysis and its optimizer made of them; what a batch puts together of such plans is optimized once more.

The law: what is made is what the steps would make of these very frames. So steps are a function of their frames and of what their name
says, and of nothing that changes from batch to batch; and they are taken anew for frames whose columns are of other types, or may be null
where those before couldn't.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from watertable.session import frame_of, in_jvm, listed

Steps = Callable[..., DataFrame]
"""What makes a frame of others."""
AS_THEY_ARE = 4
"""So many times steps are taken as they are."""
_CATALYST: Final = "org.apache.spark.sql.catalyst"
_KINDS: Final = 3
"""Of so many kinds of frames the same steps are kept: whether what is looked up may be null differs with where it comes from."""
_CONSTANT: Final = ("LocalRelation", "OneRowRelation", "Range")
"""Leaves of a plan that have rows of their own, which are the same in each batch."""


class Make(Protocol):
    """Make a frame of others by steps that have a name."""

    def __call__(self, name: Hashable, steps: Steps, /, *frames: DataFrame) -> DataFrame:  # noqa: D102
        ...


def anew(name: Hashable, steps: Steps, /, *frames: DataFrame) -> DataFrame:
    """Take the steps, as if for the first time: what `Prepared.make` is held against, and right where there is no next time."""
    return steps(*frames)


class Prepared:
    """Keep the steps of one session's batches, each under its name. Not for several threads."""

    def __init__(self) -> None:
        self._taken: Counter[Hashable] = Counter()
        self._known: dict[Hashable, list[_Plan]] = {}

    def make(self, name: Hashable, steps: Steps, /, *frames: DataFrame) -> DataFrame:
        """Make a frame of others by the steps that have this name.

        The first times they are taken as they are: to keep them costs more than to take them, and a replay is of few batches. Raises
        `AssertionError` where the steps read a frame that isn't among theirs.
        """
        if self._taken[name] < AS_THEY_ARE:
            self._taken[name] += 1
            return steps(*frames)
        spark, given = frames[0].sparkSession, [frame._jdf.queryExecution().analyzed() for frame in frames]
        schemas, known = [plan.schema() for plan in given], self._known.get(name, [])
        kept = next((plan for plan in known if plan.fits(schemas)), None)
        if kept is None:
            kept = _Plan.of(spark, steps, schemas)
            self._known[name] = [kept, *known[: _KINDS - 1]]
        return frame_of(spark, kept.over(spark, given))


@dataclass(frozen=True, slots=True)
class _Above:
    """Hold a node of a plan that is above the place of a frame, with its children: nodes, places, and what is above none as it is."""

    java: Any
    children: Sequence[Any]


@dataclass(slots=True)
class _Place:
    """Hold the place of a frame in a plan: which one's it is, and the names and numbers that its columns have there."""

    frame: int
    columns: Sequence[tuple[str, Any]]
    renaming: tuple[str, Any] = ("", None)
    """The columns of the frame that was there last, and what gives them these names and numbers: kept frames have theirs for long."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Hold what Spark's analysis and its optimizer have made of steps over frames of some schemas, of whose rows they know nothing."""

    schemas: Sequence[Any]
    root: Any
    """A node above the places of frames, a place, or a plan without any: of a condition that is never true, say."""

    @classmethod
    def of(cls, spark: SparkSession, steps: Steps, schemas: Sequence[Any]) -> _Plan:
        """Take steps over empty frames of these schemas."""
        empty, places = [], dict[int, int]()
        for number, schema in enumerate(schemas):
            rows = spark._jsparkSession.sparkContext().emptyRDD(in_jvm(spark, "scala.reflect.ClassTag").Nothing())
            places[_identity(spark, rows)] = number
            empty.append(DataFrame(spark._jsparkSession.internalCreateDataFrame(rows, schema, False), spark))
        return cls(schemas, _found(spark, steps(*empty)._jdf.queryExecution().optimizedPlan(), places))

    def fits(self, schemas: Sequence[Any]) -> bool:
        """Tell whether these are the columns that the steps were taken for."""
        return all(mine.equals(theirs) for mine, theirs in zip(self.schemas, schemas, strict=True))

    def over(self, spark: SparkSession, given: Sequence[Any]) -> Any:
        """Put frames where the empty ones are; every node has been analysed, there or here, and is not again."""
        plan = _filled(spark, self.root, given)
        plan.setAnalyzed()
        return plan


def _found(spark: SparkSession, plan: Any, places: dict[int, int]) -> Any:
    """Find the places of the empty frames in a plan, by their rows: of a frame that is joined with itself, Spark numbers columns anew."""
    children = plan.children()
    below = [_found(spark, children.apply(i), places) for i in range(children.size())]
    if below:
        return _Above(plan, below) if any(isinstance(child, _Above | _Place) for child in below) else plan
    kind = plan.getClass().getSimpleName()
    if kind in _CONSTANT:
        return plan
    frame = places.get(_identity(spark, plan.rdd())) if kind == "LogicalRDD" else None
    assert frame is not None, f"steps read a frame that isn't among theirs: {plan}"
    output = plan.output()
    columns = [output.apply(i) for i in range(output.size())]
    return _Place(frame, [(column.name(), column.exprId()) for column in columns])


def _filled(spark: SparkSession, node: Any, given: Sequence[Any]) -> Any:
    """Give a node of a plan with the given frames in their places."""
    match node:
        case _Above(java, [child]):
            return java.withNewChildInternal(_filled(spark, child, given))  # with a list of children, five questions to the JVM for one
        case _Above(java, children):
            return java.withNewChildren(listed(spark, (_filled(spark, child, given) for child in children)))
        case _Place(frame):
            return in_jvm(spark, f"{_CATALYST}.plans.logical.Project")(_renamed(spark, node, given[frame].output()), given[frame])
        case _:
            return node


def _renamed(spark: SparkSession, place: _Place, columns: Any) -> Any:
    """Give the columns of a frame the names and numbers that a plan knows them by."""
    said = columns.toString()  # with their numbers
    if said != place.renaming[0]:
        alias, nothing, none = in_jvm(spark, f"{_CATALYST}.expressions.Alias"), listed(spark, ()), in_jvm(spark, "scala.Option").empty()
        known = enumerate(place.columns)
        aliases = (alias(columns.apply(i), name, number, nothing, none, nothing) for i, (name, number) in known)
        place.renaming = said, listed(spark, aliases)
    return place.renaming[1]


def _identity(spark: SparkSession, java: Any) -> int:
    return int(in_jvm(spark, "java.lang.System.identityHashCode")(java))
