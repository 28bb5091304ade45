"""What an app has left out can be looked at: refused records with their bytes, for as long as nobody has taken them up, and late ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

import watertable as wt
from tests import buckets
from tests.kafka.conftest import Project
from watertable import failpoints, lake
from watertable.kafka.config import Cluster
from watertable.project import load_apps
from watertable.settings import Settings
from watertable.store.writer import Store

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
APP = """
import watertable as wt
app = wt.App("till")
moves = app.topic("{moves}", key="sku STRING", value="qty STRING, at TIMESTAMP", timestamp="at").stream()
counted = moves.map_values(qty="{qty}", at="at").expect("small", "qty < 1000")
hourly = counted.group_by("sku").windowed_by(wt.tumbling(hours=1)).agg(qty=wt.sum("qty")).materialized_as("hourly")
asked = moves.filter("key.sku IS NOT NULL").to_table().materialized_as("asked", history=wt.days(1))
"""
BROKEN = b"\xff{broken"
STRICT, LENIENT = "CAST(qty AS BIGINT)", "TRY_CAST(qty AS BIGINT)"


class Till:
    """Hold the project and its topic; a batch is two records, and the horizon is no time at all."""

    def __init__(self, project: Project, cluster: Cluster, moves: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project, self.moves, self.run, self.said, self.json = project, moves, project.run, project.said, project.json
        self._producer = Producer(cluster.client_config())
        with (project.home / "pyproject.toml").open("a") as settings:
            settings.write("batch_records = 2\nhorizon_days = 0.000001\n")
        self.write(STRICT)
        monkeypatch.setattr(lake, "_session", lambda _: project.spark)

    def write(self, qty: str) -> None:
        self.project.write(APP.format(moves=self.moves, qty=qty))

    def produce(self, sku: str | None, qty: str, at: str, headers: dict[str, bytes] | None = None) -> None:
        self.put(sku, json.dumps({"qty": qty, "at": f"2026-03-01T{at}:00Z"}).encode(), headers)

    def put(self, sku: str | None, value: bytes, headers: dict[str, bytes] | None = None) -> None:
        self._producer.produce(self.moves, value, sku, headers=[*(headers or {}).items()])
        self._producer.flush(20)

    def refused(self, at: Any = None) -> list[tuple[str, int]]:
        """List by which commits what offsets were refused."""
        rows = wt.quarantine("till", at, settings=Settings.load(self.project.home)).collect()
        return sorted((row["position"], row["offset"]) for row in rows)


@pytest.fixture
def till(project: Project, broker: Cluster, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Till:
    made = Till(project, broker, topic("moves", partitions=1), monkeypatch)
    made.produce("a", "5", "08:00")
    made.produce("b", "x", "08:01", {"trace": b"t-17", "blob": b"\x00\xff"})
    made.put("a", BROKEN)
    made.produce("a", "5000", "09:30")
    made.produce("a", "1", "08:30")
    made.produce(None, "1", "09:40")
    made.run()
    return made


def test_what_is_refused_is_shown_with_its_bytes_and_stays_until_a_mended_definition_takes_it(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert till.refused() == [("till@1.1", 1), ("till@1.2", 2), ("till@1.2", 3)]
    assert till.refused("till@1.1") == [("till@1.1", 1)]
    shown = till.said("quarantine", "till")
    for wanted in (
        "till, quarantined  till@1.3", f"{till.moves}/0@1", f"{till.moves}/0@2", f"{till.moves}/0@3", "assets/till/app.py:5",
        "an expression fails: CAST(value.qty AS BIGINT)", "the value can't be decoded as", "): not JSON: ", "breaks the rule 'small'",
        'value       {"qty": "x", "at": "2026-03-01T08:01:00Z"}', "hex " + BROKEN.hex(), "header      trace t-17", "blob hex 00ff",
        "3 records", "`watertable rewind till --to till@1.0`",
    ):  # fmt: skip
        assert wanted in shown
    assert "the newest 1 record; --limit shows more" in till.said("quarantine", "till", "--limit", "1")
    row = till.json("quarantine", "till")["rows"][1]
    assert (row["position"], row["offset"], bytes.fromhex(row["value"])) == ("till@1.2", 2, BROKEN)

    buckets.resize(2, monkeypatch.setattr)
    till.produce("a", "2", "10:00")
    till.produce("a", "y", "10:01")
    till.run()
    till.said("maintain", "till")
    assert wt.dropped("till", settings=Settings.load(till.project.home)).count() == 0, "trimmed, with the commits that dropped them"
    assert till.refused() == [("till@1.1", 1), ("till@1.2", 2), ("till@1.2", 3), ("till@1.4", 7)]

    till.write(LENIENT)
    till.said("rewind", "till", "--to", "earliest", "--apply")
    till.run()
    assert till.refused() == [("till@2.2", 2), ("till@2.2", 3)]


def test_the_changes_of_a_table_are_shown_key_by_key_and_a_versioned_one_as_of_a_time(till: Till) -> None:
    till.produce("b", "3", "09:50")
    till.produce("a", "6", "09:51")
    till.run()
    rows = till.json("changes", "asked", "--since", "till@1.2")["rows"]
    at = "2026-03-01T0{}:00Z".format
    assert rows == [
        {"key": {"sku": "a"}, "old": {"qty": "5000", "at": at("9:30")}, "new": {"qty": "6", "at": at("9:51")}},
        {"key": {"sku": "b"}, "old": {"qty": "x", "at": at("8:01")}, "new": {"qty": "3", "at": at("9:50")}},
    ]
    assert [row["key"]["sku"] for row in till.json("changes", "asked", "--since", "till@1.0", "--until", "till@1.1")["rows"]] == ["a", "b"]
    shown = till.said("changes", "asked", "--since", "till@1.2", "--key", "a")
    assert ("asked since till@1.2  till@1.4" in shown, "5000 → 6" in shown, "1 row changed" in shown) == (True, True, True)
    assert "nothing has changed" in till.said("changes", "asked", "--since", "till@1.4")
    assert "the first 1 row changed" in till.said("changes", "asked", "--since", "till@1.2", "--limit", "1")
    assert "'noon' names no position" in till.said("changes", "asked", "--since", "noon", code=1)
    as_of = till.json("query", "asked", "--as-of", "2026-03-01T09:00Z")["rows"]
    assert {row["sku"]: row["qty"] for row in as_of} == {"a": "1", "b": "x"}
    assert "asked as of 2026-03-01T09:00:00Z" in till.said("query", "asked", "--as-of", "2026-03-01T09:00")
    assert "write an event time" in till.said("query", "asked", "--as-of", "noon", code=1)
    assert "hourly keeps no history" in till.said("query", "hourly", "--as-of", "2026-03-01T09:00Z", code=1)
    assert till.json("status")["till"]["quarantined"] == 3
    assert "quarantined 3" in till.said("status")


def test_a_run_that_begins_between_a_plan_and_its_row_is_followed_and_another_rewind_is_not(till: Till) -> None:
    settings = Settings.load(till.project.home)
    topology = load_apps(settings).app("till").topology
    store = Store(till.project.spark, settings.warehouse_uri, "till", topology.kept)
    plan = till.project.home / "plan.json"
    plan.write_text(till.said("rewind", "till", "--to", "1", "--json"))
    with failpoints.armed("rewind.before_commit", lambda: store.start_writer(topology) and None):
        assert "till is at till@2.1; what was is at till@1.3" in till.said("rewind", "till", "--to", "1", "--apply")
    with failpoints.armed("rewind.before_commit", lambda: till.said("rewind", "till", "--to", "earliest", "--apply") and None):
        assert "was rewound since" in till.said("rewind", "till", "--to", "1", "--apply", code=1)
    assert str(store.head().position) == "till@3.0"
    assert "is out of date" in till.said("rewind", "till", "--plan", str(plan), code=1), "though it is only shown"


def test_sql_that_spark_refuses_and_what_is_no_query_is_one_line(till: Till) -> None:
    for sql, told in (
        ("SELECT nope FROM hourly", "SparkError [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ("SELEC", "SparkError [PARSE_SYNTAX_ERROR]"),
        ("SELECT 1 / 0 FROM hourly", "SparkError [DIVIDE_BY_ZERO]"),
        ("DROP TABLE hourly", "SparkError [PARSE_SYNTAX_ERROR]"),
    ):
        said = till.said("query", "hourly", "--sql", sql, code=1)
        assert said.startswith(told)
        assert len(said.splitlines()) <= 2, "as wide as the terminal is"
    assert till.json("query", "hourly", "--sql", "WITH a AS (SELECT * FROM hourly) SELECT count(*) AS n FROM a")["rows"] == [{"n": 1}]


def test_what_came_too_late_is_counted_by_operator_and_listed_one_by_one(till: Till) -> None:
    rows = till.json("dropped", "till")["rows"]
    assert [(row["node"], row["reason"], row["count"], row["first"], row["last"]) for row in rows] == [
        ("hourly", "late", 1, "till@1.3", "till@1.3"), ("hourly", "null_key", 1, "till@1.3", "till@1.3"),
    ]  # fmt: skip
    (late,) = till.json("dropped", "till", "--each")["rows"]
    assert (late["record"], late["node"], late["window_start"]) == (f"{till.moves}/0@4", "hourly", "2026-03-01T08:00:00Z")
    assert "nothing is quarantined" in till.said("quarantine", "till", "--at", "till@1.0")
    assert till.said("quarantine", "nobody", code=2).startswith("DefinitionError no app 'nobody'")
