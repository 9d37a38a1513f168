"""Translate `sampling.structured` to llguidance's grammars; what cannot be compiled is refused here.

Needs no model, so a job is checked before one is loaded; nor does the check of a finished text, whoever wrote it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from operators.constraints.gbnf import is_gbnf, lark_of
from operators.rows.json_schema import text_check
from operators.settings.checks import read_text
from operators.settings.structured import StructuredSettings, choice_check, read_schema
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
_NUMBERS = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COMMENTS = ("default", "examples")
_EXACT = 2**53
"""llguidance holds numbers as doubles: whole ones beyond this come out as others."""
_LARK_START = re.compile(r"^\s*(%llguidance\b|start\b[^:\n]*:)", re.MULTILINE)
_LARK_TEXTS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/')
_LARK_TOKENS = re.compile(r"<|\[[^\]]*\bmax_tokens\b")
"""What a grammar in Lark has that is about tokens, against which no text can be held."""


MOST_KEPT = 256
"""Compiled constraints in a cache; a job has more only if a column gives each row its own."""

Check = Callable[[str], str | None]


@dataclass(frozen=True)
class Form:
    """A constraint, checked.

    Args:
        noun: the word for a text that fits, in messages.
        grammar: in llguidance's own notation; two constraints are the same if their grammars are.
        check: returns why a finished text is not what was asked for, or None.
    """

    noun: str
    grammar: str
    check: Check = field(default=lambda text: None, compare=False)

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
            return _checked(
                "choices", "choice", LLMatcher.grammar_from_lark(lark), choice_check(settings.choices or ())
            )
        case "grammar":
            return _grammar(settings)
    return None


def _json_schema(settings: StructuredSettings) -> Form:
    key = "sampling.structured.json_schema"
    schema = read_schema(settings.json_schema, key)
    if schema is False:
        raise ConfigError(f"{key} is false, and no text fits that")
    schema = {} if schema is True else schema
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

    beyond = None
    with suppress(RecursionError):  # which is told below
        beyond = next(rounded_numbers(schema), None)
    if beyond is not None:
        raise ConfigError(
            f"{key} has {beyond[1]} at {beyond[0]}, and numbers beyond 2^53 would be written as others; write a text in"
            " place of a value, and leave a bound out"
        )
    if (reason := fault(schema)) is not None:
        raise ConfigError(f"{key} cannot be compiled at {_place_of(schema, fault)}: {reason}")
    return Form("JSON", grammar(schema), text_check(schema, key))


def _grammar(settings: StructuredSettings) -> Form:
    key = "sampling.structured.grammar"
    text = settings.grammar or ""
    if "\n" not in text and Path(text).suffix in _GRAMMAR_FILES:
        text = read_text(text, key)
    if is_gbnf(text):
        try:
            lark = lark_of(text)
        except ValueError as error:
            raise ConfigError(f"{key} cannot be read as GBNF: {error}") from error
    elif _LARK_START.search(text):
        lark = text
    else:
        raise ConfigError(f"{key} has no rule `start:`, as a Lark grammar has, nor one `root ::=`, as GBNF has")
    grammar, noun = LLMatcher.grammar_from_lark(lark), "text of the grammar"
    form = _checked("grammar", noun, grammar)
    return Form(noun, grammar) if _LARK_TOKENS.search(_LARK_TEXTS.sub("", lark)) else form


def _checked(key: str, noun: str, grammar: str, check: Check | None = None) -> Form:
    if (reason := fault_of(grammar)) is not None:
        raise ConfigError(f"sampling.structured.{key} cannot be compiled: {reason}")
    return Form(noun, grammar, check or functools.partial(_misfit, grammar, f"sampling.structured.{key}"))


def fault_of(grammar: str) -> str | None:
    """Return llguidance's messages if it cannot compile `grammar`."""
    broken, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return "; ".join(messages) if broken else None


class _Bytes:
    """The tokenizer interface of llguidance, with bytes as tokens: texts are matched as they stand."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@functools.lru_cache(MOST_KEPT)
def _byte_matcher(grammar: str) -> LLMatcher:
    return LLMatcher(_byte_tokenizer(), grammar, log_level=0)


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[256])


def _misfit(grammar: str, key: str, text: str) -> str | None:
    """Return why `text` is none of a grammar."""
    matcher = _byte_matcher(grammar).deep_copy()
    fits = matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()
    return None if fits else f"the text does not fit {key}"


def rounded_numbers(part: Any, place: str = "#", kind: str = "schema") -> Iterator[tuple[str, Any]]:
    """Yield the numbers in a schema that llguidance rounds, each with a JSON pointer. `kind`: what `part` is: a schema,
    names of schemas, or a value."""
    if isinstance(part, Mapping):
        for key, inner in part.items():
            if kind != "schema":
                below = "schema" if kind == "names" else kind
            elif key in _COMMENTS:
                continue
            else:
                below = "value" if key in _NUMBERS else "names" if key in _NAMED else kind
            yield from rounded_numbers(inner, f"{place}/{_step(key)}", below)
    elif isinstance(part, list):
        for i, inner in enumerate(part):
            yield from rounded_numbers(inner, f"{place}/{i}", kind)
    elif kind == "value" and isinstance(part, int | float) and abs(part) > _EXACT:
        yield place, part


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
                yield f"/{key}/{_step(name)}", child
    for key in _LISTED:
        listed = schema.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            yield from ((f"/{key}/{i}", child) for i, child in enumerate(listed))
    yield from ((f"/{key}", schema[key]) for key in _SINGLE if isinstance(schema.get(key), Mapping))


def _step(name: object) -> str:
    """Return a step of a JSON pointer (RFC 6901, section 3)."""
    return str(name).replace("~", "~0").replace("/", "~1")
