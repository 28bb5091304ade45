"""Assemble what Dagster needs to know about a project: topics, tables and batch assets in one graph, jobs, checks and sensors.

Everything is built from plans: no JVM is started, no cluster asked, and neither Spark nor Great Expectations is imported. What can't be
loaded, or doesn't go together with the rest, is shown as an asset of its own, with file and line and a failing check; everything else is
as if that folder weren't there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.partitions.partitioned_schedule import UnresolvedPartitionedAssetScheduleDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition  # what define_asset_job returns
from dagster.components.definitions import LazyDefinitions

from watertable.errors import DefinitionError, SettingsError, WatertableError
from watertable.plan.nodes import Topic
from watertable.project import Broken, LoadedApp, Project, load_apps
from watertable.settings import Settings
from watertable_platform.orchestration import checks
from watertable_platform.orchestration.acts import build_tables
from watertable_platform.orchestration.batch import build_automation_sensor
from watertable_platform.orchestration.rewind_jobs import build_rewind_jobs
from watertable_platform.orchestration.sensors import build_reconcile_sensor, build_topics_sensor
from watertable_platform.orchestration.spark_resource import build_spark_resource
from watertable_platform.orchestration.stream_job import build_stream_job
from watertable_platform.orchestration.suites import Expected, build_suite_checks, find_suites
from watertable_platform.orchestration.topics import Watched, build_topic
from watertable_platform.orchestration.translator import (
    OutputData,
    TopicData,
    WatertableTranslator,
    beta,
    dagster_name,
    paragraphs,
    reached,
    topic_key,
)

LOADS: Final = "definition_loads"
UNLOADED: Final = "failed_to_load"
"""The last part of the key of an asset that stands for what doesn't load, which says why under `reason`."""


def build_definitions(project: Project, translator: WatertableTranslator | None = None) -> dg.Definitions:
    """Translate a project: apps, the batch assets beside them, and what is broken."""
    translator = translator or WatertableTranslator()
    settings, loaded_at = project.settings, time.time()
    loaded, failed = _load_batch(project)
    broken = {**project.broken, **failed}
    apps: dict[str, LoadedApp] = {}
    tables: list[dg.AssetsDefinition] = []
    acts: list[dg.JobDefinition] = []
    judged: list[dg.AssetChecksDefinition] = []
    expected: dict[str, Expected] = {}
    for folder, files in project.batch.items():
        try:
            inside = [app for app in project.apps.values() if app.folder == files.folder]
            expected |= find_suites(loaded.get(folder, project.modules[folder]), inside, settings)
        except DefinitionError as error:
            broken[folder] = Broken(files.folder, str(error).partition(": ")[0], str(error))  # which begins with the suite's line
    for app in [app for app in project.apps.values() if app.name in expected]:
        try:
            made = build_tables(app, settings, translator), checks.build_checks(app, settings, loaded_at)
            suites = build_suite_checks(app, expected[app.name])
        except (dg.DagsterError, DefinitionError, SettingsError) as error:  # e.g. an owner that is neither an address nor a team
            broken[app.folder.name] = Broken(app.folder, app.topology.location, f"{type(error).__name__}: {error}")
            continue
        apps[app.name] = app
        tables.append(made[0])
        acts += build_rewind_jobs(app, settings)
        judged += [made[1], *([suites] if suites else [])]
    watched = _watched(apps)
    jobs = [
        build_stream_job(app, settings, [w for w in watched if app.name in w.readers], partial(why_unloaded, settings.project, app.folder))
        for app in apps.values()
    ]
    sensors = [
        build_reconcile_sensor(apps, jobs, settings, loaded_at),  # without an app, too: it ends runs of apps that were here
        *([build_topics_sensor(watched, settings)] if apps else []),
    ]
    specs = {spec.key: spec for spec in _without_loops(_topics(apps, translator), [spec for made in tables for spec in made.specs])}
    topics = [build_topic(specs[topic_key(w.name)], w, settings) for w in watched]
    resources = {"pyspark": build_spark_resource(settings)}

    def whole(folders: Iterable[str]) -> dg.Definitions:
        batch = [_module_definitions(loaded[folder], dagster_name(folder)) for folder in folders]
        changed_days = build_automation_sensor(batch, [*topics, *tables])
        own = dg.Definitions(
            assets=[*topics, *tables, *(_broken_spec(dagster_name(name), b) for name, b in broken.items())],
            asset_checks=[*judged, *(_broken_check(dagster_name(name), b) for name, b in broken.items())],
            jobs=[*jobs, *acts],
            sensors=[*sensors, *([changed_days] if changed_days else [])],
            resources=resources,
        )
        made = dg.Definitions.merge(own, *batch)
        dg.Definitions.validate_loadable(made)
        return made

    try:
        return whole(loaded)
    except Exception:  # the files are the users': whatever it is, it is then told of the folder that it comes from
        fitting, why = _sort_out(loaded, whole)
        broken |= {f"{folder}_batch": Broken.of(project.batch[folder].folder, error) for folder, error in why.items()}
        return whole(fitting)


