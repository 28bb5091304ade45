"""Follow columns back to the topics they come from, and draw a topology as text and as Mermaid.

Lineage falls out of the plan: every expression knows the columns that it reads. A table's column depends on the topic columns that
its value is computed from; what only decides whether or where a record counts (filters, groups, windows) is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watertable import plan
from watertable.expressions import Expr
from watertable.plan import Project, Stream, TableDef, Topic, Topology


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Name a column of a topic; `part` is "key" or "value"."""

    topic: str
    part: str
    column: str


def column_lineage(table: TableDef) -> dict[str, tuple[Origin, ...]]:
    """Map each column of a table to the topic columns that it is computed from, sorted."""
    root = table.root
    lineage: dict[str, set[Origin]] = {}
    if isinstance(root, plan.Aggregate):
        lineage |= {name: _origins(root.parent, expr) for name, expr in root.group}
        lineage |= {c.name: set() for c in plan.WINDOW_KEY} if root.windows else {}
        values = {a.name: _origins(root.parent, a.argument) if a.argument else set() for a in root.aggregates}
    else:
        lineage |= {name: _column(root.parent, "key", name) for name in table.key.names}
        values = {name: _column(root.parent, "value", name) for name in plan.value_of(root).names}
    for stage in table.stages[1:]:
        if isinstance(stage, Project):
            values = {name: _through(expr, lineage, values) for name, expr in stage.columns}
    return {name: tuple(sorted(found)) for name, found in (lineage | values).items()}


def topics_of(node: Stream | plan.Table) -> tuple[Topic, ...]:
    """List the topics that feed a node, by name."""
    found = {n.topic.name: n.topic for n in plan.walk(node) if isinstance(n, plan.Source)}
    return tuple(found[name] for name in sorted(found))


def describe(topology: Topology) -> str:
    """Write a topology as text: its topics, then each table and output with the operators that make it and where they are."""
    return "\n".join(_lines(topology))


def mermaid(topology: Topology) -> str:
    """Draw a topology as a Mermaid flowchart: topics are cylinders, tables are boxes, outputs are flags."""
    drawn: dict[str, str] = {}
    edges: dict[tuple[str, str, str], None] = {}
    for topic in topology.topics:
        drawn[f"t_{topic.name}"] = f't_{_id(topic.name)}[("{topic.name}")]'
    for table in topology.tables:
        drawn[f"k_{table.name}"] = f'k_{table.name}["{table.name}<br/><small>{_what(table)}</small>"]'
        for origin, steps in _ways(table.node):
            edges[origin, f"k_{table.name}", steps] = None
    for sink in topology.sinks:
        drawn[f"s_{sink.topic}"] = f's_{_id(sink.topic)}>"{sink.topic}"]'
        for origin, steps in _ways(sink.node):
            edges[origin, f"s_{_id(sink.topic)}", steps] = None
    arrows = [f"    {a} -->|{steps}| {b}" if steps else f"    {a} --> {b}" for a, b, steps in edges]
    return "\n".join(["flowchart LR", *(f"    {shape}" for shape in drawn.values()), *arrows])


def _lines(topology: Topology) -> Iterator[str]:
    yield f"app {topology.app}  fingerprint {topology.fingerprint}" + (f"  owner {topology.owner}" if topology.owner else "")
    for topic in topology.topics:
        time = f"event time {topic.timestamp}" if topic.timestamp else "event time of the record"
        yield f"  topic {topic.name}  key ({_plain(topic.key.sql())}) {topic.key_format}, value {topic.value_format}, {time}"
        yield f"        ({_plain(topic.value.sql())})"
    for table in topology.tables:
        mark = "  [arrival]" if plan.purity_of(table.node) is plan.Purity.ARRIVAL else ""
        yield f"  table {table.name}  key ({_plain(table.key.sql())}){mark}  {table.location}"
        yield f"        ({_plain(table.value.sql())})"
        yield from _tree(table.node, "        ")
    for sink in topology.sinks:
        mark = "  [arrival]" if plan.purity_of(sink.node) is plan.Purity.ARRIVAL else ""
        yield f"  output {sink.topic}  key {sink.key_format}, value {sink.value_format}{mark}  {sink.location}"
        yield from _tree(sink.node, "        ")


