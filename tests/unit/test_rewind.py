"""Hold plans of rewinds to their arithmetic: targets, ranges, losses, estimates, and what makes a plan refuse; no JVM."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import watertable as wt
from watertable.acts import compaction, parity, rewind
from watertable.acts.compaction import Lack
from watertable.acts.estimates import BEGIN, EVEN, Disk, estimate, written
from watertable.acts.plans import Effect, RewindPlan, source_text
from watertable.acts.rewind import Facts, Target, draw, refuse_if_moved
from watertable.errors import PlanOutdated, RewindRefused, UnknownPosition
from watertable.plan.plan import Topology
from watertable.settings import Settings
from watertable.store.commits import CommitInfo, Head, Lineage, Position
from watertable_platform.cli import rewinding
from watertable_platform.orchestration import behind


def shop(*, twice: bool = False) -> Topology:
    app = wt.App("shop")
    moves = app.topic("moves", key="k STRING", value="qty BIGINT").stream()
    stock = moves.group_by_key().agg(qty=wt.sum("qty * 2" if twice else "qty")).materialized_as("stock")
    stock.to_stream().filter("new.qty < 0").to("low")
    return app.topology()


def head(seq: int = 10, epoch: int = 1, generation: int = 3, forks: tuple[CommitInfo, ...] = (), **changes: Any) -> Head:
    last = CommitInfo(
        epoch=epoch,
        seq=seq,
        next={("moves", 0): 100 * seq, ("moves", 1): 50 * seq},
        fingerprint=shop().fingerprint,
        topic_ids={"moves": "a"},
    )
    return Head(Position("shop", epoch, seq), dataclasses.replace(last, **changes), generation, Lineage.of(epoch, forks), 7, (), forks)


def facts(seq: int = 4, available: Mapping[tuple[str, int], int] | None = None, **changes: Any) -> Facts:
    begins = {("moves", 0): 100 * seq, ("moves", 1): 50 * seq}
    kept = {"fork_fingerprint": shop().fingerprint if seq else ""}
    return Facts(**{
        "at": datetime(2011, 6, 1, 12, 30, 15, 250_000, UTC), "head": head(), "parent": 1, "fork": Position("shop", 1, seq), "back": 1,
        "begins": begins, "available": available or dict.fromkeys(begins, 0), "records": 900, **kept, **changes,
    })  # fmt: skip


def planned(found: Facts | None = None, topology: Topology | None = None, stale: tuple[str, ...] = (), **options: Any) -> RewindPlan:
    target = options.pop("target", Target.parse(to="4"))
    return draw(
        topology or shop(), target, found or facts(), [Effect("stock", "as it was")], stale, **{"batch_records": 400_000, **options}
    )


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ({"to": "earliest"}, "earliest", ""),
        ({"to": "481"}, "commit", "481"),
        ({"to": "version 0481"}, "commit", "481"),
        ({"to": "shop@2.17"}, "commit", "shop@2.17"),
        ({"to": "2011-06-01"}, "event", "2011-06-01T00:00:00+00:00"),
        ({"to": "2011-06-01T02:00:00.5+02:00"}, "event", "2011-06-01T00:00:00.500000+00:00"),
        ({"to": '{"moves": {"1": 5, "0": 7}}'}, "offsets", '{"moves": {"0": 7, "1": 5}}'),
        ({"by": "10 min"}, "by", "600"),
        ({"by": "1.5h"}, "by", "5400"),
        ({"shift_by": -1000}, "shift", "1000"),
    ],
)
def test_a_target_has_one_form_however_it_is_written(given: dict[str, Any], kind: str, value: str) -> None:
    assert Target.parse(**given) == Target(kind, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_offsets_come_from_a_file_too(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "offsets.json").write_text('{"moves": {"0": 7}}', encoding=encoding)
    assert Target.parse(to=str(tmp_path / "offsets.json")) == Target("offsets", '{"moves": {"0": 7}}')


def test_a_file_that_holds_no_text_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "offsets.json").write_bytes(b"\xff")
    with pytest.raises(RewindRefused, match=r"offsets are written .*, not b'\\xff' of .*offsets.json"):
        Target.parse(to=str(tmp_path / "offsets.json"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "in one way"),
        ({"to": "earliest", "by": "1 h"}, "in one way"),
        ({"to": "yesterday"}, "write earliest, a time"),
        ({"to": "nowhere.json"}, "can't read the offsets in nowhere.json"),
        ({"to": '{"moves": 7}'}, "offsets are written"),
        ({"to": '{"moves": {"0": 5, "00": 7}}'}, "offsets are written"),
        ({"to": '{"moves": {"0": true}}'}, "offsets are written"),
        ({"to": '{"moves": ' + "[" * 100_000}, "offsets are written"),
        ({"by": "soon"}, "no duration"),
        ({"by": "0 s"}, "no duration"),
        ({"shift_by": 0}, "goes nowhere"),
    ],
)
def test_a_target_that_is_none_is_refused_with_the_way_out(given: dict[str, Any], told: str) -> None:
    with pytest.raises(RewindRefused, match=told):
        Target.parse(**given)
    with pytest.raises(UnknownPosition):
        Target.parse(to="shop@x")


def test_a_plan_names_what_is_read_again_and_where_the_app_goes_on() -> None:
    plan = planned()
    assert [(r.name, r.begin, r.end, r.records, r.lost) for r in plan.ranges] == [
        ("moves/0", 400, 1000, 600, 0),
        ("moves/1", 200, 500, 300, 0),
    ]
    assert (plan.head, plan.fork, plan.becomes, plan.parent, plan.commits, plan.records) == ("shop@1.10", "shop@1.4", "shop@2.4", 1, 6, 900)
    assert (plan.sinks, plan.refusals, plan.losses, plan.words) == (("low",), (), (), "rewind to commit 4")
    assert planned(reason="a bad price").words == "rewind to commit 4: a bad price"
    assert (plan.made_at, planned()) == ("2011-06-01T12:30:15+00:00", plan)  # the same facts, the same plan


def test_commits_are_left_behind_that_the_place_forked_at_has_not() -> None:
    (fork,) = forks = (CommitInfo(kind="epoch", epoch=2, parent=1, fork=2),)
    undo = planned(facts(5, head=head(3, 2, forks=forks), fork=Position("shop", 2, 5)))
    assert (undo.commits, undo.left_behind) == (1, "1 commit is left behind"), "of the rewind's epoch one came after its fork, at commit 2"
    assert planned(facts(2, head=head(3, 2, forks=forks), fork=Position("shop", 2, 2))).commits == 1
    from_nothing = (dataclasses.replace(fork, fork=0),)
    assert planned(facts(5, head=head(1, 2, forks=from_nothing), fork=Position("shop", 2, 5))).commits == 1
    assert planned(facts(6)).left_behind == "4 commits are left behind"
    beside = planned(facts(6), shadow=True)
    assert (beside.commits, beside.left_behind) == (0, "nothing is left behind")


def test_a_plan_that_publishes_again_names_the_topics_and_the_records_of_which() -> None:
    plan = planned(emit=True, reason="a bad price")
    assert (plan.words, plan.again) == ("rewind to commit 4, emitting: a bad price", ("low",))
    assert json.loads(plan.to_json())["emits"] == [{"topic": "low", "of": ["moves"]}]
    assert RewindPlan.from_json(plan.to_json()) == plan
    told = "all that is made of moves from these offsets on is published again, as asked"
    assert (plan.publishing("low"), f"output topic low: {told}" in plan.markdown()) == (told, True)
    assert planned(emit=True, shadow=True).publishing("low") == f"{told}, once it is promoted"
    assert (planned().emits, planned().publishing("low")) == ((), "nothing that was published is published again")
    assert RewindPlan.from_json(json.dumps({k: v for k, v in json.loads(planned().to_json()).items() if k != "emits"})) == planned()


def test_what_has_waited_is_published_again_and_the_plan_speaks_of_no_pairs_where_there_are_none() -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="k STRING", value="qty BIGINT").stream()
    hours = moves.group_by_key().windowed_by(wt.tumbling(hours=1), emit="on_close").agg(qty=wt.sum("qty")).materialized_as("stock")
    hours.to_stream().to("hourly")
    told = planned(topology=app.topology()).publishing("hourly")
    assert told == "what comes after the fork is published again: it is of several records, or has waited, so no one place tells if it was"


def test_an_epoch_that_publishes_again_does_so_alone_or_with_the_shadow_that_it_promoted() -> None:
    forks = (
        CommitInfo(kind="epoch", epoch=2, parent=1, fork=4, counters={"emit": 2}),
        CommitInfo(kind="epoch", epoch=4, parent=3, fork=9, counters={"emit": 3}),
        CommitInfo(kind="epoch", epoch=5, parent=4, fork=12),
    )
    shadows = (CommitInfo(kind="shadow", epoch=3, parent=2, fork=6, counters={"emit": 3}),)
    there = dataclasses.replace(head(epoch=5, forks=forks), shadows=shadows)
    assert [there.emitting(epoch) for epoch in (1, 2, 3, 4, 5)] == [frozenset(), {2}, frozenset(), {3, 4}, frozenset()]


def test_epochs_are_numbered_on_whichever_of_them_forks() -> None:
    forks = (CommitInfo(kind="epoch", epoch=2, parent=1, fork=4), CommitInfo(kind="epoch", epoch=3, parent=1, fork=9))
    assert planned(facts(head=head(epoch=3, forks=forks), parent=3)).becomes == "shop@4.4"


def test_what_kafka_has_deleted_is_listed_and_refused_unless_it_is_accepted_by_name() -> None:
    found = facts(available={("moves", 0): 450, ("moves", 1): 900})
    plan = planned(found)
    assert [(r.name, r.lost, r.records) for r in plan.losses] == [("moves/0", 50, 550), ("moves/1", 700, 0)]
    assert [("moves/0" in r, "moves/1" in r) for r in plan.refusals] == [(True, False), (False, True)]
    assert len(planned(found, accept_loss=("moves/0",)).refusals) == 1
    accepted = planned(found, accept_loss=("moves",))
    assert (accepted.refusals, accepted.accepted) == ((), ("moves/0", "moves/1"))
    with pytest.raises(RewindRefused, match="no such topic"):
        planned(found, accept_loss=("sales",))


def test_a_topic_that_was_created_anew_has_lost_all_it_held() -> None:
    plan = planned(facts(0, renamed=frozenset({"moves"})), target=Target("earliest"))
    assert [(r.lost, r.records) for r in plan.ranges] == [(1000, 0), (500, 0)]
    assert len(plan.refusals) == 2


def test_what_a_plan_says_in_one_number_is_the_sum_of_the_ranges_below_it() -> None:
    samples = {"samples": [(100, 200), (120, 210)], "grown": [(100, 6_000), (1_000, 15_000)], "free": 10_000}
    lost = planned(facts(available={("moves", 0): 900, ("moves", 1): 500}, **samples), accept_loss=("moves",))
    assert [r.records for r in lost.ranges] == [100, 0]
    assert (lost.records, lost.refusals) == (100, ()), "nor are bytes asked for of what isn't read"
    assert lost.eta == planned(facts(records=100, **samples)).eta
    unread = {("moves", 0): (3, 10), ("moves", 1): (0, 2), ("moves", 2): (0, 500)}
    anew = planned(facts(0, renamed=frozenset({"moves"}), records=1500, unread=unread), target=Target("earliest"), accept_loss=("moves",))
    assert [(r.name, r.begin, r.end, r.lost, r.records) for r in anew.ranges] == [
        ("moves/0", 0, 1000, 1000, 0), ("moves/1", 0, 500, 500, 0),
        ("moves/0", 3, 10, 0, 7), ("moves/1", 0, 2, 0, 2), ("moves/2", 0, 500, 0, 500),
    ]  # fmt: skip
    assert anew.records == 509
    assert planned(facts(records=870)).records == 870, "where all is there, what was read leaves out the gaps in offsets"


def test_changed_code_goes_on_from_old_rows_only_when_that_is_said() -> None:
    new = shop(twice=True)
    (refusal,) = planned(topology=new).refusals
    assert "--keep-old-code-before" in refusal
    kept = planned(topology=new, keep_old_code_before=True)
    assert (kept.refusals, kept.partial) == ((), True)
    assert planned(facts(0), new, target=Target("earliest")).refusals == (), "from earliest nothing old is left"
    (layout,) = planned(topology=new, stale=("stock",), keep_old_code_before=True).refusals
    assert "Rewind to earliest" in layout


def test_a_plan_says_what_its_disk_takes_and_is_refused_where_there_is_less_unless_that_is_said() -> None:
    found = facts(grown=[(100, 6_000), (1_000, 15_000)], folded=2_000, free=1_000_000)  # 10 bytes a record, and 5,000 a commit
    plan = planned(found)
    assert (plan.disk, plan.refusals) == (Disk(14_000, 2_000, 1_000_000), ())
    assert planned(found, batch_records=300).disk.replay == 24_000
    assert "Disk: about 16 KB: 14 KB of changelog, 2 KB of tables; 1 MB are free." in plan.markdown()
    (refusal,) = planned(dataclasses.replace(found, free=15_999)).refusals
    for wanted in ("too small for it", "about 16 KB", "16 KB are free", "`watertable maintain`", "--despite-disk"):
        assert wanted in refusal
    assert planned(dataclasses.replace(found, free=15_999), despite_disk=True).refusals == ()
    assert planned(facts(free=0)).refusals == (), "what isn't known is no reason to refuse"
    assert planned(dataclasses.replace(found, free=None)).refusals == (), "nor is a storage that tells of no end"


def test_of_commits_of_one_size_a_record_is_taken_to_cost_its_share() -> None:
    assert written([(10, 20_000), (11, 20_010)], 1_000, 500) == pytest.approx(20_010 / 11 * 1_000, abs=1)
    assert (written([], 10, 5), written([], 0, 5), written([(0, 900)], 10, 5)) == (None, 0, None)


def test_a_shadow_that_stops_on_its_way_is_planned_up_to_there_and_says_so() -> None:
    stop = CommitInfo(epoch=1, seq=7, next={("moves", 0): 700, ("moves", 1): 350})
    plan = planned(facts(until=stop, records=450), shadow=True)
    assert [(r.begin, r.end) for r in plan.ranges] == [(400, 700), (200, 350)]
    assert (plan.until, plan.records) == (7, 450)
    assert "It reads up to commit 7, where it can be compared; it goes on from there when asked." in plan.markdown()
    assert planned(shadow=True).stops == ""


def test_what_stands_behind_the_tables_is_told_check_by_check() -> None:
    plan = dataclasses.replace(planned(), checks=("low/fresh", "stock/fresh", "stock/positive"), assets=("daily", "other/table"))
    assert plan.touches == ("checks: fresh of low, stock; positive of stock", "made from them: daily, other/table")
    for line in plan.touches:
        assert f"- {line}" in plan.markdown()
    assert planned().touches == ()


def test_a_graph_that_cannot_be_had_costs_a_rewind_what_stands_behind_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def torn(*_: object) -> None:
        raise LookupError("no [graph]")

    (tmp_path / "assets").mkdir()
    monkeypatch.setattr(behind, "touched", torn)
    assert rewinding._with_what_is_behind(planned(), Settings.load(tmp_path), shop()) == planned()
    assert "can't be told: LookupError: no [graph]" in capsys.readouterr().err


def test_a_plan_is_json_in_and_out() -> None:
    plan = planned(
        facts(available={("moves", 0): 450, ("moves", 1): 0}, samples=[(100, 20)], grown=[(9, 99)]), accept_loss=("moves",), reason="é"
    )
    plan = dataclasses.replace(plan, checks=("stock/fresh",), assets=("daily",))
    assert RewindPlan.from_json(plan.to_json()) == plan
    assert RewindPlan.from_json(json.dumps({"event": "plan", **json.loads(plan.to_json())})) == plan
    for wrong in ("{}", "[]", "no", '{"app": "shop"}', json.dumps(json.loads(plan.to_json()) | {"more": 1})):
        with pytest.raises(RewindRefused, match="no plan"):
            RewindPlan.from_json(wrong)


def test_a_plan_reads_as_markdown() -> None:
    told = planned(facts(available={("moves", 0): 450, ("moves", 1): 0})).markdown()
    for wanted in (
        "from `shop@1.10` to `shop@2.4`",
        "| moves | 0 | 400 | 1,000 | 550 | 50 gone, then Kafka |",
        "It will be refused",
        "low",
    ):
        assert wanted in told


@pytest.mark.parametrize(
    ("now", "fingerprint", "gone", "told"),
    [
        (head(seq=11), None, [], "went on from shop@1.10 to shop@1.11"),
        (head(generation=4), None, [], "generation 3 then, 4 now"),
        (head(epoch=2, generation=4, forks=(CommitInfo(kind="epoch", epoch=2, parent=1, fork=2),)), None, [], "rewound since"),
        (head(), "wt1:other", [], "the code changed"),
        (head(), None, ["Kafka has deleted moves/0 up to offset 401 since"], "deleted moves/0"),
    ],
)
def test_a_plan_for_a_world_that_moved_is_refused_and_says_what_moved(
    now: Head, fingerprint: str | None, gone: list[str], told: str
) -> None:
    plan = planned()
    refuse_if_moved(plan, head(), plan.fingerprint)
    with pytest.raises(PlanOutdated, match=told) as refused:
        refuse_if_moved(plan, now, fingerprint or plan.fingerprint, gone)
    assert len(refused.value.moved) == 1


def test_what_the_planned_run_has_committed_since_is_accepted_where_that_is_said() -> None:
    plan = planned()
    refuse_if_moved(plan, head(seq=11), plan.fingerprint, follow=True)
    with pytest.raises(PlanOutdated):
        refuse_if_moved(plan, head(seq=11, generation=4), plan.fingerprint, follow=True)


@given(
    st.integers(0, 2_000),
    st.integers(1, 50),
    st.lists(st.integers(1, 500_000), min_size=2, max_size=30, unique=True),
    st.integers(1, 10**7),
)
def test_an_estimate_is_right_where_batches_cost_what_they_cost(fixed: int, per: int, sizes: list[int], records: int) -> None:
    """A batch costs `fixed` ms and one ms for each `per * 10` records."""
    found = estimate([(n, max(1, round(fixed + n / per / 10))) for n in sizes], records, 400_000)
    assert found is not None
    assert 0 <= found.low <= found.likely <= found.high
    true = BEGIN + (-(-records // 400_000) * fixed + records / per / 10) / 1000
    if max(sizes) > 140_000 and max(sizes) > 10 * min(sizes) and records > 100_000:  # a third of a replay's batches
        assert found.likely == pytest.approx(true, rel=0.25, abs=0.5)


@pytest.mark.parametrize(("size", "ms"), [(10_000, 640), (50_000, 800), (400_000, 2_200)])
def test_an_estimate_from_batches_of_one_size_takes_a_part_of_their_time_for_what_any_batch_costs(size: int, ms: int) -> None:
    slow_start = [(size, 9 * ms), (size - 3, 3 * ms)]
    found = estimate([*slow_start, *((size + n % 4, ms + n) for n in range(20))], 2_000_000, 400_000)
    assert found is not None
    assert found.likely == pytest.approx(BEGIN + 0.6 * (5 + 2_000_000 / EVEN), rel=0.1)


def test_a_slow_start_says_nothing_of_the_batches_that_follow() -> None:
    samples = [(400_000, 8_000), (400_000, 4_000), *[(400_000, 3_000)] * 3, *[(100_000, 1_500)] * 3]
    found = estimate(samples, 2_000_000, 400_000)
    assert found is not None
    assert found.likely == pytest.approx(BEGIN + 5 * 3.0, rel=0.05)


def test_a_process_that_was_slow_for_most_of_its_commits_says_nothing_of_those_that_follow() -> None:
    """So it was with the first twenty commits of a process that kept the retail app's tables, and one of its stream."""
    young = [12_400, 6_700, 5_500, 4_400, 6_400, 5_300, 5_200, 4_800, 3_900, 4_000, 4_300]
    samples = [(50_000, ms) for ms in young] + [(50_000, 2_600)] * 8 + [(2_500, 1_175)]
    found = estimate(samples, 1_000_000, 150_000)
    assert found is not None
    assert found.likely == pytest.approx(BEGIN + 7 * 1.1 + 30.0, rel=0.05)


