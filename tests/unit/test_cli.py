"""The command line: what people read, what programs read, and one clear message where something is wrong."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.apps import retail
from watertable.errors import OtherCode, TableNotFound, UnknownPosition
from watertable.kafka.admin import Admin
from watertable.project import load_apps
from watertable.runtime.events import BatchCommitted, Failed, Folded, Idle, Rewound, Started, Stopped
from watertable.settings import Settings
from watertable.store.commits import Position
from watertable.store.reader import AppStatus, EventTime
from watertable_platform import answers
from watertable_platform.cli import show, terminal
from watertable_platform.cli.main import main
from watertable_platform.cli.progress import JsonLines, Progress

PLATFORM = Path(__file__).parents[2] / "platform"
WORDCOUNT = """
import watertable as wt

app = wt.App("wordcount")
lines = app.topic("lines", value="line STRING", value_format="string").stream()
counts = lines.flat_map_values(word="split(lower(line), ' ')").group_by("word").agg(n=wt.count()).materialized_as("counts")
"""
BATCH = BatchCommitted(
    position="retail@1.17", records=80_000, seconds=1.25, lag={"sales": 1200, "receipts": 0}, jobs=8, quarantined=3,
    dropped={"null_key": 310}, rows={"inventory": 2784}, published={"reorders": 4}, stream_time=datetime(2010, 12, 20, tzinfo=UTC),
)  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.watertable]\nkafka = '127.0.0.1:1'\n")
    (tmp_path / "assets" / "words").mkdir(parents=True)
    (tmp_path / "assets" / "words" / "app.py").write_text(WORDCOUNT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("watertable_platform.cli.terminal.out", Console(width=200))
    monkeypatch.setattr("watertable_platform.cli.terminal.err", Console(stderr=True, width=200))
    return tmp_path


def test_describe_shows_a_topology_with_the_lines_it_is_defined_at(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "wordcount"]) == 0
    told = capsys.readouterr().out
    assert "table counts" in told
    assert "assets/words/app.py:6" in told
    assert main(["describe", "wordcount", "--mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart LR")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run", "nope"], 2, "no app 'nope'; there are: wordcount"),
        (["query", "nope"], 1, "no table 'nope'; there are: wordcount.counts"),
        (["query", "counts", "--at", "yesterday"], 1, "'yesterday' names no position: write one"),
        (["query", "counts", "--sql", "SELECT 1", "--key", "a"], 2, "leave --key, --window and --as-of out"),
        (["query", "SELECT * FROM counts"], 2, "give the query with --sql"),
        (["query", "counts", "--window", "2026-01-01"], 1, "has no windows"),
        (["bisect", "counts", "n > 1", "--key", '["a", 1]'], 1, "has the key (`word` STRING)"),
        (["run", "wordcount"], 1, "127.0.0.1:1"),
        (["dev"], 2, "workspace.yaml"),
        (["dev", "--port", "99999"], 2, "65535"),
        (["demo", "--port", "99999"], 2, "65535"),
        (["query", "counts", "--json", "--csv"], 2, "--json and --csv are two forms of one answer"),
        (["dropped", "wordcount", "--csv", "--json"], 2, "--json and --csv are two forms of one answer"),
        (["broker", "start", "--port", "99999"], 2, "65535"),
        (["rewind", "wordcount", "--plan", "plan.bin"], 1, "this is no plan of a rewind"),
    ],
)
def test_what_is_wrong_is_one_message_with_the_way_out_and_an_exit_code(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admin.__init__, "__defaults__", (1.0,))
    (project / "plan.bin").write_bytes(b"\xff\xfe\x00plan")
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert told in said
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [["run", "wordcount"], ["query", "counts"], ["status"], ["broker", "status"]])
def test_a_folder_that_can_t_be_written_is_named_with_what_to_do(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (project / ".watertable").write_text("a file")
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(("NotADirectoryError", "FileExistsError"))
    assert f"{project}/.watertable" in said
    assert "WATERTABLE_HOME" in said


def test_a_disk_that_is_read_only_is_told_as_a_folder_that_can_t_be_written(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(project / ".watertable"))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main(["query", "counts"]) == 1
    said = capsys.readouterr().err
    assert f"{project}/.watertable: Read-only file system" in said
    assert "WATERTABLE_HOME" in said
    assert len(said.splitlines()) == 1


def test_a_mistake_of_ours_is_shown_whole_and_asked_to_be_reported(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watertable.plan.lineage.describe", lambda _: {}["nothing"])
    assert main(["describe", "wordcount"]) == 1
    *trace, last = capsys.readouterr().err.splitlines()
    assert trace[0].startswith("Traceback")
    assert last == "KeyError 'nothing': this is a mistake of watertable's, please report it with what stands above"


def test_the_broker_has_no_port_that_there_is_none_of(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATERTABLE_KAFKA", "127.0.0.1:99999")
    assert main(["broker", "status"]) == 2
    assert "there is no port 99999" in capsys.readouterr().err


def test_a_broken_folder_is_named_with_its_line_beside_the_apps_that_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "assets" / "broken").mkdir()
    (project / "assets" / "broken" / "app.py").write_text("import watertable as wt\nwt.App('x y')\n")
    assert main(["run", "x"]) == 2
    assert "assets/broken/app.py:2" in capsys.readouterr().err
    with pytest.raises(TableNotFound, match=r"no table 'x'; there are: wordcount\.counts\nbroken: assets/broken/app\.py:2"):
        answers.find_table(load_apps(Settings.load(project)), "x")


def test_the_standing_of_apps_is_told_beside_one_that_cannot_be_read_and_a_folder_that_does_not_load(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("other", WORDCOUNT.replace('"wordcount"', '"other"')), ("torn", "1 / 0")):
        (project / "assets" / name).mkdir()
        (project / "assets" / name / "app.py").write_text(text)

    def status(app: str) -> AppStatus:
        if app == "other":
            raise OtherCode("counts was made by other code")
        return AppStatus(Position("wordcount", 1, 7), None, {}, 0)

    monkeypatch.setattr(terminal, "begin_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(answers, "reader_of", lambda _, __, topology: SimpleNamespace(status=lambda: status(topology.app)))
    assert main(["status", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["wordcount"]["position"] == "wordcount@1.7"
    assert told["other"] == {"error": "OtherCode: counts was made by other code"}
    assert "torn/app.py:1: ZeroDivisionError" in told["assets/torn"]["error"]
    assert main(["status"]) == 0
    assert "other  OtherCode counts was made by other code" in capsys.readouterr().out
    assert main(["status", "wordcount", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["wordcount"]
    rewound = AppStatus(Position("wordcount", 2, 0), None, {}, 0)
    monkeypatch.setattr(answers, "reader_of", lambda *_: SimpleNamespace(status=lambda: rewound))
    assert main(["status", "wordcount"]) == 0
    assert capsys.readouterr().out == "wordcount  wordcount@2.0  rewound, and hasn't run since\n"
    assert main(["status", "wordcont"]) == 2
    assert "no app 'wordcont'; there are: other, wordcount" in capsys.readouterr().err


def test_the_broker_is_told_apart_for_programs_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "stopped"


@pytest.mark.parametrize(("command", "takes"), [("query", True), ("quarantine", False), ("dropped", False)])
def test_a_version_is_offered_where_it_is_taken(capsys: pytest.CaptureFixture[str], command: str, takes: bool) -> None:
    assert main([command, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert ("retail@1.17" in said, "a version" in said) == (True, takes)


def test_a_position_a_version_and_times_can_be_asked_for() -> None:
    assert answers.parse_at("retail@1.17") == "retail@1.17"
    assert answers.parse_at("12") == 12
    assert answers.parse_at("2011-06-01T12:00+02:00") == datetime(2011, 6, 1, 10, tzinfo=UTC)
    assert answers.parse_at("2011-06-01") == datetime(2011, 6, 1, tzinfo=UTC), "on a command line, a time without an offset is UTC"
    assert answers.parse_at("event:2011-06-01") == EventTime(datetime(2011, 6, 1, tzinfo=UTC))
    with pytest.raises(UnknownPosition, match="names no position: write one"):
        answers.parse_at("soon")
    with pytest.raises(UnknownPosition, match="names no position: write one"):
        answers.parse_at("²")


def test_a_table_of_two_apps_must_be_named_with_its_app(project: Path) -> None:
    (project / "assets" / "again").mkdir()
    (project / "assets" / "again" / "app.py").write_text(WORDCOUNT.replace('"wordcount"', '"again"'))
    found = load_apps(Settings.load(project))
    assert answers.find_table(found, "again.counts")[0].app == "again"
    with pytest.raises(TableNotFound, match=r"again\.counts, wordcount\.counts|wordcount\.counts, again\.counts"):
        answers.find_table(found, "counts")


def test_the_live_lines_show_rate_lag_batch_time_last_commit_and_position() -> None:
    view = Progress(Console(width=140, force_terminal=True, file=io.StringIO()), retail().topology(), Path("retail.log"))
    assert "starting Spark" in _shown(view)
    view(Started(app="retail", position="retail@1.16", generation=3, pid=1, fingerprint="wt1:x", topics=("sales",), tables=("inventory",)))
    view(BATCH)
    view(Folded(tables={}, fold_ms=100, fold_lag_s=2.0))
    told = _shown(view)
    rate = ("retail@1.17", "64,000 records/s", "lag 1,200", "batch 1.25 s", "committed 0.0 s ago", "folded 0.0 s ago")
    for wanted in (*rate, "quarantined 3", "sales 1,200 behind", "inventory +2,784", "null_key 310"):
        assert wanted in told
    view(Idle(position="retail@1.17", lag={"sales": 0}, problem="can't reach the cluster"))
    assert "waiting" in _shown(view)
    assert "can't reach the cluster" in _shown(view)
    view(Idle(position="retail@1.17", lag={"sales": 0}))
    assert "caught up" in _shown(view)
    view(Rewound(position="retail@2.4", before="retail@1.17", by="rewind to commit 4", generation=5))
    for wanted in ("replaying", "retail@2.4"):
        assert wanted in _shown(view)


def test_without_a_terminal_a_run_writes_plain_lines() -> None:
    out = io.StringIO()
    with Progress(Console(width=140, file=out), retail().topology(), Path("retail.log")) as view:
        view(BATCH)
        view(Rewound(position="retail@2.4", before="retail@1.17", by="rewind to commit 4: [/sales] was wrong", generation=5))
        view(Stopped(position="retail@1.17", reason="caught up"))
    assert out.getvalue().splitlines() == [
        "starting retail",
        "retail@1.17  80,000 records in 1.25 s, 64,000 records/s, lag 1,200",
        "rewind to commit 4: [/sales] was wrong: from retail@1.17 to retail@2.4, generation 5; going on from there",
        "caught up at retail@1.17",
    ]


def test_programs_get_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonLines(threading.Event())
    view(BATCH)
    view(Failed(error="RecordFailed", message="no", position="retail@1.17", topic="sales", partition=0, offset=7, location="app.py:3"))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["event"], first["records_per_second"], first["batch_ms"], first["lag"]) == (
        "batch",
        64000.0,
        1250,
        {"sales": 1200, "receipts": 0},
    )
    assert (second["event"], second["offset"], second["location"]) == ("failed", 7, "app.py:3")


def test_a_reader_that_is_gone_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", broken)
    stop = threading.Event()
    JsonLines(stop)(BATCH)
    assert stop.is_set()


def test_a_letter_that_the_terminal_lacks_is_shown_by_its_number(project: Path) -> None:
    said = [sys.executable, "-m", "watertable_platform", "broker", "status"]
    done = subprocess.run(said, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "\\u25cb Kafka not running\n", "")


def test_json_is_json_whatever_letters_the_terminal_lacks(project: Path) -> None:
    (project / "assets" / "words" / "app.py").write_text("raise ValueError('Käse für 3 € 😀')\n", encoding="utf-8")
    asked = [sys.executable, "-m", "watertable_platform", "status", "--json"]
    done = subprocess.run(asked, env=os.environ | {"PYTHONIOENCODING": "ascii"}, cwd=project, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["assets/words"]["error"].endswith("Käse für 3 € 😀"), done.stderr


def test_the_position_above_a_narrow_table_is_on_the_line_of_its_title() -> None:
    out = io.StringIO()
    answer = answers.Answer("SELECT sum(qty) n FROM stock", "shop@1.5", ("n",), frozenset({"n"}), ((1,),), more=False)
    show.print_answer(Console(width=120, file=out), answer)
    assert out.getvalue().splitlines()[0] == "SELECT sum(qty) n FROM stock  shop@1.5"


def test_rows_are_shown_with_their_position_and_json_and_csv_hold_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answers.Answer(
        "revenue", "retail@1.17", ("country", "start", "revenue", "lines"), frozenset({"revenue", "lines"}),
        (("France", "2010-12-01T08:00:00Z", Decimal("-855.86"), 20), ("Norway", "2010-12-01T09:00:00Z", None, 1900)), True,
    )  # fmt: skip
    out = io.StringIO()
    show.print_answer(Console(width=120, file=out), answer)
    told = out.getvalue()
    for wanted in ("revenue  retail@1.17", "-855.86", "1,900", "null", "first 2 rows; --limit shows more"):
        assert wanted in told
    show.print_json(answer)
    assert json.loads(capsys.readouterr().out)["rows"][0] == {
        "country": "France",
        "start": "2010-12-01T08:00:00Z",
        "revenue": "-855.86",
        "lines": 20,
    }
    show.print_csv(answer)
    assert capsys.readouterr().out.splitlines() == [
        "country,start,revenue,lines", "France,2010-12-01T08:00:00Z,-855.86,20", "Norway,2010-12-01T09:00:00Z,,1900",
    ]  # fmt: skip


def test_no_column_and_no_figure_is_cut_however_narrow_the_terminal_is() -> None:
    columns, values = (
        ("card", "window_start", "window_end", "n", "countries", "total"),
        ("c1", *["2026-01-01T10:06:41.001000Z"] * 2, 2, 1, 13977),
    )
    answer = answers.Answer("bursts", "fraud@1.1", columns, frozenset(columns[3:]), (values,), False)
    for width in (80, 60, 40, 20):
        show.print_answer(Console(width=width, file=(out := io.StringIO())), answer)
        told = out.getvalue()
        assert max(map(len, told.splitlines())) <= width
        if width == 80:
            assert told.splitlines()[2].split() == [*columns]
        assert {"c1", "2", "1", "13,977"} <= set(told.split())
        if width == 40:  # too narrow for columns beside one another
            assert "window_end    2026-01-01T10:06:41.001000" in told
    show.print_answer(
        Console(width=80, file=(out := io.StringIO())),
        answers.Answer("t", "t@1.1", ("text", "n"), frozenset("n"), (("x" * 999, 5),), False),
    )
    assert out.getvalue().splitlines()[4].split() == ["x" * 73 + "…", "5"]
    wide = answers.Answer("t", "t@1.1", ("名前とその長い説明", "n"), frozenset("n"), (("a", 5),), False)
    show.print_answer(Console(width=80, file=(out := io.StringIO())), wide)
    assert out.getvalue().splitlines()[2].split() == [*wide.columns], "a name's letters may be two columns wide"


def test_a_refused_record_is_cut_where_the_line_ends_and_shows_that_it_is() -> None:
    row = {
        "position": "t@1.1", "topic": "s", "partition": 0, "offset": 5, "timestamp": None, "node": "topic", "location": "app.py:3",
        "reason": "no", "key": b"k", "value": b"v" * 200, "headers": [],
    }  # fmt: skip
    answer = answers.Answer("t, quarantined", "t@1.1", tuple(row), frozenset(), (tuple(row.values()),), False)
    show.print_quarantine(Console(width=80, file=(out := io.StringIO())), answer, topology=retail().topology())
    assert f"value       {'v' * 67}…" in out.getvalue()


def test_a_column_is_shown_by_its_name_whatever_is_in_it() -> None:
    out = io.StringIO()
    show.print_answer(
        Console(width=120, file=out), answers.Answer("t", "t@1.1", ("split(a, [/-])", "[red]"), frozenset(), (("x", 1),), False)
    )
    assert "split(a, [/-])   [red]" in out.getvalue()


def test_json_is_refused_where_it_would_lose_a_column_and_csv_keeps_both(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answers.Answer("t", "t@1.1", ("word", "n", "word"), frozenset({"n"}), (("a", 1, "b"),), False)
    monkeypatch.setattr(answers, "reader_of", lambda *_: None)
    monkeypatch.setattr(answers, "query", lambda *_: SimpleNamespace(answer=lambda _: answer))
    monkeypatch.setattr(terminal, "begin_session", lambda *_, **__: nullcontext())
    asked = ["query", "counts", "--sql", "SELECT a.word, a.n, b.word FROM counts a, counts b"]
    assert main([*asked, "--json"]) == 1
    said = capsys.readouterr()
    assert ("JSON has room for one word: name them apart with AS" in said.err, said.out) == (True, "")
    assert main([*asked, "--csv"]) == 0
    assert capsys.readouterr().out.splitlines() == ["word,n,word", "a,1,b"]


def test_what_is_nested_is_shown_as_json_with_times_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    nested = {"at": at, "price": Decimal("2.50"), "raw": b"\x00\xff", "share": math.nan, "by_day": {date(2026, 1, 1): [math.inf, None]}}
    plain = {"at": "2026-01-01T00:00:00Z", "price": "2.50", "raw": "00ff", "share": "NaN", "by_day": {"2026-01-01": ["Infinity", None]}}
    answer = answers.Answer("t", "t@1.1", ("row",), frozenset(), ((nested,),), False)
    show.print_json(answer)
    assert json.loads(capsys.readouterr().out)["rows"] == [{"row": plain}]
    show.print_csv(answer)
    assert [json.loads(row["row"]) for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == [plain]
    out = io.StringIO()
    show.print_answer(Console(width=200, file=out), answer)
    assert json.dumps(plain) in out.getvalue()


def test_spans_of_time_are_told_in_the_unit_a_person_would_choose() -> None:
    assert [show._span(timedelta(seconds=s)) for s in (0, 59, 121, 7300, 200_000)] == ["0 s", "59 s", "2 min", "2 h", "2 d"]
    assert str(Position("retail", 1, 17)) == "retail@1.17"


def _shown(view: Progress) -> str:
    console = Console(width=140, file=(out := io.StringIO()))
    console.print(view._render())
    time.sleep(0)
    return out.getvalue()


def test_a_place_in_a_file_is_shown_as_it_is_and_as_no_picture() -> None:
    for console in (terminal.out, terminal.err):
        with console.capture() as shown:
            console.print("[red]broken[/] app.py:100: x")
        assert "app.py:100: x" in shown.get()
    made = [line for file in sorted(PLATFORM.rglob("*.py")) for line in file.read_text().splitlines() if " Console(" in line]
    assert len(made) >= 3
    assert [line for line in made if line.count("Console(") != line.count("emoji=False")] == []


def test_a_time_of_no_zone_is_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert answers.plain(datetime(2020, 1, 1)) == "2020-01-01T00:00:00"
        assert answers.plain(datetime(2020, 1, 1, tzinfo=UTC)) == "2020-01-01T00:00:00Z"
    finally:
        monkeypatch.undo()
        time.tzset()
