"""What rendering a template may cost: steps of work, and the size of what it makes.

No clock decides, so a row has the same fate on every machine. A step is a turn of a loop, a call, 16 characters or 4
items that are copied: 0.1 to 0.3 microseconds, so that a rendering ends within some seconds whatever the template does.
What takes memory is paid in steps too, and a text or a list is bounded in size before it is made.

A list may hold another one several times, which costs nothing until it is printed or compared. So a list that a
template makes is weighed: what counts is how much would be printed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2.sandbox
from jinja2.exceptions import SecurityError

MAX_STEPS = 10_000_000
MAX_TEXT_CHARACTERS = 16 << 20
MAX_ITEMS = jinja2.sandbox.MAX_RANGE
MAX_NUMBER_BITS = 1 << 14
PAID_AT_ONCE = 64
"""Items of a list that are paid before the loop begins, which is cheaper."""
MOST_DIGITS = 64
"""Of a rounding, and characters of an indentation."""

_VIEWS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()))
_TOO_LONG = f"it makes a text or a list of more than {MAX_TEXT_CHARACTERS} characters and items"


class TooCostly(SecurityError):
    """The template does more work, or makes more, than a row may cost."""


class Work:
    """The budget of one rendering. Not for two threads at a time."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new rendering has the whole budget."""
        self.left = MAX_STEPS
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
                f"it takes more than {MAX_STEPS} steps (turns of loops, calls, what is copied); make its loops shorter,"
                " or the row"
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
        elif isinstance(value, list | tuple | dict):
            self.pay(len(value) >> 2)
        return value

    def made(self, value: Any) -> Any:
        """`value`, which was made just now or is looked at with all that is in it."""
        if isinstance(value, str):
            self.bound(len(value))
            self.pay(len(value) >> 4)
        elif isinstance(value, list | tuple | dict):
            self.pay(self.weight(value) >> 4)
        return value

    def result(self, value: Any) -> Any:
        """`value`, which a filter or a function gave; what it computes item by item is paid item by item."""
        if isinstance(value, str | list | tuple | dict):
            return self.made(value)
        return self._one_by_one(value, 1) if isinstance(value, Iterator) else value

    def counted(self, items: Any, price: int) -> Any:
        """`items` of a loop, each for `price` steps."""
        if isinstance(items, list | tuple | dict | str) and len(items) <= PAID_AT_ONCE:
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
        if not isinstance(value, (list, tuple, dict, *_VIEWS)):
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
    if isinstance(items, (str, list, tuple, dict, *_VIEWS)):
        work.bound(work.weight(items) + len(items) * len(separator))
    else:
        raise TooCostly("join of what is no list; write | list first")


def formatted(work: Work, form: str, fields: int, values: Iterable[Any]) -> None:
    """A format repeats its values."""
    heaviest = max(map(work.weight, values), default=0)
    work.bound(len(form) + fields * heaviest)


def _joined_by_filter(work: Work, items: Any, d: Any = "", *_: Any, **__: Any) -> None:
    separator = str(d)
    if not separator or not isinstance(items, Iterator):
        joined(work, separator, items if isinstance(items, str | list | tuple | dict) else ())
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
REFUSED_FILTERS = ("center", "urlize", "random")
"""Pads to any width; takes quadratic time; is another one each time."""
METHODS: Mapping[str, Callable[..., None]] = {"replace": replaced, "join": joined}
"""Methods of a text, likewise."""
