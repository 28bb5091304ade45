"""Translate topics and tables to Dagster asset specs: one class with one method to override.

A topic is an external asset, a table an asset whose code version is its plan's fingerprint, an output topic an external asset that
depends on what feeds it. All that a definition knows stands on the spec (columns, lineage, where the data is, how to read it); what
changes while an app runs is on events. Pure: no Spark, no Kafka, no file is touched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

import dagster as dg

from watertable.plan import nodes, plan
from watertable.plan.lineage import column_lineage, describe
from watertable.plan.nodes import Topic
from watertable.plan.plan import Sink, TableDef, Topology
from watertable.plan.purity import Purity, purity_of
from watertable.schema import Column, Schema
from watertable.settings import Settings
from watertable_platform.orchestration.days import Days

TOPICS: Final = "topics"
"""The first part of a topic's asset key; an app can't be called so."""


@dataclass(frozen=True, slots=True)
class TopicData:
    """Name a topic that apps read; `readers` are the apps' names."""

    topic: Topic
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableData:
    """Name a table of an app."""

    topology: Topology
    table: TableDef
    settings: Settings
    days: Days | None = None


@dataclass(frozen=True, slots=True)
class OutputData:
    """Name a topic that an app writes."""

    topology: Topology
    sink: Sink


Translated = TopicData | TableData | OutputData


def topic_key(name: str) -> dg.AssetKey:
    """Give a topic's asset key."""
    return dg.AssetKey([TOPICS, name])


def table_key(app: str, table: str) -> dg.AssetKey:
    """Give a table's asset key."""
    return dg.AssetKey([app, table])


def dagster_name(text: str) -> str:
    """Name something as Dagster can, which topics and Python's identifiers needn't keep to: a hash keeps apart what would be one name."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return plain if plain == text else f"{plain}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


@contextmanager
def beta() -> Iterator[None]:
    """Use what Dagster calls beta without a warning for each use: its version is pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


class WatertableTranslator:
    """Say how topics and tables look in Dagster; override `get_asset_spec` to change it, calling super() and replacing attributes.

    Keys must stay as they are: streams report under `topic_key` and `table_key`.
    """

    def get_asset_spec(self, data: Translated) -> dg.AssetSpec:
        """Translate a topic, a table or an output topic."""
        match data:
            case TopicData():
                return _topic_spec(data)
            case TableData():
                return _table_spec(data)
            case OutputData():
                return _output_spec(data)
        assert_never(data)


def inputs_of(node: nodes.Stream | nodes.Table, app: str) -> tuple[dg.AssetKey, ...]:
    """List what feeds a node directly: topics, and tables whose changes it streams or whose rows it looks up."""
    match node:
        case nodes.Source():
            return (topic_key(node.topic.name),)
        case nodes.ToStream():
            return (table_key(app, node.table),)
        case nodes.StreamJoin():
            return tuple(sorted({*inputs_of(node.parent, app), table_key(app, node.table)}))
        case _:
            return tuple(sorted({key for parent in plan.parents_of(node) for key in inputs_of(parent, app)}))


def _topic_spec(data: TopicData) -> dg.AssetSpec:
    topic = data.topic
    time = f"the value's `{topic.timestamp}`" if topic.timestamp else "the record's own timestamp"
    columns = [
        *(_column(c, name=f"key.{c.name}", constraint="key") for c in topic.key),
        *(_column(c) for c in topic.value),
        *(_column(dataclasses.replace(h.column, comment=h.column.comment or f"The record's header `{h.name}`.")) for h in topic.headers),
    ]
    return dg.AssetSpec(
        topic_key(topic.name),
        description=paragraphs(
            topic.description,
            f"Kafka topic, read by {', '.join(data.readers)}. Key {topic.key_format}, value {topic.value_format}; event time is {time}.",
        ),
        group_name=data.readers[0] if len(data.readers) == 1 else TOPICS,
        kinds={"kafka"},
        metadata={
            "dagster/column_schema": dg.TableSchema(columns),
            "dagster/table_name": topic.name,
            "dagster/storage_kind": "kafka",
            **_code(topic.location),
        },
    )


