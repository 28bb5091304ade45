"""Show the doctests of docstrings as code: Markdown would take `>>>` for a quotation. Used by mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", re.M)


class Fences(griffe.Extension):
    """Put each doctest between fences, and what is indented like code as well."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of what was just loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(_fenced, obj.docstring.value)


def _fenced(found: re.Match[str]) -> str:
    indent = found[1]
    lines = [line.removeprefix(indent) for line in found[0].splitlines()]
    return "\n".join(["```python", *lines, "```"])
