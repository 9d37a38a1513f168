"""Metrics of texts: SQuAD's as its official rules are written down here again, numbers by a table, patterns in time
linear in the text."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.scoring.metrics import groups_of, metrics, normalised, token_f1
from operators.scoring.numbers import last_number

ASCII = st.text(st.sampled_from("abehnt THEAN019.,!?'\"-$^`|~\t\n"), max_size=30)
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def squad_words(text: str) -> list[str]:
    """The words of an answer by the rules of SQuAD's evaluate-v2.0.py, written down again: in lower case, characters of
    punctuation taken out, each word a, an, the replaced by a space, cut at white space."""
    bare = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return re.sub(r"\b(?:a|an|the)\b", " ", bare).split()


def squad_f1(expected: list[str], answer: list[str]) -> float:
    if not expected or not answer:
        return float(expected == answer)
    same = sum((Counter(expected) & Counter(answer)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(answer), same / len(expected)
    return 2 * precision * recall / (precision + recall)


@given(expected=ASCII, answer=ASCII)
def test_ascii_is_compared_as_squad_does(expected, answer):
    words = squad_words(expected), squad_words(answer)
    assert normalised(answer).split() == words[1]
    assert (normalised(expected) == normalised(answer)) == (words[0] == words[1])
    assert token_f1(normalised(expected), normalised(answer)) == pytest.approx(squad_f1(*words), abs=1e-12)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("The  Eiffel-Tower, Paris.", "eiffeltower paris"),
        ("\u201cDon\u2019t\u201d \u2014 he said\u2026", "dont he said"),  # quotes and dashes of Unicode
        ("\uff21\uff22\uff23\u3000\ufb01n", "abc fin"),  # full width, a ligature
        ("Cafe\u0301", "caf\u00e9"),
        ("another thesis", "another thesis"),
        ("\u6771\u4eac\u3002", "\u6771\u4eac"),
        ("5 \u20ac", "5 \u20ac"),
    ],
)
def test_normalised(text, same):
    assert normalised(text) == same


def test_f1_frozen():
    """Worked out by hand: precision 3/4, recall 3/3; a word counts as often as both have it."""
    assert token_f1(normalised("Denver Broncos won"), normalised("the Denver Broncos won it")) == pytest.approx(6 / 7)
    assert token_f1("x x y", "x z z") == pytest.approx(1 / 3)


NUMBERS: dict[str, int | float | str | None] = {
    "42": 42,
    "The answer is 42.": 42,
    "She has 5 apples and eats 2, so 3": 3,
    "16 - 3 - 4 = <<16-3-4=9>>9\n#### 1,009": 1009,
    "#### 42\n\nQuestion: What is 7 + 5?": 42,
    "#### 1. First\n#### Step 2\nIt is 7": 7,
    "####12": 12,
    "#### -3.": -3,
    "1,234.5": 1234.5,
    "1,000,000 people": 1000000,
    "#### 42 apples\n\nQ: 7 apples": 42,
    "#### **42**\n7": 42,
    "#### $5 or 7": 5,
    **dict.fromkeys(("1,2", "12,5", "1,2345", "1.234,56", "1.000.000", "1,23,456", "0,123", "1'234", "1\u2019234")),
    **dict.fromkeys(("1 234", "12 345,6", "7 of 1.000.000", "#### 1.234,56", "1\u202f234,56", "3/4,5", "1.5,7e3")),
    **dict.fromkeys(("2\u2075", "10^2^3", "2^5", "(1/2)^2", "\\sqrt{2}", "3\\sqrt5", "\u221a2")),
    **dict.fromkeys(("\\frac{\\sqrt{3}}{2}", "\\frac{x}{2}", "\\frac{1}{2}^2", "101\u2082", "x_{2}")),
    "101\u2082": 101,
    "10\u00b2": 100,
    "10^{-3}": 0.001,
    "10\u207b\u00b3": 0.001,
    "3\u00d710^4": 30000,
    "1.5 \\times 10^{4}": 15000,
    "\\frac{-1}{2}": -0.5,
    "\\frac12": 0.5,
    "2\\frac12": 2.5,
    "EUR5": 5,
    "EUR-5": -5,
    "US$5": 5,
    "\u20135": -5,
    "3\u20135": 5,
    "25 m\u00b2": 25,
    "25\\text{ cm}^2": 25,
    "\\boxed{12}^\\circ": 12,
    "It is 5, 6, 7.": 7,
    "v1.5": None,
    "x10^{3}": None,
    "3x10^4": 30000,
    "2020 42": 42,
    "1\u202f234\u00a0567": 1234567,
    "1{,}234": 1234,
    "$18.50": 18.5,
    "-$5": -5,
    "\u20ac-5": -5,
    "\u22123": -3,
    "5-3": 3,
    "(4) - 3": 3,
    "3/4": 0.75,
    "1 1/2 cups": 1.5,
    "-1 1/2": -1.5,
    "2\u00bd": 2.5,
    "\u00be": 0.75,
    "\\boxed{\\frac{3}{4}}": 0.75,
    "2\\frac{1}{2}": 2.5,
    "-\\dfrac{1}{2}": -0.5,
    "3/0": None,
    "50%": "50 %",
    "50 \\%": "50 %",
    "12.5 percent": "12.5 %",
    ".5": 0.5,
    "1.5e3": 1500,
    "2E-2": 0.02,
    "CO2": None,
    "x=5": 5,
    "**7**": 7,
    "7km": 7,
    "\u7b54\u6848\u662f42\u3002": 42,
    "\uff13\uff14": 34,
    "\u0664\u0662": 42,
    "none at all": None,
    "": None,
    "9" * 5000: None,
}


@pytest.mark.parametrize(("text", "says"), NUMBERS.items(), ids=lambda value: str(value)[:20])
def test_the_number_of_a_text(text, says):
    found = last_number(text)
    shown = None if found is None else (found.value, found.percent)
    value = None if says is None else (Fraction(str(says).removesuffix(" %")), str(says).endswith("%"))
    assert shown == value


@pytest.mark.parametrize(
    ("expected", "answer", "tolerance", "right"),
    [
        ("1/3", "0.333", 0, False),
        ("1/3", "0.333", 0.001, True),
        ("0.1", "1/10", 0, True),
        ("50 %", "50", 0, True),
        ("0.5", "50 %", 0, True),
        ("50 %", "0.5 %", 0, False),
        ("5", "four", 0, False),
        ("3", "-3", 0, False),
        ("1e999", "-1e999", 5, False),
    ],
)
def test_numbers_are_compared_exactly_or_within_the_tolerance(expected, answer, tolerance, right):
    metric = metrics(tolerance)["number"]
    assert metric.score(metric.read(expected), answer) == right


@given(number=st.fractions(max_denominator=10**6) | st.integers() | st.decimals(-(10**9), 10**9, places=7))
def test_every_number_is_the_one_that_is_written(number):
    found = last_number(f"So it is {number}.")
    assert found is not None
    assert found.value == Fraction(number)


LONG = 200_000


@pytest.mark.parametrize(
    "text",
    [
        *(
            "1" * LONG,
            "a" + "1" * LONG,
            "1," * LONG,
            "1,111" + ",111" * LONG,
            "1 1/" * LONG,
            "#### " + " " * LONG + "x",
        ),
        *("#### 1\n#### x" * LONG, "1 " * LONG, "\\frac{" + " " * LONG, "-$" * LONG, "1e" * LONG),
    ],
    ids=lambda text: text[:12],
)
def test_no_text_takes_for_ever(text):
    """What backtracks over it in quadratic time takes minutes."""
    last_number(text)


def test_patterns_take_linear_time_and_limited_memory():
    regex = metrics()["regex"]
    assert regex.score(regex.read("(a+)+$"), "a" * LONG + "!") == 0
    for pattern, why in {
        "(": "unclosed group",
        "(?=x)": "look-around",
        r"(a)\1": "backreferences",
        "((a{1,100}){1,100}){1,100}": "size limit",
    }.items():
        with pytest.raises(ValueError, match=why):
            regex.read(pattern)
    assert [groups_of(pattern) for pattern in ("a", "(a)(b)", "(?:a)")] == [0, 2, 0]