def _tree(node: Stream | plan.Table, indent: str) -> Iterator[str]:
    yield f"{indent}{label(node)}" + (f"  {node.location}" if node.location else "")
    if isinstance(node, plan.ToStream):
        return  # the table is described in its own place
    for parent in plan.parents_of(node):
        yield from _tree(parent, indent + "  ")


def label(node: Stream | plan.Table) -> str:
    """Say in a few words what a node does, in the words of the DSL."""
    match node:
        case plan.Source():
            return f"topic {node.topic.name}"
        case plan.Filter() | plan.TableFilter():
            return f"filter {_plain(node.condition.sql)}"
        case plan.Expect():
            return f"expect {node.rule.name}: {_plain(node.rule.condition.sql)} else {node.rule.on_fail}"
        case plan.MapValues() | plan.TableMapValues():
            return f"map_values {_named(node.columns)}"
        case plan.Map():
            return f"map key {_named(node.key_columns)}" if node.columns else f"select_key {_named(node.key_columns)}"
        case plan.FlatMapValues():
            return f"flat_map_values {_named(node.columns)}, explode {node.exploded}"
        case plan.Peek():
            return f"peek {node.name}"
        case plan.MergeStreams():
            return "merge"
        case plan.Repartition():
            return "repartition"
        case plan.ToStream():
            return f"to_stream of table {node.table} ({plan.purity_of(node)})"
        case plan.Latest():
            return "latest value by key"
        case plan.Aggregate():
            windows = f" windowed_by {node.windows}" if node.windows else ""
            aggregates = (f"{a.name}={a.function}({_plain(a.argument.sql) if a.argument else ''})" for a in node.aggregates)
            return f"group_by {_named(node.group)}{windows} agg {', '.join(aggregates)}"


def _ways(node: Stream | plan.Table) -> Iterator[tuple[str, str]]:
    """Give each origin (a topic or a table) of a node, with the operators on the way."""
    match node:
        case plan.Source():
            yield f"t_{_id(node.topic.name)}", ""
        case plan.ToStream():
            yield f"k_{node.table}", "changes"
        case _:
            name = {plan.MapValues: "map_values", plan.TableMapValues: "map_values", plan.FlatMapValues: "flat_map_values",
                    plan.Map: "map", plan.Filter: "filter", plan.TableFilter: "filter", plan.Expect: "expect"}.get(type(node))  # fmt: skip
            for parent in plan.parents_of(node):
                for origin, steps in _ways(parent):
                    yield origin, " · ".join(part for part in (steps, name) if part)


def _what(table: TableDef) -> str:
    root = table.root
    if isinstance(root, plan.Latest):
        return "latest by " + ", ".join(table.key.names)
    by = ", ".join(name for name, _ in root.group)
    return f"by {by}" + (f" · {root.windows}" if root.windows else "")


def _origins(node: Stream, expr: Expr) -> set[Origin]:
    found: set[Origin] = set()
    for ref in expr.refs:
        space, _, rest = ref.partition(".")
        if space != "window":
            found |= _column(node, "key" if space == "key" else "value", rest.partition(".")[0])
    return found


def _column(node: Stream, part: str, name: str) -> set[Origin]:
    match node:
        case plan.Source():
            return {Origin(node.topic.name, part, name)}
        case plan.MapValues() | plan.FlatMapValues() if part == "value":
            return _origins(node.parent, dict(node.columns)[name])
        case plan.Map() if part == "key":
            return _origins(node.parent, dict(node.key_columns)[name])
        case plan.Map() if node.columns is not None:
            return _origins(node.parent, dict(node.columns)[name])
        case plan.MergeStreams():
            return set().union(*(_column(parent, part, name) for parent in node.parents))
        case plan.ToStream():
            lineage = column_lineage(TableDef(name=node.table, node=node.parent))
            return set(lineage.get(name, ()))
        case _:
            return _column(node.parent, part, name)


def _through(expr: Expr, key: dict[str, set[Origin]], value: dict[str, set[Origin]]) -> set[Origin]:
    found: set[Origin] = set()
    for ref in expr.refs:
        space, _, rest = ref.partition(".")
        found |= {"key": key, "value": value}.get(space, {}).get(rest.partition(".")[0], set())
    return found


def _named(columns: plan.Named) -> str:
    return ", ".join(f"{name}={_plain(expr.sql)}" for name, expr in columns)


def _plain(sql: str) -> str:
    return sql.replace("`", "")


def _id(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
