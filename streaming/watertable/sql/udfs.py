"""Let expressions call the user's own Python: functions over whole columns, known by what they compute.

A function that `udf` wraps is called by name inside expressions, as any of Spark's. It is called with columns (pandas or Arrow), as many
elements at a time as there happen to be: one by the interpreter, a batch's by Spark. So it must be a pure function of each element by
itself. What it raises on, its record is quarantined for.

Plans know it by `version=`, or by its *closure*: its source without comments and docstrings, the plain values and functions of the same
folder that it names, and the names of everything else that it names. pandas and Arrow are imported when a function is first called.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import dis
import hashlib
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from watertable.errors import DefinitionError, EvaluationError, ExpressionError, SchemaError
from watertable.schema import Type
from watertable.sql.terms import Function, Nulls, Signature, Term
from watertable.where import here

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN: Final = re.compile(r"udf_\w+_[0-9a-f]{8}")
_PLAIN: Final = (bool, int, float, complex, str, bytes, Decimal, date, datetime, time, timedelta)


@dataclass(frozen=True, slots=True, eq=False)
class Udf:
    """Hold a function of the user's, to be called in expressions: with arguments it gives the text of its call.

    `f"{score}(qty, price) > 0.5"` and `score("qty", "price")` are both text to use wherever an expression of a stream is.
    """

    name: str
    function: Callable[..., Any]
    returns: Type
    over: str
    nulls: bool
    version: str | None
    location: str
    least: int
    most: float
    identity: str
    token: str
    entry: UdfFunction = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name, usage = f"{self.name}@{self.identity}", f"{self.name}(...)"
        entry = UdfFunction(name, usage, self._signature, Nulls.EAGER if self.nulls else Nulls.STRICT, tight=False, udf=self)
        object.__setattr__(self, "entry", entry)

    @property
    def place(self) -> str:
        """Name it, and where it is defined."""
        return f"{self.name} ({self.location})"

    def __call__(self, *arguments: str) -> str:
        """Write a call of the function with these expressions; raise `ExpressionError` for what is none, or for another number of them."""
        where = f"{here()}: "
        self.check_count(len(arguments), where)
        for argument in arguments:
            if not isinstance(argument, str):
                raise ExpressionError(f"{where}{self.place} is called with expressions, and those are texts; got {argument!r}")
        return f"{self.token}({', '.join(arguments)})"

    def __str__(self) -> str:
        return self.token

    def check_count(self, came: int, where: str = "") -> None:
        """Raise `ExpressionError` unless the function can be called with so many arguments."""
        if not self.least <= came <= self.most:
            most = "" if self.least == self.most else f" to {self.most:.0f}" if self.most < math.inf else " or more"
            raise ExpressionError(f"{where}{self.place} takes {self.least}{most} argument(s); got {came}")

    def value(self, kinds: Sequence[Type], values: Sequence[object]) -> object:
        """Call the function for one record, with columns of one element; raise `EvaluationError` where it raises."""
        import pyarrow as pa

        columns = [pa.array([_into_arrow(value, kind)], arrow_type(kind)) for value, kind in zip(values, kinds, strict=True)]
        try:
            made = call_columns(self.function, self.over, arrow_type(self.returns), columns)
        except Exception as error:  # whatever the user's code raises is the record's failure
            raise EvaluationError(_words(self.place, error)) from error
        return _from_arrow(made[0].as_py(), self.returns)

    def _signature(self, args: tuple[Term, ...]) -> Signature:
        self.check_count(len(args))
        kinds = tuple(arg.type for arg in args)
        for number, kind in enumerate(kinds, start=1):
            if kind.kind == "void" or kind.kind.startswith("interval"):
                raise ExpressionError(
                    f"argument {number} of {self.name} is {kind.sql()}, which no column holds; CAST it to a column's type"
                )

        def python(*values: object) -> object:
            return self.value(kinds, values)

        call = f"{self.token}({{*}})"
        failed = f"{call}.raised IS NOT NULL"
        return Signature(self.returns, kinds, python, f"{call}.made", failed, f"{self.name}({{*}})", raised=f"{call}.raised")


@dataclass(frozen=True, slots=True)
class UdfFunction(Function):
    """Be the entry of a user's function beside those of Spark's."""

    udf: Udf | None = field(default=None, compare=False)


_DEFINED: Final[dict[str, Udf]] = {}


def defined(token: str) -> Udf | None:
    """Give the user's function that is written so in expressions."""
    return _DEFINED.get(token)


