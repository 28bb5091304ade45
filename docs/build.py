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
MARKS: Final = {name: (f"<!-- {name}: printed by docs/build.py -->", f"<!-- end of {name} -->") for name in ("settings", "functions")}


def expressions() -> str:
    """Print the functions and operators that the interpreter and the compiler both know, and which casts there are."""
    from watertable.schema import Type
    from watertable.sql.binder import ALIASES, REFUSED, REWRITES
    from watertable.sql.coercion import castable
    from watertable.sql.functions import FUNCTIONS, GROUPS

    lines = [f"{len(FUNCTIONS)} functions and operators.", ""]
    for title, functions in GROUPS.items():
        lines += [f"### {title}", "", "| Name | Written |", "|---|---|"]
        lines += [f"| {_code(f.name)} | {_code(f.usage)} |" for f in functions]
        lines.append("")
    also = [*(f"`{name}` = `{target}`" for name, target in sorted(ALIASES.items())), *(f"`{name}`" for name in sorted(REWRITES))]
    also += ["`struct`", "`BETWEEN`", "`<>`", "`!=`", "`IS DISTINCT FROM`"]
    lines += ["### By another name", "", f"Reduced to the above: {', '.join(also)}.", ""]
    kinds = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "STRING", "BINARY", "DATE", "TIMESTAMP"]
    lines += ["### Casts", "", "From the left to the top: ● always, ○ fails for some values, blank: refused.", ""]
    lines += ["| |" + "".join(f" {k} |" for k in kinds), "|---" * (len(kinds) + 1) + "|"]
    mark = {"always": "●", "maybe": "○", None: " "}
    lines += [f"| **{a}** |" + "".join(f" {mark[castable(Type.parse(a), Type.parse(b))]} |" for b in kinds) for a in kinds]
    lines += ["", "### Refused", ""]
    lines += [f"- {reason[0].upper()}{reason[1:]}: " + ", ".join(f"`{name}`" for name in names) for reason, names in REFUSED.items()]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


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
    return {
        DOCS / "expressions.md": _between(DOCS / "expressions.md", "functions", expressions()),
        DOCS / "decisions" / "index.md": decisions(),
        DOCS / "operations.md": _between(DOCS / "operations.md", "settings", settings()),
    }


def _between(page: Path, name: str, printed: str) -> str:
    """Put what is printed between the marks of a page that is otherwise written by hand."""
    begin, end = MARKS[name]
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{printed}\n{end}{after}"


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
