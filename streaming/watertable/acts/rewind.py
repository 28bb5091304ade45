"""Rewind an app: a plan first, which says all that will happen and changes nothing, then one row that makes it so.

    plan = rewind.plan(store, topology, admin, Target.parse(to="2011-06-01T00:00Z"))
    rewind.apply(store, plan, topology.fingerprint, admin)

A rewind is an epoch: (parent, fork), one `__commit` row in the line of writers, atomic over all tables. It takes the writer's place and
leaves it again: whoever writes the app goes on from the fork, in the same process or the next. Nothing is deleted; what the left epoch
committed stays readable at its positions, and `undo` is one more epoch, which forks where that one ended. The law: after a rewind and its
replay every table is what it was, and nothing that was published is published again, but for what is of several records, or has waited.
With `emit`, all that the replay makes is published once more: the epoch's row says so, and whoever publishes goes by it.

A rewind in the shadow begins an epoch beside the current one, which changes nothing for anybody until it is promoted: see `shadow`. So
does a rebuild of some tables, which makes them, and all that is computed from them, from the first record on, and is promoted by
joining them alone: no other table moves, and nobody's offsets do.

`apply` takes exactly the plan. It refuses, and says what moved, when the app, its code or Kafka's records are no longer what was planned,
or what it would go back to isn't kept any more.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from watertable import failpoints
from watertable.acts.compaction import lacks
from watertable.acts.estimates import Disk, disk_text, estimate, written
from watertable.acts.plans import Effect, Emission, Range, RewindPlan
from watertable.acts.rebuild import end_of, is_made_by, misfit, parse_days, rebuilt, unfilled
from watertable.acts.targets import Target as Target
from watertable.acts.targets import fork_of, measured, unkept, until_of
from watertable.errors import NothingToRewind, PlanOutdated, RewindRefused, StoreError, UnknownPosition
from watertable.kafka.admin import partitions_of
from watertable.plan.deployment import Kind, Outline, classify
from watertable.plan.lineage import topics_of
from watertable.plan.purity import Purity, purity_of
from watertable.settings import BATCH_RECORDS
from watertable.store.archive import Archives
from watertable.store.bases import base_name
from watertable.store.changelog import EPOCH_LINE, QUARANTINE_TABLE
from watertable.store.commits import BACK, DAYS, EMIT, LEFT, OF, UNTIL, CommitInfo, DaySpan, Head, Offsets, Position, now_after
from watertable.store.writer import WRITER_LINE, Act, shadow_line

if TYPE_CHECKING:
    from watertable.kafka.admin import Admin
    from watertable.plan.plan import TableDef, Topology
    from watertable.store.deltalog import Snapshot
    from watertable.store.writer import Store

_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """Hold what a plan is drawn from: when it was looked up, the app's head, the place to fork at, and what Kafka still has.

    `begins` are the offsets from which the fork goes on, `available` those from which on archives and Kafka have everything, `archived`
    those up to which it is in archives; `compacted` says what topics lack that Kafka compacts. `unread` are the offsets [from, to) of
    partitions, and of topics that were created anew, of which the app has read nothing. `records` counts what was committed after the fork,
    up to `until` or the head, None where other records are read. `samples` are (records, milliseconds) of commits, `grown` (records, bytes)
    of them; `folded` are the bytes of the tables.
    """

    at: datetime
    head: Head
    parent: int
    fork: Position
    back: int
    fork_fingerprint: str
    begins: Offsets
    available: Offsets
    archived: Offsets = field(default_factory=dict)
    renamed: frozenset[str] = frozenset()
    compacted: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    records: int | None = None
    samples: Sequence[tuple[int, int]] = ()
    until: CommitInfo | None = None
    grown: Sequence[tuple[int, int]] = ()
    folded: int = 0
    free: int | None = None


def check_emits(topology: Topology, rebuilds: Collection[str]) -> None:
    """Refuse `--emit` where nothing is published: by a rebuild of some tables, and by an app without output topics."""
    if rebuilds:
        raise RewindRefused(
            "--emit: output topics get nothing of a rebuild of some tables: there is nothing to publish again. "
            "Leave it out, or rewind all tables"
        )
    if not topology.sinks:
        raise RewindRefused(f"--emit: {topology.app} has no output topics: there is nothing to publish again. Leave it out")


def plan(
    store: Store, topology: Topology, kafka: Admin, target: Target, *, batch_records: int = BATCH_RECORDS,
    accept_loss: Iterable[str] = (), keep_old_code_before: bool = False, reason: str = "", shadow: bool = False,
    tables: Sequence[str] = (), days: DaySpan | None = None, emit: bool = False, until: Target | None = None, despite_disk: bool = False,
) -> RewindPlan:  # fmt: skip
    """Say what a rewind will do, in place or in the shadow; nothing is changed. With `tables`, it rebuilds those and what is made of them.

    With `days`, their windows that start on them, and the target is the start of the first. With `emit`, what the replay makes is
    published again. With `until`, a shadow stops there for now.

    What stands in its way and can be had by saying so (losses, older code, a disk that may be too small) is in `refusals`. Raises
    `RewindRefused` for a target that isn't there: in the future, behind what is kept, of a topic that the app doesn't read;
    `TableNotFound` for an app that never ran; `KafkaError` when the cluster doesn't answer.
    """
    rebuilds = rebuilt(topology, tables, days) if tables else ()
    if rebuilds and days is None and target.kind != "earliest":
        raise RewindRefused(
            f"--table goes {target}: some tables alone are made anew from the first record on, since the others don't go back; "
            "leave the target out, or rewind all tables"
        )
    if emit:
        check_emits(topology, rebuilds)
    if until is not None and (days is not None or not shadow):
        raise RewindRefused("--until is where a shadow stops, to be compared there: it goes with --shadow, and without --days")
    part = topology.above(rebuilds) if rebuilds else topology
    facts = _with_disk(store, survey(store, part, kafka, target, until, shadow=shadow, joins=bool(rebuilds)), part, rebuilds)
    code = store.changelog.code(facts.fork_fingerprint)
    if days is not None:
        facts = dataclasses.replace(facts, until=end_of(store, facts.head, part, rebuilds, days, facts.fork.seq))
        goes_on = is_made_by(code, part)  # what has changed elsewhere makes none of their rows
    else:
        goes_on = code is not None and classify(code, topology).kind is Kind.SAME
    if goes_on:  # what is kept at the fork is as the loaded code keeps it
        facts = dataclasses.replace(facts, fork_fingerprint=topology.fingerprint)
    effects, stale = _effects(store, topology, facts, rebuilds, days, code)
    wrong = misfit(store, topology, facts.head, rebuilds, whole=days is None) if rebuilds else ""
    if not rebuilds and target.kind != "undo":
        wrong = unfilled(code, topology)
    return draw(
        topology, target, facts, effects, stale, batch_records=batch_records, accept_loss=tuple(accept_loss),
        keep_old_code_before=keep_old_code_before, reason=reason, shadow=shadow, rebuilds=rebuilds, misfit=wrong, days=days, emit=emit,
        despite_disk=despite_disk,
    )  # fmt: skip


def survey(
    store: Store, topology: Topology, kafka: Admin, target: Target, until: Target | None = None, *, shadow: bool = False,
    joins: bool = False,
) -> Facts:  # fmt: skip
    """Find the place to fork at, and what there is from there on, up to the head or to where it is to stop.

    A shadow reads up to the app's offsets, which mean nothing in a topic that was re-created; what is joined with the app has no more
    partitions than it.
    """
    changelog = store.changelog
    snapshot = changelog.snapshot()
    head = changelog.head(snapshot)
    if head.last is None and not head.forks:
        raise NothingToRewind(f"{store.app} has committed nothing yet: there is nothing to rewind")
    samples = measured(changelog, snapshot, head)  # first: what comes after finds these commits looked up
    names = [topic.name for topic in topology.topics]
    parent, seq, back = fork_of(store, snapshot, head, target, names)
    of_parent = head if parent == head.position.epoch else changelog.head(snapshot, epoch=parent)
    lineage = of_parent.lineage
    last, way = (head.last, head.lineage) if head.last else (of_parent.last or CommitInfo(), lineage)  # to earliest, and not run since
    here = changelog.commit(snapshot, lineage, seq) if seq else None
    if seq and here is None:
        raise RewindRefused(f"commit {seq} of {store.app} isn't kept any more; rewind to a later one, or to earliest")
    at_fork: Offsets = {}
    if here is not None:  # a fork at the parent's own end goes on behind the parent's gaps
        at_fork = of_parent.last.next if of_parent.last is not None and of_parent.position.seq == seq else here.next
    held = frozenset(topic for topic, _ in at_fork)  # all others are read from their first record on, as when the app began with them
    anew = store.reader.first_offsets(snapshot, way, [p for p in last.next if p[0] not in held])
    own = {p: offset for p, offset in {**at_fork, **anew}.items() if p[0] in names}
    now = kafka.describe(names)
    if missing := [name for name in names if name not in now]:
        raise RewindRefused(f"topic {', '.join(map(repr, missing))} of {store.app} is not on the cluster: there is nothing to read again")
    ids = {**last.topic_ids, **(here or last).topic_ids}  # of a place in an epoch that was left, they may be older ones
    renamed = frozenset(name for name, known in ids.items() if name in now and now[name].id != known)
    read = Counter(topic for topic, _ in own)
    grown = frozenset(name for name, partitions in read.items() if name not in renamed and partitions != now[name].partitions)
    if seq and (other := renamed | (held & grown)):
        raise RewindRefused(
            f"topic {', '.join(sorted(other))} was re-created or given partitions since commit {seq}: "
            "offsets before that mean nothing in it. Only --to earliest can be had: it starts over from what the topic holds."
        )
    apart = renamed | grown if joins else renamed
    if apart and (shadow or joins):
        raise RewindRefused(
            f"topic {', '.join(sorted(apart))} was re-created or given partitions since {store.app} read it: what is made beside it would "
            "never be of the same records. Only all of it, in its place, can be rewound: --to earliest, without --table or --shadow"
        )
    kept = Archives(store.spark, store.warehouse, topology.archived)
    available = kept.look({name: state.id for name, state in now.items()}).earliest(kafka.earliest(kafka.partitions(names)))
    archived = {p: offset for p, offset in kept.reached(available).items() if offset > available[p]}
    from_first = {p for p in archived if p[0] not in held | renamed}
    # an archive that others keep may reach back to before this app began
    begins = {p: min(offset, available[p]) if p in from_first else offset for p, offset in own.items()}
    known: Collection[str] = held
    if shadow or joins:  # beside the app, nothing is read beyond it
        known = {topic for topic, _ in last.next} or names
    new = [p for p in available if p[0] not in known and (p not in own or p[0] in renamed)]
    unread = {p: (available[p], offset) for p, offset in kafka.latest(new).items()} if new else {}
    stop = None if until is None else until_of(store, snapshot, head, until, seq, names)
    end = head.position.seq if stop is None else stop.seq
    # commits tell the records only where just those are read that they have read
    counts = head.lineage.common(lineage) >= seq and begins == own and not unread and end > seq
    return Facts(
        at=datetime.now(UTC), head=head, parent=parent, fork=Position(store.app, lineage.epoch_of(seq) if seq else parent, seq), back=back,
        fork_fingerprint=here.fingerprint if here is not None else "", begins=begins, available=available, archived=archived,
        renamed=renamed, unread=unread, samples=samples, until=stop,
        compacted=lacks(topology, kafka.compacted(names), forked=held, refused=lambda: _unread(snapshot, head)),
        records=changelog.extent(snapshot, head.lineage, seq, end).records if counts else None,
    )  # fmt: skip


def _unread(snapshot: Snapshot, head: Head) -> frozenset[str]:
    """Name the topics of which records were refused as they were read, of those on the app's lineage; whatever else others have changed."""
    rows = snapshot.frame().where(f"`table` = '{QUARANTINE_TABLE}' AND {head.lineage.where(0, head.position.seq)}")
    return frozenset(row.topic for row in rows.where("quarantine_v1.node = 'topic'").select("quarantine_v1.topic").distinct().collect())


