"""Run suites through Great Expectations: the one file that imports it, when a suite is run and not before.

Great Expectations is safe in one thread at a time only: a batch is known by its asset's name, whatever data it holds, and a context is
global to the process. So: one lock, one ephemeral context for the process's life, an asset of its own name for each call, nothing
persisted (it would never be released), and Spark's session is left alone.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from watertable_quality.suites import Expectation, Severity, Suite

_lock: Final = threading.Lock()
_numbers: Final = itertools.count(1)
_context: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Say how one expectation fared: `passed`, what was seen, and the error where it couldn't be judged at all."""

    expectation: Expectation
    passed: bool
    observed: dict[str, str | int | float]
    error: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether the check is green: an expectation that is only for information is, unless it couldn't be judged."""
        return not self.error and (self.passed or self.expectation.severity is Severity.INFO)


def validate(suite: Suite, frame: Any) -> list[Outcome]:
    """Judge a Spark DataFrame by a suite. An expectation that raises is an outcome with its error, never a mere failure."""
    with _lock, _batch(frame) as batch:
        return [_judge(batch, expectation) for expectation in suite.expectations]


@contextmanager
def _batch(frame: Any) -> Iterator[Any]:
    global _context
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    if _context is None:
        _context = gx.get_context(mode="ephemeral")
        _context.variables.progress_bars = {"globally": False}
    name = f"watertable_{next(_numbers)}"
    source = _context.data_sources.add_spark(name, persist=False)
    try:
        definition = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
        yield definition.get_batch(batch_parameters={"dataframe": frame})
    finally:
        _context.data_sources.delete(name)


def _judge(batch: Any, expectation: Expectation) -> Outcome:
    import great_expectations.expectations as gxe

    arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in expectation.arguments}
    try:
        found = batch.validate(getattr(gxe, expectation.gx)(**arguments, severity=expectation.severity.value), result_format="BASIC")
    except Exception as error:  # the others of the suite are judged all the same
        return Outcome(expectation, False, {}, f"{type(error).__name__}: {error}")
    raised = _raised(found.exception_info)
    if raised:
        return Outcome(expectation, False, {}, raised)
    kept = ("element_count", "unexpected_count", "unexpected_percent", "missing_count", "observed_value")
    seen = {name: found.result[name] for name in kept if isinstance(found.result.get(name), int | float | str)}
    return Outcome(expectation, bool(found.success), seen)


def _raised(info: Any) -> str:
    """Find the error in what Great Expectations gives for exceptions: one record, or one per metric."""
    records = [info] if "raised_exception" in (info or {}) else list((info or {}).values())
    return "; ".join(str(r.get("exception_message")) for r in records if isinstance(r, dict) and r.get("raised_exception"))
