"""Read a project's settings once, from one place: `[tool.watertable]`, overridden by WATERTABLE_* in the environment.

The project is the nearest folder upward of the working directory whose pyproject.toml has a `[tool.watertable]` table (or
WATERTABLE_PROJECT); relative paths are relative to it, so a command works from any folder below. Nothing here is global: a `Settings` is
a frozen value that is passed on.

A secret is never a setting. A setting says where one is: "env:NAME". It is looked up when a connection is made, and travels as a
`Secret`, which prints as ***.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as NoJson

from watertable.errors import SettingsError

_JAVA: Final = (
    "-Xss16m -Duser.timezone=UTC -Duser.language=en -Duser.country=US -XX:MetaspaceSize=256m -XX:Tier4InvocationThreshold=50000 "
    "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
    + (" -Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else "")
)
"""A table is the same whatever the machine: on a Turkish one Java's `upper('iß')` isn't `ISS`.

Deep plans overflow the default stack; and the classes of generated code fit before a collection is due for them.

Code is compiled for the last time when it has run ten times as often as by default: of two cores, half of one went into that for minutes.
Hadoop starts a process for each mode that it sets and each link that it looks for on a local disk, some 35 a commit: so they take half.
"""
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a JVM of minutes: it is gone before the code that Java's second compiler would make of it is in use."""
_COLLECTOR: Final = "-XX:+UseParallelGC"
"""A batch has better use for the cores than a collector that works beside it."""
_FAST_ZEROS: Final = "-XX:+UseFastStosb"
"""Spark's decoder of JSON takes 8 KB for each value, which Java sets to zero first: two thirds of all memory that a replay asks for."""
BATCH_RECORDS: Final = 1_000_000
"""Most records in one batch, by default: what a batch costs beside its data is a quarter of one of 400,000."""
LEFT_OUT: Final = "spark.sql.optimizer.excludedRules"
REGROUPS: Final = "org.apache.spark.sql.catalyst.optimizer.ReorderAssociativeOperator"
"""Spark's rule that makes `a + 1 + -2` into `a + -1`, and a try_add in a sum into one that fails: they overflow elsewhere or nowhere."""
REDACTED: Final = "spark.redaction.regex"
_REDACTED_BY_DEFAULT: Final = "(?i)secret|password|token|access[.]?key"
"""What Spark's page and its event log leave out of a configuration: of Azure's account keys, say, nothing."""
HELD: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
"""What Spark evaluates expressions by; it is part of every fingerprint, so it is no setting."""
_SECRET_NAME: Final = re.compile(
    r"password|passphrase|secret|jaas|token|credential|account\.key|\.sas\.|(access|private|encryption|keystore|api)\.key$|key\.pem$", re.I
)
_NOT_SECRET: Final = re.compile(r"\.(file|location|url|uri|class|type|seconds|ms|period|path|enabled|provider)$", re.I)
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*:/", re.I)


@dataclass(frozen=True, slots=True)
class Secret:
    """Carry a secret without showing it: str, repr and formatting give ***; only `reveal` gives the value.

    >>> f"{Secret('hunter2')} {Secret('hunter2')!r}", Secret("hunter2").reveal()
    ("*** Secret('***')", 'hunter2')
    """

    _value: str = field(repr=False)

    def reveal(self) -> str:
        """Return the value: call it where a connection is made, nowhere else."""
        return self._value

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret('***')"


def resolve(name: str, value: str) -> str | Secret:
    """Return the value of an option, looked up in the environment where it is "env:NAME"; raise `SettingsError` if that isn't set."""
    if not value.startswith("env:"):
        return value
    variable = value.removeprefix("env:")
    if variable not in os.environ:
        raise SettingsError(f"{name} = {value!r}, but {variable} is not set in the environment")
    return Secret(os.environ[variable])


