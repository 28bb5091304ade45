"""Turn the text of a Spark SQL expression into a typed tree: names to columns, calls to entries of the function table.

sqlglot reads the syntax; every function call is left as it was written, so that the table in `functions` alone gives it meaning. Whatever
is no pure function of one record is refused here, by name and by kind.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from watertable.errors import ExpressionError, UnknownColumn
from watertable.schema import Schema, Type, from_sqlglot, quote
from watertable.sql.coercion import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TINYINT,
    VOID,
    castable,
    implicit,
)  # fmt: skip
from watertable.sql.coercion import decimal as decimal_type
from watertable.sql.functions import FUNCTIONS, cast_function
from watertable.sql.literals import add_intervals, folded, interval, is_interval, number, suffixed, text
from watertable.sql.spark_sql import can_fail, text_of_bytes
from watertable.sql.terms import NAMESPACES, Call, Function, Lambda, Lit, Nulls, Ref, Signature, Term, Var, walk
from watertable.sql.udfs import Udf, defined


class _Dialect(Spark):
    """Read Spark SQL with every function call left as it was written, so that the table in `functions` alone gives it meaning."""

    STRICT_CAST = True

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            "CAST": lambda self: self._parse_cast(True),
            "TRY_CAST": lambda self: self._parse_cast(False, safe=True),
            "EXTRACT": lambda self: self._parse_extract(),
            "POSITION": lambda self: self._parse_position(),
            "TRIM": lambda self: self._parse_trim(),
        }
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": lambda self: self._parse_case()}
        # beside these sqlglot knows paths into JSON, `->` too, which is a lambda's alone in Spark
        COLUMN_OPERATORS: ClassVar[dict[Any, Any]] = {
            token: SparkParser.COLUMN_OPERATORS[token] for token in (TokenType.DOT, TokenType.DCOLON)
        }

        def _build_predicate(self, klass: Any, this: Any, expression: Any, comments: Any = None, negate: bool = False) -> exp.Expr:
            """Put no parentheses where there are none: `_check_order` asks for the user's."""
            predicate: exp.Expr = klass(this=this, expression=expression, **({"negate": True} if negate else {}))
            return self.expression(predicate, comments)


_DIALECT: Final = _Dialect()


def read(text: str) -> exp.Expr:
    """Read the syntax of one expression; raise `ExpressionError` for anything else."""
    if not isinstance(text, str):
        raise ExpressionError(f"wanted a Spark SQL string; got {type(text).__name__}")
    return _read(text)


@lru_cache(maxsize=1024)
def _read(text: str) -> exp.Expr:
    try:
        tokens = _DIALECT.tokenize(text)
        if any(token.token_type is TokenType.SEMICOLON for token in tokens):
            raise ExpressionError("wanted one expression, and no ;")
        trees = _DIALECT.parser().parse(tokens, text)
    except SqlglotError as error:
        raise ExpressionError(f"not a Spark SQL expression: {_said(error)}") from None
    if len(trees) != 1 or trees[0] is None or isinstance(trees[0], exp.Block):
        raise ExpressionError("wanted one expression; got " + ("none" if not trees or trees[0] is None else f"{len(trees)} statements"))
    return trees[0]


_MISSING: Final = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]+'>")


def _said(error: SqlglotError) -> str:
    """Say what sqlglot found, without the names of its own classes."""
    found, cause = str(error).splitlines()[0], str(error.__cause__ or "")
    return f"{cause.split()[1]} isn't closed" if cause.startswith("Missing ") else _MISSING.sub("a part is missing", found)


_BINARY: Final[dict[type[exp.Expr], str]] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.IntDiv: "div", exp.EQ: "=", exp.LT: "<", exp.LTE: "<=",
    exp.GT: ">", exp.GTE: ">=", exp.NullSafeEQ: "<=>", exp.And: "and", exp.Or: "or", exp.DPipe: "concat", exp.Concat: "concat",
    exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "^", exp.BitwiseLeftShift: "shiftleft",
    exp.BitwiseRightShift: "shiftright", exp.Like: "like", exp.ILike: "ilike", exp.RegexpLike: "rlike",
}  # fmt: skip
_NEGATED: Final[dict[type[exp.Expr], str]] = {exp.NEQ: "=", exp.NullSafeNEQ: "<=>"}
_UNARY: Final[dict[type[exp.Expr], str]] = {exp.Not: "not", exp.BitwiseNot: "~", exp.Neg: "negative"}
_BITS: Final = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift, exp.DPipe)


_COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_PREDICATES: Final = (exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape)


_FIELD: Final = Function("field", "struct.field", lambda args: Signature(args[0].type, (), None), tight=False)


class Binder:
    """Turn sqlglot's tree into a typed one, one method per kind of node."""

    def __init__(self, namespaces: Mapping[str, Schema], bare: Sequence[str], *, udfs: bool = False) -> None:
        self.namespaces = namespaces
        self.bare = bare
        self.udfs = udfs
        self.variables: dict[str, Var] = {}

    def bind(self, node: exp.Expr) -> Term:
        """Bind one node and what is below it."""
        _check_order(node)
        match node:
            case exp.Paren():
                return self.bind(node.this)
            case exp.Column() | exp.Dot() | exp.Identifier():
                return self.name(node)
            case exp.Literal():
                return text(node.this) if node.is_string else number(str(node.this))
            case exp.RawString():
                return text(str(node.this))
            case exp.HexString():
                digits = str(node.this)
                return Lit(bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits), BINARY)
            case exp.Boolean():
                return Lit(bool(node.this), BOOLEAN)
            case exp.Null():
                return Lit(None, VOID)
            case exp.Neg(this=exp.Literal() as digits) if not digits.is_string:
                return number("-" + str(digits.this))
            case exp.Neg(this=exp.TryCast(this=exp.Literal()) as typed) if "safe" not in typed.args:
                return suffixed(typed, "-")
            case exp.Cast() if not node.args.get("default"):
                return self.cast(node)
            case exp.Is():
                return self.test(node)
            case exp.Between() if not node.args.get("symmetric"):
                value, low, high = self.bind(node.this), self.bind(node.args["low"]), self.bind(node.args["high"])
                return self.call("and", self.call(">=", value, low), self.call("<=", value, high))
            case exp.In():
                return self.membership(node)
            case exp.Case():
                return self.case(node)
            case exp.Anonymous():
                return self.function(node)
            case exp.Bracket():
                index = node.expressions[0] if len(node.expressions) == 1 else node
                return self.call("[]", self.bind(node.this), self.bind(index)) if index is not node else self.refuse(node)
            case exp.Trim():
                return self.trim(node)
            case exp.Extract():
                return self.extract(node)
            case exp.StrPosition():
                start = [node.args["position"]] if node.args.get("position") else []
                return self.call("locate", *map(self.bind, (node.args["substr"], node.this, *start)))
            case exp.Interval():
                return interval(node)
            case exp.Add(this=exp.Interval() | exp.Add() as left, expression=exp.Interval() as right) if is_interval(left):
                return add_intervals(self.bind(left), self.bind(right))
            case exp.Escape(this=exp.Like() | exp.ILike() as like, expression=escape):
                call = self.call(_BINARY[type(like)], self.bind(like.this), self.bind(like.expression), self.bind(escape))
                return self.call("not", call) if like.args.get("negate") else call
        if type(node) in _BINARY:
            return self.binary(node)
        if type(node) in _NEGATED:
            return self.call("not", self.call(_NEGATED[type(node)], self.bind(node.this), self.bind(node.expression)))
        if type(node) in _UNARY:
            return self.call(_UNARY[type(node)], self.bind(node.this))
        return self.refuse(node)

    def refuse(self, node: exp.Expr) -> Term:
        """Raise `ExpressionError` for a kind of node that is no part of the subset."""
        raise ExpressionError(_refusal(node))

    # -- names ---------------------------------------------------------------------------------------------------------------------

    def name(self, node: exp.Expr) -> Term:
        """Bind a name, with or without its namespace and fields."""
        if isinstance(node, exp.Identifier):
            return self.resolve([node.name])
        if isinstance(node, exp.Dot):
            if isinstance(node.expression, exp.Anonymous):
                raise ExpressionError(f"function {node.sql(dialect='spark')!r}: only Spark's built-in functions can be called")
            below: exp.Expr = node
            fields: list[str] = []
            while isinstance(below, exp.Dot):
                fields.append(below.expression.name)
                below = below.this
            fields.reverse()
            if isinstance(below, exp.Column):
                return self.resolve([*_parts(below), *fields])
            return self.fields(self.bind(below), fields)
        if isinstance(node.this, exp.Star):
            raise ExpressionError("* isn't an expression; name the columns")
        return self.resolve(_parts(node))

    def resolve(self, parts: list[str]) -> Term:
        """Find a column by its dotted name; raise `UnknownColumn` if there is none."""
        head, rest = parts[0], parts[1:]
        if head in self.variables:
            return self.fields(self.variables[head], rest)
        namespaces = self.namespaces
        if head in namespaces and rest and rest[0] in namespaces[head]:
            return self.fields(Ref(head, (rest[0],), namespaces[head][rest[0]]), rest[1:])
        for namespace in self.bare:
            if head in namespaces[namespace]:
                return self.fields(Ref(namespace, (head,), namespaces[namespace][head]), rest)
        if head in namespaces and not rest:
            return Ref(head, (), namespaces[head].struct())
        raise UnknownColumn(self.unknown(head, rest))

    def unknown(self, head: str, rest: list[str]) -> str:
        """Say what was looked for and what there is."""
        namespaces = self.namespaces
        if head in namespaces:
            names = list(namespaces[head].names)
            return f"no column {rest[0]!r} in {head!r}{_close(rest[0], names)}; it has: {', '.join(names) or 'none'}"
        known = [name for ns in self.bare for name in namespaces[ns].names]
        qualified = [f"{ns}.{name}" for ns, schema in namespaces.items() if ns not in self.bare for name in schema.names]
        return f"no column {head!r}{_close(head, known + qualified)}; columns: {', '.join(known + qualified) or 'none'}"

    def fields(self, term: Term, names: Sequence[str]) -> Term:
        """Go into a struct, field by field."""
        for name in names:
            kind = term.type
            if kind.kind == "array" and kind.element is not None and kind.element.kind == "struct":
                raise ExpressionError(f"{name!r} of an array of structs: use transform(array, x -> x.{name})")
            if kind.kind != "struct":
                raise ExpressionError(f"no field {name!r}: {kind.sql()} is not a STRUCT")
            known = [f.name for f in kind.fields]
            if name not in known:
                raise UnknownColumn(f"no field {name!r}{_close(name, known)}; fields: {', '.join(known)}")
            inner = kind.fields[known.index(name)].type
            term = Ref(term.namespace, (*term.path, name), inner) if isinstance(term, Ref) else self.field(term, name, inner)
        return term

    def field(self, term: Term, name: str, kind: Type) -> Term:
        """Read one field of a struct that isn't a column."""
        signature = Signature(kind, (term.type, STRING), lambda row, field: row[field], sql="{0}." + quote(name))
        return Call(_FIELD, (term, Lit(name, STRING)), kind, signature)

    # -- operators -----------------------------------------------------------------------------------------------------------------

    def binary(self, node: exp.Expr) -> Term:
        """Bind an operator of two sides."""
        if isinstance(node, _BITS):
            for side in (node.this, node.args.get("expression")):
                if isinstance(side, (*_BITS, exp.Add, exp.Sub)) and type(side) is not type(node):
                    raise ExpressionError("|| or a bit operator beside another: write parentheses, engines differ on what binds closer")
        sides = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
        call = self.call(_BINARY[type(node)], *(self.bind(side) for side in sides))
        return self.call("not", call) if node.args.get("negate") else call

    def test(self, node: exp.Is) -> Term:
        """Bind IS NULL, IS TRUE, IS FALSE."""
        value, wanted = self.bind(node.this), node.expression
        if isinstance(wanted, exp.Null):
            return self.call("isnull", value)
        if isinstance(wanted, exp.Boolean):
            return self.call("<=>", value, Lit(bool(wanted.this), BOOLEAN))
        raise ExpressionError(_refusal(node))

    def membership(self, node: exp.In) -> Term:
        """Bind IN: constants as such, anything else as a chain of OR, which is how Spark evaluates it."""
        if not node.expressions:
            raise ExpressionError("IN wants a list of values; a subquery reads other rows")
        terms = [self.bind(node.this), *map(self.bind, node.expressions)]
        if all(isinstance(t, Lit) for t in terms[1:]):
            return self.call("in", *terms)
        function = FUNCTIONS["in"]
        value, *candidates = self.arguments(terms, function.rule(tuple(terms)))
        found: Term = Lit(False, BOOLEAN)
        for i, candidate in enumerate(candidates):
            equal = self.call("=", value, candidate)
            found = equal if i == 0 else self.call("or", found, equal)
        return found

    def case(self, node: exp.Case) -> Term:
        """Bind both forms of CASE."""
        subject = self.bind(node.this) if node.this is not None else None
        terms: list[Term] = []
        for branch in node.args["ifs"]:
            condition = self.bind(branch.this)
            terms += [condition if subject is None else self.call("=", subject, condition), self.bind(branch.args["true"])]
        default = node.args.get("default")
        return self.call("case", *terms, Lit(None, VOID) if default is None else self.bind(default))

    def trim(self, node: exp.Trim) -> Term:
        """Bind TRIM with its side and characters."""
        side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "btrim")
        value, characters = self.bind(node.this), node.args.get("expression")
        if characters is None:
            return self.call("trim" if side == "btrim" else side, value)
        if side != "btrim":
            raise ExpressionError("TRIM of chosen characters works on both sides here; for one side use regexp_replace")
        return self.call("btrim", value, self.bind(characters))

    def extract(self, node: exp.Extract) -> Term:
        """Bind EXTRACT to the function of its field."""
        return self.part(node.name.lower(), self.bind(node.expression))

    def part(self, unit: str, value: Term) -> Term:
        """Apply the function of a field of a date or time."""
        name = _EXTRACTS.get(unit, unit)
        if name not in _EXTRACTS.values():
            raise ExpressionError(f"no field {unit!r} to extract{_close(unit, _EXTRACTS)}; fields: {', '.join(_EXTRACTS)}")
        return self.call(name, value)

    def cast(self, node: exp.Cast) -> Term:
        """Bind CAST and TRY_CAST, and the suffixes of numbers, which sqlglot reads as casts."""
        kind = from_sqlglot(node.to)
        if isinstance(node, exp.TryCast) and "safe" not in node.args:
            if isinstance(node.this, exp.Literal):
                return suffixed(node)
            raise ExpressionError("`::` is not supported; write CAST(... AS type)")
        if isinstance(node.this, exp.Anonymous) and not isinstance(node, exp.TryCast):
            known = str(node.this.this).lower() in _KNOWN or defined(_function_name(node.this)) is not None
            if not known:
                return self.opaque(node.this, kind)
        value = self.bind(node.this)
        constant = isinstance(value, Lit) and value.type == STRING and kind in (DATE, TIMESTAMP)
        if constant and not isinstance(node, exp.TryCast):
            assert isinstance(value, Lit)
            return folded(value, kind)
        return self.apply(cast_function(kind, "try_cast" if isinstance(node, exp.TryCast) else "cast"), value)

    # -- functions -----------------------------------------------------------------------------------------------------------------

    def function(self, node: exp.Anonymous) -> Term:
        """Bind a call by its name."""
        name = _function_name(node)
        if name in REWRITES:
            return REWRITES[name](self, [self.bind(a) for a in node.expressions])
        if name in _LAMBDAS and len(node.expressions) == 2 and isinstance(node.expressions[1], exp.Lambda):
            return self.higher_order(name, node.expressions[0], node.expressions[1])
        if name in _UNITS and len(node.expressions) == 3:
            unit = node.expressions[0]
            first = text(unit.name.upper()) if isinstance(unit, exp.Column | exp.Var) else self.refuse(unit)
            return self.call(_UNITS[name], first, *map(self.bind, node.expressions[1:]))
        if name in ("date_part", "datepart") and len(node.expressions) == 2:
            field = self.bind(node.expressions[0])
            return self.part(str(field.value).lower() if isinstance(field, Lit) else "", self.bind(node.expressions[1]))
        if name == "struct":
            return self.struct(node)
        if name in _CASTS and len(node.expressions) == 1:
            return self.apply(cast_function(_CASTS[name], "cast"), self.bind(node.expressions[0]))
        if name in FUNCTIONS and name.isidentifier() and name not in _ONLY_WRITTEN:
            return self.call(name, *map(self.bind, node.expressions))
        if (udf := defined(name)) is not None:
            return self.of_user(udf, [self.bind(a) for a in node.expressions])
        _check_allowed(name)
        close = _close(name, [*FUNCTIONS, *REWRITES])
        raise ExpressionError(
            f"function {name!r} is not in watertable's subset{close}; if Spark has it, write CAST({name}(...) AS its type)"
        )

    def of_user(self, udf: Udf, args: list[Term]) -> Term:
        """Call a function of the user's, where there are records to call it for."""
        if not self.udfs:
            raise ExpressionError(
                f"{udf.name} ({udf.location}) can't be called on a table's rows, which are computed wherever somebody reads them; "
                "call it on the stream before, and keep what it gives"
            )
        if any(isinstance(term, Var) for arg in args for term in walk(arg)):
            raise ExpressionError(f"{udf.name} ({udf.location}) can't be called inside a lambda; let it take the whole array")
        return self.apply(udf.entry, *args)

    def higher_order(self, name: str, array: exp.Expr, function: exp.Lambda) -> Term:
        """Bind a function with a lambda, whose parameters get the array's element type."""
        values = self.bind(array)
        if values.type.kind != "array" or values.type.element is None:
            raise ExpressionError(f"{name} wants an ARRAY and a lambda; got {values.type.sql()}")
        kinds = [values.type.element, INT]
        if len(function.expressions) > len(kinds):
            raise ExpressionError(f"{name}: a lambda of {len(function.expressions)} parameters; it takes 1 or 2")
        params = tuple(Var(p.name, kind) for p, kind in zip(function.expressions, kinds, strict=False))
        outer = self.variables
        for n, p in enumerate(params):
            # Spark takes names in any case, and the nearest first: such a parameter would be read in the other's place, or not at all
            if p.name.lower() in {taken.lower() for taken in (*NAMESPACES, *outer, *(before.name for before in params[:n]))}:
                raise ExpressionError(f"{name}: {p.name!r} already names something else in the lambda; rename the parameter")
        self.variables = {**outer, **{p.name: p for p in params}}
        try:
            body = self.bind(function.this)
        finally:
            self.variables = outer
        if name in ("exists", "forall") and can_fail(body):
            raise ExpressionError(f"the lambda of {name} may fail, for elements that Spark may skip; use try_cast, try_add, ...")
        return self.call(name, values, Lambda(params, body))

    def struct(self, node: exp.Anonymous) -> Term:
        """Bind struct, with the names its arguments have, as named_struct."""
        terms: list[Term] = []
        for i, arg in enumerate(node.expressions, 1):
            inner = arg.this if isinstance(arg, exp.Alias) else arg
            named = isinstance(arg, exp.Alias | exp.Column | exp.Dot)
            terms += [text(arg.alias_or_name if named else f"col{i}"), self.bind(inner)]
        return self.call("named_struct", *terms)

    def opaque(self, node: exp.Anonymous, kind: Type) -> Term:
        """Trust the user's CAST for the type of a function that only Spark knows."""
        name = _function_name(node)
        _check_allowed(name)
        args = tuple(self.bind(a) for a in node.expressions)
        sql = f"CAST({name}({{*}}) AS {kind.sql()})"
        signature = Signature(kind, tuple(a.type for a in args), None)
        if kind == STRING and name in _OF_BYTES:  # as a cast of BINARY
            safe, failing = text_of_bytes(sql)
            signature = replace(signature, safe=safe, fails=f"{sql} IS NOT NULL AND {safe} IS NULL", sql=failing)
        function = Function(name, f"{name}(...)", lambda _: signature, Nulls.EAGER, tight=False, sql=sql)
        return Call(function, args, kind, signature)

    def call(self, name: str, *args: Term) -> Term:
        """Apply an entry of the function table."""
        if name not in FUNCTIONS:
            raise ExpressionError(f"operator {name!r} is not in watertable's subset of Spark SQL")
        return self.apply(FUNCTIONS[name], *args)

    def apply(self, function: Function, *args: Term) -> Term:
        """Apply a function to bound arguments, casting them to what it wants."""
        try:
            signature = function.rule(args)
        except IndexError:
            raise ExpressionError(f"wanted {function.usage}; got {len(args)} argument(s)") from None
        if len(signature.args) != len(args):
            raise ExpressionError(f"wanted {function.usage}; got {len(args)} argument(s)")
        return Call(function, tuple(self.arguments(args, signature)), signature.result, signature)

    def arguments(self, args: Iterable[Term], signature: Signature) -> list[Term]:
        """Cast arguments to the types of a signature."""
        return [self.coerced(arg, kind) for arg, kind in zip(args, signature.args, strict=True)]

    def coerced(self, term: Term, kind: Type) -> Term:
        """Cast one argument silently, as Spark does; constants are cast now."""
        if term.type == kind or isinstance(term, Lambda):
            return term
        if isinstance(term, Lit) and castable(term.type, kind) is not None:
            return folded(term, kind)
        if not implicit(term.type, kind) and cast_function(kind, "coerce").rule((term,)) is None:
            raise ExpressionError(f"wanted {kind.sql()}; got {term.type.sql()}")
        return self.apply(cast_function(kind, "coerce"), term)


