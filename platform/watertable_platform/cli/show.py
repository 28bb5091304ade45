"""Show tables and apps in a terminal: the rows with the position they are of, and how each app and table stands.

What is shown is read as `wt.read` reads: everything committed is in it, folded or not, all of it at one position, which is named.
Texts are cut to the terminal's width, never a figure, a column or the count of rows: where there are more, the last line says so.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from watertable.errors import StoreError
from watertable.settings import Settings
from watertable_platform.answers import Answer, Standing, answer_json, plain, plain_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.acts.plans import RewindPlan
    from watertable.acts.shadow import Diff
    from watertable.plan.plan import Topology
    from watertable.store.commits import Offsets
    from watertable.tools.bisect import Culprit, Found
    from watertable.tools.explain import Explanation
    from watertable.tools.preview import Pair, Preview

_KEYS = 5
_MOST_KEYS = 100
_PAIRS = {
    "differs": ("≠", "yellow"),
    "only here": ("+", "green"),
    "only live": ("−", "red"),
    "not compared": (" ", ""),
    "same": ("=", "dim"),
}


@contextmanager
def session(settings: Settings, console: Console, *, brief: bool, of: str) -> Iterator[SparkSession]:
    """Start Spark for one command, saying so while it takes its seconds, and end it; a brief one looks at little data.

    What goes wrong in it is raised as `SparkError`, in one line.
    """
    from watertable.session import BRIEF, in_words, shut_down, spark_session

    with console.status("starting Spark", spinner="dots"):
        spark = spark_session(settings, app=f"watertable {of}", log=settings.log_file(of), conf=BRIEF if brief else None)
    try:
        with in_words(spark):
            yield spark
    finally:
        shut_down(spark)


def print_changes(console: Console, answer: Answer) -> None:
    """Print what changed, key by key: rows that came, went, or differ, each value with the one before it."""
    from watertable.tools.preview import Pair

    _head(console, answer)
    rows = (dict(zip(answer.columns, values, strict=True)) for values in answer.rows)
    pairs = [Pair(row["key"], row["new"], row["old"], compared=True) for row in rows]  # type: ignore[arg-type]
    if pairs:
        console.print(_side_by_side(pairs))
    count = f"{_count(len(pairs), 'row')} changed" if pairs else "nothing has changed"
    console.print(f"the first {count}; --limit shows more" if answer.more else count, style="dim", highlight=False)


def print_quarantine(console: Console, answer: Answer, *, topology: Topology) -> None:
    """Print each refused record with its place, its operator, the reason, and as much of its bytes as fits a line.

    Of what the definition as it is can't read, the reason names the field.
    """
    from watertable.store.commits import Position

    _head(console, answer)
    for row in (dict(zip(answer.columns, values, strict=True)) for values in answer.rows):
        place, when = f"{row['topic']}/{row['partition']}@{row['offset']}", row["timestamp"]
        console.print()
        console.print(Text.assemble((place, "bold"), f"  {'' if when is None else plain(when)}  ", (str(row["position"]), "cyan")))
        facts = Table.grid(padding=(0, 2, 0, 2))
        facts.add_column(style="dim", no_wrap=True, min_width=len("refused by"))
        facts.add_column(no_wrap=True, overflow="ellipsis", max_width=console.width - len("refused by") - 2)
        facts.add_row("refused by", Text.assemble(str(row["node"]), (f"  {row['location']}", "dim")))
        where = unread(row, topology)
        facts.add_row("why", Text(f"{row['reason']}{f': {where}' if where else ''}", overflow="fold", no_wrap=False))
        for name in ("key", "value"):
            facts.add_row(name, _bytes(row[name]))
        for header in row["headers"] if isinstance(row["headers"], list) else ():
            facts.add_row("header", Text.assemble((f"{header['key']} ", "dim"), _bytes(header["value"])))
        console.print(facts)
    if not answer.rows:
        console.print("nothing is quarantined", style="dim")
        return
    count = _count(len(answer.rows), "record")
    console.print(f"\n{f'the newest {count}; --limit shows more' if answer.more else count}", style="dim", highlight=False)
    oldest = Position.parse(str(answer.rows[-1][0]))
    before = Position(oldest.app, oldest.epoch, oldest.seq - 1)
    console.print(
        f"once the definition takes them: `watertable rewind {before.app} --to {before}` reads again from before the oldest of these"
    )


def print_answer(console: Console, answer: Answer) -> None:
    """Print rows as a table with their position; where columns don't fit beside one another, each row's stand one below the other."""
    _head(console, answer)  # a table's own title is as narrow as the table
    rows = [[_cell(value) for value in row] for row in answer.rows]
    widths = _widths(answer, rows, console.width - 2 - 3 * (len(answer.columns) - 1))  # of the edges, and between two columns
    if widths is None:
        _print_down(console, answer.columns, rows)
    else:
        shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, row_styles=("", "dim"))
        for name, width in zip(answer.columns, widths, strict=True):
            justify: Literal["left", "right"] = "right" if name in answer.numeric else "left"
            shown.add_column(Text(name), justify=justify, overflow="ellipsis", no_wrap=True, width=width)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    count = _count(len(answer.rows), "row")
    console.print(f"first {count}; --limit shows more" if answer.more else count, style="dim", highlight=False)


def _widths(answer: Answer, rows: Sequence[Sequence[Text]], room: int) -> list[int] | None:
    """Narrow the widest columns until all fit; None where they don't: a part of a figure would be another one."""
    widths, least = list[int](), list[int]()
    for n, name in enumerate(answer.columns):
        head, cell = cell_len(name), max((row[n].cell_len for row in rows), default=0)
        widths.append(min(max(head, cell), max(room, 0)))
        least.append(max(cell, min(head, 4)) if name in answer.numeric else min(max(head, cell), 8))
    while sum(widths) > room:
        wide = [n for n, width in enumerate(widths) if width > least[n]]
        if not wide:
            return None
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _print_down(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """Print each row as lines of a column's name and its value."""
    for row in rows:
        facts = Table.grid(padding=(0, 2, 0, 0))
        facts.add_column(style="dim", overflow="fold")
        facts.add_column(overflow="fold")
        for name, cell in zip(columns, row, strict=True):
            facts.add_row(name, cell)
        console.print()
        console.print(facts)
    console.print()


def print_json(answer: Answer) -> None:
    """Print rows as one JSON object: position, and the rows as objects."""
    print(answer_json(answer))


def print_csv(answer: Answer) -> None:
    """Print rows as CSV with a header; what is nested is JSON."""
    out = csv.writer(sys.stdout)
    out.writerow(answer.columns)
    out.writerows([["" if v is None else plain_json(v) if isinstance(v, dict | list) else plain(v) for v in row] for row in answer.rows])


def print_status(console: Console, found: Standing) -> None:
    """Print each app with its position and lag, and below it its tables with how far each is folded."""
    for name, (status, lag) in found.items():
        if isinstance(status, StoreError):
            told = Text.assemble((name, "bold"), (f"  {type(status).__name__} ", "bold red"), str(status))
            console.print(told, soft_wrap=True)
            continue
        beside = [("  beside it a shadow, ", "dim"), (str(status.shadow), "cyan")] if status and status.shadow else []
        if status is None or status.last is None:
            stands = [("  never ran", "dim")]
            if status is not None and status.position.epoch > 1:  # to earliest
                stands = [("  ", ""), (str(status.position), "cyan"), ("  rewound, and hasn't run since", "dim")]
            console.print(Text.assemble((name, "bold"), *stands, *beside))
            continue
        behind = "Kafka doesn't answer" if lag is None else ", ".join(_behind(t, n) for t, n in lag.items() if n != 0) or "0"
        console.print(
            Text.assemble(
                (name, "bold"), "  ", (str(status.position), "cyan"), ("  committed ", "dim"), f"{_ago(status.last.commit_time)} ago",
                ("  lag ", "dim"), (behind, "green" if behind == "0" else "yellow"),
                *([("  quarantined ", "dim"), (f"{status.quarantined:,}", "yellow")] if status.quarantined else []), *beside,
            )
        )  # fmt: skip
        shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        shown.add_column("table")
        for column in ("rows folded", "version", "folded", "commits behind", "fold lag"):
            shown.add_column(column, justify="right")
        for table, t in status.tables.items():
            late = "yellow" if t.behind > timedelta(seconds=60) else ""
            version = "-" if t.version is None else str(t.version)
            shown.add_row(
                table, f"{t.folded_rows:,}", version, Text(str(t.folded), "cyan"), f"{t.commits_behind:,}", Text(_span(t.behind), late)
            )
        console.print(shown)


def _behind(topic: str, offsets: int | None) -> str:
    return f"{topic} was deleted, or is another one than was read" if offsets is None else f"{topic} {offsets:,}"


def print_plan(console: Console, plan: RewindPlan) -> None:
    """Print what a rewind will do: from where to where, what is read again, what becomes of each table, and what stands in the way."""
    from watertable.acts.estimates import disk_text, eta_text
    from watertable.acts.plans import source_text

    console.print(
        Text.assemble(
            (plan.app, "bold"),
            f"  {plan.words}  ",
            (plan.head, "cyan"),
            ("  beside it  " if plan.is_beside else "  →  ", "dim"),
            (plan.becomes, "bold cyan"),
        )
    )
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    if plan.rebuilds:
        facts.add_row("beside", Text.assemble((plan.head, "cyan"), "  which goes on as it is until they are joined"))
    else:
        facts.add_row("fork", Text.assemble((plan.fork, "cyan"), f"  {plan.left_behind}{'' if plan.shadow else ', none is deleted'}"))
    facts.add_row("replay", Text.assemble((f"{plan.records:,} records", "bold"), f"  {eta_text(plan.eta)}"))
    if plan.stops:
        facts.add_row("until", plan.stops)
    facts.add_row("disk", Text(disk_text(plan.disk), style="red" if plan.disk.is_short else ""))
    code = Text(plan.fingerprint)
    if plan.partial:
        code.append("; rows from before the fork are by older code", style="yellow")
    elif plan.recorded not in ("", plan.fingerprint):
        code.append(f"; it was {plan.recorded}", style="dim")
    facts.add_row("code", code)
    console.print(facts)
    ranges = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("topic", "partition", "from", "to", "records", "source"):
        ranges.add_column(name, justify="left" if name in ("topic", "source") else "right")
    for r in plan.ranges:
        source = Text(source_text(r), style="red" if r.lost or r.thinned else "")
        ranges.add_row(r.topic, str(r.partition), f"{r.begin:,}", f"{r.end:,}", f"{r.records:,}", source)
    console.print(ranges)
    tables = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    tables.add_column("table", no_wrap=True)
    tables.add_column("what becomes of it")
    for effect in plan.tables:
        tables.add_row(effect.table, effect.effect)
    for sink in plan.sinks:
        tables.add_row(f"→ {sink}", plan.publishing(sink))
    console.print(tables)
    for line in plan.touches:
        what, _, names = line.partition(": ")
        console.print(Text.assemble((f"{what}  ", "dim"), names))
    console.print(Text.assemble(("readers  ", "dim"), plan.readers))
    for loss in plan.accepted:
        console.print(Text.assemble(("gap  ", "yellow"), f"{loss}: accepted; the new epoch's row records it"))
    for refusal in plan.refusals:
        console.print(Text.assemble(("refused  ", "bold red"), refusal))


def unread(row: Mapping[str, Any], topology: Topology) -> str:
    """Say what of a refused record its topic's definition can't read, and why; "" where it can, or reads no such topic."""
    from watertable.errors import WatertableError
    from watertable.kafka import serdes

    topic = next((topic for topic in topology.topics if topic.name == row["topic"]), None)
    if topic is None or row["node"] != "topic":
        return ""
    for data, schema, form in ((row["key"], topic.key, topic.key_format), (row["value"], topic.value, topic.value_format)):
        try:
            serdes.decode(None if data is None else bytes(data), schema, form)
        except WatertableError as error:
            return str(error)
    return ""


def tell_diff(console: Console, found: Diff, *, as_json: bool) -> None:
    """Tell what a shadow would change: to a person as tables, to a program as one line of JSON."""
    if as_json:
        print(json.dumps({"event": "diff"} | json.loads(found.to_json())), flush=True)
    else:
        print_diff(console, found)


def print_diff(console: Console, found: Diff) -> None:
    """Print what a shadow would change: how many rows of each table and in which columns, then some of them."""
    from watertable.acts.shadow import columns_text

    console.print(
        Text.assemble((found.app, "bold"), f"  {found.words}  ", (found.live, "cyan"), ("  beside  ", "dim"), (found.shadow, "bold cyan"))
    )
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    facts.add_row("found", Text(found.verdict, style="" if any(t.rows for t in found.tables) else "green"))
    read = (
        "both have read the same records"
        if found.exact
        else "the app had read a little less there: it has no commit at the shadow's offsets"
    )
    facts.add_row("read", Text(read, style="" if found.exact else "yellow"))
    if found.missing:
        facts.add_row("to read", f"{found.missing:,} records, which the app has read since")
    console.print(facts)
    tables = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    tables.add_column("table", no_wrap=True)
    for name in ("added", "removed", "changed"):
        tables.add_column(name, justify="right")
    tables.add_column("columns")
    for t in found.tables:
        what = Text(columns_text(t))
        for said, style in ((t.note, "yellow"), ("by arrival" if t.by_arrival and t.rows else "", "dim")):
            what.append(f"{'; ' if what.plain and said else ''}{said}", style=style)
        counts = [
            Text(f"{n:,}", style=style if n else "dim") for n, style in ((t.added, "green"), (t.removed, "red"), (t.changed, "yellow"))
        ]
        tables.add_row(t.table, *counts, what)
    console.print(tables)
    if any(t.samples for t in found.tables):
        rows = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for name in ("table", "", "key", "now", "shadow"):
            rows.add_column(name, overflow="fold")
        for t in found.tables:
            for n, s in enumerate(t.samples):
                rows.add_row("" if n else t.table, Text(s.kind, style="dim"), *(_json_fields(text) for text in (s.key, s.old, s.new)))
        console.print(rows)


def print_done(console: Console, app: str, position: str, before: str) -> None:
    """Say where an app is after a rewind or a promote, and how to take it back."""
    console.print(
        f"[green]✓[/] {app} is at [cyan]{position}[/]; what was is at [cyan]{before}[/], and `watertable undo {app}` brings it back",
        highlight=False,
    )


def print_explanation(console: Console, told: Explanation, limit: int) -> None:
    """Print the records that made a row, oldest first and the newest of them at most so many, and what was left out.

    What of the rows' keys wasn't asked for, such as their windows, is shown beside them.
    """
    console.print(Text.assemble((told.table, "bold"), "  ", _key(told.key), (f"  {told.records:,} records read", "dim")))
    if not told.steps and not told.left_out:
        console.print(
            f"No record has made such a row, the key taken letter for letter; `watertable query {told.table}` shows some that there are."
        )
        return
    open_key = next(([n for n in step.key if n not in told.key] for step in told.steps), [])
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, row_styles=("", "dim"))
    for name in ("place", "time", "record", *open_key, "row after it"):
        shown.add_column(name, overflow="fold")
    for step in told.steps[-limit:]:
        after = Text("no row", style="dim italic") if step.row is None else _fields(step.row)
        record = Text("tombstone" if step.offset is not None else "a punctuator's call", style="dim italic")
        place = f"{step.topic}/{step.partition}" + ("" if step.offset is None else f"@{step.offset}")
        beside = (_cell(step.key[name]) for name in open_key)
        shown.add_row(place, f"{step.timestamp:%F %T}Z", record if step.record is None else _fields(step.record), *beside, after)
    console.print(shown)
    changes, records = len(told.steps), len({(s.topic, s.partition, s.offset) for s in told.steps if s.offset is not None})
    made = f"{_count(records, 'record')} made it" + (f", in {_count(changes, 'change')}" if changes != records else "")
    console.print(made + (f"; the newest {limit:,} are shown, --limit shows more" if changes > limit else ""), style="dim", highlight=False)
    if told.arrival:
        console.print(
            Text.assemble(
                ("arrival  ", "yellow"),
                "this table depends on how its records arrived. The story takes them by their times, and not by the app's commits: what "
                f"readers see may differ; `watertable query {told.table}` shows it.",
            )
        )
    groups = groupby(told.left_out, lambda out: (out.topic, out.partition, out.offset, out.perhaps))
    left_out = [(place, list(outs)) for place, outs in groups]
    unsure = [one for one in left_out if one[0][3]]
    for (topic, partition, offset, perhaps), (first, *others) in [*(one for one in left_out if not one[0][3]), *unsure[:limit]]:
        reason = first.reason
        if first.window is not None and others and others[-1].window is not None:
            reason = f"late for {len(others) + 1} windows, from {first.window[0]:%F %T}Z to {others[-1].window[1]:%F %T}Z"
        mark = ("perhaps   " if perhaps else "left out  ", "yellow")
        console.print(Text.assemble(mark, f"{topic}/{partition}@{offset}  {reason}", (f"  {first.location}", "dim")))
    if unsure:
        more = f"; {limit:,} of {len(unsure):,} are shown" if len(unsure) > limit else ""
        console.print(f"perhaps: left out before it was known of which row it would have been{more}", style="dim", highlight=False)