def test_what_small_batches_say_of_large_ones_is_too_much_where_the_usual_share_says_less() -> None:
    """Twenty-four windows a sale: in batches of 100,000 more rows are written for each than in those of 1,000,000."""
    samples = [(100_000, 4_600)] * 20 + [(2_000, 1_100)] * 30
    found = estimate(samples, 2_000_000, 1_000_000)
    assert found is not None
    by_sizes, by_share = BEGIN + 2 * 1.03 + 71.4, BEGIN + 2 * 1.09 + 14.5
    assert found.likely == pytest.approx((by_sizes * by_share) ** 0.5, rel=0.05)
    assert found.low == pytest.approx(0.75 * by_share, rel=0.05)
    assert found.high >= by_sizes
    near = estimate(samples, 300_000, 300_000)
    assert near is not None
    assert near.likely == pytest.approx(BEGIN + 1.03 + 10.7, rel=0.05)


def test_of_two_large_batches_the_slow_first_one_says_nothing() -> None:
    found = estimate([(1_000_000, 6_500), (1_000_000, 4_000), (20_000, 900)], 2_000_000, 1_000_000)
    assert found is not None
    assert found.likely == pytest.approx(BEGIN + 2 * 4.0, rel=0.05)


def test_an_estimate_from_small_batches_says_that_it_reaches_far() -> None:
    found = estimate([(100, 600), (120, 610), (90, 595)], 1_000_000, 400_000)
    assert found is not None
    assert found.high > 2 * found.likely
    assert estimate([], 10, 10) is None
    nothing = estimate([(1, 1)], 0, 10)
    assert nothing is not None
    assert nothing.high == 0