def stop_of(store: Store, topology: Topology, until: Target) -> int:
    """Give the commit at which a shadow that there is is to stop for now; raise `RewindRefused` where that is none on its way."""
    snapshot = store.changelog.snapshot()
    head = store.changelog.head(snapshot)
    after = 0 if head.shadow is None else head.shadow.seq
    return until_of(store, snapshot, head, until, after, [topic.name for topic in topology.topics]).seq


def _with_disk(store: Store, facts: Facts, part: Topology, rebuilds: Collection[str]) -> Facts:
    """Look up what a plan of bytes is drawn from: how fast the changelog grows, how much the tables' folds write, and what is free.

    From nothing, a fold writes the table; from what it takes back, about as much as the largest of the last ones did. What is rebuilt
    beside the app is in the changelog once more, when it is joined.
    """
    changelog, names = store.changelog, {table.name for table in part.kept}
    snapshot = changelog.snapshot()
    parts = {row.epoch for row in facts.head.shadows if row.of}
    grown = changelog.grown(snapshot, lambda name: name in names or name.startswith("__"), parts)
    folded = 0
    for table in part.kept:
        log = store.reader.log(base_name(table))
        if (table.name in rebuilds or not rebuilds) and (base := log.latest()) is not None:
            whole = not facts.fork.seq or bool(rebuilds)
            folded += (2 if rebuilds else 1) * base.bytes if whole else log.lately_written(base.version)
    return dataclasses.replace(facts, grown=grown, folded=folded, free=changelog.log.free())