def explanation_json(told: Explanation) -> str:
    """Write what `print_explanation` shows, all of it, for programs."""
    return plain_json(asdict(told))


def print_finding(console: Console, found: Found, culprit: Culprit | None, unknown: str, ranges: tuple[Offsets, Offsets]) -> None:
    """Print where a condition became true: the commit, the keys, and the record; or that it never was, as far as is known."""
    console.print(Text.assemble((found.table, "bold"), f"  {found.condition}  ", (f"looked through up to {found.head}", "dim")))
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    if found.at is None and not found.already:
        facts.add_row("never", "no commit has left a row for which it was true")
    if found.already:
        facts.add_row("already", f"true of {_count(found.already, 'key')} at the beginning of what is kept")
    if found.at is not None and found.commit is not None:
        facts.add_row("first at", Text.assemble((str(found.at), "bold cyan"), f"  committed {found.commit.commit_time:%F %T}Z"))
        for became in found.keys[:_KEYS]:
            old = Text("no row", style="dim italic") if became.old is None else _fields(became.old)
            facts.add_row("key", Text.assemble(_key(became.key), "  ", old, ("  →  ", "dim"), _fields(became.new)))
        if len(found.keys) > _KEYS:
            facts.add_row("", Text(f"and {len(found.keys) - _KEYS:,} more keys in the same commit", style="dim"))
    if culprit is not None:
        record = Text("tombstone", style="dim italic") if culprit.record is None else _fields(culprit.record)
        place = f"{culprit.topic}/{culprit.partition}@{culprit.offset}"
        facts.add_row("record", Text.assemble((place, "bold cyan"), f"  {culprit.timestamp:%F %T}Z  ", record))
        old = Text("no row", style="dim italic") if culprit.old is None else _fields(culprit.old)
        facts.add_row("made", Text.assemble(_key(culprit.key), "  ", old, ("  →  ", "dim"), _fields(culprit.new)))
    elif found.at is not None:
        begin, end = ranges
        among = ", ".join(f"{t}/{n}@{begin[t, n]} to {end[t, n] - 1}" for t, n in sorted(begin) if begin[t, n] < end[t, n])
        facts.add_row("record", Text.assemble(f"among {among}", (f"  {unknown}", "yellow")))
    if found.since is not None:
        facts.add_row(
            "history", Text(f"begins at {found.since}: what was before is trimmed, or of a table that was rebuilt since", style="yellow")
        )
    if found.ever:
        facts.add_row("in all", f"true of {_count(found.ever, 'key')} at some time, of {_count(found.now, 'key')} now")
    console.print(facts)


