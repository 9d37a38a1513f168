"""Readers of the JSON values in bodies of OpenAI's API: in requests of batch files, and in what servers answer.

A reader takes the place of a value, for messages, and the value, which may be any; it returns what is kept of it, or
raises BadValue.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from operators.rows.json_values import noun

Read = Callable[[str, Any], Any]

MAX_INT32 = 2**31 - 1
_LARGEST = 3.4028235e38
"""Log-probabilities and vectors are kept in float32."""
_SHOWN = 300
"""Characters of a server's own message to repeat."""
_QUOTED = 60
"""Characters of a request's value to repeat."""


class Unusable(Exception):
    """A body that cannot be used, now or later. The message says why."""


class OfRow(Unusable):
    """The answer to this row cannot be used; those to others can: the server has read the row, and works."""


class NotSent(Unusable):
    """What this row's request would need cannot be had here, so nothing is sent, and the server has said nothing."""


class Failed(Unusable):
    """The server has failed on a request that it took; the same request may be answered.

    Args:
        status: the HTTP status that it would have had, as the server says; None: it does not.
    """

    def __init__(self, reason: str, status: int | None = None):
        super().__init__(reason)
        self.status = status


class BadValue(Unusable):
    """A value of another type than the API has at its place, or out of range.

    The message has the kind of the value alone, since a server may repeat texts of rows, which no message may quote.
    """

    def __init__(self, where: str, value: object, expected: str) -> None:
        super().__init__(f"{where} is {shown(value)}, not {expected}")
        self._parts = where, value, expected

    @property
    def quoting(self) -> str:
        """The message with the beginning of the value as JSON, for requests."""
        where, value, expected = self._parts
        return f"{where} is {quoted(value)}, not {expected}"


def shown(value: object) -> str:
    """Return a value of JSON for a message: a number itself, of others the kind."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**20):
        return repr(value)
    return noun(value)


def quoted(value: object) -> str:
    """Return `value` as JSON, shortened to fit into a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "..."


def clean(text: str) -> str:
    """Return `text` with U+FFFD for halves of characters, which JSON can hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text(where: str, value: object) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise BadValue(where, value, "a text")
    return clean(value)


def maybe_text(where: str, value: object) -> str | None:
    """Read a text; None for null and for an empty one."""
    return None if value is None else text(where, value) or None


def maybe_object(where: str, value: object) -> dict[str, Any]:
    """Read an object; an empty one for null."""
    return {} if value is None else an_object(where, value)


def real(where: str, value: object) -> float:
    """Read a finite number of float32."""
    if type(value) is int and abs(value) <= _LARGEST:
        return float(value)
    if type(value) is float and math.isfinite(value) and abs(value) <= _LARGEST:
        return value
    raise BadValue(where, value, "a number that float32 holds")


def fitting(fits: Callable[[Any], bool], expected: str) -> Read:
    """Make a reader that returns a value for which `fits` holds as it is."""

    def read(where: str, value: Any) -> Any:
        if not fits(value):
            raise BadValue(where, value, expected)
        return value

    return read


def number(least: float, most: float) -> Read:
    """Make a reader of a number in a range; booleans and NaN are refused."""
    return fitting(
        lambda value: type(value) in (int, float) and least <= value <= most, f"a number from {least:g} to {most:g}"
    )


def whole(least: int, most: int = MAX_INT32) -> Read:
    """Make a reader of a whole number in a range."""
    return fitting(
        lambda value: type(value) is int and least <= value <= most, f"a whole number from {least} to {most}"
    )


an_object: Callable[[str, object], dict[str, Any]] = fitting(lambda value: isinstance(value, dict), "an object")
a_list: Callable[[str, object], list[Any]] = fitting(lambda value: isinstance(value, list), "a list")
flag = fitting(lambda value: type(value) is bool, "true or false")
some_text = fitting(lambda value: isinstance(value, str) and value != "", "a text of at least one character")


def some(expected: str, read: Read) -> Read:
    """Make a reader of a list of one item or more, each of which `read` reads."""

    def read_all(where: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise BadValue(where, value, expected)
        return [read(f"{where}[{i}]", item) for i, item in enumerate(value)]

    return read_all


def one_or_more(expected: str, *fits: Callable[[Any], bool], most: int = MAX_INT32) -> Read:
    """Make a reader of an item, or of a list of up to `most` items, for all of which one of `fits` holds: as a list."""

    def read(where: str, value: Any) -> list[Any]:
        items = [value] if any(holds(value) for holds in fits) else value
        is_many = isinstance(items, list) and 0 < len(items) <= most
        if not is_many or not any(all(map(holds, items)) for holds in fits):
            raise BadValue(where, value, expected)
        return list(items)

    return read


def answer_of(body: object) -> dict[str, Any]:
    """Return the body of an answer, an object; raise Failed with the server's own message if it is an error."""
    answer = an_object("the answer", body)
    _refuse_error(answer)
    return answer


def first_choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first choice of an answer; raise Failed if there is none, or it is an error."""
    if "choices" in answer and answer["choices"] in (None, []):
        raise Failed("the answer has no choices")
    choice = an_object("choices[0]", a_list("choices", answer.get("choices"))[0])
    _refuse_error(choice)
    return choice


def _refuse_error(body: Mapping[str, Any]) -> None:
    error = body.get("error")
    if error is None and body.get("object") == "error":  # SGLang, and vLLM before 0.11
        error = body
    if not error:
        return
    parts = error if isinstance(error, dict) else {"message": error}
    message, code = parts.get("message"), parts.get("code")
    code = int(code) if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3 else code
    status = code if type(code) is int and 300 <= code < 600 else None
    words = clean(message)[:_SHOWN] if isinstance(message, str) else "error"
    raise Failed(f"the server says: {words}", status)
