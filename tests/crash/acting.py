"""Do one act on the campaign's app, as a child that is to be killed; or, `again`, what one does after such a death.

An act is prepared, armed and done: in the end the app, or its shadow, is brought to where its topics end. Again is: look with the
product's own reader at what is there, ask for the very same act (the same plan, as JSON), say what came of that, and let the app catch up.
The code of an act that changes it is the other of two.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.crash.child import Script, arm, read, say
from tests.crash.ledger import topology
from watertable.acts import rewind, shadow
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.errors import PlanOutdated, RewindRefused, WatertableError
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.runtime import job
from watertable.store.writer import Store

if TYPE_CHECKING:
    from watertable.store.commits import Offsets

ACTS = ("rewind", "undo", "shadow", "promote", "abandon", "join")
REBUILT = ("entries", "windows")
"""The tables that the two codes make otherwise: a shadow of them is joined to the rest of the app."""


def perform(script: Script, spark: Any, settings: Any, jvm: Any) -> int:
    """Do what the script says."""
    acting = Acting(script, spark, settings)
    if script.again:
        read(replace(script, read=f"{script.read}.before"), spark, settings, acting.code)
        acting.again()
        acting.live()
        read(script, spark, settings, acting.code)
        return 0
    acting.prepare()
    if script.beside:
        acting.begin_beside()
    acting.keep()
    arm(script, jvm)
    acting.act()
    acting.follow()
    return 0


class Acting:
    """Hold the app that is acted on, under both codes; what is to be done again is kept in a file."""

    def __init__(self, script: Script, spark: Any, settings: Any) -> None:
        self.script, self.spark, self.settings = script, spark, settings
        self.kafka = Admin(Cluster.of(settings))
        self.codes = {code: topology(script.suffix, code) for code in ("a", "b")}
        self.file = Path(script.home) / "deed.json"

    @property
    def code(self) -> str:
        """Say by which code the app goes on."""
        head = self.store("a").head()
        by = head.forks[-1].fingerprint if head.forks else ""
        return next((code for code, found in self.codes.items() if found.fingerprint == by), "a")

    @property
    def other(self) -> str:
        """Say which code is the other one."""
        return "b" if self.code == "a" else "a"

    def store(self, code: str) -> Store:
        wanted = self.codes[code]
        return Store.open(self.spark, self.settings.warehouse_uri, wanted.app, wanted.kept)

    def live(self, code: str = "") -> None:
        job.run(self.codes[code or self.code], self.settings, available_now=True, spark=self.spark)

    def begin_beside(self) -> None:
        """Run the app in a thread by the code that it has, until it dies, or is told that it goes on by another."""
        code, started = self.code, threading.Event()

        def beside() -> None:
            try:
                job.run(self.codes[code], self.settings, spark=self.spark, on_event=lambda event: started.set())
            except WatertableError as error:
                say({"event": "beside", "said": str(error)})

        threading.Thread(target=beside, daemon=True).start()
        started.wait(120)

    def replay(self, code: str) -> Callable[[Offsets | None], None]:
        return lambda goal: job.run(self.codes[code], self.settings, shadow=True, goal=goal, spark=self.spark)

    def prepare(self) -> None:
        """Bring the app to where the act makes sense."""
        if self.store("a").head().last is None:
            self.live()
        if self.script.act in ("promote", "abandon", "join") and self.store("a").head().shadow is None:
            whole = {"shadow": True} if self.script.act != "join" else {"tables": REBUILT}
            self.begin(self.planned(self.other, Target("earliest"), **whole))
            self.replay(self.other)(self.half() if self.script.bug == "promote behind" else None)
        self.live()  # what was fed since then puts the app ahead of its shadow
        if self.script.act == "undo":
            self.begin(self.planned(self.code, self.middle()))
            self.live()

    def keep(self) -> None:
        """Plan the act, and keep what it is."""
        plan = None
        match self.script.act:
            case "promote" | "abandon" | "join":
                code = self.other
            case "undo":
                code = self.code
                plan = self.planned(code, Target("undo"))
            case "rewind" if self.script.to == "middle":
                code = self.code
                plan = self.planned(code, self.middle())
            case _:
                code = self.other
                plan = self.planned(code, Target("earliest"), shadow=self.script.act == "shadow")
        self.file.write_text(json.dumps({"code": code, "plan": plan.to_json() if plan else ""}), encoding="utf-8")

    def half(self) -> Offsets:
        last = self.store("a").head().last
        assert last is not None
        return {partition: offset // 2 for partition, offset in last.next.items()}

    def middle(self) -> Target:
        return Target("commit", str(max(1, self.store("a").head().position.seq // 2)))

    def act(self) -> None:
        """Do what was kept; raise what refuses it."""
        code, plan = self.kept()
        match self.script.act:
            case "promote" | "join":
                replay = self.replay(code)
                if self.script.bug == "promote behind":
                    replay = lambda goal: None  # noqa: E731
                shadow.promote(self.store(code), self.codes[code], replay)
            case "abandon":
                shadow.abandon(self.store(code), "as the campaign wants it")
            case _:
                assert plan is not None
                self.begin(plan, follow=self.script.beside)

    def follow(self) -> None:
        """Read again what the act wants read again."""
        if self.script.act == "shadow":
            self.replay(self.kept()[0])(None)
        else:
            self.live()

    def again(self) -> None:
        """Ask for the act once more, and say what came of it: it is done now, or it was done, in the product's own words."""
        try:
            self.act()
        except (PlanOutdated, RewindRefused) as error:
            say({"event": "again", "outcome": "was done", "said": str(error)})
        else:
            say({"event": "again", "outcome": "done now", "said": ""})
        if self.script.act == "shadow":  # resumed, and then given up, to make room for the next
            self.replay(self.kept()[0])(None)
            code = self.kept()[0]
            say({"event": "diff", "exact": shadow.diff(self.store(code), self.codes[code], 0).exact})
            shadow.abandon(self.store(code))

    def begin(self, plan: RewindPlan, *, follow: bool = False) -> None:
        store = self.store("a")
        rewind.apply(store, plan, plan.fingerprint, self.kafka, follow=follow)

    def planned(self, code: str, target: Target, **options: Any) -> RewindPlan:
        return rewind.plan(self.store(code), self.codes[code], self.kafka, target, **options)

    def kept(self) -> tuple[str, RewindPlan | None]:
        found = json.loads(self.file.read_text(encoding="utf-8"))
        return found["code"], RewindPlan.from_json(found["plan"]) if found["plan"] else None
