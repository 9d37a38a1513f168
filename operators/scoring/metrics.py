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

from operators.scoring.numbers import WrittenNumber, last_number, same_number

_ARTICLES = re.compile(r"\b(a|an|the)\b")


class Metric(NamedTuple):
    """Way to compare an answer with an expected one.

    Args:
        read: makes of an expected text what `score` takes; raises ValueError with what is wrong with the text.
        score: how right the answer is, 0 to 1.
    """

    read: Callable[[str], Any]
    score: Callable[[Any, str], float]


def normalised(text: str) -> str:
    """Return `text` as SQuAD's official script compares answers: in lower case, without punctuation, without the words
    a, an and the, and with single spaces. Before that its characters take the form NFKC, and punctuation is that of
    Unicode (the categories P), where the script knows that of ASCII alone; of ASCII both make the same."""
    return " ".join(_ARTICLES.sub(" ", _bare(text)).split())


def _bare(text: str) -> str:
    lower = unicodedata.normalize("NFKC", text).lower()
    return "".join(c for c in lower if c not in string.punctuation and not unicodedata.category(c).startswith("P"))


def compared(text: str) -> str:
    """Return `text` as `normalised`; what has articles alone (the letter A) keeps them, and what has punctuation alone
    keeps it: else all of these would be equal."""
    return normalised(text) or " ".join(_bare(text).split()) or text.strip()


def token_f1(expected: str, answer: str) -> float:
    """Return the F1 of the words of two texts that are `normalised`, as SQuAD's official script (2.0) computes it."""
    wanted, found = expected.split(), answer.split()
    if not wanted or not found:
        return float(wanted == found)
    common = (Counter(wanted) & Counter(found)).total()
    return 2 * common / (len(wanted) + len(found))


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
        unread = "; numbers are read in the English form, 1,234.5" if re.search(r"\d", text) else ""
        raise ValueError(f"has no number: {text[:80]!r}{unread}")
    return number


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def metrics(tolerance: float = 0.0) -> dict[str, Metric]:
    """Return the metrics of texts by name. `tolerance`: how far apart two numbers may be."""
    near = Fraction(str(tolerance))
    return {
        "exact": Metric(str.strip, lambda expected, answer: float(expected == answer.strip())),
        "normalised": Metric(compared, lambda expected, answer: float(expected == compared(answer))),
        "number": Metric(_number, partial(same_number, tolerance=near)),
        "regex": Metric(_pattern, _found),
        "contains": Metric(
            lambda text: _folded(text).strip(), lambda expected, answer: float(expected in _folded(answer))
        ),
        "f1": Metric(compared, lambda expected, answer: token_f1(expected, compared(answer))),
    }
