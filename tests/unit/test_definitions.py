"""What Dagster is told about a project: one graph, everything known on the definition, nothing started to know it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

import watertable as wt
from watertable.errors import DefinitionError, SettingsError
from watertable.plan.nodes import Topic
from watertable.plan.plan import Sink, TableDef
from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.orchestration.assembly import build_definitions
from watertable_platform.orchestration.spark_resource import build_spark_resource
from watertable_platform.orchestration.translator import OutputData, TableData, TopicData, Translated, WatertableTranslator

ROOT = Path(__file__).resolve().parents[2]
SHOP = """
    import watertable as wt

    app = wt.App("shop", owner="team:shop")
    SALES = "qty BIGINT COMMENT 'pieces', price DECIMAL(9,2), at TIMESTAMP"
    sales = app.topic("sales", key="item STRING", value=SALES, timestamp="at").stream()
    other = app.topic("other", key="item STRING", value="qty BIGINT").stream()
    totals = sales.group_by("item").agg(on_hand=wt.sum("qty"), spend=wt.sum("qty * price"))
    stock = totals.materialized_as("stock", description="What is there.")
    low = stock.to_stream().filter("new.on_hand < 0")
    low.to("reorders")
    low.group_by(level="new.on_hand").agg(n=wt.count()).materialized_as("levels")
    other.group_by("item").windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("hourly")
"""
DESK = """
    import watertable as wt
    app = wt.App("desk", owner="desk@example.org")
    app.topic("reorders", key="item STRING", value="on_hand BIGINT").stream().group_by_key().count("n").materialized_as("orders")
    app.topic("other", key="item STRING", value="qty BIGINT").stream().group_by_key().count("n").materialized_as("others")
"""
REPORT = """
    import dagster as dg

    @dg.asset(deps=[dg.AssetKey(["shop", "stock"])], required_resource_keys={"pyspark"})
    def report(context: dg.AssetExecutionContext) -> None: ...

    @dg.asset_check(asset=report)
    def report_is_whole() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)
