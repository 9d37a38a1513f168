"""The number that a text says, written as in English (1,234.5) or in LaTeX."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

_ENGLISH = re.compile(r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+")
_N = r"(?:\d{1,3}(?:[ ]\d{3})+(?!\d)|\.?\d+)(?:[.,'\u2019]\d+)*"
"""Digits and what joins them, in the form of any country. What is not `_ENGLISH`, too, is no number."""
_EXPONENT = r"(?:\^\s?(?:\{[^{}]*\}|[-+]?\w+)?)+"
_NUMBER = re.compile(
    rf"(?P<unread>\\[dt]?frac(?:\s*(?:\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|\w)){{0,2}}"
    rf"|(?:\\sqrt|\u221a)\s*(?:\{{[^{{}}]*\}}|\(?[\w.,]+)?|[)\]}}]{_EXPONENT})"
    r"|(?<![A-Za-z_\d])(?<!\d[.,'\u2019])(?:(?<![\w)\]}])(?P<minus>-)(?=[$€£¥]?[\d.]))?[$€£¥]?"
    rf"(?:(?P<whole>\d+)[ ](?=\d+/\d))?(?P<above>{_N})"
    rf"(?P<power>[ ]?{_EXPONENT})?"
    rf"(?:[eE](?P<exponent>[-+]?\d{{1,3}})(?!\d)|[ ]?/[ ]?(?P<below>{_N}))?"
    rf"(?P<powers>[ ]?{_EXPONENT})?"
    r"(?P<percent>[ ]?(?:\\?%|per ?cent\b))?"
)
_MARKED = re.compile(r"^[ \t]*####(.*)$", re.MULTILINE)
"""The line of the result, as GSM8K has it."""
_HEADING = re.compile(r"[.):]\s+\S")
"""What is behind the number of a heading (`#### 1. First`)."""
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_LOWERED = re.compile("[\u2080-\u2089]+")
_TIMES = r"(?:\u00d7|x|\*|\u00b7|\\times|\\cdot)"
_POWER_OF_TEN = r"(?:\{([-+]?\d{1,3})\}|([-+]?\d{1,3})(?![\w^]))"
_ARGUMENT = r"\s*(?:\{\s*(-?\d+)\s*\}|(\d))"
_UNICODE = (
    (re.compile(r"(?<=\d)(?:\{,\}|\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ","),
    (re.compile(r"(?<=\d)(?=\\[dt]?frac\b|\\[dt]?frac\d|[¼½¾⅐-⅞])"), " "),
    (_RAISED, lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}"),
    (_LOWERED, lambda match: f"_{unicodedata.normalize('NFKC', match[0])}"),
)
"""Thousands, mixed fractions, exponents and indices, each with how _NUMBER has them; before NFKC hides them."""
_LATEX = (
    (re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s?\{?\\circ\b\}?"), ""),
    (re.compile(r"_\s?\{\w*\}"), "_"),
    (
        re.compile(rf"\\[dt]?frac{_ARGUMENT}{_ARGUMENT}"),
        lambda match: f"{match[1] or match[2]}/{match[3] or match[4]}",
    ),
    (
        re.compile(rf"(?:(?<=\d)\s?{_TIMES}\s?|(?<![\w.,)\]}}*\u00d7\u00b7]))10\s?\^\s?{_POWER_OF_TEN}"),
        lambda match: f"{'1' if match[0].startswith('10') else ''}e{match[1] or match[2]}",
    ),
    (re.compile(rf"(?<=[A-Za-z])\d*\s?{_EXPONENT}"), ""),
    (re.compile(r"\b(?:EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD)(?=-?[\d.])"), " "),
)
"""Units, powers of ten and simple fractions."""
_SIGNS = str.maketrans({"\u2212": "-", "\u2012": "-", "\u2013": "-", "\u2044": "/"})
MOST_DIGITS = 1000


class WrittenNumber(NamedTuple):
    """Number that a text says, and whether as a percentage (of 50 % the value is 50)."""

    value: Fraction
    percent: bool


def last_number(text: str) -> WrittenNumber | None:
    """Return the number that `text` says: the one that the first line of `####` begins with (GSM8K), else the last one
    in it; None if there is none, or it is one that cannot be read.

    Numbers are in the English form, `1,234.5`; thousands may be apart by narrow or protected spaces. `3/4`, `1 1/2`,
    `½` and `\\frac{3}{4}` are fractions, `1.5e3` and `1.5 x 10^3` are 1500, and `-` is a sign where no letter, digit
    or bracket is before it. Digits behind a letter (`CO2`) are none. Digits in the form of another country (`12,5`,
    `1.234,56`, `1 234`, `1'234`), other powers, roots and fractions of more than whole numbers cannot be read.
    """
    text = text.translate(_SIGNS)
    for pattern, instead in _UNICODE:
        text = pattern.sub(instead, text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    for pattern, instead in _LATEX:
        text = pattern.sub(instead, text)
    for line in _MARKED.finditer(text):
        result = line[1].strip(" \t*")
        match = _NUMBER.match(result)
        if match is not None and not _HEADING.match(result, match.end()):
            return _value(match)
    match = None
    for match in _NUMBER.finditer(text):  # noqa: B007 - the last one
        pass
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> WrittenNumber | None:
    parts = [match[name] for name in ("above", "below")]
    if len(match[0]) > MOST_DIGITS or match["unread"] or match["power"] or match["powers"]:
        return None
    if not all(part is None or _ENGLISH.fullmatch(part) for part in parts):
        return None
    above, below = (Fraction(part.replace(",", "")) if part else None for part in parts)
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