def test_times_are_utc_whatever_the_machine_thinks() -> None:
    assert datetime.fromisoformat(Target.parse(to="2011-06-01").value) == datetime(2011, 6, 1, tzinfo=UTC)


def row(kind: str, epoch: int, parent: int, fork: int, generation: int = 1) -> CommitInfo:
    return CommitInfo(kind=kind, epoch=epoch, seq=fork, parent=parent, fork=fork, generation=generation, writer=f"{kind} {epoch}")


def beside(*rows: CommitInfo, abandoned: frozenset[int] = frozenset()) -> Head:
    forks = tuple(r for r in rows if r.kind == "epoch")
    shadows = tuple(r for r in rows if r.kind == "shadow")
    current = forks[-1].epoch if forks else 1
    return dataclasses.replace(head(epoch=current, forks=forks), lineage=Lineage.of(current, rows), shadows=shadows, abandoned=abandoned)


def test_a_shadow_is_one_until_it_is_promoted_or_given_up_and_takes_a_number_for_good() -> None:
    two = row("shadow", 2, 1, 4)
    assert (beside().shadow, beside().next_epoch) == (None, 2)
    assert (beside(two).shadow, beside(two).next_epoch) == (two, 3)
    assert (beside(two, abandoned=frozenset({2})).shadow, beside(two, abandoned=frozenset({2})).next_epoch) == (None, 3)
    promoted = beside(two, row("epoch", 3, 2, 7))
    assert (promoted.shadow, promoted.next_epoch) == (None, 4)
    assert [(s.epoch, s.after, s.upto) for s in promoted.lineage.spans] == [(1, 0, 4), (2, 4, 7), (3, 7, None)]
    assert promoted.lineage.holds(2, 7)
    assert not promoted.lineage.holds(2, 8), "what a zombie of the shadow writes after that is nobody's"
    assert [(s.epoch, s.after, s.upto) for s in promoted.lineage_of(2).spans] == [(1, 0, 4), (2, 4, None)]
    assert not beside(two).lineage.holds(2, 5), "and before it, the shadow's are nobody's either"