def finding_json(found: Found, culprit: Culprit | None, unknown: str) -> str:
    """Write what `print_finding` shows, for programs; `at` is null where it never became true. `became` counts the keys, all of them."""
    body = {
        "table": found.table, "condition": found.condition, "head": str(found.head), "since": found.since and str(found.since),
        "already": found.already, "ever": found.ever, "now": found.now, "at": found.at and str(found.at),
        "committed": found.commit and found.commit.commit_time,
        "became": len(found.keys), "keys": [asdict(became) for became in found.keys[:_MOST_KEYS]],
        "record": None if culprit is None else asdict(culprit), "unknown": unknown or None,
    }  # fmt: skip
    return plain_json(body)


def print_preview(console: Console, seen: Preview, limit: int) -> None:
    """Print what a definition makes of the last records: the rows that differ from the live table first, and in words what was compared."""
    live = "no live table" if seen.live is None else f"live {seen.live.position}, as folded"
    console.print(Text.assemble((seen.table, "bold"), f"  on the last {seen.records:,} records  ", (f"{seen.fingerprint}, {live}", "dim")))
    places = [f"{t}/{n}@{begin} to {seen.end[t, n] - 1}" for (t, n), begin in seen.begin.items() if begin < seen.end[t, n]]
    console.print(Text(", ".join([*places[:_KEYS], *(["…"] if len(places) > _KEYS else [])]), style="dim"))
    pairs = sorted(seen.pairs, key=lambda pair: list(_PAIRS).index(pair.mark))
    if pairs:
        console.print(_side_by_side(pairs[:limit]))
    counts = (f"{sign} {seen.count(mark):,} {mark}".strip() for mark, (sign, _) in _PAIRS.items())
    more = f"first {limit:,} of {len(pairs):,} rows; " if len(pairs) > limit else ""
    console.print(f"{more}{', '.join(counts)}", style="dim", highlight=False)
    console.print(seen.says, highlight=False)
    for reason, count in seen.dropped.items():
        console.print(Text.assemble(("dropped  ", "yellow"), f"{reason}  {count:,}"))
    for node, location, count in seen.refused:
        console.print(Text.assemble(("refused  ", "bold red"), f"{node}  {count:,}", (f"  {location}", "dim")))
    console.print("nothing was committed", style="dim")


