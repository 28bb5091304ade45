"""Build the site: `python docs/build.py` (or `make docs`) writes build/docs, and fails on a dead link.

What could be wrong if it were written by hand is printed from the code first, into the pages themselves, which also read without a
site: the functions that expressions may use, the settings, the list of decisions. `--pages` only prints; a test holds them current.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
BEGIN: Final = "<!-- settings: printed by docs/build.py -->"
END: Final = "<!-- end of settings -->"


def expressions() -> str:
    """Print the functions and operators that the interpreter and the compiler both know."""
    from watertable.functions import FUNCTIONS

    rows = [f"| `{name}` | `{function.usage.replace('|', chr(92) + '|')}` |" for name, function in FUNCTIONS.items()]
    return "\n".join(
        [
            "# Expressions",
            "",
            "An expression is a string of Spark SQL over the columns in scope. It is parsed and typed where it is written, exactly as",
            "Spark would in ANSI mode and UTC; what is unsafe (non-deterministic functions, subqueries) or unknown is refused there.",
            "Each entry below has been held to Spark over edge values: decimals, integer division, casts, nulls, time zones. An expression",
            "that fails on a record sends that record to quarantine, with the file and line of the operator.",
            "",
            f"{len(rows)} functions and operators:",
            "",
            "| Name | Written |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def settings() -> str:
    """Print the settings with their defaults."""
    from watertable.settings import Settings

    rows = []
    for name, field in Settings.model_fields.items():
        if name == "project":
            continue
        default = field.get_default(call_default_factory=True) if field.default_factory is None else "{}"
        shown = ", ".join(default) if isinstance(default, tuple) else default
        rows.append(f"| `{name}` | {f'`{shown}`' if shown != '' else ''} | {field.description} |")
    return "\n".join(["| Setting | Default | |", "|---|---|---|", *rows])


def decisions() -> str:
    """List the decision records by their titles."""
    pages = sorted(p for p in (DOCS / "decisions").glob("[0-9]*.md"))
    titles = [next(line for line in p.read_text(encoding="utf-8").splitlines() if line.startswith("# "))[2:] for p in pages]
    return "\n".join(["# Decisions", "", *(f"- [{title}]({page.name})" for title, page in zip(titles, pages, strict=True)), ""])


def pages() -> dict[Path, str]:
    """Give the text of each page that is printed from the code, whole or in part."""
    operations = DOCS / "operations.md"
    before, _, rest = operations.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return {
        DOCS / "expressions.md": expressions(),
        DOCS / "decisions" / "index.md": decisions(),
        operations: f"{before}{BEGIN}\n{settings()}\n{END}{after}",
    }


def main(arguments: list[str]) -> int:
    """Print the pages and build the site; return the exit code."""
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
    if "--pages" in arguments:
        return 0
    code = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=ROOT, check=False).returncode
    if code == 0:
        print(f"built {ROOT / 'build' / 'docs' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
