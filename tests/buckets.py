"""Make the changelog's buckets small, so that trims and rewrites have something to do within a few commits."""

from __future__ import annotations

import sys
from collections.abc import Callable

from watertable.store import changelog, commits, fold, reader, upkeep

KNOWN = (changelog, commits, fold, reader, upkeep)
"""What goes by buckets: a module that the number has left for another one is noticed here."""


def resize(size: int, put: Callable[[object, str, int], None] = setattr) -> None:
    """Let a bucket be of so many commits wherever its size is known."""
    found = [module for name, module in list(sys.modules.items()) if name.startswith("watertable.") and hasattr(module, "BUCKET")]
    assert {*found} == {*KNOWN}, f"buckets are known to {sorted(module.__name__ for module in found)}"
    for module in found:
        put(module, "BUCKET", size)
