"""Keep what an expression in the SQL of polars computes with numbers from being cut.

polars adds whole numbers in the type of their column, and some functions give narrow types: LENGTH a uint32, the month
of a date an int8. There `LENGTH(a) - LENGTH(b)` wraps around below 0, and `EXTRACT(MONTH FROM d) * 100` at 127. And it
takes `0.3` for a decimal, whose quotients have six digits. Here whole numbers are made 128 bits wide before anything is
computed with them, and a fraction in a quotient is a double.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import polars as pl
from polars.exceptions import InvalidOperationError, PanicException, PolarsError

_TOKEN = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?\*/)"
    r"|(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign>::|//|->>?|[<>!=|]{2}|.)",
    re.DOTALL,
)
_COMPUTES = {("sign", sign) for sign in ("+", "-", "*", "/", "//", "%")} | {("word", "pow"), ("word", "power")}
_FRACTION = re.compile(r"\d*\.\d*")
_WHOLE_TYPE = re.compile(r"u?(?:tiny|small|medium|big)?int(?:eger|\d+)?", re.IGNORECASE)
_DECIMAL_TYPES = {"decimal", "numeric", "dec"}
_WIDTHS = {"HUGEINT": pl.Int128(), "BIGINT": pl.Int64()}
"""Types to compute with whole numbers in. The first that an expression takes is used: some functions take no number of
128 bits."""
_BYTES = {"HUGEINT": 16, "BIGINT": 8}

_Token = tuple[str, str]


class ExactExpression:
    """An expression, and how it computes with numbers. `rows`: its columns, without a row.

    Attributes:
        kind: type of its values; whole numbers that it has computed have 64 bits.
        keeps_decimals: decimals in it are meant: of a column, or by name.

    Raises:
        PolarsError: it is no expression over these columns.
    """

    def __init__(self, rows: pl.DataFrame, text: str) -> None:
        self._tokens = tokens = _tokens(text)
        named = any(kind == "word" and token.lower() in _DECIMAL_TYPES for kind, token in tokens)
        self.keeps_decimals = named or any(kind.is_decimal() for kind in rows.dtypes)
        self._text, self._width = text, ""
        self.kind = evaluate(rows, text).dtype
        if rows.width and _COMPUTES & {(kind, token.lower()) for kind, token in tokens}:
            if ("sign", "/") in tokens and not self.keeps_decimals:
                fractions = {("number", token) for _, token in tokens if _FRACTION.fullmatch(token)}
                tokens = [(kind, f"{t}e0") if (kind, t) in fractions else (kind, t) for kind, t in tokens]
                self._text = _text(tokens)
            self._widen(rows, tokens)
        whole = pl.UInt64() if self.kind == pl.UInt64 else pl.Int64()
        wide = evaluate(_in_width(rows, self._width), self._text).dtype
        self.kind = _with_whole(wide, lambda kind: whole if self._width or kind == pl.Int128 else kind)

    def values(self, rows: pl.DataFrame) -> pl.Series:
        """Evaluate the expression for each of `rows`. Raises PolarsError, or PanicException, if it fails for one."""
        if self._width and self._bound(rows) >= 1 << (8 * _BYTES[self._width] - 1):
            if (half := len(rows) // 2) > 0:  # the numbers of one row must not stop another
                return self.values(rows[:half]).append(self.values(rows[half:]))
            raise InvalidOperationError("whole numbers too large to compute with in 128 bits; CAST one AS DOUBLE")
        computed = evaluate(_in_width(rows, self._width), self._text)
        try:
            return computed.cast(self.kind)
        except InvalidOperationError as error:
            raise InvalidOperationError(f"a whole number beyond {self.kind}: {error}") from error

    def _bound(self, rows: pl.DataFrame) -> int:
        """Return what no sum or product in the expression is beyond. (POW counts as none.)"""
        names, sizes = {*rows.columns, *(f'"{name}"' for name in rows.columns)}, []
        casts = any(token.lower() in ("::", "cast", "try_cast") for _, token in self._tokens)
        for kind, token in self._tokens:
            if kind == "number":
                sizes.append(int(token) if token.isdigit() else 1)  # doubles do not wrap around
            elif token in names:
                sizes.append(_largest(rows[token if token in rows.columns else token[1:-1]], casts=casts))
        signs = Counter(token for kind, token in self._tokens if kind == "sign")
        return math.prod(sorted(sizes)[-1 - signs["*"] :]) * (1 + signs["+"] + signs["-"])

    def _widen(self, rows: pl.DataFrame, tokens: Sequence[_Token]) -> None:
        one = pl.DataFrame({name: pl.Series([_ordinary(kind)], dtype=kind) for name, kind in rows.schema.items()})
        tried = rows if _kind(one, self._text) is None else one
        for width in _WIDTHS:
            text = _widened(tokens, partial(_kind, rows), width)
            if _kind(_in_width(tried, width), text) is not None:
                self._text, self._width = text, width
                return


def evaluate(rows: pl.DataFrame, text: str) -> pl.Series:
    """Return the values of an expression for `rows`. Raises PolarsError, or PanicException, if it has none."""
    # sql_expr would need no SELECT, but does not support IN.
    return rows.sql(f"SELECT ({text}\n) AS value FROM self")["value"]


def _kind(rows: pl.DataFrame, text: str) -> pl.DataType | None:
    """Return the type of an expression; None for what is none."""
    try:
        return evaluate(rows, text).dtype
    except (PolarsError, PanicException):
        return None


def _tokens(text: str) -> list[_Token]:
    return [(match.lastgroup or "sign", match.group()) for match in _TOKEN.finditer(text)]


def _widened(tokens: Sequence[_Token], kind_of: Callable[[str], pl.DataType | None], width: str) -> str:
    """Return the text of `tokens` with the whole numbers that functions and casts give cast to the type `width`."""
    made: list[str] = []
    at = 0
    while at < len(tokens):
        (kind, token), end = tokens[at], _call_end(tokens, at)
        if end:
            opened = tokens.index(("sign", "("), at) + 1
            call = f"{_text(tokens[at:opened])}{_widened(tokens[opened : end - 1], kind_of, width)})"
            of = kind_of(_text(tokens[at:end]))
            made.append(f"CAST({call} AS {width})" if of is not None and of.is_integer() else call)
            at = end
            continue
        made.append(token)
        at += 1
        if (kind, token) == ("sign", "::") and at < len(tokens) and _WHOLE_TYPE.fullmatch(tokens[at][1]):
            made.append(f"{tokens[at][1]}::{width}")
            at += 1
    return "".join(made)


def _call_end(tokens: Sequence[_Token], at: int) -> int:
    """Return the place behind the call that begins at `at` with a word; 0 if none does."""
    if tokens[at][0] != "word":
        return 0
    depth = 0
    for place, (kind, token) in enumerate(tokens[at + 1 :], at + 1):
        depth += (kind == "sign") * ((token == "(") - (token == ")"))
        if not depth and kind != "space":
            return place + 1 if token == ")" else 0
    return 0


def _text(tokens: Sequence[_Token]) -> str:
    return "".join(token for _, token in tokens)


def _in_width(rows: pl.DataFrame, width: str) -> pl.DataFrame:
    """Return `rows` with the whole numbers of all columns in the type `width`, if one is given."""
    if not width:
        return rows
    wide = _WIDTHS[width]
    return rows.select(pl.col(name).cast(_with_whole(kind, lambda _: wide)) for name, kind in rows.schema.items())


def _with_whole(kind: pl.DataType, made: Callable[[pl.DataType], pl.DataType]) -> pl.DataType:
    """Return the type `kind` with whole numbers, also those in lists and structs, of the type that `made` returns."""
    if kind.is_integer():
        return made(kind)
    if isinstance(kind, pl.List):
        return pl.List(_with_whole(cast(pl.DataType, kind.inner), made))
    if isinstance(kind, pl.Array):
        return pl.Array(_with_whole(cast(pl.DataType, kind.inner), made), kind.size)
    if isinstance(kind, pl.Struct):
        return pl.Struct(
            [pl.Field(each.name, _with_whole(cast(pl.DataType, each.dtype), made)) for each in kind.fields]
        )
    return kind


def _largest(values: pl.Series, *, casts: bool) -> int:
    """Return the largest whole number, without its sign, that these values have, or a function or cast makes of one."""
    kind = values.dtype
    if isinstance(kind, pl.Struct):
        return max((_largest(values.struct.field(name), casts=casts) for name in values.struct.fields), default=0)
    if kind.is_nested():
        items = values.explode()
        return max(len(items), _largest(items, casts=casts))
    if kind.is_integer():
        return max(abs(cast(int, each)) for each in (values.min() or 0, values.max() or 0))
    if not (kind.is_numeric() or kind == pl.String):
        return 1 << 63 if casts else 1 << 44  # of a time: its microseconds
    length = cast(int, values.str.len_bytes().max() or 0) if kind == pl.String else 1
    number = values.cast(pl.Float64, strict=False).fill_nan(0).abs().max() if casts else 0
    return max(length, int(min(cast(float, number or 0), 2.0**64)))


def _ordinary(kind: pl.DataType) -> object:
    """Return a value of that type; None: any is as good as none."""
    return 1 if kind.is_numeric() else "1" if kind == pl.String else None