def quoted(expression: object) -> str:
    """Quote what came as an expression, with the names that the user's functions have where they are defined."""
    return _TOKEN.sub(lambda found: known.name if (known := defined(found[0])) is not None else found[0], repr(expression))


def called_in(plan: object) -> tuple[Udf, ...]:
    """List the functions of the user's that a plan, or any part of one, calls; each once."""
    found: dict[str, Udf] = {}
    seen: dict[int, object] = {}
    waiting = [plan]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, tuple):
            waiting += part
        elif isinstance(part, UdfFunction) and part.udf is not None:
            found[part.udf.token] = part.udf
        elif dataclasses.is_dataclass(part) and not isinstance(part, type | Function | Signature | Type):
            waiting += [getattr(part, f.name) for f in dataclasses.fields(part)]
    return tuple(found[token] for token in sorted(found))


def udf(*, returns: str, version: str | None = None, over: str = "pandas", nulls: bool = False) -> Callable[[Callable[..., Any]], Udf]:
    """Make a Python function over columns callable in the expressions of streams, filters, groups, joins and aggregates.

    It gets one pandas Series a column, of pandas' Arrow types (or, `over="arrow"`, one `pyarrow.Array`), and returns one of that
    length, which is brought to the type `returns`. It must be pure, element by element: how many elements a call has, nobody says. A null
    in an argument gives null, and isn't passed on; with `nulls=True` the function sees nulls. A record on which it raises, or gives what
    is no value of `returns`, is quarantined.

    `version` identifies what the function computes in fingerprints: a new one is new code. Without it, the function's closure does.
    Raises `SchemaError` for a type that there isn't, `DefinitionError` for what can't be called so, or identified without a version.

    >>> import watertable as wt
    >>> @wt.udf(returns="DECIMAL(12,2)", version="1")
    ... def discounted(price, percent):
    ...     return price * (100 - percent) / 100
    >>> app = wt.App("shop")
    >>> sales = app.topic("sales", value="item STRING, price DECIMAL(9,2), percent INT").stream()
    >>> sales.map_values(paid=discounted("price", "percent")).value
    Schema('`paid` DECIMAL(12,2)')
    """
    where = here()
    try:
        kind = Type.parse(returns)
    except SchemaError as error:
        raise SchemaError(f"{where}: returns: {error}") from None
    if over not in ("pandas", "arrow"):
        raise DefinitionError(f"{where}: over={over!r}; choose pandas or arrow")
    if not isinstance(nulls, bool):
        raise DefinitionError(f"{where}: nulls={nulls!r} must be True or False")
    if version is not None and not (isinstance(version, str) and version):
        raise DefinitionError(f"{where}: version={version!r} must be a text")

    def wrap(function: Callable[..., Any]) -> Udf:
        if not isinstance(function, FunctionType) or not function.__name__.isidentifier() or not function.__name__.isascii():
            raise DefinitionError(f"{where}: udf wants a function with a name, made by def; got {function!r}")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise DefinitionError(f"{where}: {function.__name__} must return a column; it is a generator or coroutine")
        least, most = _arity(function, where)
        known, closure = known_by(function, where, version)
        identity = f"{kind.sql()}/{over}{'/nulls' if nulls else ''}/{known}"
        number = hashlib.sha256(f"{identity} {closure}".encode()).hexdigest()[:8]
        token = f"udf_{function.__name__.lower()}_{number}"
        made = Udf(function.__name__, function, kind, over, nulls, version, where, least, most, identity, token)
        _DEFINED[token] = made
        return made

    return wrap


# -- calling -------------------------------------------------------------------------------------------------------------------------


