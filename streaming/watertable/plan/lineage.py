"""Follow columns back to the topics they come from, and draw a topology as text and as Mermaid.

Lineage falls out of the plan: every expression knows the columns that it reads. A table's column depends on the topic columns that
its value is computed from; what only decides whether or where a record counts (filters, groups, windows) is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watertable.plan import nodes, plan
from watertable.plan.nodes import Stream, Topic
from watertable.plan.plan import TableDef, Topology
from watertable.plan.purity import Purity, purity_of
from watertable.plan.stages import Named
from watertable.plan.windows import words
from watertable.sql.expressions import Expr


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Name a column of a topic; `part` is "key" or "value"."""

    topic: str
    part: str
    column: str


Lineage = dict[str, set[Origin]]


def column_lineage(table: TableDef) -> dict[str, tuple[Origin, ...]]:
    """Map each column of a table to the topic columns that it is computed from, sorted."""
    key, values = _of_table(table.node)
    return {name: tuple(sorted(found)) for name, found in (key | values).items()}


def topics_of(node: Stream | nodes.Table) -> tuple[Topic, ...]:
    """List the topics that feed a node, by name."""
    found = {n.topic.name: n.topic for n in plan.walk(node) if isinstance(n, nodes.Source)}
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
        time += f", partitions let go after {words(topic.idle_after)}" if topic.idle_after else ""
        yield f"  topic {topic.name}  key ({_plain(topic.key.sql())}) {topic.key_format}, value {topic.value_format}, {time}"
        yield f"        ({_plain(topic.value.sql())})"
        yield from (f"        header {header.name}: {header.column.name} {header.column.type.sql()}" for header in topic.headers)
    for table in topology.tables:
        mark = "  [arrival]" if purity_of(table.node) is Purity.ARRIVAL else ""
        yield f"  table {table.name}  key ({_plain(table.key.sql())}){mark}  {table.location}"
        yield f"        ({_plain(table.value.sql())})"
        yield from _tree(table.node, "        ")
    for sink in topology.sinks:
        mark = "  [arrival]" if purity_of(sink.node) is Purity.ARRIVAL else ""
        yield f"  output {sink.topic}  key {sink.key_format}, value {sink.value_format}{mark}  {sink.location}"
        yield from (f"        header {name}: {_plain(expr.sql)}" for name, expr in sink.headers)
        yield from _tree(sink.node, "        ")


def _tree(node: Stream | nodes.Table, indent: str) -> Iterator[str]:
    yield f"{indent}{label(node)}" + (f"  {node.location}" if node.location else "")
    if isinstance(node, nodes.TableAggregate):
        yield f"{indent}  rows of table {node.parent.table}"
    if isinstance(node, nodes.ToStream | nodes.TableAggregate):
        return  # the table is described in its own place
    for parent in (node.parent,) if isinstance(node, nodes.StreamJoin) else plan.parents_of(node):
        yield from _tree(parent, indent + "  ")


