"""Compute Spark's string functions in Python: positions count from 1 and in code points, patterns are Java's.

A regular expression is translated from Java's dialect to Python's, within the subset that both read alike; a pattern outside it is
refused when the expression is written. The law is the same as for `scalars`: Spark's value or Spark's failure.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from watertable.errors import ExpressionError
from watertable.sql.scalars import fail

_TERMINATORS: Final = "\n\r\u0085\u2028\u2029"
_DOLLAR: Final = "(?=(?:\r\n|(?<!\r)\n|[\r\u0085\u2028\u2029])?\\Z)"
_SAME: Final = frozenset("dDwWsSfrntaA\\.^$*+?()[]{}|/-\"'<>=!:,;@#%&~`_ ")
_TIMES: Final = re.compile(r"\{[0-9]{1,9}(?:,[0-9]{0,9})?\}")
_BOUNDARY: Final = ", nor one Java as another; write (?<!\\w) where a word begins, (?!\\w) where it ends"
_HEX: Final = re.compile(r"[0-9a-fA-F]*")


def java_regex(pattern: str) -> str:
    """Translate a Java pattern to Python's; raise `ExpressionError` for what the two don't share."""
    out: list[str] = []
    i, inside = 0, False
    while i < len(pattern):
        char = pattern[i]
        step = 1
        if char == "\\":
            following = pattern[i + 1 : i + 2]
            if following == "z" and not inside:
                out.append("\\Z")
            elif following in _SAME and following:
                # \s misses the vertical tab's friends in neither; \w, \d and \s are ASCII in Java, as re.ASCII makes them here
                out.append(char + following)
            elif following.isdigit() and following != "0" and not inside:
                out.append(char + following)
            else:
                raise _unshared(pattern, char + following, _BOUNDARY if following in ("b", "B") else "")
            step = 2
        elif inside:
            if char == "[" or pattern.startswith("&&", i):
                raise _unshared(pattern, pattern[i : i + 2])
            inside = char != "]"
            out.append(char)
        elif char == "[":
            inside = True
            step = 2 if pattern.startswith("[^", i) else 1
            if pattern[i + step : i + step + 1] == "]":
                raise _unshared(pattern, "[]")
            out.append(pattern[i : i + step])
        elif char == ".":
            out.append(f"[^{_TERMINATORS}]")
        elif char == "$":
            out.append(_DOLLAR)
        elif char == "(" and pattern.startswith("(?", i):
            found = re.compile(r"\(\?(?:[:=!>]|<[=!]|<(?P<name>[A-Za-z][A-Za-z0-9]*)>|i\))").match(pattern, i)
            if found is None or (found[0] == "(?i)" and i > 0):
                raise _unshared(pattern, pattern[i : i + 3])
            out.append(f"(?P<{found['name']}>" if found["name"] else found[0])
            step = len(found[0])
        elif char == "{" and _TIMES.match(pattern, i) is None:
            raise _unshared(pattern, char, "; write \\{ for the character, {n}, {n,} or {n,m} for a number of times")
        else:
            out.append(char)
        i += step
    return "".join(out)


def _unshared(pattern: str, part: str, instead: str = "") -> ExpressionError:
    return ExpressionError(
        f"the pattern {pattern!r} uses {part!r}, which Java's and Python's regular expressions don't read alike{instead}"
    )


@lru_cache(maxsize=1024)
def regex(pattern: str) -> re.Pattern[str]:
    """Compile a Java pattern; raise `ExpressionError` if it isn't one, or not one that both engines read alike."""
    try:
        return re.compile(java_regex(pattern), re.ASCII)
    except re.error as error:
        raise ExpressionError(f"not a regular expression: {pattern!r} ({error})") from None