def draw(
    topology: Topology, target: Target, facts: Facts, effects: Sequence[Effect], stale: Sequence[str], *, batch_records: int,
    accept_loss: Sequence[str] = (), keep_old_code_before: bool = False, reason: str = "", shadow: bool = False,
    rebuilds: tuple[str, ...] = (), misfit: str = "", days: DaySpan | None = None, emit: bool = False, despite_disk: bool = False,
) -> RewindPlan:  # fmt: skip
    """Draw the plan from the facts.

    `stale` are tables whose state at the fork has another layout than the code's; `misfit` says which can't go on from there, or beside
    those rebuilt.
    """
    head, last = facts.head, facts.until or facts.head.last
    ends = last.next if last else {}
    ranges = ranges_of(facts, ends)
    names = {r.topic for r in ranges} | {r.name for r in ranges}
    if unknown := [name for name in accept_loss if name not in names]:
        raise RewindRefused(
            f"--accept-loss {', '.join(unknown)}: {topology.app} reads no such topic or partition; name one of {', '.join(sorted(names))}"
        )
    partial = bool(facts.fork.seq) and facts.fork_fingerprint != topology.fingerprint
    accepted = [r for r in ranges if r.name in accept_loss or r.topic in accept_loss]
    refusals = _losses_refused([r for r in ranges if not (r.name in accept_loss or r.topic in accept_loss)])
    if misfit:
        refusals.append(misfit)
    if (shadow or rebuilds) and head.shadow is not None:
        refusals.append(
            f"{topology.app} has a shadow, of {head.shadow.writer!r}: promote it, go on with it (--shadow without a target), or give it "
            "up with --abandon-shadow"
        )
    if partial and (stale or not keep_old_code_before):
        if target.kind == "undo":
            refusals.append(
                f"what it goes back to is of the code {facts.fork_fingerprint}, and {topology.fingerprint} is loaded: load that code, and "
                f"undo with it{'' if stale else '; or say --keep-old-code-before, and rows from before keep what that code made of them'}"
            )
        elif stale:
            refusals.append(
                f"the code has changed the state of {', '.join(stale)}: its rows up to the fork can't go on under it. Rewind to earliest"
            )
        elif not (days and misfit):  # which says it better
            refusals.append(
                f"the code has changed since ({facts.fork_fingerprint} made commit {facts.fork.seq:,}, {topology.fingerprint} would go "
                "on): rows from before the fork keep what the older code made of them. Rewind to earliest, or say --keep-old-code-before"
            )
    counted = None if rebuilds or any(r.lost for r in ranges) else facts.records  # which leaves out the gaps in offsets
    records = sum(r.records for r in ranges) if counted is None else counted
    sinks = () if rebuilds else topology.sinks
    shared = min(head.position.seq, head.lineage.common(head.lineage_of(facts.parent)))  # what another lineage has is no part of it
    disk = Disk(written(facts.grown, records, batch_records), facts.folded, facts.free)
    if disk.is_short and not despite_disk:
        refusals.append(
            f"the disk of the warehouse is too small for it: {disk_text(disk)}. Make room (a shorter horizon_days, then `watertable "
            "maintain`), or go back less far; or say --despite-disk: an app that finds no room stops, whole, and goes on from there later"
        )
    return RewindPlan(
        app=topology.app, target=target, head=str(head.position), generation=head.generation,
        recorded=head.last.fingerprint if head.last else "", fingerprint=topology.fingerprint, fork=str(facts.fork),
        becomes=str(Position(topology.app, head.next_epoch, facts.fork.seq)), parent=facts.parent, back=facts.back,
        commits=0 if shadow or rebuilds else head.position.seq - min(facts.fork.seq, shared), records=records, ranges=ranges,
        tables=tuple(effects),
        sinks=tuple(sink.topic for sink in sinks), again=tuple(sink.topic for sink in sinks if emit or sink.is_of_pairs),
        emits=tuple(Emission(sink.topic, tuple(topic.name for topic in topics_of(sink.node))) for sink in sinks if emit),
        eta=estimate(facts.samples, records, batch_records), disk=disk, partial=partial,
        accepted=tuple(sorted(r.name for r in accepted if r.lost or r.thinned)),
        refusals=tuple(refusals), reason=reason, made_at=facts.at.isoformat(timespec="seconds"), shadow=shadow,
        rebuilds=rebuilds, days="/".join(map(str, days or ())), until=facts.until.seq if facts.until else 0,
    )  # fmt: skip


