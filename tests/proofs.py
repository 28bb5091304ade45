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

Said = tuple[str, str, str]
"""A part, a law, and the test."""
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
        said.update((part, law, test.partition("[")[0]) for part in parts_of(topology))


def page(everything: Iterable[Said]) -> str:
    """Print the list as Markdown: the tests, numbered, and the numbers of those that hold each part to each law."""
    by_cell: Mapping[tuple[str, str], set[str]] = defaultdict(set)
    for part, law, test in everything:
        by_cell[part, law].add(test)
    numbers = {test: n for n, test in enumerate(sorted(set().union(*by_cell.values())), 1)}
    lines = [
        "# Proofs", "",
        "Which tests hold which operator, window and aggregate to which law, as a run of them said: `make proofs` prints this page.", "",
        *(f"- **{law}**: {meaning}" for law, meaning in LAWS.items()), "",
        "The numbers are the tests' in the list below.", "",
        "| | " + " | ".join(LAWS) + " |", "|---" * (len(LAWS) + 1) + "|",
    ]  # fmt: skip
    for part in sorted(EVERY, key=lambda name: (name.islower(), name.lower())):
        cells = (", ".join(str(n) for n in sorted(numbers[test] for test in by_cell.get((part, law), ()))) for law in LAWS)
        lines.append(f"| `{part}` | " + " | ".join(cells) + " |")
    lines += ["", "## The tests", "", *(f"{n}. {_named(test)}" for test, n in numbers.items())]
    return "\n".join([*lines, ""])


def _named(test: str) -> str:
    file, _, name = test.partition("::")
    return f"{name.removeprefix('test_').replace('_', ' ')} (`{Path(file).as_posix()}`)"
