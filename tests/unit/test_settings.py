"""Settings: one place, the environment over the file, secrets never written down or shown."""

from __future__ import annotations

import re
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from watertable.errors import SettingsError
from watertable.jars import find_java
from watertable.kafka.config import Cluster
from watertable.settings import JAVA_OPTIONS, LEFT_OUT, REDACTED, REGROUPS, Secret, Settings, find_project, resolve, zeroing


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.watertable]\nassets = ["apps"]\nkafka = "broker:9093"\nwarehouse = "lake"\n'
        '[tool.watertable.kafka_options]\n"kafka.security.protocol" = "SASL_SSL"\n"sasl.password" = "env:KAFKA_PASSWORD"\n'
        '[tool.watertable.spark]\n"spark.sql.shuffle.partitions" = "7"\n"spark.hadoop.fs.s3a.secret.key" = "env:S3_SECRET"\n'
    )
    return tmp_path


def test_the_project_is_found_from_any_folder_below(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = project / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_project() == project
    settings = Settings.load()
    assert (settings.project, settings.assets, settings.kafka) == (project, ("apps",), "broker:9093")
    assert settings.warehouse_uri == str(project / "lake")
    assert settings.home_folder == project / ".watertable"


def test_the_environment_wins_over_the_file_and_the_caller_over_both(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATERTABLE_KAFKA", "elsewhere:1")
    assert Settings.load(project).kafka == "elsewhere:1"
    assert Settings.load(project, kafka="mine:2").kafka == "mine:2"


def test_without_a_table_everything_has_its_default(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path)
    assert (settings.kafka, settings.master, settings.env) == ("127.0.0.1:9092", "local[*]", "")
    assert settings.warehouse_uri == str(tmp_path / ".watertable" / "warehouse")


@pytest.mark.parametrize("uri", ["s3a://bucket/lake", "abfss://c@account.dfs.core.windows.net/lake", "hdfs:///lake", "file:///lake"])
def test_a_warehouse_uri_is_kept_as_it_is(tmp_path: Path, uri: str) -> None:
    assert Settings.load(tmp_path, warehouse=uri + "/").warehouse_uri == uri


def test_a_folder_may_be_named_from_the_users_own_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    found = Settings.load(tmp_path, home="~/state", warehouse="~/lake")
    assert (str(found.home_folder), found.warehouse_uri) == ("/home/ada/state", "/home/ada/lake")


@pytest.mark.parametrize("name", ["home", "kafka", "master"])
def test_a_setting_that_is_empty_is_refused_where_nothing_can_go_by_it(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's `WATERTABLE_HOME=$STATE` with nothing in STATE would make the project's folder itself the one of local state."""
    monkeypatch.setenv(f"WATERTABLE_{name.upper()}", "")
    with pytest.raises(SettingsError, match=f"{name}: it is empty; leave it out for its default"):
        Settings.load(project)


@pytest.mark.parametrize("env", ["1", "2_staging", "Not OK", "stag-ing"])
def test_an_environment_whose_names_would_be_none_is_refused(project: Path, env: str) -> None:
    with pytest.raises(SettingsError, match="env: it begins names: lower-case letters, digits and _, no digit first"):
        Settings.load(project, env=env)


def test_unknown_and_wrong_settings_are_named_with_their_file(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.watertable]\nasset = ["x"]\nenv = "Not OK"\n')
    with pytest.raises(SettingsError, match=r"pyproject\.toml.*env: .*asset: there is no such setting; did you mean assets\?"):
        Settings.load(project)
    (project / "pyproject.toml").write_text('[tool.watertable]\nassets = "x"\nserve_token = "abc"\nfar_off = 3\n')
    with pytest.raises(SettingsError) as caught:
        Settings.load(project)
    for says in ('assets: wanted a list of texts, such as ["assets"]', "serve_token: it is a secret", "far_off: there is no such setting"):
        assert says in str(caught.value)
    (project / "pyproject.toml").write_text("[tool.watertable\n")
    with pytest.raises(SettingsError, match=r"pyproject\.toml: "):
        Settings.load(project)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[tool.watertable]]\nkafka = 'a:1'", r"pyproject\.toml: tool\.watertable is no table"),
        ("tool.watertable = 3", r"pyproject\.toml: tool\.watertable is no table"),
        ("tool = 3", r"pyproject\.toml: `tool` is no table"),
        ("[tool.watertable.spark]\nspark.sql.shuffle.partitions = '7'", 'spark: quote the name, "spark.sql.shuffle.partitions" = '),
        ("[tool.watertable.kafka_options]\nsecurity.protocol = 'SSL'", 'kafka_options: quote the name, "security.protocol" = '),
        ("[tool.watertable]\nassets = ['a', './a']", "assets: a is named twice"),
        ("[tool.watertable.days]\nshop = 'foo'", "days: shop: 'foo' is no span of days"),
        ("[tool.watertable.days]\nshop = '2026-02-01/2026-01-01'", "days: shop: the days '2026-02-01/2026-01-01' end before they begin"),
        ("[tool.watertable]\nhorizon_days = 1000000", "horizon_days: .*less than or equal to 36500"),
        ("[tool.watertable]\nhorizon_days = inf", "horizon_days: .*finite"),
        ("[tool.watertable]\ntidy_seconds = inf", "tidy_seconds: .*finite"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_settings_are_read(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SettingsError, match=says):
        Settings.load(tmp_path)


def test_a_horizon_of_a_century_is_a_span_of_time(tmp_path: Path) -> None:
    assert timedelta(days=Settings.load(tmp_path, horizon_days=36_500).horizon_days).days == 36_500


@pytest.mark.parametrize(("name", "value"), [("ASSETS", "apps"), ("DAYS", "x"), ("SPARK", "a=b")])
def test_what_the_environment_has_to_say_in_json_is_asked_for_so(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"WATERTABLE_{name}", value)
    with pytest.raises(SettingsError, match=f"""WATERTABLE_.*"{name.lower()}".*JSON.*WATERTABLE_ASSETS='."apps".'"""):
        Settings.load(project)


def test_a_project_file_that_is_no_text_is_named(project: Path) -> None:
    (project / "pyproject.toml").write_bytes(b"[tool.watertable]\nkafka = '\xff\xfe'\n")
    with pytest.raises(SettingsError, match=r"pyproject\.toml: 'utf-8'"):
        Settings.load(project)


@pytest.mark.parametrize(
    "options",
    [
        {"kafka_options": {"sasl.password": "hunter2"}},
        {"kafka_options": {"kafka.sasl.jaas.config": "PlainLoginModule required password=x;"}},
        {"kafka_options": {"ssl.keystore.password": "hunter2"}},
        {"spark": {"spark.hadoop.fs.s3a.secret.key": "hunter2"}},
        {"kafka_options": {"ssl.keystore.key": "hunter2"}},
        {"spark": {"spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net": "hunter2"}},
        {"spark": {"spark.hadoop.fs.azure.sas.box.me.blob.core.windows.net": "hunter2"}},
        {"spark": {"spark.hadoop.fs.gs.auth.service.account.private.key": "hunter2"}},
        {"spark": {"spark.hadoop.fs.s3a.encryption.key": "hunter2"}},
    ],
    ids=str,
)
def test_a_secret_written_down_is_refused_and_not_repeated(tmp_path: Path, options: dict[str, dict[str, str]]) -> None:
    for make in (Settings.load, lambda project, **options: Settings(project=project, **options)):
        with pytest.raises(ValueError, match="env:NAME") as refused:
            make(tmp_path, **options)
        assert "hunter2" not in str(refused.value)


def test_what_is_no_secret_may_be_written_down(tmp_path: Path) -> None:
    options = {"ssl.truststore.location": "/ca.pem", "sasl.oauthbearer.token.endpoint.url": "https://idp/token"}
    assert Settings.load(tmp_path, kafka_options=options).kafka_options == options
    spark = {"spark.hadoop.fs.azure.sas.expiry.period": "90d", "spark.hadoop.fs.gs.auth.service.account.private.key.id": "1"}
    assert Settings.load(tmp_path, spark=spark).spark == spark


def test_a_secret_shows_nowhere_until_it_is_revealed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    settings = Settings.load(project)
    cluster = Cluster.of(settings)
    found = resolve("sasl.password", settings.kafka_options["sasl.password"])
    assert isinstance(found, Secret)
    assert found.reveal() == "hunter2"
    shown = f"{settings} {settings!r} {settings.model_dump_json()} {cluster} {cluster!r} {found} {found!r} {[found]}"
    assert "hunter2" not in shown
    monkeypatch.delenv("KAFKA_PASSWORD")
    with pytest.raises(SettingsError, match=r"sasl\.password = 'env:KAFKA_PASSWORD', but KAFKA_PASSWORD is not set"):
        cluster.client_config()


def test_more_settings_of_sparks_go_over_the_projects_and_are_held_to_the_same(project: Path) -> None:
    more = Settings.load(project).with_spark({"spark.sql.shuffle.partitions": "3"})
    assert more.spark == {"spark.sql.shuffle.partitions": "3", "spark.hadoop.fs.s3a.secret.key": "env:S3_SECRET"}
    with pytest.raises(SettingsError, match=r"^spark\.hadoop\.fs\.s3a\.secret\.key is a secret"):
        more.with_spark({"spark.hadoop.fs.s3a.secret.key": "hunter2"})


def test_spark_gets_our_settings_and_the_users_over_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", "s3cret")
    conf = Settings.load(project).spark_conf()
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.sql.ansi.enabled"] == "true"
    assert "spark.jars" not in conf, "the session adds those that are pinned"
    assert "spark.jars.packages" not in conf  # nothing is resolved when Spark starts
    assert conf["spark.sql.shuffle.partitions"] == "7"
    assert conf["spark.hadoop.fs.s3a.secret.key"] == "s3cret"


@pytest.mark.parametrize("theirs", [{}, {REDACTED: "(?i)mine"}])
def test_spark_is_told_to_show_no_secret_on_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: dict[str, str]) -> None:
    """By itself it knows neither Azure's account keys nor what the user alone knows to be one."""
    monkeypatch.setenv("KEY", "hunter2")
    secret = ["fs.azure.account.key.shop.dfs.core.windows.net", "spark.my.own", "fs.s3a.secret.key"]
    named = {"spark.hadoop." + name if name.startswith("fs.") else name: "env:KEY" for name in secret}
    conf = Settings.load(tmp_path, spark={**named, "spark.hadoop.fs.plain": "shown", **theirs}).spark_conf()
    hidden = re.compile(conf[REDACTED])
    assert [name for name in [*named, *secret] if not hidden.search(name)] == []
    assert not hidden.search("spark.hadoop.fs.plain")
    assert hidden.search("mine" if theirs else "spark.my.password")


@pytest.mark.parametrize("name", ["spark.sql.session.timeZone", "spark.sql.ansi.enabled"])
def test_what_fingerprints_say_of_spark_is_no_setting(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"spark: {name} can't be set: tables are computed in UTC and ANSI mode"):
        Settings.load(tmp_path, spark={name: "America/New_York"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("executor.memory", "spark.executor.memory"), ("fs.s3a.endpoint", "spark.hadoop.fs.s3a.endpoint"), ("hadoop.x", "spark.hadoop.x")],
)
def test_what_spark_would_pass_over_is_no_setting(tmp_path: Path, name: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=rf"spark: {name}: Spark passes over .* did you mean {meant}\?$"):
        Settings.load(tmp_path, spark={name: "1"})
    with pytest.raises(SettingsError, match=meant):
        Settings.load(tmp_path).with_spark({name: "1"})


def test_sums_stay_as_they_are_written_whatever_rules_of_sparks_the_user_leaves_out(tmp_path: Path) -> None:
    theirs = "org.apache.spark.sql.catalyst.optimizer.CollapseProject"
    assert Settings.load(tmp_path).spark_conf()[LEFT_OUT] == REGROUPS
    assert Settings.load(tmp_path, spark={LEFT_OUT: theirs}).spark_conf()[LEFT_OUT] == f"{REGROUPS},{theirs}"


@pytest.mark.parametrize(("named", "ours"), [("", True), ("-Xlog:gc", True), ("-XX:+UseG1GC -Xlog:gc", False)])
def test_a_collector_that_the_environment_names_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, ours: bool
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", named)
    assert ("-XX:+UseParallelGC" in Settings.load(tmp_path).spark_conf()["spark.driver.extraJavaOptions"]) is ours


def test_options_of_java_are_added_to_those_that_tables_go_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    theirs = {JAVA_OPTIONS: "-Xss4m -XX:+UseG1GC", "spark.executor.extraJavaOptions": "-verbose:gc"}
    driver, executors = (Settings.load(tmp_path, spark=theirs).spark_conf()[name].split() for name in theirs)
    assert driver[-2:] == ["-Xss4m", "-XX:+UseG1GC"]
    assert "-XX:+UseParallelGC" not in driver, "of two collectors a JVM takes none"
    assert executors[-1] == "-verbose:gc"
    assert {"-XX:+UseParallelGC", "-Duser.timezone=UTC", "-Duser.language=en"} <= set(executors)
    assert "-Duser.timezone=UTC" in driver


@pytest.mark.parametrize(
    ("told", "option"),
    [
        ("vendor_id : GenuineIntel\nflags : fpu bmi2 erms invpcid\n", "-XX:+UseFastStosb"),
        ("vendor_id : GenuineIntel\nflags : fpu sse2\n", ""),
        ("vendor_id : AuthenticAMD\nflags : fpu bmi2 erms invpcid\n", ""),
        ("CPU implementer : 0x41\nFeatures : fp asimd\n", ""),
        (None, ""),
    ],
    ids=["intel", "an old one", "amd", "arm", "no linux"],
)
def test_memory_is_zeroed_by_the_one_instruction_where_that_was_measured(tmp_path: Path, told: str | None, option: str) -> None:
    if told is not None:
        (tmp_path / "cpuinfo").write_text(told)
    assert zeroing(tmp_path / "cpuinfo") == option


def test_this_machines_java_takes_the_option_for_its_processor_without_a_word_against_it(tmp_path: Path) -> None:
    options = Settings.load(tmp_path).spark_conf()["spark.driver.extraJavaOptions"].split()
    assert (zeroing() in options) is bool(zeroing())
    said = subprocess.run([find_java().launcher, *options, "-version"], capture_output=True, text=True, check=True)
    assert "warning" not in said.stderr
    assert zeroing() not in Settings.load(tmp_path).spark_conf()["spark.executor.extraJavaOptions"].split()  # they run on any machine


def test_a_variable_that_is_nearly_a_settings_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATERTABLE_PLANS", "3")  # another's
    Settings.load(project)
    monkeypatch.setenv("WATERTABLE_HORIZON_DAY", "3")
    with pytest.raises(
        SettingsError, match="WATERTABLE_HORIZON_DAY in the environment is no setting; did you mean WATERTABLE_HORIZON_DAYS"
    ):
        Settings.load(project)