def _losses_refused(ranges: Sequence[Range]) -> list[str]:
    """Say, of ranges of which no loss was accepted, what Kafka has deleted of each, and what its compaction may have of their topics."""
    deleted = [
        f"{r.name}: Kafka has deleted offsets {r.begin:,} to {r.available - 1:,}. Raise retention next time; to go on without them, say "
        f"--accept-loss {r.name}: the gap is recorded"
        for r in ranges if r.lost
    ]  # fmt: skip
    thinned = {r.topic: r.compacted for r in ranges if r.thinned}
    return deleted + [
        f"Kafka compacts topic {name}: {lack}. An archive keeps all (archive=True), from when it is there on; to go on with what is left, "
        f"say --accept-loss {name}"
        for name, lack in sorted(thinned.items())
    ]


def ranges_of(facts: Facts, ends: Offsets) -> tuple[Range, ...]:
    """Say what is read again of each partition, and what for the first time; a topic that was re-created has lost all that it held."""
    found = []
    for (topic, partition), begin in sorted(facts.begins.items()):
        end, available = ends.get((topic, partition), begin), facts.available.get((topic, partition), begin)
        if topic in facts.renamed:
            available = max(end, begin)
        archived = 0 if topic in facts.renamed else facts.archived.get((topic, partition), 0)
        found.append(Range(topic, partition, begin, max(begin, end), max(begin, available), archived, facts.compacted.get(topic, "")))
    found += [Range(*p, first, last, first, facts.archived.get(p, 0)) for p, (first, last) in sorted(facts.unread.items())]
    return tuple(found)