def test_a_plan_for_the_shadow_says_that_nobody_notices_and_waits_for_the_one_there_is() -> None:
    plan = planned(shadow=True, reason="a try")
    assert (plan.words, plan.becomes, plan.refusals) == ("shadow rewind to commit 4: a try", "shop@2.4", ())
    assert "nothing of it until it is promoted" in plan.readers
    assert RewindPlan.from_json(plan.to_json()) == plan
    there = facts(head=beside(row("shadow", 2, 1, 4)))
    (told,) = planned(there, shadow=True).refusals
    assert "has a shadow, of 'shadow 2'" in told
    assert (planned(there).becomes, planned(there).refusals) == ("shop@3.4", ()), "a rewind in place goes on beside it"
    with pytest.raises(PlanOutdated, match="a shadow of shop was begun since"):
        refuse_if_moved(planned(), there.head, shop().fingerprint, follow=True)


def test_an_undo_to_other_code_asks_for_that_code() -> None:
    (told,) = planned(facts(fork_fingerprint="wt1:old"), target=Target("undo")).refusals
    assert "of the code wt1:old" in told
    assert "load that code" in told
    assert planned(facts(fork_fingerprint="wt1:old"), target=Target("undo"), keep_old_code_before=True).refusals == ()


# -- some tables alone ---------------------------------------------------------------------------------------------------------------