def call_columns(function: Callable[..., Any], over: str, returns: pa.DataType, columns: Sequence[pa.Array]) -> pa.Array:
    """Call a function with columns, and bring what it returns to its type; raise what it raises, or `ValueError` for another length.

    Also where elements are no longer what each would be alone: then they are to be asked for apart.
    """
    import pyarrow as pa

    if over == "pandas":
        import pandas as pd

        columns = [pd.Series(column, dtype=pd.ArrowDtype(column.type)) for column in columns]
    length = len(columns[0])
    made = function(*columns)
    if not hasattr(made, "__len__") or isinstance(made, str | bytes) or len(made) != length:
        came = f"{len(made)} elements" if hasattr(made, "__len__") else type(made).__name__
        raise ValueError(f"wanted a column of {length} elements; got {came}")
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if not isinstance(made, pa.Array):
        guessed = not hasattr(getattr(made, "dtype", None), "pyarrow_dtype")
        made = pa.Array.from_pandas(made, type=returns if pa.types.is_nested(returns) else None)
        made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
        if guessed and length > 1 and not _is_each_its_own(made, returns):
            raise ValueError("numbers that may be others beside each other than alone")  # so each of them is asked for alone
    if made.null_count == length:  # of what type, pandas guesses of those beside them, too: NaN beside a date is none, alone a float
        return pa.nulls(length, returns)
    if pa.types.is_decimal(returns):  # Arrow refuses whole numbers by what their type could hold, not by what they are
        made = made.cast(pa.int8()) if pa.types.is_boolean(made.type) else made
        made = made.cast(pa.decimal128(20, 0)) if pa.types.is_integer(made.type) else made
    elif pa.types.is_floating(returns) and pa.types.is_integer(made.type):
        made = made.cast(pa.float64(), safe=False)
    elif pa.types.is_floating(returns) and pa.types.is_decimal(made.type):  # Arrow multiplies by the scale, which is that of them all
        made = made.cast(pa.string())
    return made if made.type.equals(returns) else made.cast(returns)


