"""The parts of a docstring: its text, its sections, and what it says of each argument. Help, pages and schemas are made
of them."""

from __future__ import annotations

import inspect
import keyword
import re
import textwrap
from collections.abc import Iterator, Sequence

_SECTION = re.compile(r"^(Args|Raises|Example|Returns):$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)


def sections(documented: object) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring before its sections, and the sections by title; empty without a docstring."""
    text, *parts = _SECTION.split(inspect.getdoc(documented) or "")
    return text.strip(), {title: textwrap.dedent(body.strip("\n")) for title, body in _pairs(parts)}


def arguments(documented: object) -> Iterator[tuple[list[str], str]]:
    """Yield what a docstring says of arguments: the names, as a job has them, that share one explanation, and it."""
    for names, body in _pairs(_ARGUMENT.split(sections(documented)[1].get("Args", ""))[1:]):
        yield [as_written(name) for name in names.split(", ")], " ".join(body.split())


def as_written(name: str) -> str:
    """Return the name of an argument in a job: `as` for `as_`."""
    return name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name


def _pairs(items: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(items[::2], items[1::2], strict=True)