def preview_json(seen: Preview) -> str:
    """Write what `print_preview` shows, all of it, for programs."""
    places = [{"topic": t, "partition": n, "from": begin, "to": seen.end[t, n]} for (t, n), begin in seen.begin.items()]
    body = {
        "table": seen.table, "fingerprint": seen.fingerprint, "records": seen.records, "ranges": places,
        "live": seen.live and str(seen.live.position), "says": seen.says, "dropped": dict(seen.dropped),
        "refused": [{"node": node, "location": location, "records": n} for node, location, n in seen.refused],
        "rows": [{"mark": pair.mark, "key": pair.key, "here": pair.here, "live": pair.live} for pair in seen.pairs],
    }  # fmt: skip
    return plain_json(body)


def _side_by_side(pairs: Sequence[Pair]) -> Table:
    """Lay pairs of rows out: how the two stand to each other, the key, and each value beside the other one."""
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    keys, values = list(pairs[0].key), list(dict.fromkeys(n for p in pairs for n in (p.here or p.live or {})))
    shown.add_column("")
    for name in (*keys, *values):
        shown.add_column(name, overflow="fold")
    for pair in pairs:
        mark, style = _PAIRS[pair.mark]
        cells = [_beside(pair, name) for name in values]
        shown.add_row(Text(mark, style=style), *(_cell(pair.key[name]) for name in keys), *cells, style="dim" if mark == "=" else "")
    return shown