def label(node: Stream | nodes.Table) -> str:
    """Say in a few words what a node does, in the words of the DSL."""
    match node:
        case nodes.Source():
            return f"topic {node.topic.name}"
        case nodes.Filter() | nodes.TableFilter():
            return f"filter {_plain(node.condition.sql)}"
        case nodes.Expect():
            return f"expect {node.rule.name}: {_plain(node.rule.condition.sql)} else {node.rule.on_fail}"
        case nodes.MapValues() | nodes.TableMapValues():
            return f"map_values {_named(node.columns)}"
        case nodes.Map():
            return f"map key {_named(node.key_columns)}" if node.columns else f"select_key {_named(node.key_columns)}"
        case nodes.FlatMapValues():
            return f"flat_map_values {_named(node.columns)}, explode {node.exploded}"
        case nodes.Peek():
            return f"peek {node.name}"
        case nodes.MergeStreams():
            return "merge"
        case nodes.Repartition():
            return "repartition"
        case nodes.ToStream():
            return f"to_stream of table {node.table} ({purity_of(node)})"
        case nodes.Versioned():
            return f"latest value by key and event time, history {words(node.history)}"
        case nodes.Process():
            kept = "".join(f", store {name}" for name, _ in node.processor.stores)
            timed = "".join(f", punctuator {punctuator.name}" for punctuator in node.processor.punctuators)
            return f"{node.operator} {node.processor.name}{kept}{timed} ({purity_of(node)})"
        case nodes.Forwarded():
            return f"forwarded to {node.child}"
        case nodes.Written():
            return f"put into {node.store}"
        case nodes.FinalRows():
            return f"suppress until windows close ({plan.windows_of(node.parent)})"
        case nodes.Stored():
            return "store of a processor"
        case nodes.Newest():
            return "latest value by key, by arrival"
        case nodes.Latest():
            return "latest value by key"
        case nodes.ForeignSide():
            return f"kept by {_named(node.group)}"
        case nodes.ForeignJoin():
            on = ", ".join(_plain(expr.sql) for name, expr in node.left.group if name not in plan.key_of(node))
            return f"{node.how.operator} on {on} {_named(node.columns)}"
        case nodes.Aggregate() | nodes.TableAggregate():
            windows = f" windowed_by {plan.windows_of(node)}" if plan.windows_of(node) else ""
            aggregates = (f"{a.name}={a.function}({_plain(a.ranked + a.argument.sql) if a.argument else ''})" for a in node.aggregates)
            return f"group_by {_named(node.group)}{windows} agg {', '.join(aggregates)}"
        case nodes.Cogroup():
            return f"cogroup {len(node.inputs)} streams"
        case nodes.StreamJoin():
            on = f" on {_named(node.on)}" if node.on else ""
            asof = " as of event time" if isinstance(plan.root_of(node.right), nodes.Versioned) else ""
            grace = f" grace {words(node.grace)}" if isinstance(node, nodes.WaitingJoin) else ""
            return f"{node.how.operator} table {node.table}{on}{asof}{grace} {_named(node.columns)} ({purity_of(node)})"
        case nodes.StreamStreamJoin():
            return f"{plan.how_of(node).operator} within {node.within} {_named(node.columns)}"
        case nodes.JoinSide() | nodes.JoinBuffer():
            return "buffer of a join"
        case nodes.History():
            return "history of a table"
        case nodes.Waiting():
            return "what waits in a join"
        case nodes.TableJoin():
            return f"{node.how.operator} {_named(node.columns)}"


def operator_of(node: nodes.Stream) -> str:
    """Name a stream's operator as the user wrote it."""
    match node:
        case nodes.Filter():
            return "filter"
        case nodes.Expect():
            return f"expect:{node.rule.name}"
        case nodes.MapValues():
            return "map_values"
        case nodes.Map():
            return "map" if node.columns is not None else "select_key"
        case nodes.FlatMapValues():
            return "flat_map_values"
        case nodes.StreamJoin():
            return node.how.operator
        case nodes.StreamStreamJoin():
            return plan.how_of(node).operator
        case nodes.FinalRows():
            return "suppress"
        case nodes.Process():
            return node.operator
        case _:
            return type(node).__name__.lower()


_STEPS = {
    nodes.MapValues: "map_values", nodes.TableMapValues: "map_values", nodes.FlatMapValues: "flat_map_values", nodes.Map: "map",
    nodes.Filter: "filter", nodes.TableFilter: "filter", nodes.Expect: "expect", nodes.FinalRows: "suppress",
}  # fmt: skip


def _ways(node: Stream | nodes.Table) -> Iterator[tuple[str, str]]:
    """Give each origin (a topic or a table) of a node, with the operators on the way."""
    match node:
        case nodes.Source():
            yield f"t_{_id(node.topic.name)}", ""
        case nodes.ToStream():
            yield f"k_{node.table}", "changes"
        case _:
            name = _STEPS.get(type(node))
            name = node.how.operator if isinstance(node, nodes.TableJoin | nodes.ForeignJoin | nodes.StreamJoin) else name
            name = plan.how_of(node).operator if isinstance(node, nodes.StreamStreamJoin) else name
            name = node.operator if isinstance(node, nodes.Process) else name
            if isinstance(node, nodes.StreamJoin):
                yield f"k_{node.table}", node.how.operator
            for parent in (node.parent,) if isinstance(node, nodes.StreamJoin) else plan.parents_of(node):
                for origin, steps in _ways(parent):
                    yield origin, " · ".join(part for part in (steps, name) if part)


def _what(table: TableDef) -> str:
    kinds = {
        nodes.Latest: "latest ",
        nodes.Newest: "latest ",
        nodes.Stored: "store ",
        nodes.Versioned: "versioned ",
        nodes.Cogroup: "cogroup ",
        nodes.TableJoin: "join ",
        nodes.ForeignJoin: "join ",
    }
    kind = kinds.get(type(table.root), "")
    by = ", ".join(table.key.names[:-2] if table.windows else table.key.names)
    return f"{kind}by {by}" + (f" · {table.windows}" if table.windows else "")


