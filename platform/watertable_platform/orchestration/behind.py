"""Read from a project's definitions what stands behind its tables: their checks, and what is made from them, in one graph.

It is the graph that Dagster shows. Nothing is asked of an instance, so it runs where a command does; Dagster is imported only then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from watertable.plan.plan import Topology
from watertable.project import Project

if TYPE_CHECKING:
    import dagster as dg


@dataclass(frozen=True, slots=True)
class Behind:
    """Name what stands behind an asset: its checks, and the assets that are made from it, however far away."""

    checks: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()


def all_behind(project: Project) -> tuple[Mapping[tuple[str, ...], Behind], tuple[str, ...]]:
    """Give what stands behind each asset, by its key; and why what of the project isn't there doesn't load, batch assets among it."""
    from watertable_platform.orchestration.translator import reached

    children, checks, broken = _graph(project)
    behind = {key: Behind(checks[key], tuple(sorted("/".join(k.path) for k in reached({key}, children)))) for key in children}
    return {tuple(key.path): found for key, found in behind.items()}, broken


def touched(project: Project, topology: Topology, tables: Collection[str], emitted: Collection[str]) -> Behind:
    """Name what a rewind of these tables touches: their checks, as table/check, and all that is made from them but the app's own tables.

    Output topics lead no further unless something is published to them anew: nobody who reads them sees it otherwise.
    """
    from watertable_platform.orchestration.translator import reached, table_key, topic_key

    children, checks, _ = _graph(project)
    own = {table_key(topology.app, table.name) for table in topology.tables} | {topic_key(sink.topic) for sink in topology.sinks}
    shut = {topic_key(sink.topic) for sink in topology.sinks if sink.topic not in emitted}
    moved = {name: table_key(topology.app, name) for name in sorted(tables) if table_key(topology.app, name) in children}
    below = reached(moved.values(), {key: made - shut for key, made in children.items()})
    return Behind(
        tuple(f"{name}/{check}" for name, key in moved.items() for check in checks[key]),
        tuple(sorted("/".join(key.path) for key in below - own)),
    )


def _graph(
    project: Project,
) -> tuple[dict[dg.AssetKey, frozenset[dg.AssetKey]], dict[dg.AssetKey, tuple[str, ...]], tuple[str, ...]]:
    """Give, of each asset, those that are made from it directly, and the names of its checks; and why what isn't there doesn't load."""
    from watertable_platform.orchestration.assembly import UNLOADED, build_definitions

    graph = build_definitions(project).resolve_asset_graph()
    nodes = {key: graph.get(key) for key in graph.get_all_asset_keys()}
    children = {key: frozenset(node.child_keys) for key, node in nodes.items()}
    checks = {key: tuple(sorted(check.name for check in node.check_keys)) for key, node in nodes.items()}
    failed = (node.metadata["reason"] for key, node in sorted(nodes.items()) if key.path[-1] == UNLOADED)
    return children, checks, tuple(str(getattr(reason, "value", reason)) for reason in failed)
