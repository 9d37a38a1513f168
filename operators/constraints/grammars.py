"""Translate `sampling.structured` to llguidance's grammars; what cannot be compiled is refused here.

Needs no model, so a job is checked before one is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from operators.settings.checks import read_text
from operators.settings.structured import StructuredSettings, read_schema
from pipeline.api.errors import ConfigError

_GRAMMAR_FILES = (".lark", ".gbnf")
_WHITESPACE: dict[str, dict[str, Any]] = {
    "natural": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "pretty": {"whitespace_pattern": r"\x20|\x0A\x20{0,20}", "item_separator": ",", "key_separator": ":"},
}
_STRICT: dict[str, Any] = {"lenient": False, "coerce_one_of": False}
"""Nothing is left out and nothing is approximated, so that what was completed validates."""
NATURAL = _WHITESPACE["natural"] | _STRICT
"""llguidance's options for JSON inside another grammar."""

_NAMED = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
"""Keywords whose value maps names to schemas. Definitions come first: a fault is where it stands, not where it is
used."""
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_DEFINITIONS = ("$schema", "$defs", "definitions")


@dataclass(frozen=True)
class Form:
    """A constraint, checked.

    Args:
        noun: the word for a text that fits, in messages.
        grammar: in llguidance's own notation; two constraints are the same if their grammars are.
    """

    noun: str
    grammar: str

    @property
    def digest(self) -> str:
        """Its name in content keys and fingerprints."""
        return hashlib.blake2b(self.grammar.encode(), digest_size=16).hexdigest()


def form_of(settings: StructuredSettings) -> Form | None:
    """Return the constraint of `settings`; None if there is none, or it differs by row.

    Raises:
        ConfigError: it cannot be compiled; for a JSON schema the place is named.
        InputError: its file cannot be read.
    """
    match settings.kind:
        case "json_schema":
            return _json_schema(settings)
        case "regex":
            return _checked("regex", "match of the regex", LLMatcher.grammar_from_regex(settings.regex or ""))
        case "choices":
            lark = "start: " + " | ".join(json.dumps(choice) for choice in settings.choices or ())
            return _checked("choices", "choice", LLMatcher.grammar_from_lark(lark))
        case "grammar":
            return _grammar(settings)
    return None


def _json_schema(settings: StructuredSettings) -> Form:
    key = "sampling.structured.json_schema"
    schema = read_schema(settings.json_schema, key)
    if isinstance(schema, dict) and "x-guidance" in schema:
        raise ConfigError(f"{key} has the key 'x-guidance'; what it would set is set by sampling.structured.whitespace")
    options = _WHITESPACE[settings.whitespace] | _STRICT

    def grammar(schema: Any) -> str:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema, allow_nan=False), overrides=options)  # type: ignore[arg-type]

    def fault(schema: Any) -> str | None:
        try:
            return fault_of(grammar(schema))
        except (TypeError, ValueError) as error:
            return str(error)
        except RecursionError:
            return "it is nested too deeply"

    if (reason := fault(schema)) is not None:
        raise ConfigError(f"{key} cannot be compiled at {_place_of(schema, fault)}: {reason}")
    return Form("JSON", grammar(schema))


def _grammar(settings: StructuredSettings) -> Form:
    key = "sampling.structured.grammar"
    text = settings.grammar or ""
    if "\n" not in text and Path(text).suffix in _GRAMMAR_FILES:
        text = read_text(text, key)
    try:
        lark = any_to_lark(text)
    except Exception as error:  # the converter raises plain Exceptions too
        raise ConfigError(
            f"{key} has no rule `start:`, as a Lark grammar has, and cannot be read as GBNF: {error}"
        ) from error
    return _checked("grammar", "text of the grammar", LLMatcher.grammar_from_lark(lark))


def _checked(key: str, noun: str, grammar: str) -> Form:
    if (reason := fault_of(grammar)) is not None:
        raise ConfigError(f"sampling.structured.{key} cannot be compiled: {reason}")
    return Form(noun, grammar)


def fault_of(grammar: str) -> str | None:
    """Return llguidance's messages if it cannot compile `grammar`."""
    broken, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return "; ".join(messages) if broken else None


def _place_of(schema: Any, fault: Callable[[Any], str | None]) -> str:
    """Return a JSON pointer to the smallest part of `schema` that cannot be compiled for the same reason as the whole:
    llguidance says what is wrong, not where. `fault`: returns the reason, None for a schema that can be compiled."""
    reason = fault(schema)
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema} if isinstance(schema, Mapping) else {}
    pointer, part = "#", schema
    while True:
        # A part is compiled beside the definitions of the whole, to which it may refer. A reference to anything else is
        # a fault of its own there, and so leads nowhere.
        for step, child in _children(part):
            if fault({**shared, **child} if isinstance(child, Mapping) else child) == reason:
                pointer, part = pointer + step, child
                break
        else:
            return pointer


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    """Iterate the schemas inside a schema, each with its step of the pointer."""
    if not isinstance(schema, Mapping):
        return
    for key in _NAMED:
        named = schema.get(key)
        if isinstance(named, Mapping):
            for name, child in named.items():
                yield f"/{key}/" + str(name).replace("~", "~0").replace("/", "~1"), child  # RFC 6901, section 3
    for key in _LISTED:
        listed = schema.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            yield from ((f"/{key}/{i}", child) for i, child in enumerate(listed))
    yield from ((f"/{key}", schema[key]) for key in _SINGLE if isinstance(schema.get(key), Mapping))