def apply(
    store: Store, plan: RewindPlan, fingerprint: str, kafka: Admin, *, follow: bool = False, mark: str = ""
) -> tuple[Position, Position]:
    """Carry out a plan: one control row; give where the app was, and from where it goes on.

    The app's writer, if one runs, is fenced by it and takes up its place again at the fork; of a shadow, or a rebuild, it learns nothing,
    and what is begun at the second position is the shadow. With `follow`, what the run that was planned for has committed since then is
    no reason to refuse: it is read again like all the rest. The row keeps `mark` as a counter, by which whoever has begun it knows it
    again. Raises `RewindRefused` for a plan with refusals, `PlanOutdated` when the app, its code or what Kafka holds isn't what was
    planned, or what it forks at was trimmed.
    """
    if plan.refusals:
        raise RewindRefused(f"{plan.app} is not rewound: " + "; ".join(plan.refusals))
    now = kafka.describe({r.topic for r in plan.ranges})
    kept = Archives(store.spark, store.warehouse, {r.topic for r in plan.ranges if r.archived})
    kept.look({topic: state.id for topic, state in now.items()})
    there = kept.earliest(kafka.earliest(partitions_of(now)))  # a topic that was created anew may have fewer than were read
    gone = [f"{r.topic} is deleted" for r in plan.ranges if r.topic not in now]
    needed = {(r.topic, r.partition): max(r.begin, r.available) for r in plan.ranges}  # that of a topic made anew comes after what it held
    deleted = {p: there[p] for p, offset in needed.items() if there.get(p, 0) > offset}
    gone += [f"Kafka has deleted {topic}/{number} up to offset {first:,} since" for (topic, number), first in deleted.items()]
    fork, becomes, before = Position.parse(plan.fork), Position.parse(plan.becomes), Position.parse(plan.head)
    said = _said(plan, becomes.epoch) | ({mark: 1} if mark else {})

    def look(snapshot: Snapshot) -> Act:
        nonlocal before
        head = store.changelog.head(snapshot)
        before = head.position
        lost = unkept(store, snapshot, head, Position(store.app, plan.parent, fork.seq), plan.rebuilds or [*store.reader.tables])
        refuse_if_moved(plan, head, fingerprint, [*gone, *([lost] if lost else ())], follow=follow)
        info = CommitInfo(
            kind="shadow" if plan.is_beside else "epoch", epoch=becomes.epoch, seq=fork.seq,
            generation=1 if plan.is_beside else head.generation + 1, writer=plan.words,
            commit_time=now_after(head.last.commit_time if head.last else None), fingerprint=fingerprint, parent=plan.parent, fork=fork.seq,
            begin={(r.topic, r.partition): r.begin for r in plan.losses}, next={(r.topic, r.partition): r.available for r in plan.losses},
            counters={BACK: plan.back, "records": plan.records, LEFT: head.position.seq, **said},
        )  # fmt: skip
        failpoints.hit("rewind.before_commit")
        note = f"{f'shadow beside {head.position}' if plan.is_beside else 'epoch'} {becomes} generation {info.generation} {plan.words}"
        return Act(info, shadow_line(info.epoch) if plan.is_beside else WRITER_LINE, note, {EPOCH_LINE: info.epoch})

    store.act(look, _TRIES)
    failpoints.hit("rewind.after_commit")
    return before, becomes


