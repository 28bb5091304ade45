"""Hold every error that watertable raises on purpose: one tree, stable names, free wording.

A message says what went wrong, where (the file:line of the user's definition, or the topic, partition and offset of a record),
what was wanted and what came, and what to do. The tree:

    WatertableError
    ├── DefinitionError            a plan that can't be right; raised while it is written
    │   ├── SchemaError            a DDL string or a type that doesn't fit          (ValueError)
    │   ├── ExpressionError        a Spark SQL expression that can't be used        (ValueError)
    │   ├── UnknownColumn          a name that is in no schema in scope             (LookupError)
    │   └── DuplicateName          two tables, topics or apps of one name           (ValueError)
    ├── EvaluationError            an expression fails on a record, as it would in Spark's ANSI mode  (ValueError)
    │   └── DecodeError            bytes that are no value of their schema
    │       └── BeyondTime         bytes of a date or time that Python hasn't
    ├── UnsupportedFunction        outside the interpreter's subset of Spark SQL    (NotImplementedError)
    ├── SettingsError              a setting that is missing or wrong               (ValueError)
    ├── KafkaError                 the cluster said no, or isn't there
    │   ├── BrokerError            the embedded broker can't start, stop or be told apart
    │   └── TopicChanged           re-created, deleted, truncated past us, or partitions added
    ├── StoreError                 the changelog or a table can't be used as it is
    │   ├── Fenced                 another writer has taken over; this one must exit
    │   ├── FormatError            written by a newer release of watertable
    │   ├── RewindRefused          a rewind that can't be done, or not without saying more
    │   │   └── PlanOutdated       the app, its code or its topics aren't what was planned for
    │   ├── UnknownPosition        a position, version or time that no table can be read at   (LookupError)
    │   │   └── PositionGone       one that was there: what it takes is trimmed
    │   ├── TableNotFound          no such table or app in this warehouse           (LookupError)
    │   └── KeyMismatch            a key that no row of its table can have          (ValueError)
    ├── SparkError                 what Spark refused or failed at, in its own words
    │   ├── Unreachable            storage failed, or the JVM is gone
    │   └── QueryRefused           SQL that reads anything but an app's tables
    └── JobError                   a running app that has to stop
        ├── CodeReplaced           its app goes on under other code; start it again with that
        └── RecordFailed           one record that an app can't be made to pass
"""

from __future__ import annotations


class WatertableError(Exception):
    """Mark everything that watertable raises on purpose."""


class DefinitionError(WatertableError):
    """Refuse a plan that can't be right, while it is being written."""


class SchemaError(DefinitionError, ValueError):
    """Refuse a schema, or a value that doesn't fit one."""


class ExpressionError(DefinitionError, ValueError):
    """Refuse an expression: it doesn't parse, doesn't type, or isn't safe."""


class UnknownColumn(DefinitionError, LookupError):
    """Refuse a column name that no schema in scope has."""


class DuplicateName(DefinitionError, ValueError):
    """Refuse a second table, topic or app of the same name."""


class EvaluationError(WatertableError, ValueError):
    """Report that an expression fails on a record: a cast, an overflow, a division by zero, an index out of bounds."""


class DecodeError(EvaluationError):
    """Report bytes that are no value of their schema."""


class BeyondTime(DecodeError):
    """Report bytes of a date or time outside the years 1 to 9999, which Python and the readers of tables have no value for."""


class UnsupportedFunction(WatertableError, NotImplementedError):
    """Refuse to interpret a function outside the documented subset of Spark SQL."""


class SettingsError(WatertableError, ValueError):
    """Refuse a setting that is missing, unknown or out of range."""


class KafkaError(WatertableError):
    """Report what a Kafka cluster refused, or that it can't be reached."""


class BrokerError(KafkaError):
    """Report an embedded broker that can't be started, stopped or told apart from another."""


class TopicChanged(KafkaError):
    """Stop at a topic that was re-created, deleted, truncated past our position or given more partitions."""


class StoreError(WatertableError):
    """Report a changelog or table that can't be used as it is."""


class Fenced(StoreError):
    """Stop a writer whose place another writer has taken."""


class FormatError(StoreError):
    """Refuse a store that a newer release of watertable wrote."""


class OtherCode(StoreError):
    """Refuse to read a table by code that keeps other states of it than the code that made it."""


class RewindRefused(StoreError):
    """Refuse a rewind that can't be done, or not without saying that its cost is known."""


class NothingToRewind(RewindRefused):
    """Refuse a rewind of an app that has committed nothing after the target: there is nothing to read again."""


class PlanOutdated(RewindRefused):
    """Refuse a plan because the world has moved since it was made; `moved` says what."""

    def __init__(self, message: str, *, moved: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.moved = moved


class BreakingChange(DefinitionError):
    """Refuse to go on under code by which tables would be neither what they were nor what it would make of their topics."""


class UnknownPosition(StoreError, LookupError):
    """Refuse a position, version or time that no table can be read at."""


class PositionGone(UnknownPosition):
    """Refuse a position, version or time that was there, and of which too little is kept."""


class TableNotFound(StoreError, LookupError):
    """Refuse the name of a table or app that this warehouse doesn't hold."""


class KeyMismatch(StoreError, ValueError):
    """Refuse a key that no row of its table can have: a value of another type, or too many of them."""


class SparkError(WatertableError):
    """Report what Spark, or the storage below it, refused or failed at, in its own words."""


class Unreachable(SparkError):
    """Report that storage failed, or the JVM is gone: whatever was asked for, it is the surroundings' doing."""


class QueryRefused(SparkError):
    """Refuse SQL that reads anything but an app's tables."""


class JobError(WatertableError):
    """Stop a running app, saying what stopped it and the way out."""


class CodeReplaced(JobError):
    """Stop a run whose app was rewound or rebuilt under other code and goes on under that."""


class RecordFailed(JobError):
    """Stop at a record that can't be worked off, and know which it is."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int, location: str) -> None:
        super().__init__(message)
        self.topic, self.partition, self.offset, self.location = topic, partition, offset, location


def exit_code(error: BaseException) -> int:
    """Give the exit code that a program running an app ends with: 1 failed, 2 bad definition or settings, 3 fenced, 4 topic changed."""
    match error:
        case DefinitionError() | SettingsError():
            return 2
        case Fenced():
            return 3
        case TopicChanged():
            return 4
        case _:
            return 1