class Settings(BaseSettings):
    """Hold one project's settings; make one with `Settings.load()`.

    `kafka_options` are Kafka client options under their Java names (`security.protocol`, with or without `kafka.` in front) and reach
    Spark, the admin and the Python client alike. `spark` are `spark.*` settings and win over ours, but for what tables go by.
    """

    model_config = SettingsConfigDict(env_prefix="WATERTABLE_", frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    project: Path = Field(default_factory=lambda: Path.cwd(), description="the folder that relative paths are relative to")
    assets: tuple[str, ...] = Field(default=("assets",), description="folders whose apps and assets are loaded")
    env: str = Field(default="", pattern="^([a-z_][a-z0-9_]*)?$", description="prefix of an environment's names, e.g. staging")
    home: str = Field(default=".watertable", min_length=1, description="folder of the embedded broker, logs and local state")
    warehouse: str = Field(default="", description="path or URI of the Delta warehouse; default <home>/warehouse")
    kafka: str = Field(default="127.0.0.1:9092", min_length=1, description="bootstrap servers")
    kafka_options: dict[str, str] = Field(default_factory=dict, description="Kafka client options; secrets as env:NAME")
    master: str = Field(default="local[*]", min_length=1, description="Spark master")
    spark: dict[str, str] = Field(
        default_factory=dict, description="spark.* settings, over ours, but for time zone and ANSI mode; secrets as env:NAME"
    )
    trigger_seconds: float = Field(default=1.0, ge=0, description="least time between the commits of an app")
    batch_records: int = Field(default=BATCH_RECORDS, gt=0, description="most records in one batch")
    punctuate_seconds: float = Field(default=10.0, ge=0, description="least time between two looks at what is scheduled by the wall clock")
    fold_seconds: float = Field(default=30.0, gt=0, description="time between two folds of a table, as other Delta readers see it")
    tail_rows: int = Field(default=2_000_000, gt=0, description="unfolded rows that begin a fold; at twice as many the stream waits")
    shadow_lag_seconds: float = Field(
        default=5.0, gt=0, description="a shadow begins no batch while its app has committed nothing for so long though records wait"
    )
    tidy_seconds: float = Field(default=600.0, gt=0, description="time between two rounds of OPTIMIZE, trims and VACUUM")
    horizon_days: float = Field(default=7.0, gt=0, le=36_500, description="how far back tables can be read and rewound; a century at most")
    days: dict[str, str] = Field(
        default_factory=dict, description="days an app's data spans, first/last or first/..: partitions in Dagster"
    )
    serve_token: str = Field(default="", pattern="^(env:.+)?$", description="token that `watertable serve` asks for, as env:NAME")
    serve_requests: int = Field(default=4, gt=0, description="requests that `watertable serve` computes at once; others wait")
    serve_seconds: float = Field(default=60.0, gt=0, description="longest that a request may take; then its jobs are cancelled")
    serve_rows: int = Field(default=100_000, gt=0, description="most rows that a request may ask for at once")
    maven_mirror: str = Field(default="", description="address of the Maven repository that jars are fetched from")

    def in_environment(self, name: str) -> str:
        """Give the name that what a project makes has in this environment: an app's, an output topic's or a file's, with the prefix.

        >>> Settings(env="staging").in_environment("retail"), Settings(env="").in_environment("retail")
        ('staging_retail', 'retail')
        """
        return f"{self.env}_{name}" if self.env else name

    def own_name(self, name: str) -> str:
        """Give what definitions call by a name of this environment: without the prefix."""
        return name.removeprefix(self.in_environment(""))

    def span(self, app: str) -> tuple[date, date | None] | None:
        """Give the first and the last day of an app's data, None where it goes on; None where they aren't declared."""
        text = self.days.get(self.own_name(app))
        return None if text is None else span(text)

    @classmethod
    def load(cls, project: Path | str | None = None, **overrides: Any) -> Self:
        """Read the settings of the project at a folder, or of the one around the working directory.

        Precedence: `overrides`, then WATERTABLE_* in the environment, then `[tool.watertable]`. Raises `SettingsError` naming each
        setting that is unknown or wrong, and the file it stands in.
        """
        found = Path(project) if project is not None else find_project()
        _refuse_misspelt(os.environ, cls.model_fields)
        try:
            return cls(project=found.resolve(), **overrides)
        except ValidationError as error:
            said = [(".".join(map(str, e["loc"])), e["type"], str(e["msg"]).removeprefix("Value error, ")) for e in error.errors()]
            wrong = "; ".join(f"{name}: {_plainly(name, kind, what, cls.model_fields)}" for name, kind, what in said)
            raise SettingsError(f"{found / 'pyproject.toml'} [tool.watertable] or WATERTABLE_*: {wrong}") from None
        except NoJson as error:
            raise SettingsError(
                f"WATERTABLE_*: {error}: lists and tables are written as JSON in the environment, "
                """WATERTABLE_ASSETS='["apps"]', WATERTABLE_DAYS='{"shop": "2026-01-01/.."}'"""
            ) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: what the caller says, the environment, the project's table."""
        project = init_settings().get("project") or find_project()
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=_table(Path(project)))

    @field_validator("home", "warehouse", mode="after")
    @classmethod
    def _of_this_user(cls, folder: str) -> str:
        return os.path.expanduser(folder)  # no shell has seen what a file says, and a folder called ~ is easily removed as another one

    @field_validator("assets", mode="after")
    @classmethod
    def _each_folder_once(cls, assets: tuple[str, ...]) -> tuple[str, ...]:
        folders = [os.path.normpath(folder) for folder in assets]
        if twice := sorted({folder for folder in folders if folders.count(folder) > 1}):
            raise ValueError(f"{', '.join(twice)} is named twice")
        return assets

    @field_validator("days", mode="after")
    @classmethod
    def _spans(cls, days: dict[str, str]) -> dict[str, str]:
        for app, text in days.items():
            try:
                span(text)
            except SettingsError as error:
                raise ValueError(f"{app}: {error}") from None
        return days

    @field_validator("kafka_options", "spark", mode="before")
    @classmethod
    def _names_are_quoted(cls, options: object) -> object:
        for name, value in options.items() if isinstance(options, dict) else ():
            whole = [str(name)]
            while isinstance(value, dict) and value:
                inner, value = next(iter(value.items()))
                whole.append(inner)
            if len(whole) > 1:
                raise ValueError(f'quote the name, "{".".join(whole)}" = …: in TOML a dot outside of quotes makes a table')
        return options

    @field_validator("kafka_options", "spark", mode="after")
    @classmethod
    def _no_literal_secrets(cls, options: dict[str, str]) -> dict[str, str]:
        for name, value in options.items():
            if _SECRET_NAME.search(name) and not _NOT_SECRET.search(name) and not value.startswith("env:"):
                raise ValueError(f'{name} is a secret: put it in the environment and write "env:NAME" here')
        return {name.removeprefix("kafka."): value for name, value in options.items()}

    @field_validator("spark", mode="after")
    @classmethod
    def _nothing_that_is_held(cls, options: dict[str, str]) -> dict[str, str]:
        if other := sorted(name for name in options if not name.startswith("spark.")):
            hadoops = other[0].startswith(("fs.", "hadoop.", "dfs."))
            whole = f"spark.hadoop.{other[0].removeprefix('hadoop.')}" if hadoops else f"spark.{other[0]}"
            raise ValueError(f'{other[0]}: Spark passes over what doesn\'t begin with "spark."; did you mean {whole}?')
        for name in HELD.keys() & options.keys():
            raise ValueError(
                f"{name} can't be set: tables are computed in UTC and ANSI mode, and their fingerprints say so. "
                "Convert times in expressions, or where they are shown; cast by TRY_CAST where null is to come of what is no value"
            )
        return options

    def with_spark(self, options: dict[str, str]) -> Self:
        """Give these settings with more `spark.*` settings, over its own.

        Raises `SettingsError` for a secret that is written down, and for what tables go by.
        """
        try:
            return self.model_copy(update={"spark": {**self.spark, **self._nothing_that_is_held(self._no_literal_secrets(options))}})
        except ValueError as error:
            raise SettingsError(str(error)) from None

    @property
    def home_folder(self) -> Path:
        """Give the folder of the embedded broker, logs and local state."""
        return self.project / self.home

    def log_file(self, of: str) -> Path:
        """Give the file that a process of ours logs to, which may not be there yet."""
        return self.home_folder / "logs" / f"{of}.log"

    @property
    def warehouse_uri(self) -> str:
        """Give the Delta warehouse as an absolute path or a URI with its scheme, for Spark and for Delta readers."""
        folder = self.warehouse_folder
        return self.warehouse.rstrip("/") if folder is None else str(folder)

    @property
    def warehouse_folder(self) -> Path | None:
        """Give the Delta warehouse as a folder of this machine; None where it is a URI."""
        if not self.warehouse:
            return self.home_folder / "warehouse"
        return None if _URI.match(self.warehouse) else self.project / self.warehouse

    def spark_conf(self) -> dict[str, str]:
        """Build the configuration of every Spark session of this project: Delta, UTC, ANSI, then the user's own. The session adds the jars.

        Options of Java and rules of the optimizer that are left out are added to ours, which tables go by: nothing replaces those.

        Secrets are revealed in it: hand it to a session and show it nowhere; Spark is told to show none of them, either.
        Raises `SettingsError` when one isn't set.
        """
        conf = {
            "spark.master": self.master,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            **HELD,
            LEFT_OUT: REGROUPS,
            "spark.sql.warehouse.dir": str(self.home_folder / "spark-warehouse"),
            "spark.sql.variable.substitute": "false",  # else '${env:HOME}' in an expression is what this process has there
            "spark.databricks.delta.snapshotPartitions": "1",  # a snapshot is 50 tasks by default, and each writes 100 KB of code anew
            "spark.sql.codegen.cache.maxEntries": "1000",  # a round of commits and folds is more plans than the 100 it keeps by default
            "spark.python.sql.dataFrameDebugging.enabled": "false",  # else each column looks for its caller: 3 times its cost
            "spark.buffer.pageSize": "2m",  # the first row of each sort and group takes one: 32 MB to be zeroed, by default
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "WARN",
        }
        if self.master.startswith("local"):
            conf |= {
                "spark.driver.memory": "2g",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
            }
        secret: list[str] = []
        for name, value in self.spark.items():
            found = resolve(name, value)
            conf[name] = found.reveal() if isinstance(found, Secret) else found
            if isinstance(found, Secret):
                secret.append(re.escape(name.removeprefix("spark.hadoop.")))  # Hadoop's own configuration is shown as well
        if secret:
            conf[REDACTED] = "|".join([conf.get(REDACTED, _REDACTED_BY_DEFAULT), *secret])
        if REGROUPS not in conf[LEFT_OUT]:
            conf[LEFT_OUT] = f"{REGROUPS},{conf[LEFT_OUT]}"
        for name, more in ((JAVA_OPTIONS, zeroing()), ("spark.executor.extraJavaOptions", "")):
            conf[name] = java_options(_COLLECTOR, more, conf.get(name, ""))  # the user's come last, and of two Java takes the last
        return conf


