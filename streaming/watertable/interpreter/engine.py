"""Work records off one by one, in log order: what each becomes at every node, and what it adds to every table."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from watertable.errors import DefinitionError, EvaluationError
from watertable.interpreter.histories import Histories, remember, waits_until
from watertable.interpreter.kept import Kept, Part, kept
from watertable.interpreter.merges import contribution, held, merged, slid
from watertable.interpreter.pairing import SIDES, Pair, Waiting, copied, joined, row_number, waiting_in
from watertable.interpreter.rows import finished
from watertable.interpreter.visits import Visits
from watertable.kafka import serdes
from watertable.plan import nodes, plan
from watertable.plan.lineage import operator_of
from watertable.plan.nodes import Topic
from watertable.plan.places import FAN_OUT, TOO_MANY
from watertable.plan.plan import Sink, Topology
from watertable.plan.rules import OnFail
from watertable.plan.stages import How
from watertable.plan.windows import END_OF_TIME, EPOCH, MILLISECOND, UNTIMED, SlidingWindows, of_stream_time
from watertable.records import Advance, Dropped, Event, Key, Output, Place, Record, Refused, Row, is_null, key_tuple, numbered, whole_key

_MEMORY: Final = (
    "changes", "states", "outputs", "quarantine", "dropped", "peeked", "buffered", "_members", "_sessions", "_moments", "_done",
)  # fmt: skip
"""All that a batch changes but the stream times."""


class Interpreter:
    """Hold all that an app has computed from the records read so far.

    `changes` are those of the tables that are streamed, and of those to `watch`. `partitions` names those that are known to be there before
    they have a record: what waits for the time of all of them waits for these, too. `asked` holds the leading columns of a key for tables
    of which nothing but these rows matters, and which no other is made of: their other rows are spared where that can be.

    >>> import watertable as wt
    >>> app = wt.App("wordcount")
    >>> lines = app.topic("lines", value="line STRING", value_format="string").stream()
    >>> words = lines.flat_map_values(word="split(lower(line), ' ')")
    >>> counts = words.group_by("word").agg(n=wt.count()).materialized_as("counts")
    >>> engine = Interpreter(app.topology())
    >>> engine.read([Record("lines", 0, 0, EPOCH, None, b"All streams lead to Kafka"), Record("lines", 0, 1, EPOCH, None, b"to kafka")])
    >>> sorted((row["word"], row["n"]) for row in engine.tables["counts"].values())
    [('all', 1), ('kafka', 2), ('lead', 1), ('streams', 1), ('to', 2)]
    """

    def __init__(
        self, topology: Topology, watch: frozenset[str] = frozenset(), partitions: Iterable[tuple[str, int]] = (),
        asked: Mapping[str, Key] | None = None,
    ) -> None:  # fmt: skip
        self.topology = topology
        self.changes: dict[str, list[Event]] = {name: [] for name in topology.streamed | watch}
        self.states: dict[str, dict[Key, Row]] = {table.name: {} for table in topology.kept}
        self.outputs: list[Output] = []
        self.quarantine: list[Refused] = []
        self.dropped: list[Dropped] = []
        self.peeked: Counter[str] = Counter()
        self.stream_times: dict[tuple[str, int], datetime] = {}
        self.buffered: dict[tuple[str, int, int], Record] = {}
        """The records that joins keep, and those that stand for final rows, by place. None is ever let go here: none need be."""
        self._topics: dict[str, Topic] = {topic.name: topic for topic in topology.topics}
        numbers: dict[nodes.Stream | nodes.Table, int] = {}  # two nodes that compute the same are one, whatever their lines
        every = [node for root in topology.roots for node in plan.walk(root)]
        self._number = {id(node): numbers.setdefault(node, len(numbers)) for node in every}
        self._tables = kept(topology, lambda leaf: self._number[id(leaf)], self.changes, asked or {})
        self._members: dict[tuple[str, Key], set[Key]] = {}
        self._sessions: dict[tuple[str, Key], list[Key]] = {}
        self._buffer = {id(n): plan.buffer_of(n).name for n in every if isinstance(n, nodes.StreamStreamJoin)}
        self._outer = {self._buffer[id(n)]: n for n in every if isinstance(n, nodes.OuterStreamJoin)}
        self._done: dict[str, set[Place]] = {name: set() for name in self._outer}
        self._open = {id(n): plan.open_of(n).name for n in every if isinstance(n, nodes.FinalRows)}
        self._final = {self._open[id(n)]: n for n in every if isinstance(n, nodes.FinalRows)}
        self._given: dict[str, dict[Place, Waiting]] = {}
        self._ended: dict[str, dict[Place, Event]] = {}
        self.partitions = set(partitions)
        self.batch = 0
        """Numbers the batches: what goes by arrival goes by that of the batch."""
        self.closed = frozenset[str]()
        """Names the topics that feed windows of which rows are final: by the partitions that are known until then."""
        self._moments: dict[tuple[str, Key], set[Key]] = {}
        above = {self._number[id(n)]: n for n in every}
        self._histories = Histories(
            {n: node for n, node in above.items() if isinstance(node, nodes.Versioned)},
            {n: (node, self._number[id(plan.root_of(node.right))]) for n, node in above.items() if isinstance(node, nodes.WaitingJoin)},
        )
        self.visits = Visits({n: node for n, node in above.items() if isinstance(node, nodes.Process)})
        self._released: dict[int, list[Event]] = {}
        self._made: dict[tuple[int, str], list[Event]] = {}
        self._at: Place
        self._record: Record
        self._source: Event | None
        self._trigger: tuple[Record, Place]
        self._pairs: dict[str, list[Pair]] = {}
        self._later: dict[Place, dict[str, list[Pair]]] = {}
        self._waited: set[str] = set()
        self._streams: dict[int, list[Event]] = {}
        self._lifted: dict[int, list[tuple[Key, list[Row], Event]]] = {}
        self._folded: dict[str, list[Event]] = {}

    def read(self, batch: Iterable[Record | Advance]) -> None:
        """Read one batch and apply it; raise `DefinitionError` for a topic that the app doesn't read."""
        self.batch += 1
        since = {name: self._reached(node.parent) for name, node in self._final.items()}
        arrived = sorted(self._arrive(batch), key=lambda arrived: arrived[0].place)
        if self._histories.ahead:
            self._look_ahead(arrived)
            self._histories.release(self._is_due)
        self._given, self._ended = {}, {}
        # what a batch closes comes at its own place among the batch's records, so it must be known before
        while self._outer or self._final:
            ahead = self._copy()
            ahead._run(arrived)
            given = {name: found for name, join in self._outer.items() if (found := ahead._closed(name, join))}
            ended = {name: rows for name, node in self._final.items() if (rows := ahead._rows_closed(name, node, since[name]))}
            if (given, ended) == (self._given, self._ended):
                break
            self._given, self._ended = given, ended
        self._run(arrived)
        self.closed = self.closed.union(*(plan.topics_above(self._final[name]) for name in self._ended))
        for name, found in self._given.items():
            self._done[name] |= {*found}

    def _copy(self) -> Interpreter:
        """Give another interpreter that goes on from here, and leaves this one as it is."""
        other = copy.copy(self)
        for name in _MEMORY:
            setattr(other, name, copied(getattr(self, name)))
        other._histories, other.visits = self._histories.copied(), self.visits.copied()
        return other

    def _run(self, arrived: list[tuple[Event, Record]]) -> None:
        """Work a batch off, with what it closes."""
        self._later = {place._replace(ord=0): {} for found in self._given.values() for place in found}
        self._later |= {place: {} for found in self._ended.values() for place in found}
        for place in (place for found in self._ended.values() for place in found):
            self.buffered[place[1:4]] = Record(*place[1:4], place.st, None, None)
        for event, _ in arrived:
            self._later.pop(event.place, None)
        for event, record in arrived:
            self._work_off_pairs(before=event.place)
            self._trigger = record, event.place
            self._work_off(record, event.place, event, {})
        self._work_off_pairs()

    def _closed(self, name: str, join: nodes.OuterStreamJoin) -> dict[Place, Waiting]:
        """List what waits in a join, has paired with nothing, and can't any more: what comes is later in log order, and late."""
        if (reached := self._reached(join.left, join.right)) is None:
            return {}
        waiting = (
            one for key, state in self.states[name].items() for side in join.how.alone for one in waiting_in(side, key, state)
            if one.place not in self._done[name]
        )  # fmt: skip
        return {one.place: one for one in waiting if max(one.place.st, one.timestamp + join.within.open_for[one.side]) < reached}

    def _rows_closed(self, name: str, node: nodes.FinalRows, since: datetime | None) -> dict[Place, Event]:
        """List the rows of a table whose windows are closed now, and weren't yet; each at the last moment of its window."""
        if (reached := self._reached(node.parent)) is None:
            return {}
        found, table, closing = {}, self._tables[name], plan.closing_of(node.parent)
        for key, row in self._rows(table):
            end = cast("datetime", key[-1])
            if end + closing.after <= reached and (since is None or since < end + closing.after):
                own = {part: row[part] for part in table.key}
                place = Place(end - closing.before, min(plan.topics_above(node)), -1, row_number(own, plan.key_of(node)))
                found[place] = Event(place, place.st, own, {part: value for part, value in row.items() if part not in own})
        return found

    def _reached(self, *above: nodes.Stream | nodes.Table) -> datetime | None:
        """Give the stream time that all which still comes through these nodes has at least; None while a partition has none."""
        low = self._low(frozenset[str]().union(*map(plan.topics_above, above)))
        return None if low is None else low - max(map(plan.delay_of, above))

    def _low(self, topics: frozenset[str]) -> datetime | None:
        """Give the stream time that all partitions of these topics have reached; None while one has none."""
        times = {p: self.stream_times.get(p) for p in self.partitions if p[0] in topics}
        if {topic for topic, _ in times} != topics or None in times.values():
            return None
        return min(time for time in times.values() if time is not None)

    def _work_off(
        self, record: Record, at: Place, source: Event | None, pairs: dict[str, list[Pair]],
        released: Iterable[tuple[int, Record, Event]] = (),
    ) -> None:  # fmt: skip
        self._at = at
        self._record, self._source, self._streams, self._lifted, self._folded = record, source, {}, {}, {}
        self._pairs, self._waited, self._released, self._made = pairs, set(), {}, {}
        for number, _, event in released:
            self._released.setdefault(number, []).append(event)
        for table in self._tables.values():
            self._fold(table)
        for sink in self.topology.sinks:
            self._publish(sink)

    def _work_off_pairs(self, before: Place | None = None) -> None:
        """Work off the pairs that a record of this batch makes with a later one of an earlier batch: at the later one's place.

        And what has waited in a join until now, at its own.
        """
        while late := {*self._later, *self._histories.released, *self.visits.due(self.stream_times)}:
            if before is not None and not min(late) < before:
                break
            place = min(late)
            pairs, released = self._later.pop(place, {}), self._histories.released.pop(place, [])
            none = Record(*place[1:4], place.st, None, None)  # of a punctuator
            record = released[0][1] if released and not pairs else self.buffered.setdefault(place[1:4], none)
            self._work_off(record, place, None, pairs, released)

    def _look_ahead(self, arrived: Iterable[tuple[Event, Record]]) -> None:
        """Put the versions that the batch brings into the histories that records wait for; what is left out is counted later."""
        counted = self.quarantine, self.dropped, self.peeked
        self.quarantine, self.dropped, self.peeked = [], [], Counter()
        for event, record in arrived:
            self._record, self._source, self._streams = record, event, {}
            for number, versions in self._histories.ahead.items():
                table = self._histories.tables[number]
                part = Part(table, number, plan.state_of(table))
                for found in self._stream(table.parent):
                    remember(versions, self._lift("", part, found))
        self.quarantine, self.dropped, self.peeked = counted

    def _is_due(self, join: nodes.WaitingJoin, event: Event) -> bool:
        """Tell whether every partition that feeds the join has passed the time that a record waits for."""
        reached = self._low(plan.topics_above(join))
        return reached is not None and reached > waits_until(join, event)

    @property
    def current(self) -> tuple[Record, Place]:
        """Give the record that is being worked off, or was last, and its place."""
        return self._trigger

    @property
    def punctuator(self) -> Place | None:
        """Give the place of the punctuator that is being called, or was last; None where it's a record that is worked off."""
        return self._at if self._at.offset < 0 <= self._at.partition else None

    @property
    def tables(self) -> dict[str, dict[Key, Row]]:
        """Give every table as its readers see it: rows of all columns in their declared order, by key."""
        return {table.name: dict(self._rows(self._tables[table.name])) for table in self.topology.tables}

    def _rows(self, table: Kept) -> Iterator[tuple[Key, Row]]:
        if table.sliding is not None:
            groups = (moments for (name, _), moments in self._moments.items() if name == table.name)
            states = self.states[table.name]
            windows = (found for moments in groups for found in slid(table.sliding, table.state, states, moments).items())
            made = ((key, self._finish(table, key, state)) for key, state in windows)
        else:
            made = ((key, self._row(table, key)) for key in self.states[table.name])
        yield from ((key[table.foreign :], self._key_row(table, key) | row) for key, row in made if row is not None)

    # -- reading ------------------------------------------------------------------------------------------------------------------

    def _arrive(self, batch: Iterable[Record | Advance]) -> Iterator[tuple[Event, Record]]:
        """Give each record that can be read its stream time and so its place, partition by partition in offset order."""
        self.visits.clocks = {}
        for item in sorted(batch, key=lambda i: (i.topic, i.partition, i.offset, isinstance(i, Record), getattr(i, "stream_time", 0))):
            if item.topic not in self._topics:
                raise DefinitionError(f"app {self.topology.app!r} doesn't read topic {item.topic!r}; it reads {', '.join(self._topics)}")
            source = (item.topic, item.partition)
            self.partitions.add(source)
            now = self.stream_times.get(source, EPOCH)
            if isinstance(item, Advance):
                self.stream_times[source] = max(now, item.stream_time)
                self.visits.notice(item, self.stream_times[source])
            elif (event := self._decode(item, now)) is not None:
                self.stream_times[source] = event.place.st
                yield event, item

    def _decode(self, record: Record, now: datetime) -> Event | None:
        self._record, topic = record, self._topics[record.topic]
        decoded: list[Row | None] = []
        for part in (serdes.key_of, serdes.columns_of):
            try:
                decoded.append(part(record, topic))
            except EvaluationError as error:
                self._refuse("topic", topic.location, str(error))
        if len(decoded) < 2:
            return None
        key, value = decoded
        timestamp = serdes.event_time_of(record, topic, value, now)
        if not isinstance(timestamp, datetime) or not EPOCH <= timestamp < END_OF_TIME:
            self._refuse("topic", topic.location, UNTIMED)
            return None
        return Event(Place(max(now, timestamp), record.topic, record.partition, record.offset), timestamp, key, value)

    # -- streams ------------------------------------------------------------------------------------------------------------------

    def _stream(self, node: nodes.Stream) -> list[Event]:
        """Give what the current record becomes at this node, in log order; worked out once, however many operators follow."""
        number = self._number[id(node)]
        if number not in self._streams:
            self._streams[number] = found = list(self._derive(node))
            if len(found) > 1:
                found.sort(key=lambda event: event.place)
        return self._streams[number]

    def _derive(self, node: nodes.Stream) -> Iterator[Event]:
        match node:
            case nodes.Source():
                if self._source is not None and node.topic.name == self._source.place.topic:
                    yield self._source
            case nodes.StreamStreamJoin():
                for pair in self._paired(node):
                    try:
                        yield joined(node, pair)
                    except EvaluationError as error:
                        self._refuse(operator_of(node), node.location, str(error))
            case nodes.MergeStreams():
                for n, parent in enumerate(node.parents):
                    for event in self._stream(parent):
                        yield numbered(event, event.place.ord * len(node.parents) + n)
            case nodes.ToStream():
                yield from self._fold(self._tables[node.table])
            case nodes.Forwarded():
                self._stream(node.parent)
                yield from self._made.get((self._number[id(node.parent)], node.child), ())
            case nodes.Written():
                self._stream(node.parent)
                yield from self._made.get((self._number[id(node.parent)], f"store {node.store}"), ())
            case nodes.FinalRows():
                name = self._open[id(node)]
                self._fold(self._tables[name])
                yield from (event for place, event in self._ended.get(name, {}).items() if place == self._at)
            case nodes.Process():
                for event in self._stream(node.parent):
                    self._visit(node, event)
                self._visit(node, None)
            case _:
                if isinstance(node, nodes.StreamJoin):  # what the table gets of this record comes first
                    self._fold(self._tables[node.table])
                for event in [*self._released.get(self._number[id(node)], ()), *self._stream(node.parent)]:
                    try:
                        yield from self._apply(node, event)
                    except EvaluationError as error:
                        self._refuse(operator_of(node), node.location, str(error))

    def _apply(self, node: nodes.Stream, event: Event) -> list[Event]:
        match node:
            case nodes.Filter():
                return [event] if event.evaluate(node.condition) is True else []
            case nodes.Expect():
                return self._expect(node, event)
            case nodes.MapValues():
                value = None if event.value is None else event.columns(node.columns)
                return [Event(event.place, event.timestamp, event.key, value, None, event.window)]
            case nodes.Map():
                value = event.value if node.columns is None or event.value is None else event.columns(node.columns)
                keyed = node.keyed is None or event.evaluate(node.keyed) is True
                return [Event(event.place, event.timestamp, event.columns(node.key_columns) if keyed else None, value)]
            case nodes.FlatMapValues():
                row = event.columns(node.columns) if event.value is not None else {node.exploded: None}
                made = [row | {node.exploded: element} for element in cast("list[object]", row[node.exploded] or [])]
                if len(made) > FAN_OUT:
                    raise EvaluationError(TOO_MANY)
                return [replace(event, value=v, old=None, place=event.place.nth(n)) for n, v in enumerate(made)]
            case nodes.Peek():
                self.peeked[node.name] += 1
                return [event]
            case nodes.StreamJoin():
                return self._look_up(node, event)
            case nodes.Repartition():
                if is_null(event.key):
                    self._drop(operator_of(node), "null_key")
                    return []
                return [event]
            case _:
                raise TypeError(f"{type(node).__name__} is no operator on single records")

    def _visit(self, node: nodes.Process, event: Event | None) -> None:
        """Call a processor for a record, or a punctuator that is due; what it makes is of its children and stores."""
        if event is not None and is_null(event.key):
            return self._drop(operator_of(node), "null_key")
        number = self._number[id(node)]
        try:
            for output, made in self.visits.call(number, node, event, self._at, self.stream_times):
                self._made.setdefault((number, output), []).append(made)
        except EvaluationError as error:
            self._refuse(operator_of(node), node.location, str(error))

    def _look_up(self, node: nodes.StreamJoin, event: Event) -> list[Event]:
        if event.value is None:
            self._drop(operator_of(node), "null_value")
            return []
        key = event.key if node.on is None else event.columns(node.on)
        left = node.how is How.LEFT
        if is_null(key) and not (left and is_null(event.key)):  # Kafka Streams: a left join keeps what has no key of its own
            self._drop(operator_of(node), "null_key")
            return []
        if isinstance(node, nodes.WaitingJoin) and not is_null(key) and not self._is_due(node, event):
            self._histories.wait(self._number[id(node)], self._record, event)
            self.buffered[event.place[1:4]] = self._record
            return []
        table = self._tables[node.table]
        known = key is not None and key_tuple(key) in self.states[table.name]
        right = self._row(table, key_tuple(key)) if key is not None and known else None
        if isinstance(plan.root_of(node.right), nodes.Versioned):
            right = None if key is None else self._as_of(node, table, key_tuple(key), event)
        if right is None and not left:
            return []
        return [replace(event, value=event.columns(node.columns, right), old=None)]

    def _as_of(self, node: nodes.StreamJoin, table: Kept, key: Key, event: Event) -> Row | None:
        """Give the row of a versioned table as of a record's event time; none if that is before the history."""
        until = waits_until(node, event) if isinstance(node, nodes.WaitingJoin) else None
        state = self._histories.version(self._number[id(plan.root_of(node.right))], key, event, until)
        return None if state is None else self._finish(table, key, state)

    def _paired(self, node: nodes.StreamStreamJoin) -> list[Pair]:
        """Pair what the current record becomes on either side with what waits on the other, and let it wait, too.

        Where what waits is later in log order, the pair is worked off at that place. Joins that wait for the same pair the same.
        """
        arrived = [
            Waiting(side, event.place._replace(ord=2 * event.place.ord + side), event.timestamp, whole_key(event.key), event.value)
            for side, parent in enumerate((node.left, node.right)) for event in self._stream(parent) if self._counts(node, side, event)
        ]  # fmt: skip
        name = self._buffer[id(node)]
        found, states = self._pairs.setdefault(name, []), self.states[name]
        if name in self._waited:
            return found
        self._waited.add(name)
        if not self._at.ord:  # several punctuators may be called at one place, each at an `ord` of its own
            found += [(one,) for place, one in self._given.get(name, {}).items() if place[:4] == self._at[:4]]
        for one in sorted(arrived, key=lambda one: one.place):
            if one.key is None or None in one.key:
                found.append((one,))
                continue
            state: dict[str, Any] = states.get(one.key) or {"__lefts": [], "__rights": []}
            for other in waiting_in(1 - one.side, one.key, state):
                left, right = (one, other) if one.side == 0 else (other, one)
                earlier, later = sorted((left, right), key=lambda side: side.place)
                in_time = later.place.st <= earlier.timestamp + node.within.open_for[earlier.side]
                if in_time and node.within.holds(left.timestamp, right.timestamp):
                    if later.place[:4] == one.place[:4]:
                        found.append((left, right))
                    else:
                        self._later.setdefault(later.place._replace(ord=0), {}).setdefault(name, []).append((left, right))
                    if name in self._done:
                        self._done[name] |= {left.place, right.place}
            order, side = one.place._replace(ord=one.place.ord // 2), SIDES[one.side]
            states[one.key] = state | {side: [*state[side], {"order": order, "value": {"ts": one.timestamp, "value": one.value}}]}
            self.buffered[one.place[1:4]] = self._record
        return found

    def _counts(self, node: nodes.StreamStreamJoin, side: int, event: Event) -> bool:
        """Tell whether a record can pair, or has no key and so is given alone."""
        if event.value is None or (is_null(event.key) and side not in plan.how_of(node).alone):
            self._drop(operator_of(node), "null_value" if event.value is None else "null_key")
            return False
        return True

    def _expect(self, node: nodes.Expect, event: Event) -> list[Event]:
        rule = node.rule
        if event.evaluate(rule.condition) is not False:  # null keeps, as in SQL's CHECK
            return [event]
        if rule.on_fail is OnFail.QUARANTINE:
            self._refuse(operator_of(node), node.location, f"breaks the rule {rule.name!r}")
        else:
            self._drop(operator_of(node), f"rule:{rule.name}")
        return [event] if rule.on_fail is OnFail.WARN else []

    # -- tables -------------------------------------------------------------------------------------------------------------------

    def _fold(self, table: Kept) -> list[Event]:
        """Merge what the current record becomes into a table; give its Changes. Done once, however many read them."""
        if table.name not in self._folded:
            found = [arrived for n, part in enumerate(table.parts) for arrived in self._arrived(table, n, part)]
            found.sort(key=lambda arrived: arrived[2].place)
            if table.foreign:
                made = sorted(self._pair(table, found), key=lambda change: change.place)
            else:
                made = [change for key, states, event in found for change in self._merge(table, key, states, event)]
            self._folded[table.name] = [change for change in made if change.old is not None or change.value is not None]
            if table.watched:
                self.changes[table.name] += self._folded[table.name]
        return self._folded[table.name]

    def _arrived(self, table: Kept, n: int, part: Part) -> Iterator[tuple[Key, list[Row], Event]]:
        """Give what the current record adds to one part of a table's state; of several parts, the n-th of m is at `ord * m + n`."""
        assert not isinstance(part.leaf, nodes.History)  # no table of the user's
        if part.number not in self._lifted:  # tables that share a leaf share what a record adds to it, and what it leaves out
            self._lifted[part.number] = [
                found for event in self._stream(part.leaf.parent) for found in self._lift(table.label, part, event)
            ]
            self._histories.came(part.number, self._lifted[part.number])
        there: Row = {} if part.there is None else {part.there: True}
        nothing: Row = {f.name: None for f in table.state}
        for key, states, event in self._lifted[part.number]:
            added = [nothing | {name: state[own] for own, name in part.fields} | there for state in states]
            yield key, added, numbered(event, event.place.ord * len(table.parts) + n)

    def _lift(self, table: str, part: Part, event: Event) -> Iterator[tuple[Key, list[Row], Event]]:
        """Give what a record contributes to each key, with the record at its own place."""
        root = part.leaf
        if isinstance(root, nodes.TableAggregate):
            yield from self._move(table, part, root, event)
            return
        if isinstance(root, nodes.Latest):
            if isinstance(root, nodes.Versioned) and not is_null(event.key) and event.timestamp + root.history < event.place.st:
                self._drop(table, "expired")
            elif event.key is not None and not is_null(event.key):
                if part.wants(key := key_tuple(event.key)):
                    yield key, [contribution(part.state, event, self.batch)], event
            elif root.is_source:
                self._refuse(table, root.location, "a record of a table topic has no key")
            else:
                self._drop(table, "null_key")
            return
        assert isinstance(root, nodes.Aggregate)  # joins keep what they wait with by themselves
        if event.value is None and not root.sees_nulls:
            return self._drop(table, "null_value")
        group: Row | None = None
        try:
            group = event.columns(root.group)
            if not part.wants(key := key_tuple(group)):
                return
            state = contribution(part.state, event, self.batch)
        except EvaluationError as error:
            return self._refuse(table, root.location, str(error), group)
        if is_null(group):
            return self._drop(table, "null_key")
        if root.windows is None:
            yield key, [state], event
            return
        windows = root.windows.windows_of(event.place.st if of_stream_time(root.windows) else event.timestamp)
        if not windows:
            self._drop(table, "before_start")
        for n, (start, end) in enumerate(windows):
            if root.windows.is_late(end, event.place.st):
                self._drop(table, "late", (start, end), group)
                continue
            if isinstance(root.windows, SlidingWindows):  # in which of its windows it counts, its lateness says
                end = max(start, root.windows.open_from(event.place.st))
            yield (*key, start, end), [state], numbered(event, event.place.ord * root.windows.per_record + n)

    def _move(self, table: str, part: Part, root: nodes.TableAggregate, event: Event) -> Iterator[tuple[Key, list[Row], Event]]:
        """Take a Change's old row out of its group, then put its new one into its own; within one group, both at once.

        A row that couldn't be put into a group, for what fails on it or is null, isn't taken out again either.
        """
        sides: list[tuple[Key, Row, Event]] = []
        for n, row in enumerate((event.old, event.value)):
            side = replace(event, value=row, place=event.place._replace(ord=2 * event.place.ord + n))
            group: Row | None = None
            try:
                if row is None:
                    continue
                if not part.wants(key_tuple(group := side.columns(root.group))):
                    continue
                states = [contribution(part.state, side, retract=retract) for retract in (True, False)]
            except EvaluationError as error:
                if n == 1:
                    self._refuse(table, root.location, str(error), group)
                continue
            if all(group[name] is not None for name in root.wanted):
                sides.append((key_tuple(group), states[n], side))
            elif n == 1:
                self._drop(table, "null_key")
        if len(sides) == 2 and sides[0][0] == sides[1][0]:
            yield sides[0][0], [sides[0][1], sides[1][1]], sides[1][2]
        else:
            yield from ((key, [state], side) for key, state, side in sides)

    def _merge(self, table: Kept, key: Key, contributions: list[Row], event: Event) -> Iterator[Event]:
        """Merge what a record contributes into a row; give the Changes, of use only if somebody watches the table."""
        states = self.states[table.name]
        if table.sliding is not None:
            yield from self._slide(table, table.sliding, key, contributions[0], event)
            return
        if table.gap is not None:
            yield from self._gather(table, table.gap, key, contributions[0], event)
            return
        old = self._row(table, key) if table.watched and key in states else None
        for state in contributions:
            states[key] = state if key not in states else merged(table.state, states[key], state)
        overtaken = any(added[name] not in (None, states[key][name]) for added in contributions for name in table.timed)
        if table.watched and not overtaken:  # what comes out of order into a history is no Change
            yield Event(event.place, event.timestamp, self._key_row(table, key), self._row(table, key), old, self._window(table, key))

    def _gather(self, table: Kept, gap: timedelta, key: Key, state: Row, event: Event) -> Iterator[Event]:
        """Merge a record, a session by itself, with the one or two sessions of its group that are near enough.

        A session whose bounds change ends, and another begins; the n-th that a record touches is told of at `ord * FAN_OUT + n`.
        """
        states, known = self.states[table.name], self._sessions.setdefault((table.name, key[:-2]), [])
        near = sorted(other for other in known if key[-2] - gap <= other[-1] and other[-2] <= key[-1] + gap)  # type: ignore[operator]
        old = {other: self._row(table, other) for other in near} if table.watched else {}
        for other in near:
            known.remove(other)
            state = merged(table.state, states.pop(other), state)
        bounds = [*near, key]
        now = (*key[:-2], min(b[-2] for b in bounds), max(b[-1] for b in bounds))  # type: ignore[type-var]
        known.append(now)
        states[now] = state
        new = self._row(table, now) if table.watched else None
        changes = [*((other, old[other], None) for other in old if other != now), (now, old.get(now), new)]
        for n, (told, before, after) in enumerate(changes):
            place = event.place.nth(n)
            yield Event(place, event.timestamp, self._key_row(table, told), after, before, self._window(table, told))

    def _slide(self, table: Kept, windows: SlidingWindows, key: Key, state: Row, event: Event) -> Iterator[Event]:
        """Merge a record into its moment; give the Changes of the windows that it is in, and of the one after it that it may bring."""
        states, moments = self.states[table.name], self._moments.setdefault((table.name, key[:-2]), set())
        at, since = cast("tuple[datetime, datetime]", key[-2:])
        near = (at - windows.difference - MILLISECOND, at + windows.difference + MILLISECOND)
        old = slid(windows, table.state, states, moments, near) if table.watched else {}
        states[key] = merged(table.state, states[key], state) if key in states else state
        moments.add(key)
        new = slid(windows, table.state, states, moments, near) if table.watched else {}
        touched = sorted(w for w in new if w not in old or (w[-2] <= at and since <= w[-1]))  # type: ignore[operator]
        for n, window in enumerate(touched):
            place = event.place.nth(n)
            rows = [self._finish(table, window, found[window]) if window in found else None for found in (old, new)]
            yield Event(place, event.timestamp, self._key_row(table, window), rows[1], rows[0], self._window(table, window))

    def _pair(self, table: Kept, found: list[tuple[Key, list[Row], Event]]) -> list[Event]:
        """Merge what the current record becomes on either side of a foreign-key join; give the Changes of the rows that it touches.

        A right row touches all that name it, the n-th at `ord * FAN_OUT + n`. A left row that leaves one group and enters another is one
        Change, where it enters.
        """
        made: dict[tuple[Key, int], Event] = {}
        for key, states, event in found:
            named, own = key[: table.foreign], key[table.foreign :]
            members = self._members.setdefault((table.name, named), set())
            of_left = own[0] is not None
            touched = [(*named, *other) for other in ([own] if of_left else sorted(members))]
            old = [self._row(table, other) for other in touched] if table.watched else []
            for state in states:
                known = self.states[table.name].get(key)
                self.states[table.name][key] = state if known is None else merged(table.state, known, state)
            if of_left and self.states[table.name][key][table.state[0].name]:
                members.add(own)
            elif of_left:
                members.discard(own)
            for n, (other, before) in enumerate(zip(touched, old, strict=False)):
                place = event.place.nth(n)
                move = (own, event.place.ord // 4) if of_left else (other, place.ord)
                before = made[move].old if move in made else before
                made[move] = Event(place, event.timestamp, self._key_row(table, other), self._row(table, other), before)
        return list(made.values())

    def _row(self, table: Kept, key: Key) -> Row | None:
        """Give the value columns that readers see, None where they see no row; an expression that fails on a state gives null."""
        states = self.states[table.name]
        if not table.foreign:
            return self._finish(table, key, states[key])
        left, right = (f.name for f in table.state)
        beside = states.get((*key[: table.foreign], *(None for _ in table.key)))
        return self._finish(table, key, None, left=held(states.get(key), left), right=held(beside, right))

    def _finish(self, table: Kept, key: Key, state: Row | None, **sides: Row | None) -> Row | None:
        key_row, window = self._key_row(table, key), self._window(table, key)
        return finished(table.alive, table.stages, {"state": state, "key": key_row, "window": window, **sides})

    def _key_row(self, table: Kept, key: Key) -> Row:
        return dict(zip(table.key, key[table.foreign :], strict=True))

    def _window(self, table: Kept, key: Key) -> Row | None:
        return {"start": key[-2], "end": key[-1]} if table.windowed else None

    # -- what leaves --------------------------------------------------------------------------------------------------------------

    def _publish(self, sink: Sink) -> None:
        for event in self._stream(sink.node):
            key = serdes.encode(event.key, plan.key_of(sink.node), sink.key_format)
            value = serdes.encode(event.value, plan.value_of(sink.node), sink.value_format)
            try:
                self.outputs.append(Output(sink.topic, key, value, event.timestamp, event.place, event.headers(sink.headers)))
            except EvaluationError as error:
                self._refuse("to", sink.location, str(error))

    def _refuse(self, node: str, location: str, reason: str, group: Row | None = None) -> None:
        self.quarantine.append(Refused(self._record, node, location, reason, group))

    def _drop(self, node: str, reason: str, window: tuple[datetime, datetime] | None = None, group: Row | None = None) -> None:
        self.dropped.append(Dropped(node, reason, self._record.topic, self._record.partition, self._record.offset, window, group=group))
