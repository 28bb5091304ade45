"""Turn suites into asset checks: all of an app's in one run, each table read once, all at one position.

A suite is a `watertable_quality.Suite` at the top of a Python file in the app's folder. Its check is bound to the position that it read,
and says so; a failure of the highest severity blocks batch assets that run with it. Great Expectations and Spark are imported where the
checks run.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `context` parameter as it stands.
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import dagster as dg

from watertable.errors import DefinitionError
from watertable.project import LoadedApp
from watertable_platform.orchestration.translator import table_key
from watertable_quality.suites import Expectation, Severity, Suite

if TYPE_CHECKING:
    from watertable.store.commits import Position
    from watertable.store.reader import Reader
    from watertable_quality.validation import Outcome


def find_suites(modules: Iterable[ModuleType], app: LoadedApp, name: str) -> list[Suite]:
    """Collect a folder's suites on an app's tables, each once; `name` is the app's own, without its environment.

    Raises `DefinitionError` for a suite on a table that the app doesn't have, or on a column that the table doesn't have.
    """
    found = {id(v): v for module in modules for v in vars(module).values() if isinstance(v, Suite) and v.app == name}
    tables = {table.name: table for table in app.topology.tables}
    for suite in found.values():
        table = tables.get(suite.name)
        if table is None:
            raise DefinitionError(f"{app.topology.location}: Suite({suite.table!r}): {name} has {', '.join(tables)}")
        for expectation in suite.expectations:
            missing = ", ".join(sorted(_columns(expectation) - set(table.columns.names)))
            if missing:
                have = ", ".join(table.columns.names)
                raise DefinitionError(f"{table.location}: {expectation.name} of {suite.table} wants {missing}; it has {have}")
    return list(found.values())


def build_suite_checks(app: LoadedApp, suites: Iterable[Suite]) -> dg.AssetChecksDefinition | None:
    """Make the checks of an app's suites; None when it has none."""
    by_key = {(table_key(app.name, s.name), e.name): (s, e) for s in suites for e in s.expectations}
    if not by_key:
        return None
    specs = [
        dg.AssetCheckSpec(name, asset=key, blocking=e.severity is Severity.CRITICAL, description=e.sql or e.gx)
        for (key, name), (_, e) in by_key.items()
    ]

    @dg.multi_asset_check(name=f"suites__{app.name}", specs=specs, can_subset=True, required_resource_keys={"pyspark"})
    def suites_of_app(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        from watertable.settings import Settings
        from watertable.store.reader import Reader

        chosen: dict[str, list[Expectation]] = {}
        for key, name in by_key:
            if dg.AssetCheckKey(key, name) in context.selected_asset_check_keys:
                chosen.setdefault(key.path[-1], []).append(by_key[key, name][1])
        spark = context.op_execution_context.resources.pyspark.spark_session
        reader = Reader(spark, Settings.load().warehouse_uri, app.name, app.topology.tables)
        position = reader.position()
        for table, outcome in judge(reader, chosen, position):
            yield dg.AssetCheckResult(
                asset_key=table_key(app.name, table),
                check_name=outcome.expectation.name,
                passed=outcome.holds,
                severity=dg.AssetCheckSeverity.ERROR if _is_critical(outcome) else dg.AssetCheckSeverity.WARN,
                description=outcome.error or None,
                metadata={"position": str(position), **outcome.observed},
            )

    return suites_of_app


def judge(reader: "Reader", chosen: Mapping[str, Sequence[Expectation]], position: "Position") -> "Iterator[tuple[str, Outcome]]":
    """Judge expectations of tables at one position, each table read once."""
    from watertable_quality.validation import validate

    for table, frame in reader.read_all(sorted(chosen), position).items():
        for outcome in validate(Suite(f"{position.app}.{table}", *chosen[table]), frame):
            yield table, outcome


def red(reader: "Reader", suites: Iterable[Suite], position: "Position") -> list[str]:
    """Name the checks of the highest severity that don't hold at a position."""
    chosen: dict[str, list[Expectation]] = {}
    for suite in suites:
        chosen.setdefault(suite.name, []).extend(suite.expectations)
    found = [(table, o) for table, o in judge(reader, chosen, position) if _is_critical(o) and not o.holds] if chosen else []
    return [f"{o.expectation.name} of {table}" + (f" ({o.error})" if o.error else "") for table, o in found]


def own_name(app: LoadedApp, env: str) -> str:
    """Give an app's name without its environment, as suites call it."""
    return app.name.removeprefix(f"{env}_") if env else app.name


def _is_critical(outcome: "Outcome") -> bool:
    return bool(outcome.error) or outcome.expectation.severity is Severity.CRITICAL


def _columns(expectation: Expectation) -> set[str]:
    arguments = dict(expectation.arguments)
    columns = arguments.get("column_list", (arguments["column"],) if "column" in arguments else ())
    return set(columns) if isinstance(columns, tuple) else set()
