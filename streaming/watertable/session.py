"""Start the one Spark session of a process, from settings alone, and tell whether its JVM still lives.

A driver is two processes. Python starts the JVM and holds its standard input open: when Python dies, however it dies, the JVM reads the
end of that pipe and exits. The other way round nothing tells Python until its next call fails, so `alive` asks the process.

The configuration travels in a file that only this user can read and that is gone once the JVM has read it: on the command line,
where Spark would put it, every user of the machine could read the secrets in it.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyspark
from py4j.clientserver import ClientServerConnection, JavaClient
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from watertable.errors import JobError, KafkaError, SparkError, Unreachable, WatertableError
from watertable.jars import java_locale, java_words, property_text, spark_classpath
from watertable.settings import HELD, JAVA_OPTIONS, QUICK, Settings, java_options

PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it writes errors down, as JSON, that are raised as well
STREAM_POOL: Final = "stream"
UPKEEP_POOL: Final = "upkeep"
SERVING_POOL: Final = "serving"
_SCHEDULER: Final = Path(__file__).with_name("fairscheduler.xml")
_CONF: Final = {
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": f"file://{_SCHEDULER}",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.sql.datetime.java8API.enabled": "true",  # else a filter on a day of October 1582 asks Parquet for another one, of java.sql's
    "spark.sql.adaptive.enabled": "false",  # re-planning at each shuffle costs small batches a job per stage
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 by default: slower to read and larger, and deprecated
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",  # else Kafka's too, which makes Java objects of each record
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "512",  # list files in the driver, not in a job
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # VACUUM, by hand too, lists in so many tasks: 10,000 by default
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.sql.ui.retainedExecutions": "50",  # a stream runs for weeks: each kept plan is memory
}
_QUIET: Final = (
    "org.apache.spark.sql.kafka010.KafkaSourceProvider",  # of a group that is shared: consumers that commit would compete, ours never do
    "org.apache.spark.rdd.MapPartitionsRDD",  # of a lineage that was cut, which is what a checkpoint is for
    "org.apache.spark.sql.execution.LogicalRDD",  # of columns that were kept, whose fields the optimizer knows never to be null
    "org.apache.spark.sql.execution.window.WindowExec",  # of a window over the few rows of one partition
)
"""Who warns in every batch, of what is meant so: a stream's log would grow without end."""
_FUNCTIONS: Final = "org.apache.spark.sql.functions"
_LOOKED_UP: Final[Mapping[str, tuple[str, ...]]] = {
    _FUNCTIONS: ("col", "expr", "lit", "struct", "xxhash64"), "PythonUtils": ("toSeq",), "PythonSQLUtils": (), "java": (),
    "org": (), "org.apache.spark.sql.Observation": (), "org.apache.spark.sql.api.python.PythonSQLUtils": ("toPyRow",),
    "org.apache.spark.sql.classic.SparkSession": ("getActiveSession",),
}  # fmt: skip
"""What PySpark asks the JVM for by name with each column and frame: a question for a name goes through every jar.

Classes come with their methods: to ask for one is a question too.
"""
BRIEF: Final = {JAVA_OPTIONS: java_options("-XX:+UseSerialGC", QUICK)}
"""For a command that looks at something and ends."""
CLASSES: Final = Path(sys.prefix) / "share" / "watertable" / "spark.jsa"
"""The archive of classes that this environment's JVMs start from, where `watertable.classes` has made one."""
_CALL_SITE: Final = ("callSite.short", "callSite.long")
"""Where Spark says each job and RDD was made: seen from Python it's nowhere, and to look for it costs it a twentieth of its planning."""
_END: Final = ord("\n")
"""The last byte of an answer of Java's."""
_beside: Final[WeakKeyDictionary[SparkSession, tuple[SparkSession, dict[str, str]]]] = WeakKeyDictionary()
"""The session beside one that isn't `held`, once somebody was in need of it, and what it has been told of that one's settings."""
_lock = threading.Lock()