"""


def write(root: Path, **files: str) -> Settings:
    for name, text in files.items():
        folder, _, stem = name.partition("__")
        (root / "assets" / folder).mkdir(parents=True, exist_ok=True)
        (root / "assets" / folder / f"{stem}.py").write_text(textwrap.dedent(text))
    return Settings.load(root)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return write(tmp_path, shop__app=SHOP, shop__report=REPORT, desk__app=DESK)


@pytest.fixture
def definitions(settings: Settings) -> dg.Definitions:
    return build_definitions(load_apps(settings))


def specs(definitions: dg.Definitions) -> dict[str, dg.AssetSpec]:
    return {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}


def deps(spec: dg.AssetSpec) -> set[str]:
    return {dep.asset_key.to_user_string() for dep in spec.deps}


def test_topics_tables_and_batch_assets_are_one_graph(definitions: dg.Definitions) -> None:
    edges = {key: deps(spec) for key, spec in specs(definitions).items()}
    assert edges == {
        "topics/sales": set(),
        "topics/other": set(),
        "topics/reorders": {"shop/stock"},
        "shop/stock": {"topics/sales"},
        "shop/levels": {"shop/stock"},
        "shop/hourly": {"topics/other"},
        "desk/orders": {"topics/reorders"},
        "desk/others": {"topics/other"},
        "report": {"shop/stock"},
    }
    graph = definitions.resolve_asset_graph()
    assert {k.to_user_string() for k in graph.external_asset_keys} == {"topics/sales", "topics/other", "topics/reorders"}


def test_apps_that_answer_each_other_are_loaded_and_the_loop_is_told_not_drawn(tmp_path: Path) -> None:
    asking = """
    import watertable as wt
    app = wt.App("{app}")
    known = app.topic("{reads}", key="item STRING", value="n BIGINT").stream().group_by_key().count("n").materialized_as("known")
    known.to_stream().to("{writes}")
    """
    asks, answers = (
        asking.format(app="asks", reads="answers", writes="questions"),
        asking.format(app="says", reads="questions", writes="answers"),
    )
    found = build_definitions(load_apps(write(tmp_path, asks__app=asks, says__app=answers, shop__app=SHOP)))
    edges = {key: deps(spec) for key, spec in specs(found).items()}
    assert (edges["asks/known"], edges["says/known"]) == ({"topics/answers"}, {"topics/questions"})
    assert (edges["topics/questions"], edges["topics/answers"]) == ({"asks/known"}, set())
    assert "made of says/known, which is made of it by other apps" in (specs(found)["topics/answers"].description or "")
    assert edges["shop/stock"] == {"topics/sales"}
    found.resolve_asset_graph()


def test_what_dagster_calls_beta_is_used_without_a_warning_in_the_users_files_too(tmp_path: Path) -> None:
    report = REPORT.replace("deps=", "backfill_policy=dg.BackfillPolicy.single_run(), deps=")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        build_definitions(load_apps(write(tmp_path, shop__app=SHOP, shop__report=report)))
    assert [str(warning.message) for warning in found if issubclass(warning.category, dg.BetaWarning)] == []


def test_a_table_of_joined_records_depends_on_the_table_that_they_look_up(tmp_path: Path) -> None:
    joining = """
    import watertable as wt
    app = wt.App("till")
    items = app.topic("items", key="sku STRING", value="name STRING").table().materialized_as("names")
    sales = app.topic("sales", key="sku STRING", value="qty INT").stream()
    sales.join(items, name="right.name", qty="qty").group_by("name").agg(n=wt.sum("qty")).materialized_as("sold")
    items.join(sales.group_by_key().agg(n=wt.sum("qty")), n="right.n").materialized_as("both")
    """
    found = specs(build_definitions(load_apps(write(tmp_path, till__app=joining))))
    assert deps(found["till/sold"]) == {"topics/sales", "till/names"}
    assert deps(found["till/both"]) == {"topics/items", "topics/sales"}


def test_a_stream_says_what_its_app_is_for(tmp_path: Path) -> None:
    told = SHOP.replace('owner="team:shop"', 'description="What the shop has."')
    job = build_definitions(load_apps(write(tmp_path, shop__app=told))).resolve_job_def("stream__shop")
    assert (job.description or "").startswith("What the shop has.\n\nThe live stream of shop.")


def test_a_table_says_all_that_its_definition_knows(definitions: dg.Definitions, settings: Settings) -> None:
    stock = specs(definitions)["shop/stock"]
    table = load_apps(settings).app("shop").topology.table("stock")
    assert stock.code_version == table.fingerprint
    assert stock.kinds == {"kafka", "spark", "deltalake"}
    assert (stock.group_name, list(stock.owners)) == ("shop", ["team:shop"])
    columns = stock.metadata["dagster/column_schema"]
    assert [(c.name, c.type, c.constraints.other) for c in columns.columns] == [
        ("item", "STRING", ["key"]), ("on_hand", "BIGINT", []), ("spend", "DECIMAL(38,2)", []),
    ]  # fmt: skip
    lineage = stock.metadata["dagster/column_lineage"].deps_by_column
    assert {c: {(d.asset_key.to_user_string(), d.column_name) for d in found} for c, found in lineage.items()} == {
        "item": {("topics/sales", "key.item")},
        "on_hand": {("topics/sales", "qty")},
        "spend": {("topics/sales", "qty"), ("topics/sales", "price")},
    }
    assert stock.metadata["dagster/uri"].endswith("/warehouse/shop/stock")
    assert stock.description
    for words in ("What is there.", "wt.read", "at most the fold lag behind", "**Pure**", "group_by item"):
        assert words in stock.description


def test_what_depends_on_arrival_says_so(definitions: dg.Definitions) -> None:
    found = specs(definitions)
    assert found["shop/levels"].tags["watertable/purity"] == found["shop/stock"].tags["watertable/purity"] == "pure"
    assert "**Pure**" in (found["topics/reorders"].description or "")


def test_a_topic_shared_by_apps_has_one_node_and_lineage_meets_its_columns(definitions: dg.Definitions) -> None:
    found = specs(definitions)
    assert (found["topics/other"].group_name, found["topics/sales"].group_name) == ("topics", "shop")
    topic = {c.name: c for c in found["topics/sales"].metadata["dagster/column_schema"].columns}
    assert list(topic) == ["key.item", "qty", "price", "at"]
    assert topic["qty"].description == "pieces"


def test_what_a_folder_brings_of_its_own_is_loaded_into_its_group(definitions: dg.Definitions) -> None:
    assert specs(definitions)["report"].group_name == "shop"
    assert dg.AssetCheckKey(dg.AssetKey("report"), "report_is_whole") in definitions.resolve_asset_graph().asset_check_keys


def test_each_app_has_a_stream_and_each_table_its_checks(definitions: dg.Definitions) -> None:
    assert {job.name for job in definitions.resolve_all_job_defs()} >= {"stream__shop", "stream__desk"}
    assert {k.name for k in definitions.resolve_asset_graph().asset_check_keys if k.asset_key == dg.AssetKey(["shop", "stock"])} == {
        "stream_alive", "deployed_code", "freshness", "fold_lag", "quarantine", "parity",
    }  # fmt: skip
    for sensor in ("reconcile_streams", "observe_topics"):
        assert definitions.get_repository_def().get_sensor_def(sensor).default_status is dg.DefaultSensorStatus.RUNNING


DAILY = """
    import dagster as dg
    @dg.asset
    def daily() -> None: ...