def wide() -> Topology:
    app = wt.App("wide")
    sales = app.topic("sales", key="k STRING", value="shop STRING, qty BIGINT").stream()
    rates = app.topic("rates", key="shop STRING", value="rate BIGINT").table()
    kept = rates.materialized_as("kept", history=wt.hours(1))
    stock = sales.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    stock.filter("qty < 10").materialized_as("low")
    stock.group_by("qty").agg(n=wt.count()).materialized_as("levels")
    named = sales.select_key(shop="shop")
    named.join(kept, qty="value.qty", rate="right.rate").group_by_key().agg(worth=wt.sum("qty * rate")).materialized_as("worth")
    app.topic("returns", key="shop STRING", value="qty BIGINT").stream().join(kept, rate="right.rate").to("told")
    return app.topology()


def test_what_is_below_tables_is_rebuilt_with_them_and_what_is_above_is_read_beside() -> None:
    app = wide()
    assert app.below({"stock"}) == ("stock", "low", "levels")
    assert app.below({"low", "kept"}) == ("kept", "low", "worth")
    part = app.above({"levels"})
    assert ([t.name for t in part.tables], [t.name for t in part.topics], part.sinks) == (["stock", "levels"], ["sales"], ())
    assert {b.name for b in app.above({"worth"}).buffers} == {b.name for b in app.buffers}, "known by what they keep, not by who looks"


