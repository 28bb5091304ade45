"""Compute what requests ask for: so many at a time, each for so long, and none of it for nobody.

Each is computed in a thread, under a group of Spark jobs of its own. A request that finds all threads taken waits a little, and is asked
to come again; who has gone away, or has waited for as long as there is, leaves no job behind: its group is cancelled, with those of its
jobs that haven't begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import uuid4

from starlette.exceptions import HTTPException

from watertable.session import SERVING_POOL, cancel_jobs, in_words, job_group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
PATIENCE: Final = 5.0
"""Seconds that a request waits for its turn."""
GONE: Final = 499
"""The status of a request whose client doesn't read it any more; it is for the log."""


class Jobs(Protocol):
    """Hold what computes."""

    def group(self, name: str) -> AbstractContextManager[object]:
        """Have what this thread computes meanwhile be of a group, and errors in words."""

    def cancel(self, name: str) -> None:
        """Cancel a group, with what of it hasn't begun."""


class SparkJobs:
    """Compute by Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Have this thread's Spark jobs be of a group."""
        with in_words(self._spark), job_group(self._spark, name, "watertable serve", SERVING_POOL):
            yield

    def cancel(self, name: str) -> None:
        """Cancel a group's jobs."""
        cancel_jobs(self._spark, name)


class Desk:
    """Compute for so many requests at a time, each for so many seconds at most."""

    def __init__(self, jobs: Jobs, at_once: int, seconds: float, patience: float = PATIENCE) -> None:
        self._jobs, self._seconds, self._patience = jobs, seconds, patience
        self._threads = ThreadPoolExecutor(at_once, "serving")

    async def compute(self, gone: Awaitable[None], act: Callable[[], T]) -> T:
        """Compute something in a thread, until that is done, the client is `gone`, or time is over."""
        group = f"serving {uuid4()}"
        watch = asyncio.ensure_future(gone)
        work = self._threads.submit(self._act, group, act)
        done = asyncio.wrap_future(work)
        done.add_done_callback(lambda future: future.cancelled() or future.exception())  # whoever is left to see it
        either: set[asyncio.Future[Any]] = {done, watch}
        try:
            await asyncio.wait(either, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not watch.done() and work.running():
                left = max(0.0, self._seconds - self._patience)
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return await done
            if watch.done():
                raise HTTPException(GONE, "nobody waits for it any more")
            if work.cancel():
                raise HTTPException(503, "all that can be computed at once is being computed; come again", {"Retry-After": "2"})
            raise HTTPException(
                504, f"this takes longer than {self._seconds:g} s, and was cancelled: ask for less, or set serve_seconds to more"
            )
        finally:
            watch.cancel()
            if not work.done() and not work.cancel():
                asyncio.get_running_loop().run_in_executor(None, self._jobs.cancel, group)

    def close(self) -> None:
        """Take no more; what is being computed ends with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _act(self, group: str, act: Callable[[], T]) -> T:
        with self._jobs.group(group):
            return act()