def _of_table(node: nodes.Table) -> tuple[Lineage, Lineage]:
    """Give the lineage of a table's key columns, and of its value columns."""
    match node:
        case nodes.Latest():
            key = {name: _column(node.parent, "key", name) for name in plan.key_of(node).names}
            return key, {name: _column(node.parent, "value", name) for name in plan.value_of(node).names}
        case nodes.Aggregate() | nodes.TableAggregate():
            windows: Lineage = {c.name: set() for c in plan.WINDOW_KEY} if plan.windows_of(node) else {}
            key = {name: _origins(node.parent, expr) for name, expr in node.group} | windows
            return key, {a.name: _origins(node.parent, a.argument) if a.argument else set() for a in node.aggregates}
        case nodes.Cogroup():
            found = [_of_table(aggregate) for aggregate in node.inputs]
            return _same(*(key for key, _ in found)), {name: origins for _, values in found for name, origins in values.items()}
        case nodes.JoinSide() | nodes.JoinBuffer() | nodes.History() | nodes.Waiting():
            raise AssertionError("nobody reads the buffer of a join")
        case nodes.TableFilter():
            return _of_table(node.parent)
        case nodes.TableMapValues():
            key, values = _of_table(node.parent)
            return key, {name: _through(expr, {"key": key, "value": values}) for name, expr in node.columns}
        case nodes.ForeignJoin():
            (key, left), (_, right) = (_of_table(side.parent.parent) for side in (node.left, node.right))
            return key, {name: _through(expr, {"key": key, "left": left, "right": right}) for name, expr in node.columns}
        case nodes.TableJoin():
            (one, left), (other, right) = _of_table(node.left), _of_table(node.right)
            key = _same(one, other)
            return key, {name: _through(expr, {"key": key, "left": left, "right": right}) for name, expr in node.columns}


def _same(*keys: Lineage) -> Lineage:
    """Give the lineage of a key that is several, column by column, under the names of the first."""
    return {name: set().union(*found) for name, *found in zip(keys[0], *(key.values() for key in keys), strict=True)}


def _origins(node: Stream, expr: Expr) -> set[Origin]:
    found: set[Origin] = set()
    for ref in expr.refs:
        space, _, rest = ref.partition(".")
        if space not in ("window", "right"):
            found |= _column(node, "key" if space == "key" else "value", rest.partition(".")[0])
    return found


def _column(node: Stream, part: str, name: str) -> set[Origin]:
    match node:
        case nodes.Source():
            return {Origin(node.topic.name, part, name)}
        case nodes.MapValues() | nodes.FlatMapValues() if part == "value":
            return _origins(node.parent, dict(node.columns)[name])
        case nodes.Map() if part == "key":
            return _origins(node.parent, dict(node.key_columns)[name])
        case nodes.Map() if node.columns is not None:
            return _origins(node.parent, dict(node.columns)[name])
        case nodes.StreamJoin() if part == "value":
            joined, (key, values) = dict(node.columns)[name], _of_table(node.right)
            beside = {ref.partition(".")[2].partition(".")[0] for ref in joined.refs if ref.startswith("right.")}
            return _origins(node.parent, joined) | set().union(*((key | values)[column] for column in beside))
        case nodes.MergeStreams():
            return set().union(*(_column(parent, part, name) for parent in node.parents))
        case nodes.StreamStreamJoin():
            mine, theirs = ({c: _column(side, "value", c) for c in plan.value_of(side).names} for side in (node.left, node.right))
            names = zip(plan.key_of(node.left).names, plan.key_of(node.right).names, strict=True)
            key = {own: _column(node.left, "key", own) | _column(node.right, "key", other) for own, other in names}
            return key[name] if part == "key" else _through(dict(node.columns)[name], {"key": key, "left": mine, "right": theirs})
        case nodes.ToStream() | nodes.FinalRows():
            key, values = _of_table(node.parent)
            return key[name] if part == "key" else values[name]
        case nodes.Forwarded() | nodes.Written() if part == "value" or name not in plan.key_of(node.parent):
            return _whole(node.parent.parent)  # what the function does with a record, only it knows
        case _:
            return _column(node.parent, part, name)


def _whole(node: Stream) -> set[Origin]:
    columns = (("key", plan.key_of(node)), ("value", plan.value_of(node)))
    return set().union(*(_column(node, part, name) for part, schema in columns for name in schema.names))


def _through(expr: Expr, spaces: dict[str, Lineage]) -> set[Origin]:
    found: set[Origin] = set()
    for ref in expr.refs:
        space, _, rest = ref.partition(".")
        found |= spaces.get(space, {}).get(rest.partition(".")[0], set())
    return found


def _named(columns: Named) -> str:
    return ", ".join(f"{name}={_plain(expr.sql)}" for name, expr in columns)


def _plain(sql: str) -> str:
    return sql.replace("`", "")


def _id(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