def _beside(pair: Pair, name: str) -> Text:
    """Show a value, and the live one before it where that is another."""
    row = pair.here if pair.here is not None else pair.live or {}
    value = _cell(row[name]) if name in row else Text("")
    if pair.here is None or pair.live is None or name not in pair.live or pair.live[name] == row.get(name):
        return value
    return Text.assemble(_cell(pair.live[name]), (" → ", "yellow"), value)


def _head(console: Console, answer: Answer) -> None:
    console.print(Text.assemble((answer.title, "bold"), "  ", (answer.position, "cyan")))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _key(key: Mapping[str, object]) -> Text:
    return Text(", ").join(Text(str(plain(value)), style="bold") for value in key.values())


def _json_fields(text: str | None) -> Text:
    return Text("no row", style="dim italic") if text is None else _fields(json.loads(text, parse_float=Decimal))


def _fields(row: Mapping[str, object]) -> Text:
    return Text("  ").join(Text.assemble((f"{name} ", "dim"), _cell(value)) for name, value in row.items())


def _cell(value: object) -> Text:
    match value:
        case None:
            return Text("null", style="dim italic")
        case bool():
            return Text(str(value).lower())
        case int() | Decimal():
            return Text(f"{value:,f}" if isinstance(value, Decimal) else f"{value:,}", style="red" if value < 0 else "")
        case float():
            return Text(f"{value:,.6g}")
        case dict() | list():
            return Text(plain_json(value))
        case _:
            return Text(str(plain(value)))


def _bytes(value: object) -> Text:
    """Show bytes as the text that they are, else in hexadecimal digits."""
    if not isinstance(value, bytes):
        return _cell(value)
    with suppress(UnicodeDecodeError):
        if (text := value.decode()).isprintable():
            return Text(text)
    return Text.assemble(("hex ", "dim"), value.hex())


def _ago(when: datetime) -> str:
    return _span(datetime.now(UTC) - when)


def _span(duration: timedelta) -> str:
    seconds = max(0.0, duration.total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