def _table_spec(data: TableData) -> dg.AssetSpec:
    topology, table = data.topology, data.table
    uri = f"{data.settings.warehouse_uri}/{topology.app}/{table.name}"
    purity = purity_of(table.node)
    keys = set(table.key.names)
    contracts = _contracts(topology.app, table.name, uri, data.settings.fold_seconds)
    return dg.AssetSpec(
        table_key(topology.app, table.name),
        deps=inputs_of(table.node, topology.app),
        description=paragraphs(table.description, contracts, _PURITY[purity], _text(topology, table)),
        group_name=topology.app,
        owners=[topology.owner] if topology.owner else None,
        kinds={"kafka", "spark", "deltalake"},
        code_version=table.fingerprint,
        partitions_def=data.days.partitions() if data.days else None,
        tags={"watertable/app": topology.app, "watertable/purity": str(purity)},
        metadata={
            "dagster/column_schema": dg.TableSchema(
                [_column(c, constraint="key" if c.name in keys else "", nullable=c.name not in keys) for c in table.columns]
            ),
            "dagster/column_lineage": _lineage(table),
            "dagster/uri": uri,
            "dagster/table_name": f"{topology.app}.{table.name}",
            "dagster/storage_kind": "deltalake",
            "fingerprint": table.fingerprint,
            **_code(table.location),
        },
    )


def _output_spec(data: OutputData) -> dg.AssetSpec:
    topology, sink = data.topology, data.sink
    key, value = plan.key_of(sink.node), plan.value_of(sink.node)
    columns = [*(_column(c, name=f"key.{c.name}", constraint="key") for c in key), *(_column(c) for c in value)]
    headers = "; headers " + ", ".join(f"`{name}`" for name, _ in sink.headers) if sink.headers else ""
    return dg.AssetSpec(
        topic_key(sink.topic),
        deps=inputs_of(sink.node, topology.app),
        description=paragraphs(
            f"Kafka topic that {topology.app} publishes to: each record once, in key order, for consumers with "
            f"`isolation.level=read_committed`. Key {sink.key_format}, value {sink.value_format}{headers}.",
            _PURITY[purity_of(sink.node)],
        ),
        group_name=topology.app,
        owners=[topology.owner] if topology.owner else None,
        kinds={"kafka"},
        tags={"watertable/app": topology.app},
        metadata={
            "dagster/column_schema": dg.TableSchema(columns),
            "dagster/table_name": sink.topic,
            "dagster/storage_kind": "kafka",
            **_code(sink.location),
        },
    )


_PURITY: Final = {
    Purity.PURE: "**Pure**: a function of the topics' records alone. Replays, restarts and other batch sizes give the same rows.",
    Purity.ARRIVAL: "**Arrival**: a function of the records and of the recorded cuts between batches; it replays from those.",
}


def _contracts(app: str, table: str, uri: str, fold_seconds: float) -> str:
    return (
        "Two ways to read it:\n"
        f'- `wt.read("{app}.{table}")` is fresh and exact, and of one position for all tables of {app}; `at=` reads an earlier one.\n'
        f"- Any other Delta reader, at `{uri}`, sees the table whole, at its own folded position, at most the fold lag behind "
        f"({fold_seconds:g} s and the fold itself)."
    )


def _text(topology: Topology, table: TableDef) -> str:
    alone = describe(dataclasses.replace(topology, tables=(table,), sinks=())).splitlines()
    start = next(i for i, line in enumerate(alone) if line.startswith("  table "))
    return "\n".join(["```", *(line.removeprefix("  ") for line in alone[start:]), "```"])


def _lineage(table: TableDef) -> dg.TableColumnLineage:
    return dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(topic_key(o.topic), f"key.{o.column}" if o.part == "key" else o.column) for o in origins]
            for column, origins in column_lineage(table).items()
        }
    )


def _column(column: Column, *, name: str = "", constraint: str = "", nullable: bool = True) -> dg.TableColumn:
    constraints = dg.TableColumnConstraints(nullable=nullable, other=[constraint] if constraint else [])
    return dg.TableColumn(name or column.name, column.type.sql(), description=column.comment or None, constraints=constraints)


def _code(location: str) -> dict[str, dg.CodeReferencesMetadataValue]:
    """Link the user's line, for `Open in editor`."""
    file, _, line = location.rpartition(":")
    if not line.isdecimal():
        return {}
    with beta():
        reference = dg.LocalFileCodeReference(file_path=str(Path(file).resolve()), line_number=int(line), label=location)
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


def paragraphs(*parts: str) -> str:
    """Write a description of what there is to say."""
    return "\n\n".join(part for part in parts if part)


def topic_schema(topic: Topic) -> Schema:
    """Give a topic's key and columns as one struct each: what, with the topic's id, is its data version."""
    return Schema((Column("key", topic.key.struct()), Column("value", topic.columns.struct())))


def reached(begin: Collection[dg.AssetKey], children: Mapping[dg.AssetKey, Collection[dg.AssetKey]]) -> set[dg.AssetKey]:
    """List all that is made from some assets."""
    seen: set[dg.AssetKey] = set()
    waiting = list(begin)
    while waiting:
        more = set(children[waiting.pop()]) - seen
        seen |= more
        waiting += more
    return seen
