"""Read the canonical forms of plans (`fingerprints.canonical`): the nodes in them, their fields, and what of them decides a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from watertable.plan.rules import OnFail


def is_list(form: object) -> TypeGuard[Sequence[Any]]:
    """Tell a form with parts from a plain value."""
    return isinstance(form, Sequence) and not isinstance(form, str)


def head_of(form: object) -> str:
    """Give the name of the node, or of the part of one, that a form writes; "" for a list or a plain value."""
    if not is_list(form) or not form or not isinstance(form[0], str):
        return ""
    if form[0] == "expr" and len(form) == 2:
        return "expr"
    named = all(is_list(p) and len(p) == 2 and isinstance(p[0], str) for p in form[1:])
    return form[0] if named and form[0][:1].isupper() else ""


def fields_of(form: object) -> Sequence[Any]:
    """List the fields of a node's form, each as name and form."""
    return form[1:] if is_list(form) and head_of(form) not in ("", "expr") else ()


def field_of(form: object, name: str) -> object:
    """Give a field of a node's form by its name."""
    return next(part[1] for part in fields_of(form) if part[0] == name)


def has_parent(form: object) -> bool:
    """Tell whether a form is that of a node with one node above it."""
    return bool(head_of(form)) and any(part[0] == "parent" for part in fields_of(form))


def bare(form: object) -> object:
    """Leave out what counts or keeps records without changing any: peeks, rules that only warn, whether a topic is archived."""
    while has_parent(form) and (
        head_of(form) == "Peek" or (head_of(form) == "Expect" and field_of(field_of(form, "rule"), "on_fail") == OnFail.WARN)
    ):
        form = field_of(form, "parent")
    if not is_list(form):
        return form
    return [bare(part) for part in _without(form, "archive")]


def of_records(form: object) -> object:
    """Leave out the columns that topics have, too: which of them count, the layout of what is made of them says."""
    if not is_list(form):
        return form
    return [of_records(part) for part in _without(form, "value", "headers")]


def _without(form: Sequence[Any], *fields: str) -> Sequence[Any]:
    """Give a form; that of a topic, without some of its fields."""
    return [form[0], *(part for part in form[1:] if part[0] not in fields)] if head_of(form) == "Topic" else form
