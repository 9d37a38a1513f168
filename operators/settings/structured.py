"""The constraint on a text: the part `structured` of the config group `sampling`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from operators.settings.checks import read_text
from pipeline.api.errors import ConfigError
from pipeline.api.keys import Rule, check_values, in_data, one_of

WHITESPACE = ("natural", "compact", "pretty")
_CHOICES: Rule = ("one string or more, none of them empty", lambda v: v is None or (bool(v) and "" not in v))


@dataclass
class StructuredSettings:
    """The constraint on a text (`sampling.structured`); none where no key is given.

    Args:
        json_schema: a JSON Schema: a mapping, JSON text, or the path of a file.
        json_schema_column: a column with the schema of each row, as JSON text.
        optional: a row whose `json_schema_column` is null may have any text; else it is a reject.
        regex: the whole text matches it.
        choices: the text is one of these.
        grammar: a grammar in Lark's or llama.cpp's (GBNF) notation: text, or the path of a .lark or .gbnf file.
        whitespace: of JSON: natural (one space behind a comma and a colon), compact (none), or pretty (at most one
            space, or one line break and 20 spaces, wherever JSON may have white space).
        after_reasoning: where the model reasons the constraint is on the answer alone; false: on all of the text.
        skip_forced: tokens that leave no choice are not drawn, and many of them are computed together.
    """

    json_schema: Any = in_data(None, kind=True)
    json_schema_column: str | None = in_data(None, kind=True)
    optional: bool = in_data(False)
    regex: str | None = in_data(None, kind=True)
    choices: list[str] | None = in_data(None, *_CHOICES, kind=True)
    grammar: str | None = in_data(None, kind=True)
    whitespace: str = in_data("natural", *one_of(WHITESPACE), unsent="servers write JSON as they like")
    skip_forced: bool = in_data(True)
    after_reasoning: bool = in_data(True, unsent="the server decides it")

    def __post_init__(self) -> None:
        kinds = [key for key in KINDS if getattr(self, key) is not None]
        if len(kinds) > 1:
            raise ConfigError(f"sampling.structured has {' and '.join(kinds)}; give one of them")
        if self.optional and self.json_schema_column is None:
            raise ConfigError("sampling.structured.optional=true is about json_schema_column, which is not given")
        check_values(self, "sampling.structured")

    @property
    def kind(self) -> str | None:
        """The kind of constraint that is given; None for none."""
        return next((key for key in KINDS if getattr(self, key) is not None), None)


KINDS = tuple(key.name for key in fields(StructuredSettings) if key.metadata.get("kind"))
"""The kinds of constraint, of which at most one may be given."""


def choice_check(choices: Sequence[str]) -> Callable[[str], str | None]:
    """Return a function that says why a text is none of `choices`, or returns None."""
    allowed = frozenset(choices)
    return lambda text: (
        None if text in allowed else "the text does not fit sampling.structured.choices: it is none of them"
    )


def read_schema(schema: Any, key: str) -> Any:
    """Return the JSON schema that the setting `key` gives as a mapping, as JSON text, or as the path of a file.

    Raises:
        ConfigError: it is no JSON, or no schema.
        InputError: the file cannot be read.
    """
    if not isinstance(schema, str):
        return schema
    if schema.lstrip()[:1] == "{" or schema.strip() in ("true", "false"):
        return parse_schema(schema, key)
    return parse_schema(read_text(schema, key), f"{key}: the file {schema}")


def parse_schema(text: str, what: str) -> dict[str, Any] | bool:
    """Parse a JSON schema from `text`.

    Raises:
        ConfigError: it is no JSON, or no schema. The message begins with `what`.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} is no JSON: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{what} is nested too deeply for a JSON schema") from error
    if not isinstance(schema, dict | bool):
        raise ConfigError(f"{what} is {text[:40]}, no JSON schema, which is an object, true or false")
    return schema