def cutting_regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to cut or replace by; one that matches everywhere is refused: Java would cut characters in halves."""
    compiled = regex(pattern)
    if pattern and compiled.match("\U0001f600\U0001f600", 1) is not None:
        raise ExpressionError(f"the pattern {pattern!r} matches nothing, and so at every place")
    return compiled


def like(pattern: str, escape: str = "\\") -> re.Pattern[str]:
    """Compile the pattern of a LIKE; raise `ExpressionError` where Spark would refuse it."""
    if len(escape) != 1 or escape > "\uffff":  # a Java char: one beyond is two of them
        raise ExpressionError(f"ESCAPE wants one character; got {escape!r}")
    out, i = [], 0
    while i < len(pattern):
        char = pattern[i]
        if char == escape:
            i += 1
            if i == len(pattern) or pattern[i] not in ("_", "%", escape):
                raise ExpressionError(f"the LIKE pattern {pattern!r} has an escape {escape!r} before nothing that it could escape")
            out.append(re.escape(pattern[i]))
        else:
            out.append({"_": ".", "%": ".*"}.get(char) or re.escape(char))
        i += 1
    return re.compile("".join(out), re.DOTALL)


def replacement(template: str, groups: int) -> Callable[[re.Match[str]], str]:
    """Compile Java's replacement text: $1 is a group, a backslash takes the next character as it is."""
    parts: list[str | int] = []
    i = 0
    while i < len(template):
        char = template[i]
        if char == "\\":
            if i + 1 == len(template):
                raise ExpressionError(f"the replacement {template!r} ends in a backslash")
            parts.append(template[i + 1])
            i += 2
        elif char == "$":
            found = re.compile(r"[0-9]").match(template, i + 1)
            if found is None or int(found[0]) > groups:
                raise ExpressionError(f"the replacement {template!r} has a $ that names no group; write \\$ for the character")
            number, i = int(found[0]), i + 2
            while i < len(template) and template[i] in "0123456789" and number * 10 + int(template[i]) <= groups:
                number, i = number * 10 + int(template[i]), i + 1
            parts.append(number)
        else:
            parts.append(char)
            i += 1
    return lambda match: "".join(p if isinstance(p, str) else match[p] or "" for p in parts)


def split(pattern: str, limit: int) -> Callable[..., list[str]]:
    """Return Java's String.split: no empty piece from a match of nothing at the start, all empty pieces at the end."""
    compiled = cutting_regex(pattern)

    def pieces(text: str, *_: object) -> list[str]:
        if not text:
            return [""]
        if not pattern:
            characters = list(text)
            return characters if limit <= 0 or limit >= len(characters) else [*characters[: limit - 1], "".join(characters[limit - 1 :])]
        found: list[str] = []
        start = 0
        for match in compiled.finditer(text):
            if limit > 0 and len(found) == limit - 1:
                break
            if match.end() == 0:
                continue
            found.append(text[start : match.start()])
            start = match.end()
        return [*found, text[start:]]

    return pieces


def regexp_extract(pattern: str, group: int) -> Callable[..., str]:
    """Return the first match's group, empty text if there is none."""
    compiled = regex(pattern)
    if not 0 <= group <= compiled.groups:
        raise ExpressionError(f"the pattern {pattern!r} has {compiled.groups} group(s), not {group}")

    def extract(text: str, *_: object) -> str:
        found = compiled.search(text)
        return (found[group] or "") if found else ""

    return extract


def substring(text: str, start: int, length: int = (1 << 31) - 1) -> str:
    """Cut out a part: from 1, or from the end if negative; what lies outside the text counts but gives nothing."""
    size = len(text)
    begin = start - 1 if start > 0 else size + start if start < 0 else 0
    end = min(begin + length, (1 << 31) - 1)
    return text[max(0, begin) : max(0, min(end, size))] if end > begin else ""


def left(text: str, length: int) -> str:
    """Return the first characters."""
    return text[:length] if length > 0 else ""


def right(text: str, length: int) -> str:
    """Return the last characters."""
    return text[-length:] if length > 0 else ""