def test_the_stores_of_a_processor_are_rebuilt_together_with_what_it_forwards() -> None:
    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="page STRING").stream()
    stores = {"seen": wt.key_value_store("n INT"), "pages": wt.key_value_store("n INT", key="page STRING")}
    made = views.process(lambda record, context: None, stores=stores, children={"fresh": "page STRING"})
    made["fresh"].group_by("value.page").agg(n=wt.count()).materialized_as("first")
    views.group_by_key().agg(n=wt.count()).materialized_as("all")
    topology = app.topology()
    chosen = next(t.name for t in topology.tables if t.name.endswith("seen"))
    rebuilt = topology.below({chosen})
    assert {t.name for t in topology.tables} - set(rebuilt) == {"all"}
    assert {t.name for t in topology.above({"first"}).tables} == set(rebuilt), "it can't be called without what it keeps"


def test_a_table_that_was_joined_begins_there_in_the_epochs_that_hold_the_joining_commit() -> None:
    forks = (
        CommitInfo(kind="epoch", epoch=3, seq=10, parent=1, fork=10, counters={"joined": 2, "of:stock": 1}),
        CommitInfo(kind="epoch", epoch=4, seq=11, parent=3, fork=11),
        CommitInfo(kind="epoch", epoch=5, seq=10, parent=3, fork=10),
        CommitInfo(kind="epoch", epoch=6, seq=4, parent=4, fork=4),
    )
    for epoch, begins in ((1, 0), (3, 10), (4, 10), (5, 0), (6, 0)):
        lineage = Lineage.of(epoch, forks)
        assert (lineage.of_table("stock", 12).after, lineage.of_table("names", 12).after) == (begins, 0), epoch
    joined = Lineage.of(3, forks)
    assert joined.of_table("stock", 10) == joined, "before the join it is what it was"
    assert not joined.of_table("stock", 11).holds(1, 10)
    assert joined.of_table("stock", 11).where(0, 11) == "((epoch = 3 AND bucket BETWEEN 0 AND 0 AND seq > 10 AND seq <= 11))"
    shadows = (CommitInfo(kind="shadow", epoch=2, parent=1, fork=0, counters={"of:stock": 1}),)
    assert dataclasses.replace(head(forks=forks[:1]), shadows=shadows).shadow is None


