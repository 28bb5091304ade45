"""Hold what must be true of tables: expectations as data, judged in the stream or by Great Expectations at one position."""

from watertable_quality.suites import Expectation, Severity, Suite, between, in_set, not_null, row_count, unique

__all__ = ["Expectation", "Severity", "Suite", "between", "in_set", "not_null", "row_count", "unique"]