def _said(plan: RewindPlan, epoch: int) -> dict[str, int]:
    """Give what the counters of a rewind's row say of the epoch that it begins: of which tables and days it is, and what it publishes."""
    said = {f"{OF}{name}": 1 for name in plan.rebuilds}
    if plan.days:
        said |= {UNTIL: plan.until} if plan.until else {}
        said |= {name: day.toordinal() for name, day in zip(DAYS, parse_days(plan.days), strict=True)}
    if plan.emits:
        said[EMIT] = epoch
    return said


def refuse_if_moved(plan: RewindPlan, head: Head, fingerprint: str, gone: Sequence[str] = (), *, follow: bool = False) -> None:
    """Raise `PlanOutdated`, saying what moved, when the world isn't what was planned for."""
    moved = list(gone)
    epoch = Position.parse(plan.head).epoch
    if head.position.epoch != epoch:
        moved.append(f"{plan.app} was rewound since: it was in epoch {epoch}, and is at {head.position}")
    elif head.next_epoch != Position.parse(plan.becomes).epoch:
        moved.append(f"a shadow of {plan.app} was begun since")
    elif head.generation != plan.generation:
        moved.append(f"{plan.app} was started anew since: generation {plan.generation} then, {head.generation} now")
    elif str(head.position) != plan.head and not follow:
        moved.append(f"{plan.app} went on from {plan.head} to {head.position}")
    if fingerprint != plan.fingerprint:
        moved.append(f"the code changed: {plan.fingerprint} was planned for, {fingerprint} is loaded")
    if moved:
        raise PlanOutdated(f"the plan of {plan.made_at} is out of date: {'; '.join(moved)}. Make a new one", moved=tuple(moved))


