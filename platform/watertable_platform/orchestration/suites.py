"""Turn suites into asset checks: all of an app's in one run, each table read once, all at one position.

A suite is a `watertable_quality.Suite` at the top of a Python file in the app's folder, be it one of batch assets, alone or in a list.
Its check is bound to the position that it read, and says so; a failure of the highest severity blocks batch assets that run with it.
Great Expectations and Spark are imported where the checks run.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `context` parameter as it stands.
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

import dagster as dg

from watertable.errors import DefinitionError
from watertable.project import LoadedApp, named_by
from watertable.schema import Schema
from watertable.settings import Settings
from watertable.sql.expressions import Scope, parse_predicate
from watertable.sql.operators import ordered
from watertable_platform.orchestration import checks
from watertable_platform.orchestration.translator import table_key
from watertable_quality.suites import Expectation, Severity, Suite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from watertable_quality.validation import Outcome


Expected = Mapping[str, Sequence[Expectation]]
"""What must hold of an app's tables, by their names."""
Read = Callable[[Sequence[str]], Mapping[str, "DataFrame"]]
"""Give the rows of tables by their names, all at one position."""


def find_suites(modules: Iterable[ModuleType], apps: Collection[LoadedApp], settings: Settings) -> dict[str, Expected]:
    """Collect what a folder's suites say of its apps' tables, by the app's name: each expectation once, however many suites say it.

    Raises `DefinitionError` for a suite on what isn't there: an app of the folder, a table of the app, a column of the table; and for two
    expectations of one name on a table, or one named as a check that every table has: one check could tell but one.
    """
    own = {settings.own_name(app.name): app for app in apps}
    found: dict[str, dict[str, dict[str, tuple[Expectation, Suite]]]] = {app.name: {} for app in apps}
    for suite in {id(suite): suite for module in modules for value in vars(module).values() for suite in named_by(value, Suite)}.values():
        where = f"{suite.location}: Suite({suite.table!r})"
        if suite.app not in own:
            raise DefinitionError(f"{where}: this folder has no app {suite.app!r}; it has {', '.join(sorted(own)) or 'none'}")
        tables = {table.name: table for table in own[suite.app].topology.tables}
        if suite.name not in tables:
            raise DefinitionError(f"{where}: {suite.app} has {', '.join(tables)}")
        have = tables[suite.name].columns.names
        for expectation in suite.expectations:
            if expectation.name in checks.BUILT_IN:
                raise DefinitionError(f"{where}: every table has a check {expectation.name!r} of ours: give the expectation another name")
            missing = ", ".join(sorted(_columns(expectation) - set(have)))
            if missing:
                raise DefinitionError(f"{where}: {expectation.name} wants {missing}; it has {', '.join(have)}")
            _check_types(expectation, tables[suite.name].columns, f"{where}: {expectation.name}")
            named = found[own[suite.app].name].setdefault(suite.name, {})
            other, by = named.setdefault(expectation.name, (expectation, suite))
            if other != expectation:
                raise DefinitionError(f"{where}: another {expectation.name} is expected of it at {by.location}; make them one")
    return {app: {table: [e for e, _ in named.values()] for table, named in tables.items()} for app, tables in found.items()}


_OF_VALUES: Final = ("ExpectColumnValuesToBeBetween", "ExpectColumnValuesToBeInSet")
"""What holds a column's values against others: where they are of another type, Great Expectations says so at each run, and no sooner."""
_OF_ORDER: Final = ("ExpectColumnValuesToBeUnique", "ExpectCompoundColumnsToBeUnique")
"""What sorts a column's values, which Spark does of no MAP."""


def _check_types(expectation: Expectation, columns: Schema, where: str) -> None:
    """Refuse numbers and values that a column can't have: the check would be red at each run, and hold up every promote."""
    if expectation.gx in _OF_ORDER and (unsorted := [name for name in sorted(_columns(expectation)) if not ordered(columns[name])]):
        raise DefinitionError(f"{where} can't hold {', '.join(unsorted)}: values with a MAP in them have no order to be told apart by")
    arguments = dict(expectation.arguments)
    column, values = str(arguments.get("column")), arguments.get("value_set")
    if expectation.gx not in _OF_VALUES or column not in columns:
        return
    given = (arguments.get("min_value"), arguments.get("max_value"), *(values if isinstance(values, tuple) else ()))
    if any(type(value) in (int, float) for value in given) and not columns[column].is_numeric:  # of a text, Spark would make a number
        raise DefinitionError(f"{where} wants a number; {column} is a {columns[column].sql()}")
    if values is not None and expectation.sql is not None:
        parse_predicate(expectation.sql, Scope({"value": columns}, bare=("value",)), where)


def build_suite_checks(app: LoadedApp, expected: Expected) -> dg.AssetChecksDefinition | None:
    """Make the checks of an app's suites; None when it has none."""
    by_key = {(table_key(app.name, table), e.name): e for table, expectations in expected.items() for e in expectations}
    if not by_key:
        return None
    specs = [
        dg.AssetCheckSpec(name, asset=key, blocking=e.severity is Severity.CRITICAL, description=e.sql or e.gx)
        for (key, name), e in by_key.items()
    ]

    @dg.multi_asset_check(name=f"suites__{app.name}", specs=specs, can_subset=True, required_resource_keys={"pyspark"})
    def suites_of_app(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        from watertable.store.reader import Reader

        chosen: dict[str, list[Expectation]] = {}
        for (key, name), expectation in by_key.items():
            if dg.AssetCheckKey(key, name) in context.selected_asset_check_keys:
                chosen.setdefault(key.path[-1], []).append(expectation)
        spark = context.op_execution_context.resources.pyspark.spark_session
        reader = Reader(spark, Settings.load().warehouse_uri, app.name, app.topology.tables)
        position = reader.position()
        for table, outcome in judge(app.name, chosen, lambda tables: reader.read_all(tables, position)):
            yield dg.AssetCheckResult(
                asset_key=table_key(app.name, table),
                check_name=outcome.expectation.name,
                passed=outcome.holds,
                severity=dg.AssetCheckSeverity.ERROR if _is_critical(outcome) else dg.AssetCheckSeverity.WARN,
                description=outcome.error or None,
                metadata={"position": str(position), **outcome.observed},
            )

    return suites_of_app


def judge(app: str, chosen: Expected, read: Read) -> "Iterator[tuple[str, Outcome]]":
    """Judge expectations of an app's tables, each table read once."""
    from watertable_quality.validation import validate

    for table, frame in read(sorted(chosen)).items():
        for outcome in validate(Suite(f"{app}.{table}", *chosen[table]), frame):
            yield table, outcome


def red(app: str, expected: Expected, read: Read) -> list[str]:
    """Name the checks of the highest severity that don't hold of what is read."""
    found = [(table, o) for table, o in judge(app, expected, read) if _is_critical(o) and not o.holds] if expected else []
    return [f"{o.expectation.name} of {table}" + (f" ({o.error})" if o.error else "") for table, o in found]


def _is_critical(outcome: "Outcome") -> bool:
    return bool(outcome.error) or outcome.expectation.severity is Severity.CRITICAL


def _columns(expectation: Expectation) -> set[str]:
    arguments = dict(expectation.arguments)
    several = arguments.get("column_list")
    named = [*(several if isinstance(several, list | tuple) else ()), *map(arguments.get, ("column", "column_A", "column_B"))]
    return {name for name in named if isinstance(name, str)}
