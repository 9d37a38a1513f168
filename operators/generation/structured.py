"""Compiles the constraint of `sampling.structured`, and checks texts that others wrote against it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from operators.rows.json_schema import text_check
from operators.settings.structured import StructuredSettings, choice_check, parse_schema, read_schema
from pipeline.api.errors import ConfigError, install

if TYPE_CHECKING:
    from operators.constraints.grammars import Form

MOST_SCHEMAS = 256
"""Schemas of rows to cache at most; each takes some 100 kB when it is compiled."""


def structured_form(settings: StructuredSettings) -> Form | None:
    """Compile the constraint of `settings` on the texts of all rows; None if there is none.

    Raises:
        ConfigError: it cannot be compiled, or llguidance is not installed.
        InputError: its file cannot be read.
    """
    if settings.kind is None:
        return None
    try:
        from operators.constraints.grammars import form_of
    except ImportError as error:
        raise ConfigError(f"sampling.structured needs llguidance ({error}); {install('structured')}") from error
    return form_of(settings)


def answer_check(settings: StructuredSettings) -> Callable[[str], str | None] | None:
    """Return a function that says why a text is not what `settings` ask of the texts of all rows, or returns None; None
    if they ask nothing of all. Of whoever writes it nothing is assumed: JSON may be of any schema, compiled or not.
    Raises ConfigError or InputError: see structured_form."""
    match settings.kind:
        case "json_schema":
            key = "sampling.structured.json_schema"
            return text_check(read_schema(settings.json_schema, key), key)
        case "choices":
            return choice_check(settings.choices or ())
    form = structured_form(settings)
    return None if form is None else form.check


@functools.lru_cache(MOST_SCHEMAS)
def row_check(schema: str, column: str) -> Callable[[str], str | None]:
    """Return a function that says why a text is no JSON of the `schema` that its row has in `column`, or returns None.
    Raise ConfigError if that is no JSON schema."""
    return text_check(parse_schema(schema, f"column '{column}': its value"), f"the schema in column '{column}'")