def spark_session(
    settings: Settings, *, app: str = "watertable", log: Path | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return this process's Spark session, started if there is none; where it isn't `held`, the one beside it.

    `log` takes what the JVM prints, which otherwise goes to standard error. `conf` goes under the user's own `spark.*` settings.
    Raises `SettingsError` when jars are missing, `JobError` when the JVM doesn't start (its memory, its Java).
    """
    with _lock:
        running = SparkContext._active_spark_context
        if running is not None:
            return held(SparkSession.builder.getOrCreate())
        ours = {**_CONF, **(conf or {}), "spark.app.name": app, "spark.jars": ",".join(map(str, spark_classpath()))}
        return _start(configuration(settings, ours), log)


def held(spark: SparkSession) -> SparkSession:
    """Give a session that evaluates expressions as plans mean them, in UTC and ANSI mode: this one, or where it doesn't, one beside it.

    What else is set on this one, then or later, is set there as well: how storage is reached, among others.
    """
    if all(spark.conf.get(name) == value for name, value in HELD.items()):
        return spark
    if spark not in _beside:
        beside = spark.newSession()
        _beside[spark] = beside, beside.conf.getAll
        for name, value in HELD.items():
            beside.conf.set(name, value)
    (beside, told), now = _beside[spark], spark.conf.getAll
    for name in (told.keys() | now.keys()) - HELD.keys():
        if name not in now:
            beside.conf.unset(name)
        elif told.get(name) != now[name]:
            beside.conf.set(name, now[name])
    _beside[spark] = beside, now
    return beside


def handed_over(frame: DataFrame) -> DataFrame:
    """Give a frame to the process's own session: to its temporary views, and to its time zone where a time is shown.

    What the frame computes stays as it was made: Spark has bound time zone and ANSI mode to each of its expressions by then.
    """
    own = SparkSession.builder.getOrCreate()
    return frame if frame.sparkSession is own else handed_to(own, frame)


def handed_to(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """Give a frame to another session of this process; what it computes stays as it was made."""
    return frame_of(spark, frame._jdf.queryExecution().analyzed())


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Give a frame of one of Spark's logical plans."""
    return DataFrame(in_jvm(spark, "org.apache.spark.sql.classic.Dataset.ofRows")(spark._jsparkSession, plan), spark)


def in_jvm(spark: SparkSession, name: str) -> Any:
    """Give a class of the JVM, or a static member of one, by its whole name: each is asked for once, and known as long as the JVM lives."""
    known = vars(spark._jvm)
    if name not in known:
        known[name] = reduce(getattr, name.split("."), spark._jvm)
    return known[name]


def listed(spark: SparkSession, items: Iterable[Any]) -> Any:
    """Make a list as Scala has it."""
    gathered = in_jvm(spark, "java.util.ArrayList")()
    for item in items:
        gathered.add(item)
    return in_jvm(spark, "scala.jdk.javaapi.CollectionConverters.asScala")(gathered).toList()


def configuration(settings: Settings, ours: Mapping[str, str]) -> dict[str, str]:
    """Give a session's whole configuration: the settings', with `ours` under what the user says, and the archive of classes."""
    whole = settings.spark_conf() | {name: value for name, value in ours.items() if name not in settings.spark}
    if CLASSES.is_file() and JAVA_OPTIONS not in settings.spark:  # of another Java, or of other jars, Java leaves it alone
        whole[JAVA_OPTIONS] += f' "-XX:SharedArchiveFile={CLASSES}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    return whole


def work_with_this_python(spark: SparkSession) -> None:
    """Let the Python workers of one machine be this interpreter again, with its packages, unless PYSPARK_PYTHON says otherwise.

    Spark takes the first `python3` of the path. That is another one wherever an environment isn't activated, and it is asked for more
    often than one sees: `createDataFrame` of a list of rows is made by a worker.
    """
    if (spark.sparkContext.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable


class _Answers(io.RawIOBase):
    """Read what Java answers, and acknowledge what has come of an answer while there is more of it.

    Java sends an answer by 8 KB, and holds each piece back until the one before is acknowledged, which Linux puts off for 40 ms
    (py4j#516, mended in py4j after 0.10.9.9, which has the JVM's side of it, too): a schema or a commit takes as long to read as a batch.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; give the number of bytes."""
        number = self._connection.recv_into(buffer)
        if number and buffer[number - 1] != _END:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return number


def _read_at_once(gateway: JavaGateway) -> None:
    """Let long answers of the JVM's come at once to whatever thread asks; of systems other than Linux nothing is known, or done."""
    client = gateway._gateway_client
    if not hasattr(socket, "TCP_QUICKACK") or not isinstance(client, JavaClient):
        return
    connect = client._create_new_connection

    def read(connection: ClientServerConnection) -> ClientServerConnection:
        connection.stream.close()
        connection.stream = io.BufferedReader(_Answers(connection.socket))
        return connection

    for connection in client.deque:
        read(connection)
    client._create_new_connection = lambda: read(connect())


def alive(spark: SparkSession) -> bool:
    """Tell whether the JVM of a session is running."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def lost_jvm(spark: SparkSession, error: BaseException) -> bool:
    """Tell whether an error says that the JVM is gone, rather than that it refused something."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionError) or (isinstance(seen, Py4JError) and not isinstance(seen, Py4JJavaError)):
            return True
        seen = seen.__cause__
    return not alive(spark)


def said(error: BaseException) -> str:
    """Say in a line what is at the bottom of an error: above it there is only who was at work. Where storage failed, say what to do."""
    bottom = _bottom(error)
    kind, text = type(error).__name__, str(error)
    if bottom is not None:
        kind, text = str(bottom.getClass().getName()), str(bottom.getMessage() or "")
    first = (text.strip().splitlines() or [""])[0][:500]
    words = first if first.startswith("[") else f"{kind}: {first}"  # Spark names what it has a name for
    if storage_failed(error):
        words += ": storage failed. What is committed is whole; see to room and rights there, and try again"
    return words


def storage_failed(error: BaseException) -> bool:
    """Tell whether a file could not be written, read or found: no record is to blame for that."""
    return _has_cause(error, ["java.io.IOException"])


def kafka_failed(error: BaseException) -> bool:
    """Tell whether a cluster didn't answer Spark in time, or let it in no more: no record is to blame for that, either."""
    return _has_cause(error, [f"org.apache.kafka.common.errors.{kind}Exception" for kind in ("Timeout", "Authentication", "Authorization")])


def by_data(error: Exception, spark: SparkSession) -> bool:
    """Tell whether data may be to blame for what Spark failed at; raise `KafkaError` where it was the cluster that it reads from."""
    if isinstance(error, WatertableError | AnalysisException) or not isinstance(error, PySparkException | Py4JJavaError):
        return False
    if lost_jvm(spark, error) or storage_failed(error):
        return False
    if kafka_failed(error):
        raise KafkaError(f"Spark can't read from Kafka: {said(error)}") from error
    return True


def _has_cause(error: BaseException, wanted: Collection[str]) -> bool:
    """Tell whether something of one of these classes is among what the JVM threw."""
    for thrown in _thrown(error):
        kind = thrown.getClass()
        while kind is not None:
            if kind.getName() in wanted:
                return True
            kind = kind.getSuperclass()
    return False


def _thrown(error: BaseException) -> Iterator[Any]:
    """Give what the JVM threw, and what each was the cause of before it; nothing where an error isn't its."""
    found = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while found is not None:
        yield found
        found = found.getCause()


def _bottom(error: BaseException) -> Any:
    """Give what the JVM threw first; None where an error isn't its."""
    return next(reversed([*_thrown(error)]), None)


@contextmanager
def in_words(spark: SparkSession) -> Iterator[SparkSession]:
    """Raise what goes wrong in the JVM as `SparkError`, while it can still be asked for the words: once it has ended, it can't.

    Where storage failed, or the JVM itself is gone, it is `Unreachable`.
    """
    try:
        yield spark
    except (Py4JError, PySparkException, ConnectionError) as error:
        if lost_jvm(spark, error):
            gone = "the JVM of this command is gone: killed, or out of memory (its log says). Nothing that is committed is lost: try again"
            raise Unreachable(gone) from error
        raise (Unreachable if storage_failed(error) else SparkError)(said(error)) from error


@contextmanager
def job_group(spark: SparkSession, group: str, description: str, pool: str) -> Iterator[Callable[[], int]]:
    """Run this thread's Spark jobs under a group and a pool; the value yielded counts the group's jobs so far."""
    context = spark.sparkContext
    context.setJobGroup(group, description, interruptOnCancel=True)  # a cancelled task must not keep its core
    context.setLocalProperty("spark.scheduler.pool", pool)
    for form in _CALL_SITE:
        context.setLocalProperty(form, description)
    tracker = context.statusTracker()
    try:
        yield lambda: len(tracker.getJobIdsForGroup(group))
    finally:
        if alive(spark):
            for name in ("spark.jobGroup.id", *_CALL_SITE):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]


def cancel_jobs(spark: SparkSession, group: str) -> None:
    """Cancel the jobs of a group, those that run and those that are yet to begin."""
    spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)


