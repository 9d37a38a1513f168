"""What rendering a template may cost: steps of work, and the size of what it makes.

No clock decides, so a row has the same fate on every machine. A step is a turn of a loop, a call, 16 characters or 4
items that are copied: 0.1 to 0.3 microseconds, so that a rendering ends within some seconds whatever the template does.
What takes memory is paid in steps too, and a text or a list is bounded in size before it is made.

What is cheap is not counted at all: a text of SHORT characters, a list of FEW items. How often that can happen is in
the price of the loop around it, which grows with the expressions in its body.

A list may hold another one several times, which costs nothing until it is printed or compared. So a list that a
template makes is weighed: what counts is how much would be printed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import jinja2.sandbox
from jinja2.exceptions import SecurityError

MAX_STEPS = 10_000_000
MAX_TEXT_CHARACTERS = 16 << 20
MAX_ITEMS = jinja2.sandbox.MAX_RANGE
MAX_NUMBER_BITS = 1 << 14
CALL_STEPS = 8
"""Of calling a macro or a filter: it takes as long as so many turns of an empty loop."""
SHORT = 1024
"""Characters of a text that costs nothing to make or to look at."""
FEW = 64
"""Items of a list that costs nothing to copy, and whose loop is paid before it begins."""
MOST_DIGITS = 64
"""Of a rounding, and characters of an indentation."""

CONTAINERS = (list, tuple, dict)
MEASURED = (str, *CONTAINERS)
_VIEWS = (KeysView, ValuesView, ItemsView)
_OPENED = (*CONTAINERS, *_VIEWS)
_TOO_LONG = f"it makes a text or a list of more than {MAX_TEXT_CHARACTERS} characters and items"


class TooCostly(SecurityError):
    """The template does more work, or makes more, than a row may cost."""


class Work:
    """The budget of one rendering: `steps` of work. Not for two threads at a time."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps = steps
        self.begin()

    def begin(self) -> None:
        """A new rendering has the whole budget."""
        self.left = self._steps
        # By id; the value is kept, so that no other one gets its id.
        self._weights: dict[int, tuple[object, int]] = {}

    def pay(self, steps: int) -> None:
        """Take `steps` off the budget.

        Raises:
            TooCostly: there are not as many left.
        """
        self.left -= steps
        if self.left < 0:
            raise TooCostly(
                f"it takes more than {self._steps} steps (turns of loops, calls, what is copied); make its loops"
                " shorter, or the row"
            )

    def bound(self, size: int) -> None:
        """Check the size of what is about to be made.

        Raises:
            TooCostly: it is more than MAX_TEXT_CHARACTERS.
        """
        if size > MAX_TEXT_CHARACTERS:
            raise TooCostly(_TOO_LONG)

    def read(self, value: Any) -> Any:
        """`value`, whose characters or items are looked at, but not what is in the items."""
        if isinstance(value, str):
            self.pay(len(value) >> 4)
        elif isinstance(value, (*CONTAINERS, range)):
            self.pay(len(value) >> 2)
        return value

    def made(self, value: Any) -> Any:
        """`value`, which was made just now or is looked at with all that is in it."""
        if isinstance(value, str):
            self.bound(len(value))
            self.pay(len(value) >> 4)
        elif isinstance(value, CONTAINERS):
            self.pay(self.weight(value) >> 4)
        elif isinstance(value, range):
            self.pay(len(value) >> 2)
        return value

    def result(self, value: Any) -> Any:
        """`value`, which a filter or a function gave; what it computes item by item is paid item by item."""
        if isinstance(value, MEASURED):
            return self.made(value)
        return self._one_by_one(value, CALL_STEPS) if isinstance(value, Iterator) else value

    def counted(self, items: Any, price: int) -> Any:
        """`items` of a loop, each for `price` steps."""
        if isinstance(items, MEASURED) and len(items) <= FEW:
            self.pay(price * (1 + len(items)))
            return items
        self.pay(price)
        return self._one_by_one(items, price)

    def _one_by_one(self, items: Iterable[Any], price: int) -> Iterator[Any]:
        for item in items:
            self.pay(price)
            yield item

    def weight(self, value: Any) -> int:
        """Characters and items of `value` and of all that is in it, each as often as it is there.

        Raises:
            TooCostly: more than MAX_TEXT_CHARACTERS.
        """
        if isinstance(value, str):
            return len(value)
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        if isinstance(value, int):
            return 1 + (value.bit_length() >> 2)
        if not isinstance(value, _OPENED):
            return 1 + 4 * len(value) if isinstance(value, bytes) else 1
        parts = [*value, *value.values()] if isinstance(value, dict) else list(value)
        self.pay(1 + len(parts))
        total = 1 + len(parts) + sum(map(self.weight, parts))
        self.bound(total)
        self._weights[id(value)] = (value, total)
        return total