def test_a_plan_of_some_tables_leaves_the_rest_alone_and_says_so() -> None:
    made = planned(facts(0), target=Target("earliest"), rebuilds=("stock",), reason="it was wrong")
    assert (made.words, made.is_beside, made.shadow, made.commits) == ("rebuild of stock: it was wrong", True, False, 0)
    assert (made.sinks, made.again, made.records) == ((), (), 1500)
    assert "output topics get nothing of it" in made.readers
    assert "at `shop@2.0`, beside `shop@1.10`" in made.markdown()
    assert RewindPlan.from_json(made.to_json()) == made
    assert planned(facts(0), target=Target("earliest"), rebuilds=("stock",), misfit="no").refusals == ("no",)


def test_a_compacted_topic_whose_records_all_count_is_refused_without_saying_so() -> None:
    thin = {"moves": Lack.RECORDS}
    found = facts(compacted=thin)
    plan = planned(found)
    assert [source_text(r) for r in plan.ranges] == ["Kafka, which compacts it"] * 2
    (told,) = plan.refusals
    assert "Kafka compacts topic moves" in told
    accepted = planned(found, accept_loss=["moves"])
    assert (accepted.refusals, accepted.accepted) == ((), ("moves/0", "moves/1"))
    assert "of what Kafka's compaction left of moves" in accepted.words, "its row says what it was made of"
    archived = facts(compacted=thin, archived={("moves", 0): 1000, ("moves", 1): 500})
    assert planned(archived).refusals == ()
    assert RewindPlan.from_json(plan.to_json()) == plan


