"""Compare an answer with an expected one: as texts, as the words in them, as the numbers in them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import polars as pl
from polars.exceptions import ComputeError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_N = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
_NUMBER = re.compile(
    r"(?<![A-Za-z_\d])(?:(?<![\w)\]}])(?P<minus>-)(?=[$€£¥]?[\d.]))?[$€£¥]?"
    rf"(?:(?P<whole>\d+)[ ](?=\d+/\d))?(?P<above>{_N})"
    rf"(?:[eE](?P<exponent>[-+]?\d{{1,3}})(?!\d)|[ ]?/[ ]?(?P<below>{_N}))?"
    r"(?P<percent>[ ]?(?:\\?%|per ?cent\b))?"
)
_MARKED = re.compile(r"^[ \t]*####(.*)$", re.MULTILINE)
"""The line of the result, as GSM8K has it."""
_WRITTEN = (
    (re.compile(r"(?<=\d)(?:\{,\}|\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ","),
    (re.compile(r"(?<=\d)(?=\\[dt]?frac\b|[¼½¾⅐-⅞])"), " "),
    (re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}"), r"\1/\2"),
)
"""Thousands and fractions of LaTeX and of Unicode, each with how _NUMBER has them."""
_SIGNS = str.maketrans({"\u2212": "-", "\u2044": "/"})
MOST_DIGITS = 1000


class Metric(NamedTuple):
    """Way to compare an answer with an expected one.

    Args:
        read: makes of an expected text what `score` takes; raises ValueError with what is wrong with the text.
        score: how right the answer is, 0 to 1.
    """

    read: Callable[[str], Any]
    score: Callable[[Any, str], float]


class WrittenNumber(NamedTuple):
    """Number that a text says, and whether as a percentage (of 50 % the value is 50)."""

    value: Fraction
    percent: bool


def normalised(text: str) -> str:
    """Return `text` as SQuAD's official script compares answers: in lower case, without punctuation, without the words
    a, an and the, and with single spaces. Before that its characters take the form NFKC, and punctuation is that of
    Unicode (the categories P), where the script knows that of ASCII alone; of ASCII both make the same."""
    lower = unicodedata.normalize("NFKC", text).lower()
    bare = "".join(c for c in lower if c not in string.punctuation and not unicodedata.category(c).startswith("P"))
    return " ".join(_ARTICLES.sub(" ", bare).split())


def token_f1(expected: str, answer: str) -> float:
    """Return the F1 of the words of two texts that are `normalised`, as SQuAD's official script (2.0) computes it."""
    wanted, found = expected.split(), answer.split()
    if not wanted or not found:
        return float(wanted == found)
    common = (Counter(wanted) & Counter(found)).total()
    return 2 * common / (len(wanted) + len(found))


def last_number(text: str) -> WrittenNumber | None:
    """Return the number that `text` says: that of the first line of `####` and a number alone (GSM8K), else the last
    one in it; None if there is none.

    Thousands may be apart by commas, or by narrow or protected spaces. `3/4`, `1 1/2`, `½` and `\\frac{3}{4}` are
    fractions, `1.5e3` is 1500, and `-` is a sign where no letter, digit or bracket is before it. Digits behind a letter
    (`CO2`) are none.
    """
    for pattern, instead in _WRITTEN:
        text = pattern.sub(instead, text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    for line in _MARKED.finditer(text):
        if (match := _NUMBER.fullmatch(line[1].strip(" \t."))) is not None:
            return _value(match)
    match = None
    for match in _NUMBER.finditer(text):  # noqa: B007 - the last one
        pass
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> WrittenNumber | None:
    if len(match[0]) > MOST_DIGITS:
        return None
    above, below = (Fraction(match[name].replace(",", "")) if match[name] else None for name in ("above", "below"))
    assert above is not None
    if below is not None:
        if not below:
            return None
        above /= below
        if match["whole"] and above < 1:
            above += int(match["whole"])
    value = above * Fraction(10) ** int(match["exponent"] or 0)
    return WrittenNumber(-value if match["minus"] else value, match["percent"] is not None)


def same_number(expected: WrittenNumber, answer: str, tolerance: Fraction) -> float:
    """Return 1 if the number of `answer` is at most `tolerance` from the expected one, else 0. Where one of them alone
    is a percentage, 50 % is both 50 and 0.5."""
    found = last_number(answer)
    if found is None:
        return 0.0
    apart = abs(found.value - expected.value)
    if found.percent != expected.percent:
        percentage, number = (found, expected) if found.percent else (expected, found)
        apart = min(apart, abs(percentage.value / 100 - number.value))
    return float(apart <= tolerance)


def groups_of(pattern: str) -> int:
    """Return how many groups a regular expression has, of Rust's `regex`: it takes time linear in the text, and has
    neither look-around nor references. Raises ValueError if it is none, or compiles to too much."""
    try:
        return len(pl.Series([""]).str.extract_groups(pattern).struct.fields)
    except ComputeError as error:
        why = str(error).partition("\n\nThis error")[0].strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(f"is no regular expression, {pattern!r}: {why}") from error


@lru_cache(maxsize=1000)
def _pattern(text: str) -> str:
    groups_of(text)
    return text


def _found(pattern: str, answer: str) -> float:
    return float(pl.Series([answer]).str.contains(pattern)[0])


def _number(text: str) -> WrittenNumber:
    if (number := last_number(text)) is None:
        raise ValueError(f"has no number: {text[:80]!r}")
    return number


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def metrics(tolerance: float = 0.0) -> dict[str, Metric]:
    """Return the metrics of texts by name. `tolerance`: how far apart two numbers may be."""
    near = Fraction(str(tolerance))
    return {
        "exact": Metric(str.strip, lambda expected, answer: float(expected == answer.strip())),
        "normalised": Metric(normalised, lambda expected, answer: float(expected == normalised(answer))),
        "number": Metric(_number, partial(same_number, tolerance=near)),
        "regex": Metric(_pattern, _found),
        "contains": Metric(_folded, lambda expected, answer: float(expected in _folded(answer))),
        "f1": Metric(normalised, lambda expected, answer: token_f1(expected, normalised(answer))),
    }
