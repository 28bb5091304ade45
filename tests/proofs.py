"""Keep the list of proofs: which tests hold which operator to which law, as they ran.

Nobody writes the list. The harnesses say what they run (`note`), whoever runs them, and `pytest --proofs PAGE` prints what was said
as a page: a row for each operator, window and aggregate that a plan can be made of, a column for each law. So a gap can't hide:
tests/unit/test_proofs.py holds the page in docs/ to having a row for each and a test in each cell.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, get_args

from watertable.plan import nodes
from watertable.plan.aggregates import FUNCTIONS
from watertable.plan.plan import Topology, walk
from watertable.plan.windows import Lifetimes, Stretches, Windows

LAWS: Final = {
    "one batch": "Spark computes what the interpreter does, with the whole log as one batch",
    "cuts": "and with the log cut into batches",
    "crash": "a store's tables are the interpreter's though the app died between commits, or before one",
    "rewind": "and after a rewind, replayed in other batches",
}
_BROUGHT: Final = (nodes.JoinSide, nodes.JoinBuffer, nodes.History, nodes.Waiting)
_NODES: Final = [kind for kind in vars(nodes).values() if isinstance(kind, type) and issubclass(kind, nodes.Node)]
EVERY: Final = frozenset({
    *(kind.__name__ for kind in _NODES if not issubclass(kind, _BROUGHT)),
    *(kind.__name__ for kind in (*get_args(Windows), Stretches, Lifetimes)), *FUNCTIONS, "reduce",
} - {"Node"})  # fmt: skip
"""All that a plan can be made of, but for what other nodes bring along."""

Said = tuple[str, str, int, str]
"""A part, a law, how many parts the plan had, and the test: of two tests that with the smaller plan says more."""
said: set[Said] = set()


def parts_of(topology: Topology) -> set[str]:
    """Name the operators, windows and aggregates of a topology."""
    found: set[str] = set()
    for root in (*topology.tables, *topology.sinks):
        for node in walk(root.node):
            found.add(type(node).__name__)
            found |= {a.function for a in getattr(node, "aggregates", ())}
            if (windows := getattr(node, "windows", None)) is not None:
                found.add(type(windows).__name__)
    return found


def note(law: str, topology: Topology) -> None:
    """Say that the test that runs holds a plan to a law."""
    assert law in LAWS, law
    if test := os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]:
        parts = parts_of(topology)
        said.update((part, law, len(parts), test) for part in parts)


def page(everything: Iterable[Said]) -> str:
    """Print the list as Markdown: how many tests, then the three that say most, for each part and law."""
    by_cell: Mapping[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for part, law, size, test in everything:
        name = test.partition("[")[0]
        by_cell[part, law][name] = min(size, by_cell[part, law].get(name, size))
    lines = [
        "# Proofs", "",
        "Which tests hold which operator, window and aggregate to which law, as a run of them said: `make proofs` prints this page.", "",
        *(f"- **{law}**: {meaning}" for law, meaning in LAWS.items()), "",
        "| | " + " | ".join(LAWS) + " |", "|---" * (len(LAWS) + 1) + "|",
    ]  # fmt: skip
    for part in sorted(EVERY, key=lambda name: (name.islower(), name.lower())):
        lines.append(f"| `{part}` | " + " | ".join(str(len(by_cell.get((part, law), ()))) for law in LAWS) + " |")
    for part in sorted(EVERY, key=lambda name: (name.islower(), name.lower())):
        lines += ["", f"## {part}", ""]
        for law in LAWS:
            best = sorted(by_cell.get((part, law), {}).items(), key=lambda kept: (kept[1], kept[0]))[:3]
            lines += [f"- {law}: {_named(test)}" for test, _ in best]
    return "\n".join([*lines, ""])


def _named(test: str) -> str:
    file, _, name = test.partition("::")
    return f"{name.removeprefix('test_').replace('_', ' ')} (`{Path(file).as_posix()}`)"
