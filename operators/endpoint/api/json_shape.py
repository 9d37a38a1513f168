"""Parts of a server's answer, checked: each reader takes any JSON value, and returns its type or raises Unusable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from operators.rows.json_values import noun

_LARGEST = 3.4028235e38
"""Log-probabilities and vectors are kept in float32."""
_SHOWN = 300
"""Characters of a server's own message to repeat."""


class Unusable(Exception):
    """A request has no answer that can be used, now or later. The message says why."""

    is_of_row = False
    """Whether the server has read the row and works, so that only this row is at fault."""


class OfRow(Unusable):
    """The answer to this row cannot be used; those to others can."""

    is_of_row = True


class Failed(Unusable):
    """The server has failed on a request that it took; the same request may be answered.

    Args:
        status: the HTTP status that it would have had, as the server says; None: it does not.
    """

    def __init__(self, reason: str, status: int | None = None):
        super().__init__(reason)
        self.status = status


def clean(text: str) -> str:
    """Return `text` with U+FFFD for halves of characters, which JSON can hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def member(found: object, what: str) -> Mapping[str, Any]:
    """Return an object."""
    if not isinstance(found, dict):
        raise Unusable(f"{what} is {noun(found)}, not an object")
    return found


def listed(found: object, what: str) -> list[Any]:
    """Return a list."""
    if not isinstance(found, list):
        raise Unusable(f"{what} is {noun(found)}, not a list")
    return found


def text(found: object, what: str) -> str:
    """Return a text."""
    if not isinstance(found, str):
        raise Unusable(f"{what} is {noun(found)}, not a text")
    return clean(found)


def maybe_text(found: object, what: str) -> str | None:
    """Return a text; None for null and for an empty one."""
    return None if found is None else text(found, what) or None


def maybe_object(found: object, what: str) -> Mapping[str, Any]:
    """Return an object; an empty one for null."""
    return {} if found is None else member(found, what)


def real(found: object, what: str) -> float:
    """Return a finite number of float32."""
    if type(found) is int and abs(found) <= _LARGEST:
        return float(found)
    if type(found) is float and math.isfinite(found) and abs(found) <= _LARGEST:
        return found
    raise Unusable(f"{what} is {shown(found)}, no number that float32 holds")


def answer_of(body: object) -> Mapping[str, Any]:
    """Return the body of an answer, an object; raise Failed with the server's own message if it is an error."""
    whole = member(body, "the answer")
    refuse_error(whole)
    return whole


def first_choice(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first choice of an answer; raise Failed if there is none, or it is an error."""
    if "choices" in whole and whole["choices"] in (None, []):
        raise Failed("the answer has no choices")
    choice = member(listed(whole.get("choices"), "choices")[0], "choices[0]")
    refuse_error(choice)
    return choice


def refuse_error(body: Mapping[str, Any]) -> None:
    """Raise Failed with the server's own message if it answers with an error."""
    error = body.get("error")
    if error is None and body.get("object") == "error":  # SGLang, and vLLM before 0.11
        error = body
    if not error:
        return
    of = error if isinstance(error, dict) else {"message": error}
    said, code = of.get("message"), of.get("code")
    code = int(code) if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3 else code
    status = code if type(code) is int and 300 <= code < 600 else None
    raise Failed(
        f"the server says: {clean(said)[:_SHOWN]}" if isinstance(said, str) else "the server says: error", status
    )


def shown(found: object) -> str:
    """Return a value of JSON for a message: a number itself, of others the kind."""
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, float) or (isinstance(found, int) and abs(found) < 10**20):
        return repr(found)
    return noun(found)