_Rewrite = Callable[[Binder, list[Term]], Term]


def _arity(count: int, name: str, build: _Rewrite) -> _Rewrite:
    def rewrite(binder: Binder, args: list[Term]) -> Term:
        if len(args) != count:
            raise ExpressionError(f"{name} wants {count} arguments; got {len(args)}")
        return build(binder, args)

    return rewrite


# Spark reduces these to others too; so do we, and they need no entry of their own.
REWRITES: Final[dict[str, _Rewrite]] = {
    "mod": _arity(2, "mod", lambda b, a: b.call("%", *a)),
    "negative": _arity(1, "negative", lambda b, a: b.call("negative", *a)),
    "if": _arity(3, "if", lambda b, a: b.call("case", *a)),
    "nullif": _arity(2, "nullif", lambda b, a: b.call("case", b.call("=", *a), Lit(None, VOID), a[0])),
    "nvl": _arity(2, "nvl", lambda b, a: b.call("coalesce", *a)),
    "ifnull": _arity(2, "ifnull", lambda b, a: b.call("coalesce", *a)),
    "equal_null": _arity(2, "equal_null", lambda b, a: b.call("<=>", *a)),
    "nullifzero": _arity(1, "nullifzero", lambda b, a: b.call("case", b.call("=", a[0], Lit(0, INT)), Lit(None, VOID), a[0])),
    "zeroifnull": _arity(1, "zeroifnull", lambda b, a: b.call("coalesce", a[0], Lit(0, INT))),
    "nvl2": _arity(3, "nvl2", lambda b, a: b.call("case", b.call("isnotnull", a[0]), a[1], a[2])),
}
ALIASES: Final = {
    "substr": "substring", "ucase": "upper", "lcase": "lower", "char_length": "length", "character_length": "length", "len": "length",
    "ceiling": "ceil", "signum": "sign", "char": "chr", "sha": "sha1", "cardinality": "size", "dayofmonth": "day", "date_diff": "datediff",
    "dateadd": "date_add", "position": "locate", "to_unix_timestamp": "unix_timestamp", "array_size": "size", "regexp": "rlike",
    "regexp_like": "rlike",
}  # fmt: skip
_LAMBDAS: Final = frozenset({"transform", "filter", "exists", "forall"})
_UNITS: Final = {
    "timestampadd": "timestampadd", "timestampdiff": "timestampdiff", "date_add": "timestampadd", "datediff": "timestampdiff",
}  # fmt: skip
_CASTS: Final = {
    "boolean": BOOLEAN, "tinyint": TINYINT, "smallint": SMALLINT, "int": INT, "bigint": BIGINT, "float": FLOAT, "double": DOUBLE,
    "string": STRING, "binary": BINARY, "date": DATE, "timestamp": TIMESTAMP, "decimal": decimal_type(10, 0),
}  # fmt: skip
_EXTRACTS: Final = {
    "year": "year", "years": "year", "yr": "year", "quarter": "quarter", "month": "month", "months": "month", "mon": "month",
    "week": "weekofyear", "weeks": "weekofyear", "day": "day", "days": "day", "d": "day", "dow": "dayofweek",
    "dayofweek": "dayofweek", "doy": "dayofyear", "hour": "hour", "hours": "hour", "minute": "minute", "minutes": "minute",
    "second": "extract_second", "seconds": "extract_second",
}  # fmt: skip
_ONLY_WRITTEN: Final = frozenset({"case", "extract_second"})
"""What the table has a name for, and Spark only a syntax."""
_OF_BYTES: Final = frozenset({"aes_decrypt", "encode", "to_binary", "try_aes_decrypt", "try_to_binary", "unbase64"})
"""What only Spark knows, and gives a BINARY."""
_KNOWN: Final = frozenset({*FUNCTIONS, *REWRITES, *ALIASES, *_UNITS, *_CASTS, "struct", "if", "date_part", "datepart"})

REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "not the same each time it is evaluated": (
        "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "now", "curdate", "current_date", "current_timestamp",
        "current_time", "localtimestamp", "current_timezone", "unix_timestamp", "monotonically_increasing_id", "spark_partition_id",
        "current_user", "user", "session_user", "current_catalog", "current_database", "current_schema", "version", "aes_encrypt",
    ),
    "able to run code or read what is no column": (
        "java_method", "reflect", "try_reflect", "input_file_name", "input_file_block_start", "input_file_block_length", "assert_true",
        "raise_error", "sleep", "getvariable", "read_files", "secret", "try_secret", "http_request",
    ),
    "an aggregate; use it in .agg(...)": (
        "any", "any_value", "approx_count_distinct", "approx_percentile", "approx_top_k", "approx_top_k_accumulate",
        "approx_top_k_combine", "array_agg", "avg", "bit_and", "bit_or", "bit_xor", "bool_and", "bool_or", "collect_list", "collect_set",
        "corr", "count", "count_if", "count_min_sketch", "covar_pop", "covar_samp", "every", "first", "first_value", "grouping",
        "grouping_id", "histogram_numeric", "kurtosis", "last", "last_value", "listagg", "max", "max_by", "mean", "median", "min",
        "min_by", "mode", "percentile", "percentile_approx", "percentile_cont", "percentile_disc", "regr_avgx", "regr_avgy", "regr_count",
        "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "skewness", "some", "std", "stddev", "stddev_pop",
        "stddev_samp", "string_agg", "sum", "try_avg", "try_sum", "var_pop", "var_samp", "variance",
    ),
    "a window function, which reads other rows": (
        "row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead", "nth_value", "window", "session_window",
        "window_time",
    ),
    "not one value per record; use flat_map_values": (
        "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple",
    ),
}  # fmt: skip
_REASONS: Final = {name: reason for reason, names in REFUSED.items() for name in names}


