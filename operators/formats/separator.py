"""Finds the separator of a CSV file in its first lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

NAMED = {"comma": ",", "semicolon": ";", "tab": "\t", r"\t": "\t", "pipe": "|"}
"""Words for values of `data.separator` that a shell or the command line reads in another way."""
COMMA = ","
OTHERS = (";", "\t", "|")
"""What is found where a header has it, and no comma."""
SAMPLE_ROWS = 100
_OF_EXCEL = re.compile(r'"?sep=([^\r\n])"?[\r\n]*')
Rows = Sequence[Sequence[str] | str]
"""Rows of a file as fields, or why they are none."""


def separator_line(line: str) -> str | None:
    """Return what a first line `sep=;` says, as Excel writes it; None for any other."""
    found = _OF_EXCEL.fullmatch(line)
    return found and found[1]


def find_separator(rows_by: Callable[[str], Rows], columns: int | None, *, has_header: bool) -> tuple[str | None, str]:
    """Return what is between the fields, and a sentence about it if it was guessed; or None, and what it may be.

    Where the header has a comma it is one. Another is it where the header has that, and most rows as many fields. Of a
    file without a header most rows have to have as many fields as the first, or as there are `columns`.

    Args:
        rows_by: the first rows of the file, by what is between the fields.
        columns: their number, where it is known.
        has_header: the first row has their names.
    """
    found = {each: _count(rows_by(each), columns, has_header) for each in (COMMA, *OTHERS)}
    width, fitting, rows = found[COMMA]
    most = [each for each, (width, fitting, rows) in found.items() if width > 1 and 2 * fitting >= rows]
    others = [each for each in most if each != COMMA]
    shown = " or ".join(repr(each) for each in most)
    if has_header and width > 1 and (fitting or not rows):
        return COMMA, f"read with ',' between fields, and {shown} may be" if others else ""
    if has_header and width > 1 and others:
        return None, f"',' or {shown}"
    if len(most) > 1:
        return None, shown
    return (others[0], f"read with {shown} between fields") if others else (COMMA, "")


def _count(rows: Rows, columns: int | None, has_header: bool) -> tuple[int, int, int]:
    """Return the number of columns, of rows that have so many fields, and of rows."""
    header = rows[:1] if has_header else [row for row in rows if not isinstance(row, str)][:1]
    width = columns if columns is not None else next((len(row) for row in header if not isinstance(row, str)), 0)
    body = rows[1:] if has_header else rows
    return width, sum(not isinstance(row, str) and len(row) == width for row in body), len(body)
