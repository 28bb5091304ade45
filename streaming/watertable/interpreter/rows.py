"""Take a kept state to the row that readers see, in plain Python: the interpreter's reading of stages."""

from __future__ import annotations

from typing import Any

from watertable.errors import EvaluationError
from watertable.plan.stages import Beside, How, Match, Named, Project, Side, Stage, Where
from watertable.records import Row
from watertable.sql.evaluator import evaluate
from watertable.sql.expressions import Expr


def finished(alive: Expr | None, stages: tuple[Stage, ...], spaces: dict[str, Row | None]) -> Row | None:
    """Take a state to the value that readers see, None where they see no row."""
    if alive is not None and _evaluate_or_null(alive, spaces) is not True:
        return None
    for stage in stages:
        match stage:
            case Project():
                spaces["value"] = _columns(stage.columns, spaces)
            case Where():
                if _evaluate_or_null(stage.condition, spaces) is not True:
                    return None
            case Beside():
                if spaces["left"] is None or (stage.how is How.INNER and spaces["right"] is None):
                    return None
                spaces["value"] = _columns(stage.columns, spaces)
            case Match():
                left, right = _side(stage.left, spaces), _side(stage.right, spaces)
                missing = {How.INNER: left is None or right is None, How.LEFT: left is None, How.OUTER: left is None and right is None}
                if missing[stage.how]:
                    return None
                spaces["value"] = _columns(stage.columns, spaces | {"left": left, "right": right})
    return spaces["value"]


def _side(side: Side, spaces: dict[str, Row | None]) -> Row | None:
    """Give the row of one side of a join."""
    state, key = spaces["state"] or {}, spaces["key"] or {}
    if side.there and all(state[name] is None for name in side.there):
        return None
    own: Row = {mine: state[name] for mine, name in side.state}
    return finished(side.alive, side.stages, {**spaces, "state": own, "key": dict(zip(side.key, key.values(), strict=True))})


def _columns(named: Named, spaces: dict[str, Row | None]) -> Row:
    return {name: _evaluate_or_null(expr, spaces) for name, expr in named}


def _evaluate_or_null(expr: Expr, spaces: dict[str, Row | None]) -> Any:
    try:
        return evaluate(expr, spaces)
    except EvaluationError:
        return None