def test_of_a_table_of_a_topic_each_keys_newest_record_is_all_that_counts() -> None:
    app = wt.App("shop")
    names = ("names", "kinds", "homes", "places", "prices", "sold", "old")
    topics = {name: app.topic(name, key="k STRING", value="v BIGINT, c STRING") for name in names}
    topics["names"].table().map_values(w="v + 1").filter("w > 0").materialized_as("wide")
    topics["kinds"].stream().to_table().materialized_as("kinds")
    homes, places = (topics[name].table().materialized_as(name) for name in ("homes", "places"))
    homes.join(places, on="c", v="left.v", w="right.v").materialized_as("joined").group_by("w").count().materialized_as("counts")
    topics["prices"].table().materialized_as("prices").to_stream().to("changes")
    topics["sold"].stream().filter("v > 0").to_table().materialized_as("sold")  # the newest may be left out, and an older one is in
    topics["old"].table().materialized_as("versions", history=wt.days(1))
    topology = app.topology()
    assert compaction.by_all(topology) == {"prices", "sold", "old"}

    def lacks(*forked: str, refused: frozenset[str] = frozenset()) -> dict[str, Lack]:
        return compaction.lacks(topology, {"homes", "places", "sold"}, forked={*forked}, refused=lambda: refused)

    assert lacks() == {"sold": Lack.RECORDS}
    assert lacks("homes", "places", "sold") == {"sold": Lack.RECORDS, "homes": Lack.DELETIONS, "places": Lack.DELETIONS}
    assert lacks("homes", "sold") == {"sold": Lack.RECORDS, "homes": Lack.DELETIONS}, "places are read from their first record on"
    assert lacks(refused=frozenset({"names", "homes"})) == {"sold": Lack.RECORDS, "homes": Lack.OLDER}


def test_parity_names_no_way_out_of_compaction_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewind, "plan", lambda *_, **__: planned(facts(compacted={"moves": Lack.RECORDS})))
    store: Any = SimpleNamespace(app="shop", head=lambda: head())
    with pytest.raises(RewindRefused, match=r"Kafka compacts topic moves: .*archive=True") as refused:
        parity.hold(store, shop(), None, Target("earliest"), lambda: None)  # type: ignore[arg-type]
    assert "--" not in str(refused.value)
