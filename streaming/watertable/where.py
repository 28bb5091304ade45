"""Find where in the user's code a definition is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_PACKAGE: Final = str(Path(__file__).parent)


def here() -> str:
    """Find the user's file and line: the first frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.f_lineno}"