def pad(at_left: bool) -> Callable[..., str]:
    """Return lpad or rpad; text that is too long is cut at its end."""

    def padded(text: str, length: int, fill: str = " ") -> str:
        missing = length - len(text)
        if missing <= 0 or not fill:
            return text[: max(0, length)]
        filling = (fill * (missing // len(fill) + 1))[:missing]
        return filling + text if at_left else text + filling

    return padded


def locate(part: str, text: str, start: int = 1) -> int:
    """Return the place of the first occurrence at or after a place, from 1; 0 if there is none."""
    if start < 1:
        return 0
    return text.find(part, start - 1) + 1


def locate_nulls(part: str | None, text: str | None, start: int | None = 1) -> int | None:
    """Return locate's result; a null start gives 0."""
    if start is None:
        return 0
    return None if part is None or text is None else locate(part, text, start)


def replace(text: str, search: str, substitute: str = "") -> str:
    """Replace every occurrence; an empty search changes nothing."""
    return text.replace(search, substitute) if search else text


def translate(text: str, source: str, target: str) -> str:
    """Replace single characters; those without a counterpart go."""
    table: dict[int, str | None] = {}
    for i, char in enumerate(source):
        table.setdefault(ord(char), target[i] if i < len(target) else None)
    return text.translate(table)


def concat(*parts: str | None) -> str | None:
    """Join texts; null if any is."""
    return None if None in parts else "".join(parts)  # type: ignore[arg-type]


def concat_ws(separator: str | None, *parts: Any) -> str | None:
    """Join texts and lists of texts with a separator, leaving out nulls."""
    if separator is None:
        return None
    flat = (p for part in parts for p in (part if isinstance(part, list) else [part]))
    return separator.join(p for p in flat if p is not None)


def substring_index(text: str, delimiter: str, count: int) -> str:
    """Return what is before the count-th delimiter, or behind it counted from the end if negative."""
    if not delimiter or not count:
        return ""
    place = -1 if count > 0 else len(text) - len(delimiter) + 1
    for _ in range(abs(count)):  # occurrences may overlap, as in Spark
        place = text.find(delimiter, place + 1) if count > 0 else text.rfind(delimiter, 0, place - 1 + len(delimiter))
        if place < 0:
            return text
    return text[:place] if count > 0 else text[place + len(delimiter) :]


def split_part(text: str, delimiter: str, part: int) -> str:
    """Return one piece between delimiters, from 1, or from the end if negative; empty where there is none."""
    if part == 0:
        raise fail("split_part counts from 1, or from -1 at the end; got 0")
    pieces = text.split(delimiter) if delimiter else [text]
    return pieces[part - 1 if part > 0 else part] if abs(part) <= len(pieces) else ""


def initcap(text: str) -> str:
    """Write each word, cut at spaces, with a capital and the rest small."""
    return " ".join(word[:1].title() + word[1:].lower() if word else "" for word in text.lower().split(" "))


def hexadecimal(value: int | str | bytes) -> str:
    """Write the bytes of a number or text in hexadecimal."""
    if isinstance(value, int):
        return f"{value % (1 << 64):X}"
    return (value.encode() if isinstance(value, str) else value).hex().upper()


def unhex(text: str) -> bytes | None:
    """Read hexadecimal digits; null if there is anything else."""
    if _HEX.fullmatch(text) is None:
        return None
    return bytes.fromhex(text if len(text) % 2 == 0 else "0" + text)


def character(code: int) -> str:
    """Return the character of a code, modulo 256; empty for negatives."""
    return "" if code < 0 else chr(code % 256)


def encode_base64(value: bytes) -> str:
    """Write bytes in base 64, without line ends."""
    return base64.b64encode(value).decode("ascii")


def md5(value: bytes) -> str:
    """Return the MD5 digest in hexadecimal."""
    return hashlib.md5(value, usedforsecurity=False).hexdigest()


def sha1(value: bytes) -> str:
    """Return the SHA-1 digest in hexadecimal."""
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()


def sha2(bits: int) -> Callable[..., str]:
    """Return the SHA-2 digest of a given width in hexadecimal; raise `ExpressionError` for one that there isn't."""
    if bits not in (0, 224, 256, 384, 512):
        raise ExpressionError(f"sha2 has 224, 256, 384 or 512 bits, and 0 for 256; got {bits}")
    name = f"sha{bits or 256}"
    return lambda value, *_: hashlib.new(name, value).hexdigest()


def crc32(value: bytes) -> int:
    """Return the CRC-32 checksum."""
    return zlib.crc32(value)


def levenshtein(a: str, b: str) -> int:
    """Return the number of edits between two texts."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
