"""Find where in the user's code a definition is."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Final

_PACKAGE: Final = f"{Path(__file__).parent}{os.sep}"
"""Begins the paths of this package's files: a folder beside it may begin with its name."""


def here() -> str:
    """Find the user's file and line: the first frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return _place(frame)


def caller() -> str:
    """Find the file and line that called the function which asks: for packages beside this one, whose users call them directly."""
    return _place(sys._getframe(2))


def _place(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.f_lineno}"


def _is_ours(frame: FrameType) -> bool:
    """Tell whether code is this package's: by its file, or, where dataclasses have written it, by the module that they wrote it for."""
    made_for = frame.f_globals.get("__name__", "") if frame.f_code.co_filename == "<string>" else ""
    return frame.f_code.co_filename.startswith(_PACKAGE) or made_for.startswith(f"{__package__}.")