def java_options(collector: str, *more: str) -> str:
    """Give the options of our JVMs, then `more`; where these or the environment name a collector, that is it: of two, a JVM takes none."""
    named = " ".join([*more, *(os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"))])
    ours = [_JAVA] if re.search(r"-XX:\+Use\w+GC\b", named) else [_JAVA, collector]
    return " ".join(filter(None, [*ours, *more]))


@cache
def zeroing(processor: Path = Path("/proc/cpuinfo")) -> str:
    """Give the option of a JVM on this machine by which it sets memory to zero by one instruction; none where that isn't known to be quick.

    Of an Intel processor that has the instruction, Java takes many others instead, which for kilobytes is slower.
    """
    try:
        told = processor.read_text()
    except OSError:  # no Linux
        return ""
    return _FAST_ZEROS if "GenuineIntel" in told and re.search(r"\berms\b", told) else ""


def _refuse_misspelt(environment: Iterable[str], settings: Iterable[str]) -> None:
    """Raise `SettingsError` for a variable that is nearly a setting's: it would be passed over, as those of others are."""
    names = {f"WATERTABLE_{name.upper()}" for name in settings}
    for variable in sorted(v for v in environment if v.startswith("WATERTABLE_") and v not in names):
        if near := get_close_matches(variable, names, 1, cutoff=0.93):
            raise SettingsError(f"{variable} in the environment is no setting; did you mean {near[0]}?")


def _plainly(name: str, kind: str, message: str, settings: Iterable[str]) -> str:
    """Say what is wrong with a setting, where pydantic says it in words of its own."""
    match kind:
        case "extra_forbidden":
            near = get_close_matches(name, [known for known in settings if known != "project"], 1)
            return "there is no such setting" + (f"; did you mean {near[0]}?" if near else "")
        case "tuple_type":
            return 'wanted a list of texts, such as ["assets"]'
        case "string_pattern_mismatch" if name == "serve_token":
            return 'it is a secret: put it in the environment and write "env:NAME" here'
        case "string_pattern_mismatch" if name == "env":
            return "it begins names: lower-case letters, digits and _, no digit first"
        case "string_too_short":
            return "it is empty; leave it out for its default"
        case _:
            return message


def find_project() -> Path:
    """Return the project's folder: WATERTABLE_PROJECT, else the nearest upward with `[tool.watertable]`, else the working directory."""
    named = os.environ.get("WATERTABLE_PROJECT")
    if named:
        return Path(named)
    here = Path.cwd().resolve()
    return project_around(here) or here


def project_around(folder: Path) -> Path | None:
    """Return the nearest folder upward that is a project: whose pyproject.toml has `[tool.watertable]`."""
    return next((found for found in (folder, *folder.parents) if "watertable" in _tools(found)), None)


def _table(project: Path) -> dict[str, Any]:
    table = _tools(project).get("watertable", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{project / 'pyproject.toml'}: tool.watertable is no table; write [tool.watertable], once")
    if "project" in table:
        raise SettingsError(f"{project / 'pyproject.toml'}: `project` is where this file stands; it is no setting of [tool.watertable]")
    return dict(table)


def _tools(folder: Path) -> dict[str, Any]:
    file = folder / "pyproject.toml"
    if not file.is_file():
        return {}
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from None
    if not isinstance(tools, dict):
        raise SettingsError(f"{file}: `tool` is no table; write [tool.watertable], and the settings below it")
    return tools


def span(text: str) -> tuple[date, date | None]:
    """Read "first/last" or "first/.."; raise `SettingsError` for anything else."""
    first, _, last = text.partition("/")
    try:
        found = (date.fromisoformat(first), None if last == ".." else date.fromisoformat(last))
    except ValueError:
        raise SettingsError(f"{text!r} is no span of days; write 2010-12-01/2011-12-09, or 2026-01-01/.. for live data") from None
    if found[1] is not None and found[1] < found[0]:
        raise SettingsError(f"the days {text!r} end before they begin")
    return found
