"""The commands that look into a table, on a real broker and a store that an app has run on: explain, bisect, preview."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.kafka.conftest import Project
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.kafka]
APP = """
import watertable as wt
app = wt.App("till")
moves = app.topic("{moves}", key="sku STRING", value="qty BIGINT, at TIMESTAMP", timestamp="at").stream()
stock = moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
hourly = moves.group_by_key().windowed_by(wt.tumbling(hours=1)).agg(qty=wt.sum("qty")).materialized_as("hourly")
last = moves.to_table().materialized_as("last")
"""


class Till:
    """Hold the project and its topic."""

    def __init__(self, project: Project, cluster: Cluster, moves: str) -> None:
        self.project, self.moves, self.admin = project, moves, Admin(cluster)
        self.home, self.run, self.said, self.json = project.home, project.run, project.said, project.json
        self._producer = Producer(cluster.client_config())
        self.write(APP)

    def write(self, app: str) -> None:
        self.project.write(app.format(moves=self.moves))

    def produce(self, *moves: tuple[str, int, str]) -> None:
        for sku, qty, at in moves:
            self._producer.produce(self.moves, json.dumps({"qty": qty, "at": f"2026-03-01T{at}:00Z"}), sku, partition=ord(sku) % 2)
        self._producer.flush(20)


@pytest.fixture
def till(project: Project, broker: Cluster, topic: Callable[..., str]) -> Till:
    made = Till(project, broker, topic("moves", partitions=2))
    made.produce(("a", 5, "08:00"), ("b", 2, "08:10"))
    made.run()
    made.produce(("a", 3, "08:20"), ("a", -9, "08:30"), ("b", 1, "08:40"))
    made.run()
    made.produce(("a", 30, "09:10"), ("b", 4, "09:50"), ("a", 1, "10:20"), ("b", -1, "10:30"))
    made.run()
    return made


def passes(till: Till, file: str) -> bool:
    """Run a test that was written, where the project is."""
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file], cwd=till.home, check=False)
    return run.returncode == 0


def test_a_row_is_written_as_a_test_and_its_first_bad_record_is_found(till: Till) -> None:
    (till.home / "test_a.py").write_text(till.said("explain", "stock", "--key", "a", "--as-test"))
    assert passes(till, "test_a.py")
    found = till.json("bisect", "stock", "qty < 0")
    assert (found["at"], found["record"]["offset"], found["record"]["record"]["qty"]) == ("till@1.2", 2, -9)
    assert (found["record"]["old"], found["record"]["new"], found["now"]) == ({"qty": 8}, {"qty": -1}, 0)
    shown = till.said("bisect", "stock", "qty < 0", "--key", "a")
    for wanted in ("stock  qty < 0", "till@1.2", f"{till.moves}/1@2", "qty 8  →  qty -1", "true of 1 key at some time, of 0 keys now"):
        assert wanted in shown
    assert "never" in till.said("bisect", "stock", "qty > 1000")
    till.admin.delete_records({(till.moves, 1): 3})
    shown = till.said("bisect", "stock", "qty < 0")
    assert "till@1.2" in shown
    assert f"among {till.moves}/0@1 to 1, {till.moves}/1@1 to 2" in shown
    assert "Kafka has deleted records" in " ".join(shown.split())


def test_after_a_rewind_a_row_is_explained_as_it_is_before_anything_has_been_read_again(till: Till) -> None:
    """The consumer group shows where the app was until it runs; another warehouse's app of that name would show its own place there."""
    till.said("rewind", "till", "--to", "till@1.1", "--apply")
    till.admin.mirror("till", {(till.moves, 0): 1, (till.moves, 1): 4})
    rows = till.json("query", "stock", "--key", "a")["rows"]
    assert rows == [{"sku": "a", "qty": 5}]
    steps = till.json("explain", "stock", "--key", "a")["steps"]
    assert [step["key"] | step["row"] for step in steps] == rows
    till.said("rewind", "till", "--to", "earliest", "--apply")
    assert (till.json("query", "stock", "--key", "a")["rows"], till.json("explain", "stock", "--key", "a")["steps"]) == ([], [])