def metered(work: Work, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter or test `function`, paid for, and refused where it would make too much."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0
    rule = RULES.get(name)
    look = work.made if name in DEEP else work.read

    @functools.wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        for value in args[skipped:]:
            look(value)
        for value in kwargs.values():
            look(value)
        if rule is not None:
            rule(work, *args[skipped:], **kwargs)
        return work.result(function(*args, **kwargs))

    return paid


def replaced(work: Work, text: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
    """`replace` puts in a text of any length at each place."""
    text, old, new = str(text), str(old), str(new)
    work.bound(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def joined(work: Work, separator: str, items: Any = (), *_: Any) -> None:
    """`str.join` repeats a text of any length."""
    if isinstance(items, (str, *_OPENED)):
        work.bound(work.weight(items) + len(items) * len(separator))


def formatted(work: Work, form: str, fields: int, values: Iterable[Any]) -> None:
    """A format repeats its values."""
    heaviest = max(map(work.weight, values), default=0)
    work.bound(len(form) + fields * heaviest)


def _joined_by_filter(work: Work, items: Any, d: Any = "", *_: Any, **__: Any) -> None:
    separator = str(d)
    if not separator or not isinstance(items, Iterator):
        joined(work, separator, items if isinstance(items, MEASURED) else ())
    else:
        work.bound(len(separator) * MAX_ITEMS)  # of what comes item by item the number is not known


def _indented(work: Work, text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    wide = len(width) if isinstance(width, str) else int(width)
    text = str(text)
    work.bound(len(text) + (text.count("\n") + 1) * wide)


def _wrapped(work: Work, text: Any, *args: Any, wrapstring: Any = None, **_: Any) -> None:
    between = args[2] if len(args) > 2 else wrapstring
    work.bound(len(str(text)) * (1 + len(between or "\n")))


def _cut(work: Work, items: Any, count: Any, *_: Any, **__: Any) -> None:
    if int(count) > MAX_ITEMS:
        raise TooCostly(f"cuts a list into parts of more, or into more, than {MAX_ITEMS}")


def _rounded(work: Work, value: Any, precision: Any = 0, *_: Any, **__: Any) -> None:
    if abs(int(precision)) > MOST_DIGITS:
        raise TooCostly(f"rounds to more than {MOST_DIGITS} digits")


def _written(work: Work, value: Any, ensure_ascii: Any = False, indent: Any = None, *_: Any, **__: Any) -> None:
    work.weight(value)
    if indent is not None and (len(indent) if isinstance(indent, str) else int(indent)) > MOST_DIGITS:
        raise TooCostly(f"indents by more than {MOST_DIGITS} characters")


def _summed(work: Work, items: Any, attribute: Any = None, start: Any = 0, **_: Any) -> None:
    if not isinstance(start, int | float):
        raise TooCostly("sum of what are no numbers; lists are joined with +")


def _stripped(work: Work, text: Any, *_: Any, **__: Any) -> None:
    text = str(text)
    work.pay(text.count("<") * (len(text) >> 12))  # each tag that is taken out copies the rest


RULES: Mapping[str, Callable[..., None]] = {
    "replace": replaced,
    "join": _joined_by_filter,
    "indent": _indented,
    "wordwrap": _wrapped,
    "batch": _cut,
    "slice": _cut,
    "round": _rounded,
    "tojson": _written,
    "sum": _summed,
    "striptags": _stripped,
}
"""Filters that can make much out of little: what is checked before."""
DEEP = {"sort", "unique", "groupby", "dictsort", "min", "max", "string", "escape", "e", "forceescape", "pprint"} | {
    *("urlencode", "xmlattr", "in", "eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "gt", ">", "greaterthan"),
    *("ge", ">=", "le", "<="),
}
"""Filters and tests that look at all that is in a list."""
TESTS = DEEP | {"lower", "upper"}
"""Tests that cost more than a step."""
CHEAP = {"length", "count", "first", "last", "default", "d", "int", "float", "abs", "safe", "attr", "filesizeformat"}
"""Filters that look at one item at most."""
LINEAR = {"trim", "lower", "upper", "capitalize"}
"""Filters that copy a text: it is enough that the text is paid for."""
REFUSED_FILTERS = ("center", "urlize", "random")
"""Pads to any width; takes quadratic time; is another one each time."""
METHODS: Mapping[str, Callable[..., None]] = {"replace": replaced, "join": joined}
"""Methods of a text, likewise."""
