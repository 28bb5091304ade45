"""Take a kept state to the row that readers see, in plain Python: the interpreter's reading of stages."""

from __future__ import annotations

from typing import Any

from watertable.errors import EvaluationError
from watertable.evaluator import evaluate
from watertable.expressions import Expr
from watertable.stages import Beside, How, Match, Project, Side, Stage, Where

Row = dict[str, object]


def finished(alive: Expr | None, stages: tuple[Stage, ...], spaces: dict[str, Row | None]) -> Row | None:
    """Take a state to the value that readers see, None where they see no row."""
    if alive is not None and _evaluate_or_null(alive, spaces) is not True:
        return None
    for stage in stages:
        match stage:
            case Project():
                spaces["value"] = {name: _evaluate_or_null(expr, spaces) for name, expr in stage.columns}
            case Where():
                if _evaluate_or_null(stage.condition, spaces) is not True:
                    return None
            case Beside():
                if spaces["left"] is None or (stage.how is How.INNER and spaces["right"] is None):
                    return None
                spaces["value"] = {name: _evaluate_or_null(expr, spaces) for name, expr in stage.columns}
            case Match():
                left, right = _side(stage.left, spaces), _side(stage.right, spaces)
                missing = {How.INNER: left is None or right is None, How.LEFT: left is None, How.OUTER: left is None and right is None}
                if missing[stage.how]:
                    return None
                both = spaces | {"left": left, "right": right}
                spaces["value"] = {name: _evaluate_or_null(expr, both) for name, expr in stage.columns}
    return spaces["value"]


def _side(side: Side, spaces: dict[str, Row | None]) -> Row | None:
    """Give the row of one side of a join."""
    state, key = spaces["state"] or {}, spaces["key"] or {}
    if side.there and all(state[name] is None for name in side.there):
        return None
    own: Row = {mine: state[name] for mine, name in side.state}
    return finished(side.alive, side.stages, {**spaces, "state": own, "key": dict(zip(side.key, key.values(), strict=True))})


def _evaluate_or_null(expr: Expr, spaces: dict[str, Row | None]) -> Any:
    try:
        return evaluate(expr, spaces)
    except EvaluationError:
        return None