def test_one_window_is_read_explained_and_looked_through(till: Till) -> None:
    at_eight, key = ("--window", "2026-03-01T08:00Z"), ("--key", "a")
    rows = till.json("query", "hourly", *at_eight)["rows"]
    assert {(row["sku"], row["qty"]) for row in rows} == {("a", -1), ("b", 3)}
    assert [row["sku"] for row in till.json("query", "hourly", *key, *at_eight)["rows"]] == ["a"]
    told = till.json("explain", "hourly", *key, *at_eight)
    assert [(step["record"]["qty"], step["row"]["qty"]) for step in told["steps"]] == [(5, 5), (3, 8), (-9, -1)]
    (till.home / "test_a.py").write_text(till.said("explain", "hourly", *key, *at_eight, "--as-test"))
    assert passes(till, "test_a.py")
    found = till.json("bisect", "hourly", "qty < 3", *at_eight)
    assert (found["at"], found["ever"], [key["key"]["sku"] for key in found["keys"]]) == ("till@1.1", 2, ["b"])
    assert till.json("bisect", "hourly", "qty < 3", "--window", "2026-03-01T10:00Z")["ever"] == 2


def test_an_edited_definition_is_shown_beside_the_live_table_and_nothing_is_committed(till: Till) -> None:
    same = till.json("preview", "stock", "--last", "100")
    assert ({row["mark"] for row in same["rows"]}, same["records"], same["live"]) == ({"same"}, 9, "till@1.3")
    assert "the whole table" in same["says"]
    sums = till.json("preview", "stock", "--last", "4")
    assert {row["mark"] for row in sums["rows"]} == {"not compared"}
    assert "adds up these records alone" in sums["says"]
    windows = till.json("preview", "hourly", "--last", "4")
    marks = {(row["key"]["sku"], row["key"]["window_start"][11:13]): row["mark"] for row in windows["rows"]}
    assert marks["a", "10"] == marks["b", "10"] == "same"
    assert marks["a", "09"] == "same", "by then neither partition had come beyond 08:40"
    latest = till.json("preview", "last", "--last", "2")
    assert {(row["key"]["sku"], row["mark"], row["here"]["qty"]) for row in latest["rows"]} == {("a", "same", 1), ("b", "same", -1)}
    till.write(APP.replace('qty=wt.sum("qty")).materialized_as("stock")', 'qty=wt.sum("2 * qty"), n=wt.count()).materialized_as("stock")'))
    edited = till.json("preview", "stock", "--last", "100")
    assert {(row["key"]["sku"], row["mark"], row["here"]["qty"], row["live"]["qty"]) for row in edited["rows"]} == {
        ("a", "differs", 60, 30), ("b", "differs", 12, 6),
    }  # fmt: skip
    shown = till.said("preview", "stock", "--last", "100")
    for wanted in ("stock  on the last 9 records", "30 → 60", "≠ 2 differs", "nothing was committed"):
        assert wanted in shown
    assert Admin(Cluster(Settings.load(till.home).kafka)).mirrored("till", [(till.moves, 0), (till.moves, 1)])
    till.write(APP.replace("moves.group_by_key()", "moves.filter(\"key.sku = 'a'\").group_by_key()"))
    fewer = till.json("preview", "stock", "--last", "100")
    assert {(row["key"]["sku"], row["mark"]) for row in fewer["rows"]} == {("a", "same"), ("b", "only live")}
    fewer = till.json("preview", "hourly", "--last", "4")
    assert {row["key"]["window_start"][11:13] for row in fewer["rows"] if row["mark"] == "only live"} == {"09", "10"}
    till.write(APP)
    assert till.json("preview", "stock", "--last", "100")["live"] == "till@1.3"


def test_a_row_is_explained_from_the_archive_when_kafka_has_deleted_its_records(till: Till) -> None:
    till.write(APP.replace('timestamp="at"', 'timestamp="at", archive=True'))
    till.produce(("a", 100, "11:00"), ("b", 9, "11:05"))
    till.run()
    wanted = [("a", offset) for offset in range(6)]
    told = till.json("explain", "stock", "--key", "a")
    assert [(step["key"]["sku"], step["offset"]) for step in told["steps"]] == wanted
    till.produce(("a", 7, "11:10"))
    till.admin.delete_records({(till.moves, 0): 5, (till.moves, 1): 6})  # all that was committed
    again = till.json("explain", "stock", "--key", "a")
    assert again["steps"][:6] == told["steps"], "what is gone from Kafka is told from the archive"
    assert [(step["offset"], step["row"]["qty"]) for step in again["steps"][6:]] == [], "what no commit has read isn't told"
    found = till.json("bisect", "stock", "qty < 0")
    assert (found["at"], found["record"]["offset"], found["record"]["record"]["qty"]) == ("till@1.2", 2, -9)
    whole = till.json("preview", "stock", "--last", "100")
    assert ({row["mark"] for row in whole["rows"]}, whole["records"]) == ({"same"}, 11)
    (till.home / "test_a.py").write_text(till.said("explain", "stock", "--key", "a", "--as-test"))
    assert passes(till, "test_a.py")
