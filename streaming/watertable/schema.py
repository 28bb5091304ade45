"""Describe columns and types as frozen data, in Spark SQL's own words, without Spark.

A `Type` is one of Spark's SQL types, a `Schema` an ordered set of named columns. Both are read from DDL strings
("stock_code STRING, price DECIMAL(12,3)") and written back as such. Names are found as written; two that differ by case alone, which Spark
and Delta don't tell apart, can't stand side by side. This module knows nothing of expressions; those are typed in `expressions`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Self

import sqlglot
from sqlglot import exp

from watertable.errors import SchemaError

IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
OWN: Final = "_wt"
"""How the columns begin that are the store's own."""
_NOT_IN_DELTA: Final = re.compile(r"[ ,;{}()\n\t=]")
_SIMPLE: Final = {
    "BOOLEAN": "boolean", "TINYINT": "tinyint", "BYTE": "tinyint", "SMALLINT": "smallint", "SHORT": "smallint", "INT": "int",
    "INTEGER": "int", "BIGINT": "bigint", "LONG": "bigint", "FLOAT": "float", "REAL": "float", "DOUBLE": "double",
    "STRING": "string", "TEXT": "string", "VARCHAR": "string", "BINARY": "binary", "VARBINARY": "binary", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMPTZ": "timestamp", "TIMESTAMPLTZ": "timestamp",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Type:
    """Name one Spark SQL type.

    `kind` is Spark's lower-case name: boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date,
    timestamp, array, map, struct; `void` is the type of a bare NULL. Only decimals have precision and scale, only arrays an element,
    only maps a key type (`map_key`) and value type (`element`), only structs fields.

    >>> Type.parse("DECIMAL(12,3)")
    Type('DECIMAL(12,3)')
    >>> Type.parse("ARRAY<STRING>").element
    Type('STRING')
    """

    kind: str
    precision: int = 0
    scale: int = 0
    element: Type | None = None
    map_key: Type | None = None
    fields: tuple[Column, ...] = field(default=())
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = (self.kind, self.precision, self.scale, self.element, self.map_key, self.fields)
        object.__setattr__(self, "_hash", hash(parts))  # what reads a type is looked up by it for every record

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def parse(cls, ddl: str) -> Type:
        """Read one type from its DDL; raise `SchemaError` for what isn't one."""
        return Schema.parse(f"c {ddl}").columns[0].type

    def sql(self) -> str:
        """Write the type as Spark SQL, in upper case."""
        match self.kind:
            case "decimal":
                return f"DECIMAL({self.precision},{self.scale})"
            case "array":
                return f"ARRAY<{self._element().sql()}>"
            case "map":
                return f"MAP<{self._map_key().sql()}, {self._element().sql()}>"
            case "struct":
                return "STRUCT<" + ", ".join(f"{quote(c.name)}: {c.type.sql()}" for c in self.fields) + ">"
            case _:
                return self.kind.upper()

    @property
    def is_integral(self) -> bool:
        """Tell whether the type is a whole number of fixed width."""
        return self.kind in ("tinyint", "smallint", "int", "bigint")

    @property
    def is_numeric(self) -> bool:
        """Tell whether arithmetic is defined on the type."""
        return self.is_integral or self.kind in ("float", "double", "decimal")

    def walk(self) -> Iterator[Type]:
        """Go through the type and all types in it."""
        yield self
        for inner in (self.map_key, self.element, *(part.type for part in self.fields)):
            if inner is not None:
                yield from inner.walk()

    def _element(self) -> Type:
        assert self.element is not None
        return self.element

    def _map_key(self) -> Type:
        assert self.map_key is not None
        return self.map_key

    def __repr__(self) -> str:
        return f"Type({self.sql()!r})"


@dataclass(frozen=True, slots=True)
class Column:
    """Name one column, its type, and the user's comment on it."""

    name: str
    type: Type
    comment: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """Hold an ordered set of columns.

    >>> s = Schema.parse("stock_code STRING, price DECIMAL(12,3)")
    >>> s.names, s["price"].sql()
    (('stock_code', 'price'), 'DECIMAL(12,3)')
    """

    columns: tuple[Column, ...] = ()
    _struct: Type = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for column in self.columns:
            check_identifier(column.name, "column")
        _check_distinct(self.columns)
        object.__setattr__(self, "_struct", Type("struct", fields=self.columns))

    @classmethod
    def parse(cls, ddl: str) -> Self:
        """Read a DDL column list, as Spark's `StructType.fromDDL` would; raise `SchemaError` naming what can't be read."""
        if not isinstance(ddl, str):
            raise SchemaError(f"not a DDL column list: {ddl!r}; write e.g. 'id STRING, amount DECIMAL(12,2)'")
        try:
            tree = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
        except sqlglot.errors.SqlglotError as error:
            wrong = getattr(error, "errors", None) or [{}]  # a text that isn't ended has none
            near = wrong[0].get("highlight")
            said = f" (it can't be read at {near!r})" if near and near in ddl else ""
            raise SchemaError(f"not a DDL column list: {ddl!r}{said}; write e.g. 'id STRING, amount DECIMAL(12,2)'") from None
        body = tree.this
        if not isinstance(tree, exp.Create) or not isinstance(body, exp.Schema):
            raise SchemaError(f"not a DDL column list: {ddl!r}; write e.g. 'id STRING, amount DECIMAL(12,2)'")
        return cls(tuple(_column(definition, ddl) for definition in body.expressions))

    @classmethod
    def of(cls, columns: Iterable[tuple[str, Type]]) -> Self:
        """Build a schema from (name, type) pairs."""
        return cls(tuple(Column(name, kind) for name, kind in columns))

    @property
    def names(self) -> tuple[str, ...]:
        """List the column names in order."""
        return tuple(column.name for column in self.columns)

    def take(self, names: Collection[str]) -> Schema:
        """Give those of the columns that are named, in their order here."""
        return Schema(tuple(column for column in self.columns if column.name in names))

    def sql(self) -> str:
        """Write the schema as a DDL string that Spark reads."""
        return ", ".join(f"{quote(c.name)} {c.type.sql()}" for c in self.columns)

    def struct(self) -> Type:
        """Wrap the columns as one struct type."""
        return self._struct

    def __getitem__(self, name: str) -> Type:
        for column in self.columns:
            if column.name == name:
                return column.type
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __add__(self, other: Schema) -> Schema:
        return Schema(self.columns + other.columns)

    def __repr__(self) -> str:
        return f"Schema({self.sql()!r})"


def check_identifier(name: str, what: str) -> str:
    """Return the name if it is a plain identifier, else raise `SchemaError`: names become paths, SQL and asset keys."""
    if not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        raise SchemaError(f"{what} name {name!r} is not an identifier: letters, digits and _, at most 63, no digit first")
    if what == "column" and name.lower().startswith(OWN):
        raise SchemaError(f"column name {name!r}: names that begin with {OWN} are the store's own; rename it")
    return name


def check_names(names: Iterable[str], what: str = "column") -> None:
    """Raise `SchemaError` for a name that comes twice, or that differs from another by its case alone: to Spark and Delta they are one."""
    seen: dict[str, str] = {}
    for name in (given := list(names)):
        if (other := seen.setdefault(name.lower(), name)) != name or given.count(name) > 1:
            how = "is named twice" if other == name else f"is {other!r} to Spark and Delta, whatever its case"
            raise SchemaError(f"{what} {name!r} {how}; {what}s: {', '.join(given)}")


def _check_distinct(columns: Collection[Column]) -> None:
    """Raise `SchemaError` for columns, and for fields in one, that can't stand side by side, and for a field that Delta can't name."""
    check_names(column.name for column in columns)
    for column in columns:
        for kind in column.type.walk():
            check_names((part.name for part in kind.fields), "field")
            for part in kind.fields:
                if _NOT_IN_DELTA.search(part.name):
                    raise SchemaError(f"field {part.name!r} of {column.name!r}: in names Delta takes no blanks, and none of ,;{{}}()=")


def quote(name: str) -> str:
    """Quote a name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _column(definition: exp.Expression, ddl: str) -> Column:
    if not isinstance(definition, exp.ColumnDef) or definition.args.get("kind") is None:
        raise SchemaError(f"column {definition.sql(dialect='spark')!r} has no type in {ddl!r}")
    comment = ""
    for constraint in definition.args.get("constraints") or ():
        if not isinstance(constraint.kind, exp.CommentColumnConstraint):
            said = f"column {definition.name!r}: nothing holds records to {constraint.sql()}"
            raise SchemaError(f"{said}: a column has a type and a COMMENT; rules are for expect(...)")
        comment = str(constraint.kind.this.this)
    return Column(definition.name, from_sqlglot(definition.args["kind"]), comment)


def from_sqlglot(kind: exp.DataType) -> Type:
    """Translate sqlglot's data type; raise `SchemaError` for types outside Spark SQL's or not supported here."""
    name = kind.this.value if isinstance(kind.this, exp.DataType.Type) else str(kind.this)
    inner = kind.expressions
    if kind.args.get("collate"):
        raise SchemaError(f"COLLATE {kind.args['collate'].name}: texts are compared as they are; write STRING, and compare lower(...), say")
    if name in _SIMPLE:
        if inner:
            raise SchemaError(f"type {kind.sql()!r}: nothing holds values to a length or a precision; write {_SIMPLE[name].upper()}")
        return Type(_SIMPLE[name])
    match name:
        case "DECIMAL":
            digits = [p.name for p in inner]
            if len(digits) > 2 or not all(number.isdecimal() for number in digits):
                raise SchemaError(f"DECIMAL({', '.join(digits)}): wanted a precision, or a precision and a scale: DECIMAL(12,2)")
            precision, scale = [*map(int, digits), *(10, 0)[len(digits) :]]
            if not (1 <= precision <= 38 and 0 <= scale <= precision):
                raise SchemaError(f"DECIMAL({precision},{scale}): precision is 1 to 38, scale 0 to precision")
            return Type("decimal", precision=precision, scale=scale)
        case "ARRAY" | "LIST" if len(inner) == 1:
            return Type("array", element=from_sqlglot(inner[0]))
        case "MAP" if len(inner) == 2:
            return Type("map", map_key=from_sqlglot(inner[0]), element=from_sqlglot(inner[1]))
        case "STRUCT":
            return Type("struct", fields=tuple(_column(f, kind.sql(dialect="spark")) for f in inner))
    raise SchemaError(f"type {kind.sql()!r} is not supported; use Spark SQL's scalar types, ARRAY, MAP or STRUCT")