"""
HELPER = """
    import dagster as dg

    def make(name: str) -> dg.AssetsDefinition:
        @dg.asset(name=name)
        def made() -> None: ...
        return made
"""
WHOLE = """
    import dagster as dg
    from assets.shop.report import report

    @dg.asset
    def inner() -> None: ...
    @dg.asset_check(asset=inner)
    def inner_is_whole() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)
    job = dg.define_asset_job("pay", selection=["inner"])
    defs = dg.Definitions(
        assets=[inner, report, dg.AssetSpec("elsewhere")], asset_checks=[inner_is_whole], jobs=[job],
        schedules=[dg.ScheduleDefinition(name="at_noon", job=job, cron_schedule="0 12 * * *")], resources={"till": 7},
    )
"""
"""What Dagster's own pages put at the end of a file: some of it is in the modules' own names, too."""


def test_what_dagster_takes_is_found_beside_an_app_and_where_a_helper_made_it(tmp_path: Path) -> None:
    made = "from assets.helped._helper import make\nweekly = make('weekly')\nmonthly = [make('monthly')]"
    settings = write(tmp_path, shop__app=f"{SHOP}{DAILY}", helped___helper=HELPER, helped__made=made)
    found = specs(build_definitions(load_apps(settings)))
    groups = {key: spec.group_name for key, spec in found.items()}
    assert groups | {"daily": "shop", "weekly": "helped", "monthly": "helped", "shop/stock": "shop"} == groups
    assert not [key for key in found if key.endswith("failed_to_load")]


def test_what_a_module_puts_into_definitions_is_found_once_and_as_it_is_there(tmp_path: Path) -> None:
    definitions = build_definitions(load_apps(write(tmp_path, shop__app=SHOP, shop__report=REPORT, shop__whole=WHOLE)))
    found = specs(definitions)
    inside = ("inner", "report", "elsewhere")
    assert [found[key].group_name for key in inside] == ["shop"] * 3
    assert not [key for key in found if key.endswith("failed_to_load")]
    repository = definitions.get_repository_def()
    assert "pay" in {job.name for job in repository.get_all_jobs()}
    assert "at_noon" in {schedule.name for schedule in repository.schedule_defs}
    assert {"inner_is_whole", "report_is_whole"} <= {key.name for key in definitions.resolve_asset_graph().asset_check_keys}
    assert {"till", "pyspark"} <= set(definitions.resources or {})


def test_definitions_that_are_merged_of_others_bring_nothing_twice(tmp_path: Path) -> None:
    part = """
        import dagster as dg
        @dg.asset
        def {0}() -> None: ...
        defs = dg.Definitions(assets=[{0}], jobs=[dg.define_asset_job("make_{0}", ["{0}"])], resources={{"{0}": {{}}}})
    """
    whole = "import dagster as dg\nfrom assets.shop import left, right\ndefs = dg.Definitions.merge(left.defs, right.defs)"
    parts = {f"shop__{name}": part.format(name) for name in ("left", "right")}
    definitions = build_definitions(load_apps(write(tmp_path, **parts, shop__whole=whole)))
    assert {"left", "right"} == {key for key in specs(definitions) if "/" not in key}
    assert not [key for key in specs(definitions) if key.endswith("failed_to_load")]
    assert {"make_left", "make_right"} <= {job.name for job in definitions.get_repository_def().get_all_jobs()}


def test_definitions_are_found_that_a_function_gives_when_dagster_asks(tmp_path: Path) -> None:
    lazy = """
        import dagster as dg
        @dg.definitions
        def defs() -> dg.Definitions:
            @dg.asset
            def late() -> None: ...
            return dg.Definitions(assets=[late])
    """
    fails = "import dagster as dg\n@dg.definitions\ndef defs() -> dg.Definitions:\n    raise ValueError('no till')"
    found = specs(build_definitions(load_apps(write(tmp_path, shop__app=SHOP, own__lazy=lazy, odd__fails=fails))))
    assert found["late"].group_name == "own"
    assert "no till" in found["odd_batch/failed_to_load"].metadata["reason"]


def test_definitions_that_take_a_name_of_ours_break_their_folder_alone(tmp_path: Path) -> None:
    settings = write(tmp_path, shop__app=SHOP, own__whole="import dagster as dg\ndefs = dg.Definitions(resources={'pyspark': 7})")
    found = specs(build_definitions(load_apps(settings)))
    assert "different resources with same key 'pyspark'" in found["own_batch/failed_to_load"].metadata["reason"]
    assert "shop/stock" in found


def test_a_schedule_of_a_partitioned_job_is_found(tmp_path: Path) -> None:
    daily = """
    import dagster as dg
    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-01-01"))
    def daily() -> None: ...
    nightly = dg.build_schedule_from_partitioned_job(dg.define_asset_job("night", selection=["daily"]))
    """
    definitions = build_definitions(load_apps(write(tmp_path, shop__app=SHOP, shop__daily=daily)))
    assert "night_schedule" in {schedule.name for schedule in definitions.get_repository_def().schedule_defs}


@pytest.mark.parametrize("owner", [
    "team:shop", "team:", "a@b.co", "a+b%c@b.c.info", "data@corp.internal", "a@b.c", "a@b_c.com", "-a@b.com", "_a@b.com", "ü@b.com",
])  # fmt: skip
def test_an_app_takes_the_owners_that_dagster_takes(owner: str) -> None:
    def takes(make: Callable[[], object]) -> bool:
        try:
            make()
        except (dg.DagsterInvalidDefinitionError, DefinitionError):
            return False
        return True

    assert takes(lambda: wt.App("shop", owner=owner)) == takes(lambda: dg.AssetSpec("shop", owners=[owner]))


def test_a_broken_folder_is_an_asset_whose_check_fails_with_its_line(tmp_path: Path) -> None:
    settings = write(
        tmp_path,
        shop__app=SHOP,
        torn__app=SHOP.replace('"shop"', '"torn"').replace('group_by("item")', 'group_by("itme")'),
        owner__app=SHOP.replace('"shop"', '"owned"').replace("team:shop", "nobody").replace("reorders", "orders"),
        late__report="import dagster as dg\nboom",
    )
    definitions = build_definitions(load_apps(settings))
    found = specs(definitions)
    assert "shop/stock" in found
    assert "torn/app.py:8" in (found["torn/failed_to_load"].description or "")
    assert "nobody" in (found["owner/failed_to_load"].description or "")
    assert "late/report.py:2" in (found["late_batch/failed_to_load"].description or "")
    with dg.DagsterInstance.ephemeral() as instance:
        keys = [dg.AssetCheckKey(dg.AssetKey(["torn", "failed_to_load"]), "definition_loads")]
        job = dg.define_asset_job("judge", selection=dg.AssetSelection.checks(*keys))
        merged = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
        done = merged.resolve_job_def("judge").execute_in_process(instance=instance)
        [verdict] = done.get_asset_check_evaluations()
    assert not verdict.passed
    assert "itme" in (verdict.description or "")


def test_an_asset_page_says_how_far_behind_other_readers_are_here(settings: Settings) -> None:
    def says(**changed: float) -> str:
        made = build_definitions(load_apps(settings.model_copy(update=changed)), WatertableTranslator())
        return specs(made)["shop/stock"].description or ""

    assert "at most the fold lag behind (30 s and the fold itself)" in says()
    assert "at most the fold lag behind (2.5 s and the fold itself)" in says(fold_seconds=2.5)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("@dg.asset", '@dg.asset(key=["shop", "stock"])', "stock"),
        ("@dg.asset", '@dg.job(name="stream__shop")', "stream__shop"),
        ("@dg.asset", '@dg.asset(required_resource_keys={"nowhere"})', "nowhere"),
        ("@dg.asset", '@dg.asset(group_name="not a group")', "not a group"),
        ("@dg.asset", '@dg.asset(deps=["daily"])', "daily"),
        ("@dg.asset", 'job = dg.define_asset_job("lost", selection=["nowhere"])\n    @dg.asset', "lost"),
    ],
)
def test_what_does_not_go_together_with_the_rest_is_broken_alone(tmp_path: Path, old: str, new: str, says: str) -> None:
    more = f"{DAILY.replace('daily', 'weekly')}\n    job = dg.define_asset_job('pay', selection=['salaries'])"
    settings = write(
        tmp_path, shop__app=SHOP, shop__report=REPORT, desk__app=DESK, late__daily=DAILY.replace(old, new),
        hours__weekly=more, zeal__salaries=DAILY.replace("daily", "salaries"),
    )  # fmt: skip
    definitions = build_definitions(load_apps(settings))
    found = specs(definitions)
    assert {key for key in found if key.endswith("failed_to_load")} == {"late_batch/failed_to_load"}
    assert says in found["late_batch/failed_to_load"].metadata["reason"]
    assert {"shop/stock", "desk/orders", "report", "weekly", "salaries"} <= set(found), "and what names assets of a later folder stays"
    repository = definitions.get_repository_def()
    assert {job.name for job in repository.get_all_jobs()} >= {"stream__shop", "stream__desk", "pay"}
    assert {"reconcile_streams", "observe_topics"} <= {sensor.name for sensor in repository.sensor_defs}


def test_of_two_folders_with_an_asset_of_one_name_the_first_has_it(tmp_path: Path) -> None:
    found = specs(build_definitions(load_apps(write(tmp_path, shop__app=SHOP, early__daily=DAILY, late__daily=DAILY))))
    assert found["daily"].group_name == "early"
    assert "Duplicate asset key" in found["late_batch/failed_to_load"].metadata["reason"]


def test_a_folder_may_be_called_what_dagster_cannot_write(tmp_path: Path) -> None:
    settings = write(tmp_path, shop__app=SHOP, größe__daily=DAILY, straße__app="boom", strafe__app="boom", stra_e__app="boom")
    found = specs(build_definitions(load_apps(settings)))
    assert (found["daily"].group_name or "").startswith("gr__e_")
    assert sum(key.startswith("stra") and "boom" in spec.metadata["reason"] for key, spec in found.items()) == 3


def test_the_translator_has_one_method_to_override(settings: Settings) -> None:
    class Mine(WatertableTranslator):
        def get_asset_spec(self, data: Translated) -> dg.AssetSpec:
            match data:
                case TableData(table=TableDef(name=name)):
                    return super().get_asset_spec(data).replace_attributes(description=f"my {name}")
                case TopicData(topic=Topic()) | OutputData(sink=Sink()):
                    return super().get_asset_spec(data).replace_attributes(group_name="kafka")

    found = specs(build_definitions(load_apps(settings), Mine()))
    assert found["shop/stock"].description == "my stock"
    assert {found[k].group_name for k in found if k.startswith("topics/")} == {"kafka"}


def load(root: Path, code: str) -> dict[str, float]:
    script = "import json, resource, sys, time; began = time.perf_counter()\n" + code
    script += "\nu = resource.getrusage(resource.RUSAGE_SELF)"
    script += "\nprint(json.dumps({'cpu': u.ru_utime + u.ru_stime, 'wall': time.perf_counter() - began}))"
    env = {**os.environ, "WATERTABLE_PROJECT": str(root)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=env, check=True, capture_output=True, text=True, timeout=120)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def test_a_secret_in_a_runs_config_is_refused_and_not_repeated(settings: Settings) -> None:
    pyspark = build_spark_resource(settings).resource_fn

    def started_with(options: dict[str, str]) -> object:
        return pyspark(dg.build_init_resource_context(config={"spark_config": options}))

    with pytest.raises(SettingsError, match=r"spark\.hadoop\.fs\.s3a\.secret\.key is a secret.*env:NAME") as refused:
        started_with({"spark.hadoop.fs.s3a.secret.key": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert started_with({"spark.hadoop.fs.s3a.secret.key": "env:S3_SECRET", "spark.sql.shuffle.partitions": "7"})


def test_definitions_start_nothing_and_load_in_three_seconds(settings: Settings) -> None:
    code = (
        "from watertable_platform.definitions import defs\n"
        "heavy = {'pyspark', 'py4j', 'great_expectations', 'confluent_kafka', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert len(list(defs.resolve_all_asset_specs())) == 9"
    )
    # of processor time, which a busy machine makes longer: then for Dagster's own load, too; in turns, since how busy it is changes
    turns = [[load(settings.project, each)["cpu"] for each in (code, "import dagster")] for _ in range(3)]
    found, dagster = map(min, zip(*turns, strict=True))
    assert found < max(3.0, 1.8 * dagster)


def test_fifty_apps_of_ten_tables_load_in_ten_seconds(tmp_path: Path) -> None:
    for n in range(50):
        lines = ["import watertable as wt", f'app = wt.App("app{n}")']
        lines += [f's = app.topic("t{n}", value="a STRING, b BIGINT, c DECIMAL(12,2)").stream()']
        tables = (f's.filter("b > {t}").group_by("a").agg(n=wt.count(), s=wt.sum("b * c + {t}"))' for t in range(10))
        lines += [f'{table}.materialized_as("t{t}")' for t, table in enumerate(tables)]
        write(tmp_path, **{f"app{n}__app": "\n".join(lines)})
    code = "from watertable_platform.definitions import defs\nassert len(list(defs.resolve_all_asset_specs())) == 550"
    assert load(tmp_path, code + "\ndefs.get_repository_def()")["cpu"] < 10.0


@pytest.mark.parametrize(("env", "app"), [("", "retail"), ("staging", "staging_retail")])
def test_the_batch_asset_reads_the_table_of_its_own_environment(monkeypatch: pytest.MonkeyPatch, env: str, app: str) -> None:
    monkeypatch.setenv("WATERTABLE_ENV", env)
    code = f"""
from watertable_platform.definitions import defs
graph = defs.get_repository_def().asset_graph
(table,) = [graph.get(key) for key in graph.get_all_asset_keys() if key.path[-1] == "revenue_hourly"]
(daily,) = table.child_keys
assert (table.key.path[0], table.is_materializable, daily.path) == ({app!r}, True, ["daily_revenue"]), (table, daily)
"""
    load(ROOT, code)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_bytes((ROOT / "platform" / "watertable_platform" / "dagster.yaml").read_bytes())
    return tmp_path / "dagster"


def test_the_shipped_dagster_yaml_loads_and_says_what_it_must(home: Path) -> None:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_cancel_timeout_seconds > 40
        assert not instance.telemetry_enabled


def test_the_workspace_loads(settings: Settings) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(ROOT / "workspace.yaml")],
        env={**os.environ, "WATERTABLE_PROJECT": str(settings.project)}, capture_output=True, text=True, timeout=120, cwd=settings.project,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