@contextmanager
def shuffled_by(spark: SparkSession, tasks: int | None) -> Iterator[None]:
    """Shuffle among so many tasks whatever is planned meanwhile; among as many as ever where it is None."""
    name = "spark.sql.shuffle.partitions"
    usual = spark.conf.get(name)
    try:
        if tasks is not None:
            spark.conf.set(name, tasks)
        yield
    finally:
        if tasks is not None and alive(spark):
            spark.conf.set(name, str(usual))


def shut_down(spark: SparkSession, *, seconds: float = 10.0) -> None:
    """Stop the session and its JVM, and wait until the process is gone; kill it if it takes longer."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    stopper = threading.Thread(target=_quietly, args=(spark.stop,), daemon=True)
    stopper.start()
    stopper.join(seconds / 2)
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        _quietly(gateway.shutdown)
    if process is None:
        return
    if process.stdin is not None:
        _quietly(process.stdin.close)
    try:
        process.wait(seconds / 2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(conf: Mapping[str, str], log: Path | None) -> SparkSession:
    kept = {name: os.environ.get(name) for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_HOME", "SPARK_LOCAL_IP", "LC_ALL")}
    written = log.stat().st_size if log and log.is_file() else 0
    descriptor, file = tempfile.mkstemp(prefix="watertable-", suffix=".conf")  # readable by this user only
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.writelines(f"{property_text(name)}={property_text(value)}\n" for name, value in conf.items())
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {file} pyspark-shell"
        if not _is_this_spark(kept["SPARK_HOME"]):
            os.environ.pop("SPARK_HOME", None)  # it's for other programs, and would be started: PySpark's own is taken
        if conf["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else it looks this machine's own name up, which need not be known
        os.environ.update(java_locale())
        interrupt = signal.getsignal(signal.SIGINT)
        gateway = _launch(log)
        _read_at_once(gateway)
        session = SparkSession(SparkContext(gateway=gateway))
        log4j = session._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        for name in _QUIET:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
        work_with_this_python(session)
        for name, methods in _LOOKED_UP.items():
            found = getattr(session._jvm, name)
            for method in methods:
                setattr(found, method, getattr(found, method))
            setattr(session._jvm, name, found)
        session._jvm.functions = getattr(session._jvm, _FUNCTIONS)  # type: ignore[union-attr]  # what a column's name is asked of
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)  # PySpark takes Ctrl-C for itself, to cancel all jobs
        return session
    except Exception as error:
        raise JobError(f"Spark doesn't start: {_reason(error, log, written)}") from error
    finally:
        Path(file).unlink(missing_ok=True)
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _is_this_spark(home: str | None) -> bool:
    """Tell whether a SPARK_HOME is of the Spark that this PySpark and the jars are for."""
    return home is not None and any(Path(home, "jars").glob(f"spark-core_*-{pyspark.__version__}.jar"))


def _launch(log: Path | None) -> JavaGateway:
    launch: Callable[..., JavaGateway] = launch_gateway
    if log is None:
        return launch()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return launch(popen_kwargs={"stdout": out, "stderr": out})


def _reason(error: Exception, log: Path | None, written: int, lines: int = 6) -> str:
    """Say why there is no session: what Java raised, or where the JVM has died the end of what it wrote, whose log may soon be gone."""
    reason, *more = str(error).splitlines()
    if isinstance(error, Py4JJavaError) and more:
        return more[0].removeprefix(": ")
    if log is None or not log.is_file():
        return reason
    with log.open("rb") as file:
        file.seek(written)
        said = java_words(file.read().decode("utf-8", "replace"))
    return "\n".join([reason, f"the JVM's own words, in {log}:", *(f"  {line}" for line in said[-lines:] or ["none"])])


def _quietly(act: Callable[[], object]) -> None:
    try:
        act()
    except Exception:  # noqa: S110 - the JVM may be gone already, which is what is wanted
        pass