def _function_name(node: exp.Anonymous) -> str:
    name = str(node.this.name if isinstance(node.this, exp.Identifier) else node.this).lower()
    return ALIASES.get(name, name)


def _check_allowed(name: str) -> None:
    reason = _REASONS.get(name)
    if name.startswith(("ai_", "vector_search")):
        reason = "able to call a model"
    elif "_agg" in name:  # Spark's sketches and bitmaps: hll_sketch_agg, kll_merge_agg_bigint, ...
        reason = "an aggregate"
    if reason is not None:
        raise ExpressionError(f"function {name!r} is {reason}")
    if not name.isidentifier() or not name.isascii():
        raise ExpressionError(f"{name!r} can't be called: only Spark's built-in functions can")


def _check_order(node: exp.Expr) -> None:
    """Refuse comparisons and predicates side by side where sqlglot and Spark differ on what binds closer, or Spark takes none.

    To Spark all comparisons are one level, from the left to the right, and one IS, IN, BETWEEN or LIKE comes after them. To sqlglot `=` and
    `<>` bind less than `<`, and that less than these.
    """
    like = node.this if isinstance(node, exp.Escape) else node
    after = isinstance(node, (*_COMPARISONS, *_PREDICATES)) and isinstance(like.this, (*_PREDICATES, exp.Not))
    before = isinstance(node, _COMPARISONS) and isinstance(node.expression, (*_COMPARISONS, *_PREDICATES, exp.Not))
    if after or before:
        raise ExpressionError("a comparison, IS, IN, BETWEEN or LIKE beside another: write parentheses, engines differ on which binds")


def _refusal(node: exp.Expr) -> str:
    text = node.sql(dialect="spark")
    match node:
        case exp.Query() | exp.Subquery() | exp.Exists():
            return f"{text!r} is a query, which reads other rows"
        case exp.Window():
            return f"{text!r} is a window function, which reads other rows"
        case exp.Alias():
            return f'{text!r} names a result; names are given as keywords: name="..."'
        case exp.Placeholder() | exp.Parameter():
            return f"{text!r} is a parameter, and there are none"
        case exp.Star():
            return "* isn't an expression; name the columns"
        case exp.CurrentDate() | exp.CurrentTimestamp() | exp.CurrentUser() | exp.CurrentTime() | exp.Localtimestamp():
            return f"{text!r} is not the same each time it is evaluated"
    return f"{text!r} ({type(node).__name__}) is outside watertable's subset of Spark SQL"


def _close(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=2, cutoff=0.6)
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def _parts(column: exp.Expr) -> list[str]:
    return [part.name for part in column.parts]  # type: ignore[attr-defined]