def why_unloaded(project: Path, folder: Path) -> str:
    """Say why a folder of a project, as its files are now, doesn't load, or nothing of the project does; "" where it loads."""
    try:
        made = build_definitions(load_apps(Settings.load(project)))
    except WatertableError as error:
        return str(error)
    broken = dg.AssetKey([dagster_name(folder.name), UNLOADED])
    why = (str(spec.metadata["reason"]) for spec in made.assets or () if isinstance(spec, dg.AssetSpec) and spec.key == broken)
    return next(why, "")


def _sort_out(folders: Iterable[str], whole: Callable[[Sequence[str]], object]) -> tuple[list[str], dict[str, Exception]]:
    """Find the folders whose own definitions go together, first come, first served, and why those of the others don't.

    They are tried in halves of halves. Some may name assets of a folder that comes later, so those that failed are tried again.
    """
    fitting: list[str] = []
    why: dict[str, Exception] = {}

    def add(some: Sequence[str]) -> None:
        try:
            whole([*fitting, *some])
        except Exception as error:
            if len(some) == 1:
                why[some[0]] = error
                return
            add(some[: len(some) // 2])
            add(some[len(some) // 2 :])
        else:
            fitting.extend(some)

    waiting, before = list(folders), -1
    while waiting and len(fitting) > before:
        before = len(fitting)
        why.clear()
        add(waiting)
        waiting = list(why)
    return fitting, why


def _topics(apps: Mapping[str, LoadedApp], translator: WatertableTranslator) -> Iterator[dg.AssetSpec]:
    """Give a spec for each topic; one that an app writes and another reads is the writer's."""
    written = {sink.topic: OutputData(app.topology, sink) for app in apps.values() for sink in app.topology.sinks}
    read = {topic.name: topic for app in apps.values() for topic in app.topology.topics}
    for name, topic in read.items():
        if name not in written:
            readers = tuple(app.name for app in apps.values() if name in {t.name for t in app.topology.topics})
            yield translator.get_asset_spec(TopicData(topic, readers))
    for data in written.values():
        yield translator.get_asset_spec(data)


def _without_loops(topics: Iterable[dg.AssetSpec], tables: Iterable[dg.AssetSpec]) -> Iterator[dg.AssetSpec]:
    """Leave out, and say so, what an output topic is made of where that leads back to it: apps may answer each other, no asset can."""
    above = defaultdict(set[dg.AssetKey], {spec.key: {dep.asset_key for dep in spec.deps} for spec in tables})
    for spec in topics:
        above[spec.key] = of = {dep.asset_key for dep in spec.deps}
        if spec.key in reached(of, above):
            del above[spec.key]
            names = ", ".join(sorted(key.to_user_string() for key in of))
            told = f"It is made of {names}, which is made of it by other apps. That isn't drawn: a graph of assets has no loops."
            yield spec.replace_attributes(deps=[], description=paragraphs(spec.description or "", told))
        else:
            yield spec


def _watched(apps: Mapping[str, LoadedApp]) -> list[Watched]:
    readers: dict[str, dict[str, Topic]] = {}
    for app in apps.values():
        for topic in app.topology.topics:
            readers.setdefault(topic.name, {})[app.name] = topic
        for sink in app.topology.sinks:
            readers.setdefault(sink.topic, {})
    return [Watched(name, readers[name]) for name in sorted(readers)]


def _load_batch(project: Project) -> tuple[dict[str, tuple[ModuleType, ...]], dict[str, Broken]]:
    """Give all modules of each folder, those of batch assets imported now; a folder of which one can't be is broken as far as those go.

    An app's file may hold batch assets, too, and a file may have its own from a helper: what Dagster takes is looked for in all of them.
    """
    made: dict[str, tuple[ModuleType, ...]] = {}
    failed: dict[str, Broken] = {}
    for folder, files in project.batch.items():
        with beta():
            modules = files.load()
        if isinstance(modules, Broken):
            failed[f"{folder}_batch"] = modules
        else:
            made[folder] = (*project.modules[folder], *modules)
    return made, failed


def _module_definitions(modules: Iterable[ModuleType], folder: str) -> dg.Definitions:
    """Collect what modules define, loose or in a `dg.Definitions`, or what `@dg.definitions` gives; what is in both is as it is in that."""
    kept = list(modules)
    held = _unique((value for module in kept for value in vars(module).values()), (object,))
    own = [value() if isinstance(value, LazyDefinitions) else value for value in held]
    seen: set[int] = set()
    whole = [_whole_in_group(made, folder, seen) for made in _unique(own, (dg.Definitions,))]
    fields = ("assets", "asset_checks", "jobs", "schedules", "sensors")
    parts = {id(part): part for made in whole for name in fields for part in getattr(made, name) or ()}
    named = {key for part in parts.values() for key in _keys(part)}
    loose = [value for value in own if id(value) not in parts]
    schedules = (dg.ScheduleDefinition, UnresolvedPartitionedAssetScheduleDefinition)
    return dg.Definitions.merge(
        dg.Definitions(
            assets=[_in_group(asset, folder) for asset in dg.load_assets_from_modules(kept) if named.isdisjoint(_keys(asset))],
            asset_checks=[check for check in dg.load_asset_checks_from_modules(kept) if named.isdisjoint(_keys(check))],
            jobs=_unique(loose, (dg.JobDefinition, UnresolvedAssetJobDefinition)),
            schedules=_unique(loose, schedules),
            sensors=_unique(loose, (dg.SensorDefinition,)),
        ),
        *whole,
    )


def _whole_in_group(made: dg.Definitions, group: str, seen: set[int]) -> dg.Definitions:
    """Put the assets of a user's `Definitions` that have no group of their own into one; leave out what was `seen` in another.

    One may be merged of others, which are there by themselves, too.
    """

    def fresh(parts: Iterable[Any] | None) -> list[Any]:
        new = [part for part in parts or () if id(part) not in seen]
        seen.update(map(id, new))
        return new

    return dg.Definitions(
        assets=[_in_group(asset, group) for asset in fresh(made.assets)], asset_checks=fresh(made.asset_checks), jobs=fresh(made.jobs),
        schedules=fresh(made.schedules), sensors=fresh(made.sensors), resources=made.resources, executor=made.executor,
        loggers=made.loggers, metadata=made.metadata, component_tree=made.component_tree,
    )  # fmt: skip


def _keys(part: object) -> set[dg.AssetKey | dg.AssetCheckKey]:
    """Name the assets and checks that a definition makes."""
    match part:
        case dg.AssetsDefinition():
            return {*part.keys, *part.check_keys}
        case dg.AssetSpec() | dg.SourceAsset():
            return {part.key}
        case _:
            return set()


def _in_group(asset: Any, group: str) -> Any:
    """Put what has no group of its own into one."""
    match asset:
        case dg.AssetSpec(group_name=None):
            return asset.replace_attributes(group_name=group)
        case dg.AssetsDefinition():
            bare = [spec.key for spec in asset.specs if spec.group_name in (None, "default")]
            return asset.with_attributes(group_names_by_key=dict.fromkeys(bare, group)) if bare else asset
        case _:
            return asset


def _unique(values: Iterable[object], kinds: tuple[type, ...]) -> list[Any]:
    """Pick what is of a kind, each once however many modules name it."""
    return list({id(value): value for value in values if isinstance(value, kinds)}.values())


def _broken_spec(name: str, broken: Broken) -> dg.AssetSpec:
    return dg.AssetSpec(
        dg.AssetKey([name, UNLOADED]),
        description=f"**This folder doesn't load**, so its streams and tables are as they were left:\n\n```\n{broken}\n```",
        group_name=name,
        metadata={"location": broken.location, "reason": str(broken)},
    )


def _broken_check(name: str, broken: Broken) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=dg.AssetKey([name, UNLOADED]), name=LOADS, description="The folder's Python files load.")
    def definition_loads() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description=str(broken), metadata={"location": broken.location})

    return definition_loads
