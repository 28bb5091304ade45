"""Do what a person can do in Dagster, in any order, and kill what can die: whenever it has come to rest, all is as that person wants it.

The stream runs where the last that was done to it was to launch it, and doesn't where it was terminated; its table is what the records
make it under the code that it runs; every act has ended and, if it failed, says why; nothing else is left running.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.crash.verify import Lake
from tests.e2e.conftest import SHOP, make_project
from tests.e2e.test_backfill import PATIENCE, ended
from tests.e2e.test_stream import drivers, leases_of, live, ticks
from watertable.project import load_apps
from watertable.settings import Settings

if TYPE_CHECKING:
    from tests.e2e.conftest import Dagster, Project
    from watertable.kafka.config import Cluster
    from watertable.plan.plan import Topology

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

SEED = int(os.environ.get("WATERTABLE_SEED", "20241127"))
STEPS = int(os.environ.get("WATERTABLE_STEPS", "12"))
PLAIN, MORE, FEWER = (
    SHOP,
    SHOP + "    sales.group_by('item').agg(most=wt.max('qty')).materialized_as('most')\n",
    SHOP.replace("stock = sales.group_by", "stock = sales.filter('qty >= 0').group_by"),
)
"""Codes of the app: as it is; with a table more, which rolls in; and with a filter, which breaks."""
CHOICES = {
    "sends": 3, "launches": 2, "terminates": 2, "edits": 4, "rewinds": 3, "rebuilds": 3, "shadows": 3, "promotes": 2, "undoes": 2,
    "backfills": 2, "materializes": 1, "kills_the_driver": 1, "kills_the_worker": 1, "kills_an_act": 1, "kills_all": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def project(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(broker, tmp_path_factory.mktemp("any"), 'days = { shop = "2011-01-01/2011-01-06" }')


class Tale:
    """Hold what a person has done so far, and so what is to be."""

    def __init__(self, project: Project, dagster: Dagster, draw: Random) -> None:
        self.project, self.dagster, self.draw = project, dagster, draw
        self.wanted, self.loaded = False, PLAIN
        self.sent: list[tuple[str, int]] = []
        self.acts: list[str] = []
        self.codes: dict[str, tuple[str, Topology]] = {}
        self.said = ""
        for text in (PLAIN, MORE, FEWER):
            self.write(text)
        self.write(PLAIN)
        self.lake = Lake(project.root / ".watertable" / "warehouse", self.codes[self.fingerprint(PLAIN)][1])

    # -- what is done

    def sends(self) -> None:
        records = [(f"i{self.draw.randint(0, 9)}", self.draw.randint(-20, 60)) for _ in range(self.draw.randint(1, 300))]
        day = min(6, 1 + len(self.sent) // 400)
        self.project.send(*records, at=f"2011-01-0{day}T05:00:00Z", partition=self.draw.randint(0, 1))
        self.sent += records

    def launches(self) -> None:
        """Launch the stream; where there is one, the second is refused."""
        run = self.dagster.launch_stream()
        if self.wanted and self.runs():
            self.dagster.until("the second is refused", lambda: self.dagster.run(run)["status"] == "FAILURE", PATIENCE)
        self.wanted = True

    def terminates(self) -> None:
        if (run := live(self.dagster)) is None:
            self.said += ", there is none"
            return
        force = self.draw.random() < 0.3
        self.dagster.terminate(run["runId"], "MARK_AS_CANCELED_IMMEDIATELY" if force else "SAFE_TERMINATE")
        self.said += " by force" if force else ""
        self.wanted = False
        self.dagster.until("it is canceled", lambda: self.dagster.run(run["runId"])["status"] == "CANCELED", PATIENCE)
        self.dagster.until("its driver is gone", lambda: not drivers(self.project), PATIENCE)

    def edits(self) -> None:
        self.write(self.draw.choice([text for text in (PLAIN, MORE, FEWER) if text != self.loaded]))
        self.dagster.reload()
        self.said += f" to {self.name(self.loaded)}"

    def rewinds(self) -> None:
        to = self.draw.choice(["earliest", "earliest", "1", "2"])
        self.act("rewind", to=to, reason="a tale")

    def rebuilds(self) -> None:
        self.act("rewind", tables=["stock"])

    def shadows(self) -> None:
        self.act("rewind", to="earliest", mode="shadow")

    def promotes(self) -> None:
        self.act("promote", give_up=self.draw.random() < 0.2)

    def undoes(self) -> None:
        self.act("undo")

    def act(self, kind: str, **config: Any) -> None:
        self.said += f" {config}"
        whole = {"ops": {f"{kind}_shop": {"config": {**config, "dry_run": False}}}}
        self.acts.append(self.dagster.launch(f"{kind}__shop", config=whole))

    def backfills(self) -> None:
        first, last = sorted(self.draw.choices(range(1, 5), k=2))
        tables = self.draw.choice([[["shop", "stock"], ["shop", "hourly"]], [["shop", "hourly"]]])
        days = (f"2011-01-0{first}", f"2011-01-0{last}")
        config = {"ops": {"materialize__shop": {"config": {"mode": "in_place", "reason": "a tale"}}}}
        self.acts.append(self.dagster.launch("__ASSET_JOB", tables, config, days=days))
        self.said += f" {days} of {len(tables)}"

    def materializes(self) -> None:
        self.acts.append(self.dagster.launch("__ASSET_JOB", [["shop", "stock"]]))

    def kills_the_driver(self) -> None:
        for pid in drivers(self.project)[:1]:
            os.kill(pid, signal.SIGKILL)

    def kills_the_worker(self) -> None:
        if live(self.dagster) is not None:
            os.kill(leases_of(self.project)["pid"], signal.SIGKILL)

    def kills_an_act(self) -> None:
        """Kill the process that a rewind runs in, once it has begun."""
        self.rewinds()

        def worker() -> str | None:
            tags = self.dagster.run(self.acts[-1])["tags"]
            return tags.get("watertable/worker/shop") or ("ended" if ended(self.dagster, self.acts[-1]) else None)

        found = self.dagster.until("it begins", worker, PATIENCE)
        acting = [pid for pid, command in self.project.processes().items() if " rewind shop --json" in command]
        self.said += f" {found[:60]} {len(acting)}"
        for pid in acting[: self.draw.randint(0, 1)]:
            os.kill(pid, signal.SIGKILL)

    def kills_all(self) -> None:
        self.project.kill()
        self.dagster.stop()
        self.dagster.start()

    # -- what is to be

    def rests(self) -> None:
        """Wait until all has come to rest, and hold it against what is wanted."""
        for act in self.acts:
            self.dagster.until(f"act {act} ends", lambda act=act: ended(self.dagster, act), PATIENCE)
            status, words = self.dagster.run(act)["status"], self.words(act)
            self.said += f"; {status}: {words}"
            assert words or status != "FAILURE"
        self.acts.clear()
        if not self.wanted:
            self.dagster.until("nothing runs", lambda: not drivers(self.project), PATIENCE)
            return
        run = self.dagster.until("it runs, or says why not", lambda: self.gave_up() or live(self.dagster), PATIENCE)
        if (crash := run["tags"].get("watertable/crash", "")) and "BreakingChange" in crash:
            self.said += "; stopped, since the code breaks"
            self.wanted = False
            return
        self.dagster.until("its table is what the records make it", self.holds, PATIENCE)
        assert len(drivers(self.project)) == 1, drivers(self.project)

    def gave_up(self) -> dict[str, Any] | None:
        newest = self.dagster.runs("stream__shop")[0]
        final = "BreakingChange" in newest["tags"].get("watertable/crash", "")
        return newest if newest["status"] == "FAILURE" and final else None

    def runs(self) -> bool:
        return any(r["status"] == "STARTED" for r in self.dagster.runs("stream__shop"))

    def holds(self) -> bool:
        run = live(self.dagster)
        if run is None or not self.lake.exists("stock"):
            return False
        text, topology = self.codes[run["tags"]["watertable/fingerprint"]]
        if text != self.loaded and not self.held():
            return False
        wanted, made = Counter[str](), Counter[str]()
        for item, qty in self.sent:
            if text != FEWER or qty >= 0:
                wanted[item] += qty
                made[item] += 1
        rows = self.lake.rows(self.lake.folder / topology.table("stock").name, "SELECT item, on_hand, sales FROM t")
        return {r["item"]: (r["on_hand"], r["sales"]) for r in rows} == {item: (wanted[item], n) for item, n in made.items()}

    def held(self) -> bool:
        verdict = self.dagster.check("stock", "deployed_code")
        return verdict.get("success") is False

    def words(self, act: str) -> str:
        """Give the words with which a run ended that has failed."""
        found = self.dagster.query(
            """query($i: ID!) { logsForRun(runId: $i, limit: 1000) { ... on EventConnection { events { __typename
                 ... on ExecutionStepFailureEvent { error { message } failureMetadata { description } }
                 ... on RunFailureEvent { message } } } } }""",
            i=act,
        )["logsForRun"]["events"]
        failed = [e for e in found if "Failure" in e["__typename"]]
        return " | ".join(str((e.get("failureMetadata") or {}).get("description") or e.get("message")) for e in failed)[:300]

    def write(self, text: str) -> None:
        self.project.write("app", text)
        self.loaded = text
        if text not in {known for known, _ in self.codes.values()}:
            settings = Settings.load(self.project.root)
            topology = load_apps(settings).apps["shop"].topology
            self.codes[topology.fingerprint] = (text, topology)

    def fingerprint(self, text: str) -> str:
        return next(fingerprint for fingerprint, (known, _) in self.codes.items() if known == text)

    def name(self, text: str) -> str:
        return {PLAIN: "plain", MORE: "more", FEWER: "fewer"}[text]


def test_whatever_is_done_in_dagster_all_comes_to_rest_as_it_is_wanted(project: Project, dagster: Dagster, capsys: Any) -> None:
    """WATERTABLE_STEPS says how much is done, WATERTABLE_SEED what."""
    tale = Tale(project, dagster, Random(SEED))
    tale.sends()
    tale.launches()
    tale.rests()
    for _ in range(STEPS):
        choices = CHOICES if tale.wanted else CHOICES | {"launches": 20}
        for act in tale.draw.choices([*choices], [*choices.values()], k=tale.draw.choice([1, 1, 2, 3])):
            tale.said = f"{tale.said} + {act}" if tale.said else act
            getattr(tale, act)()
        try:
            tale.rests()
        finally:
            with capsys.disabled():
                print(f"\n{tale.said} -> {(live(dagster) or {}).get('tags', {}).get('watertable/position')}", end="")
            tale.said = ""
    ticks(dagster, "reconcile_streams")


def test_nothing_is_left_behind(project: Project, dagster: Dagster) -> None:
    dagster.stop()
    dagster.process = None
    dagster.until("no process is left", lambda: not project.processes())