def _effects(
    store: Store, topology: Topology, facts: Facts, rebuilds: Collection[str], days: DaySpan | None, code: Outline | None
) -> tuple[list[Effect], list[str]]:
    """Say what happens to each table, and which have another layout of state at the fork; make sure that all can be read there."""
    tables, fork = topology.tables, facts.fork
    columns = store.changelog.snapshot().columns
    if rebuilds:
        others = {t.name: "as it is" if t.state_column in columns else "new: holds only what comes once its code runs" for t in tables}
        anew = "rebuilt from nothing, and joined" if days is None else f"its windows of {days[0]} to {days[1]} are made anew; others stay"
        return [Effect(t.name, f"{anew}{_by_arrival(t)}" if t.name in rebuilds else others[t.name]) for t in tables], []
    if not fork.seq:
        return [Effect(t.name, f"rebuilt from nothing{_by_arrival(t)}") for t in tables], []
    if facts.fork_fingerprint == topology.fingerprint:
        old: set[str] = set()  # the same code has the same layout
    elif code is not None:
        had = {t.name: [code.tables[t.name]] if t.name in code.tables else code.gone.get(t.name, ()) for t in tables}
        old = {t.name for t in tables if any(known.state_version != t.state_version for known in had[t.name])}
    else:  # of long ago: any other layout that there ever was may be its
        old = {t.name for t in tables if any(re.fullmatch(rf"{t.name}_[0-9a-f]{{8}}", c) and c != t.state_column for c in columns)}
    readable = [t.name for t in tables if t.name not in old]
    try:
        bases = store.reader.view(readable + [b.name for b in topology.buffers], Position(store.app, facts.parent, fork.seq)).bases
    except UnknownPosition as error:
        raise RewindRefused(f"{error}, or rewind to earliest") from None
    except StoreError as error:
        raise RewindRefused(str(error)) from None
    found = []
    for t in tables:
        if t.name in old:
            found.append(Effect(t.name, f"as it was at commit {fork.seq:,}, by another layout of its state"))
        elif t.state_column not in columns:
            found.append(Effect(t.name, "new: holds only what comes after the fork"))
        else:
            behind = fork.seq - bases[t.name].seq
            since = f": its fold of {behind:,} commit{'s' * (behind != 1)} before, and what came since" if behind else ""
            found.append(Effect(t.name, f"as it was at commit {fork.seq:,}{since}"))
    return [Effect(e.table, e.effect + _by_arrival(t)) for e, t in zip(found, tables, strict=True)], sorted(old)


def _by_arrival(table: TableDef) -> str:
    return "; it depends on arrival: the replay may make other rows of it" if purity_of(table.node) is Purity.ARRIVAL else ""
