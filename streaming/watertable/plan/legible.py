"""Write expressions of which only the canonical form is left as people read them, in the words of `describe`.

For eyes alone: types and silent casts are left out, so that two forms may look the same.
"""

from __future__ import annotations

import re
from typing import Final

from watertable.sql.functions import FUNCTIONS
from watertable.sql.spark_sql import written

_UDF: Final = re.compile(r"(\w+)@.+?/(?:closure \w+|version .+?)(?= \(| '| \S+:)")
_NAME: Final = re.compile(r"[^ :()]+")
_PARAMETER: Final = re.compile(r" (\w+)(?= )")
_NULL: Final = re.compile(r"CAST\(NULL AS (.+?)\)(?=:\1)")
_ATOM: Final = re.compile(r"CAST\([^:]+? AS [^:]+\)(?=:)|(?:X|[A-Z]+ )?'(?:\\.|[^'\\])*'(?: [A-Z ]+(?=:))?|[^ :()]+")
_TYPE: Final = re.compile(r":(INTERVAL [A-Z]+(?: TO [A-Z]+)?|[A-Z_]+(?:\(\d+,\d+\))?)")


def legible(form: str) -> str:
    """Write an expression's canonical form as SQL; one that can't be read stays as it is.

    >>> legible("x1:(and (> value.qty:INT 0:INT) (isnull value.note:STRING))")
    '((value.qty > 0) AND (value.note IS NULL))'
    """
    text = form.partition(":")[2]
    try:
        sql, end = _term(text, 0)
    except (IndexError, ValueError):  # what isn't as it should be, ends too soon, or has too few parts
        return form
    return sql if end == len(text) else form


def functions(form: str) -> list[tuple[str, str]]:
    """List the calls of the user's functions in a canonical form: the name of each, and all that it is known by.

    >>> functions("x1:(section@STRING/pandas/version 2 value.page:STRING)")
    [('section', 'section@STRING/pandas/version 2')]
    """
    return [(found[1], found[0]) for found in _UDF.finditer(form)]


def _term(text: str, at: int) -> tuple[str, int]:
    """Read what begins at a place, and give where it ends."""
    if text[at] != "(":
        if null := _NULL.match(text, at):
            return f"CAST(NULL AS {_bare(null[1])})", _type(text, null.end())[1]
        atom, end = _matched(_ATOM, text, at)
        return atom[0].removeprefix("$"), _type(text, end)[1]
    if found := _UDF.match(text, at + 1):
        name, kind, end = found[1], "", found.end()
    else:
        head, end = _matched(_NAME, text, at + 1)
        name, (kind, end) = head[0], _type(text, end)
    params, args = list[str](), list[str]()
    while name == "lambda" and (param := _PARAMETER.match(text, end)):
        params.append(param[1])
        end = param.end()
    while text[end] == " ":
        arg, end = _term(text, end + 1)
        args.append(arg)
    match name:
        case "lambda":
            names = ", ".join(params)
            sql = f"({names}) -> {args[0]}" if len(params) > 1 else f"{names} -> {args[0]}"
        case "coerce" | "attempt":
            sql = args[0]
        case "cast" | "try_cast":
            sql = f"{name.upper()}({args[0]} AS {kind})"
        case "field":
            sql = f"{args[0]}.{args[1][1:-1]}"
        case _:
            own = FUNCTIONS[name].sql if name in FUNCTIONS else ""
            sql = written(name, own or f"{name}({{*}})", args)
    return sql, end + 1


def _matched(pattern: re.Pattern[str], text: str, at: int) -> tuple[re.Match[str], int]:
    found = pattern.match(text, at)
    if found is None:
        raise IndexError(at)
    return found, found.end()


def _type(text: str, at: int) -> tuple[str, int]:
    """Read the type that may follow a name, with what is in its angle brackets."""
    found = _TYPE.match(text, at)
    if found is None:
        return "", at
    end = found.end()
    if text.startswith("<", end):
        depth = 1
        while depth:
            end += 1
            depth += {"<": 1, ">": -1}.get(text[end], 0)
        end += 1
    return _bare(text[at + 1 : end]), end


def _bare(kind: str) -> str:
    """Write a type as people do; what is shown stands between backticks itself, in Markdown above all."""
    return kind.replace("`", "")