def _is_each_its_own(made: pa.Array, returns: pa.DataType) -> bool:
    """Tell whether each element is what it would be alone, where the column's type was guessed from all of them.

    To pandas whole numbers beside a null or a fraction are floats, which from 2^53 on are other numbers; to Arrow decimals have one scale.
    As text both are always written otherwise.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(returns):
        return not (pa.types.is_floating(made.type) or pa.types.is_decimal(made.type))
    if not pa.types.is_floating(made.type) or pa.types.is_floating(returns):
        return True
    return bool(pc.all(pc.less(pc.abs(made), float(1 << 53)), min_count=0).as_py())


def caught_columns(
    function: Callable[..., Any], place: str, over: str, nulls: bool, returns: pa.DataType, columns: Sequence[pa.Array]
) -> pa.StructArray:
    """Call a function with columns; give `made`, and what was `raised`, in words. A call that raises is halved until one element is left.

    Without `nulls`, only elements without a null in any column are passed on.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def halves(some: list[pa.Array]) -> Iterator[tuple[pa.Array, str | None]]:
        length = len(some[0])
        if not length:
            return
        try:
            yield call_columns(function, over, returns, some), None
        except Exception as error:  # whatever the user's code raises
            if length == 1:
                yield pa.nulls(1, returns), _words(place, error)
                return
            for part in (slice(0, length // 2), slice(length // 2, length)):
                yield from halves([column[part] for column in some])

    there = pa.array([True] * len(columns[0]))
    if not nulls:
        for column in columns:
            there = pc.and_(there, column.is_valid())
    known = bool(pc.all(there, min_count=0).as_py())
    found = list(halves(list(columns) if known else [column.filter(there) for column in columns]))
    made = pa.concat_arrays([pa.array([], returns), *(part for part, _ in found)])
    raised = pa.array([words for part, words in found for _ in range(len(part))], pa.string())
    if not known:
        places = pc.if_else(there, pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1), pa.scalar(None, pa.int64()))
        made, raised = made.take(places), raised.take(places)
    return pa.StructArray.from_arrays([made, raised], names=["made", "raised"])


def _words(place: str, error: Exception) -> str:
    return f"{place} raises {type(error).__name__}: {error}"


def arrow_type(kind: Type) -> pa.DataType:
    """Give Arrow's type for a column's."""
    import pyarrow as pa

    match kind:
        case Type(kind="decimal"):
            return pa.decimal128(kind.precision, kind.scale)
        case Type(kind="array", element=Type() as element):
            return pa.list_(arrow_type(element))
        case Type(kind="map", map_key=Type() as key, element=Type() as element):
            return pa.map_(arrow_type(key), arrow_type(element))
        case Type(kind="struct"):
            return pa.struct([pa.field(f.name, arrow_type(f.type)) for f in kind.fields])
    simple = {
        "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),
        "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    return simple[kind.kind]


def _into_arrow(value: Any, kind: Type) -> Any:
    """Write a map as Arrow reads it: as pairs."""
    if value is None:
        return None
    match kind:
        case Type(kind="map", element=Type() as element):
            return [(k, _into_arrow(v, element)) for k, v in value.items()]
        case Type(kind="array", element=Type() as element):
            return [_into_arrow(v, element) for v in value]
        case Type(kind="struct"):
            return {f.name: _into_arrow(value[f.name], f.type) for f in kind.fields}
    return value


def _from_arrow(value: Any, kind: Type) -> Any:
    if value is None:
        return None
    match kind:
        case Type(kind="map", element=Type() as element):
            return {k: _from_arrow(v, element) for k, v in value}
        case Type(kind="array", element=Type() as element):
            return [_from_arrow(v, element) for v in value]
        case Type(kind="struct"):
            return {f.name: _from_arrow(value[f.name], f.type) for f in kind.fields}
    return value


# -- knowing -------------------------------------------------------------------------------------------------------------------------


def _arity(function: FunctionType, where: str) -> tuple[int, float]:
    """Count the columns that a function takes, at least and at most."""
    least, most = 0, 0.0
    for parameter in inspect.signature(function).parameters.values():
        match parameter.kind:
            case inspect.Parameter.POSITIONAL_ONLY | inspect.Parameter.POSITIONAL_OR_KEYWORD:
                least, most = least + (parameter.default is inspect.Parameter.empty), most + 1
            case inspect.Parameter.VAR_POSITIONAL:
                most = math.inf
            case inspect.Parameter.KEYWORD_ONLY if parameter.default is inspect.Parameter.empty:
                raise DefinitionError(f"{where}: {function.__name__}: {parameter.name} is keyword-only, and columns come by position")
    if most < 1:
        raise DefinitionError(f"{where}: {function.__name__} takes no column; write a constant instead")
    return max(least, 1), most


def known_by(function: FunctionType, where: str, version: str | None) -> tuple[str, str]:
    """Say how a plan knows a function, by its version or else by its closure; and give the closure, as 16 hex digits.

    Raises `DefinitionError` for a closure that can't be identified, where there is no version.
    """
    closure = hashlib.sha256(repr(_closure(function, where, strict=version is None)).encode()).hexdigest()[:16]
    return f"closure {closure}" if version is None else f"version {version}", closure


def _closure(function: FunctionType, where: str, *, strict: bool, seen: tuple[FunctionType, ...] = ()) -> object:
    """Write what a function computes: its source, and everything that it names; `strict` refuses what can't be identified."""
    if function in seen:
        return ("again", seen.index(function))
    seen = (*seen, function)
    named: dict[str, object] = {}
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            named[name] = function.__globals__[name]
    missing = _globals_read(function.__code__) - function.__globals__.keys() - vars(builtins).keys()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            named[name] = cell.cell_contents
        except ValueError:
            missing.add(name)
    missing.discard(seen[0].__name__)  # it may name itself, and is there once it is decorated
    if strict and missing:
        raise DefinitionError(
            f"{where}: {function.__name__} uses {', '.join(sorted(missing))}, not defined yet where its closure is taken, so that a change "
            'there would go unnoticed: define it above, or name what the function computes: version="1"'
        )
    defaults = (function.__defaults__ or (), tuple(sorted((function.__kwdefaults__ or {}).items())))
    what = f"{function.__name__}"
    known = [(name, _identified(name, value, function, where, strict, seen)) for name, value in sorted(named.items())]
    return (_source(function, where, strict), known, _identified(f"the defaults of {what}", defaults, function, where, strict, seen))


def _identified(name: str, value: object, function: FunctionType, where: str, strict: bool, seen: tuple[FunctionType, ...]) -> object:
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes() | Decimal() | date() | time() | timedelta():
            return (type(value).__name__, repr(value))
        case tuple() | list():
            return (type(value).__name__, [_identified(name, v, function, where, strict, seen) for v in value])
        case set() | frozenset():
            return (type(value).__name__, sorted(repr(_identified(name, v, function, where, strict, seen)) for v in value))
        case dict() if not hasattr(value, "__missing__"):  # which gives what isn't among the values
            pairs = [[_identified(name, part, function, where, strict, seen) for part in pair] for pair in value.items()]
            return ("dict", pairs)
        case Udf():
            return ("udf", value.name, value.identity)
        case ModuleType():
            return ("module", value.__name__)
        case FunctionType() if _is_beside(value, function):
            return ("function", _closure(value, where, strict=strict, seen=seen))
        case FunctionType() | BuiltinFunctionType() | type() if _is_told_by_name(value, function):
            return ("named", value.__module__, value.__qualname__)
    if not strict:
        return ("unknown", type(value).__name__)
    raise DefinitionError(
        f"{where}: {function.__name__} uses {name}, a {type(value).__name__}, which can't be told from another by its value: "
        'name what the function computes: version="1", and give it another version when that changes'
    )


def _is_told_by_name(value: Any, function: FunctionType) -> bool:
    """Tell whether a function or class is known by its name: not the user's, nor made by a call, nor a value's method (`{1: 2}.get`)."""
    bound = isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType | type | None)
    return not bound and "<locals>" not in value.__qualname__ and not _is_beside(value, function)


def _is_beside(value: Any, function: FunctionType) -> bool:
    """Tell whether a function or class is of the same module or folder: then it is the user's, and may change with it."""
    if value.__module__ == function.__module__:
        return True
    files = [inspect.getsourcefile(f) if isinstance(f, FunctionType) else None for f in (value, function)]
    return None not in files and Path(str(files[0])).parent == Path(str(files[1])).parent


def _names(code: CodeType) -> set[str]:
    """Name what a function's code, and the code inside it, may look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _globals_read(code: CodeType) -> set[str]:
    """Name the globals and builtins that a function's code, and the code inside it, reads: no attributes, as among its names."""
    used = [(i.opname, i.argval) for i in dis.get_instructions(code)]
    own = {name for how, name in used if how == "STORE_NAME"} | {"__annotations__"}  # of the body of a class
    found = {name for how, name in used if how == "LOAD_GLOBAL" or (how == "LOAD_NAME" and name not in own)}
    return found.union(*(_globals_read(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def _is_told(code: CodeType, text: str, tree: ast.AST) -> bool:
    """Tell whether the lines that are taken for a lambda's source hold all of it, and no lambda beside it."""
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    within = {node for one in lambdas for node in ast.walk(one) if node is not one}
    ends = max(line for _, _, line in code.co_lines() if line is not None)
    return len([one for one in lambdas if one not in within]) == 1 and ends < code.co_firstlineno + len(text.splitlines())


def _source(function: FunctionType, where: str, strict: bool) -> str:
    """Write a function's source so that comments, docstrings, decorators, places and line breaks don't matter."""
    try:
        text = inspect.getsource(function.__code__)  # not of the function: of one that `functools.wraps` made, that is what it wraps
        tree = ast.parse(textwrap.dedent(text))
    except (OSError, TypeError, SyntaxError):
        if strict:
            raise DefinitionError(f"{where}: no source of {function.__name__} can be found: name what it computes, version='1'") from None
        constants = [c for c in function.__code__.co_consts if isinstance(c, _PLAIN)]
        return function.__code__.co_code.hex() + repr(constants)
    if strict and function.__code__.co_name == "<lambda>" and not _is_told(function.__code__, text, tree):
        raise DefinitionError(
            f"{where}: a lambda's source is its line, which holds only a part of this one, or another one too: make it a def"
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = []
            if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
