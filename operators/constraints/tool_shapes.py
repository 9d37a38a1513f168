"""The shape of a forced tool call, as a grammar of llguidance: with arguments as JSON, in braces, or between tags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.constraints.grammars import Form
from operators.constraints.tool_grammar import Control, ToolGrammar, any_of, escaped, quoted, requires
from operators.constraints.tool_schemas import Joined, Schema, alternatives, both, fixed, kinds, names_in, property_of
from operators.prompts.tool_formats import ToolFormat
from pipeline.api.errors import ConfigError

_NUMBER_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NO_TEXT = ["null", "boolean", "number", "array", "object"]
_TAGS_END = "\n</parameter>\n"
_TAGS = r"<\/parameter>|<parameter=|<\/function>"
"""What a text between tags cannot have."""
_BLANK = r"[ \t\n\r]*"
_NUMBER = rf"{_BLANK}-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?{_BLANK}"
_LIKE = {
    "null": f"{_BLANK}(null|None){_BLANK}",
    "boolean": f"{_BLANK}(true|false|True|False){_BLANK}",
    "integer": _NUMBER,
    "number": _NUMBER,
    "array": rf"{_BLANK}\[(?s:.)*",
    "object": rf"{_BLANK}\{{(?s:.)*",
}
"""Texts between tags that may be read as another type."""


def tool_shape(form: ToolFormat, tools: Sequence[Mapping[str, Any]], control: Control) -> Form:
    """Return the grammar of one call of one of `tools` (OpenAI's function tools), which the reader of the format reads
    as arguments that fit the tool's schema.

    Args:
        control: returns the id of a control token by its name; None for a text that is none.

    Raises:
        ConfigError: there are no tools, or the format or llguidance cannot keep the schema of one.
    """
    if not tools:
        raise ConfigError("a tool call is to be forced, and there are no tools")
    grammar = GRAMMARS[form.arguments](form, control)
    calls = []
    for tool in tools:
        name = tool["function"]["name"]
        try:
            calls.append(grammar.call(name, tool["function"].get("parameters") or {}))
        except (ConfigError, UnicodeEncodeError, RecursionError) as error:
            raise ConfigError(
                f"a call of the tool {name} cannot be forced in the format {form.name}: {error}; change its schema, or"
                " take sampling.tools=auto, with which calls are checked when they are read"
            ) from error
    prefix = grammar.literal(form.before)
    prefix = f"({prefix})? " if "<[" in prefix else ""  # a text that ends with a control token
    return Form("tool call", grammar.of(f"{prefix}({' | '.join(calls)})"))


class BraceGrammar(ToolGrammar):
    """Arguments in Gemma's notation: `{key:value}`, with a quote of its own around texts."""

    def _arguments(self, schema: Schema) -> str:
        self._objects(schema)
        rule = self._braces(schema)
        if rule is None:
            raise ConfigError("no arguments fit")
        return rule

    def _braces(self, schema: Schema) -> str | None:
        """Return the rule of a value in Gemma's notation; None if none fits."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._rule_names:
            self._rules.append("")
            at = len(self._rules) - 1
            self._rule_names[key] = f"r{at}"
            several = [one for joined in alternatives(schema, self._root) for one in self._values(joined)]
            self._rules[at] = f"r{at}: {' | '.join(several) or quoted('')}"
            if not several:
                self._rule_names[key] = None
        return self._rule_names[key]

    def _values(self, joined: Joined) -> Iterator[str]:
        """Iterate the expressions of the values of one alternative, by their types."""
        if fixed(joined) is not None:
            yield from (self._plain(value) for value in self._fitting(joined))
            return
        types = kinds(joined)
        if numbers := types & {"integer", "number"}:
            limits = [{key: one[key] for key in _NUMBER_LIMITS if key in one} for one in joined]
            plain = {"type": "number" if "number" in numbers else "integer"}
            yield self._json(both([plain, *(one for one in limits if one)]))
        for kind, words in (("null", ["null"]), ("boolean", ["true", "false"])):
            if kind in types:
                yield from map(quoted, words)
        if "string" in types:
            quote = self._mark(self._form.quote)
            never = [f"(?s:.)*{escaped(self._form.quote)}(?s:.)*"]  # spelt out it ends the text
            end = "" if quote[0] == "<" else self._form.quote
            yield f"{quote} {self._text(joined, end, never)} {'' if end else quote}"
        if "array" in types and (array := self._array(joined)) is not None:
            yield array
        if "object" in types and (rule := self._object(joined)) is not None:
            yield rule

    def _array(self, joined: Joined) -> str | None:
        """Return the rule of an array; None if none fits."""
        least = max((one.get("minItems", 0) for one in joined), default=0)
        most = min((one["maxItems"] for one in joined if "maxItems" in one), default=None)
        lists = [(one.get("prefixItems", ()), one.get("items", True)) for one in joined]
        front = max((len(first) for first, _ in lists), default=0) or 1
        tail = self._braces(both(rest for _, rest in lists))
        behind = '""'
        if tail is not None and (most is None or most > front):
            behind = f'("," {tail}){{{max(least - front, 0)},{"" if most is None else most - front}}}'
        elif least > front:
            return None
        for i in reversed(range(front)):
            item = self._braces(both(first[i] if i < len(first) else rest for first, rest in lists))
            if item is None or (most is not None and i >= most):
                behind = '""'
                if i < least:
                    return None
            else:
                behind = self._rule(
                    f"{'' if i == 0 else quoted(',')} {item} {behind}" + (' | ""' if i >= least else "")
                )
        return self._rule(f'"[" {behind} "]"')

    def _object(self, joined: Joined) -> str | None:
        """Return the rule of an object, whose keys come in the order of the alphabet, as the template has them; None if
        none fits."""
        first, rest = '""', '""'
        if (others := self._others(joined)) is not None and (value := self._braces(others)) is not None:
            named = any_of(names_in(joined))
            key = self._rule(rf"(/[^\s:,\x22{{}}\[\]<>]+( [^\s:,\x22{{}}\[\]<>]+)*/ & ~/{named}/) {quoted(':')}", "T")
            rest = self._rule(f'("," {key} {value})*')
            first = self._rule(f"({key} {value} {rest})?")
        for name in sorted(names_in(joined), reverse=True):
            value = self._braces(property_of(joined, name))
            if value is None and requires(joined, name):
                return None
            if value is None:
                continue
            pair = f"{self._key(name)} {value}"
            alone, behind = self._rule(f"{pair} {rest}"), self._rule(f'"," {pair} {rest}')
            if requires(joined, name):
                first, rest = alone, behind
            else:
                first, rest = self._rule(f"{alone} | {first}"), self._rule(f"{behind} | {rest}")
        return self._rule(f'"{{" {first} "}}"')

    def _key(self, name: str) -> str:
        """Return the expression of a key, in quotes if it has to be."""
        if self._read("f", f"{{{name}:1}}") == ("f", {name: 1}):
            return quoted(f"{name}:")
        if self._form.quote in name:
            raise ConfigError(f"the name {name!r} cannot be written")
        quote = self._mark(self._form.quote)
        return f"{quote} {quoted(name)} {quote} {quoted(':')}"

    def _plain(self, value: Any) -> str:
        """Return the expression of this value alone."""
        if isinstance(value, str):
            if self._form.quote in value:
                raise ConfigError(f"the value {value!r} cannot be written")
            quote = self._mark(self._form.quote)
            return f"{quote} {quoted(value)} {quote}"
        if isinstance(value, Mapping):
            pairs = [f"{self._key(name)} {self._plain(part)}" for name, part in sorted(value.items())]
            return " ".join(['"{"', ' "," '.join(pairs), '"}"'])
        if isinstance(value, list):
            return " ".join(['"["', ' "," '.join(map(self._plain, value)), '"]"'])
        return quoted(json.dumps(value))


class TagGrammar(ToolGrammar):
    """Arguments between tags, one after the other (Qwen3-Coder and others), in which a text has no quotes."""

    def _arguments(self, schema: Schema) -> str:
        """Return the expression of arguments between tags, in the order of the schema."""
        several = []
        for joined in self._objects(schema):
            parts = []
            for name in names_in(joined):
                if (value := self._tag_value(property_of(joined, name))) is None:
                    if requires(joined, name):
                        raise ConfigError(f"no value of {name} fits")
                    continue
                if self._read("f", f"<parameter={name}>\nx{_TAGS_END}") != ("f", {name: "x"}):
                    raise ConfigError("its name cannot be written in a tag")
                expression = f"{quoted(f'<parameter={name}>' + chr(10))} {value}"
                parts.append(expression if requires(joined, name) else f"({expression})?")
            if (others := self._others(joined)) is not None:
                key = self._rule(f'(/[^<>\\n]+/ & ~/{any_of(names_in(joined))}/) ">\\n"', "T")
                parts.append(f'("<parameter=" {key} {self._tag_value(others)})*')
            several.append(" ".join(parts) or '""')
        return f"({' | '.join(several)})"

    def _tag_value(self, schema: Schema) -> str | None:
        """Return the rule of a value between tags, with its closing tag; None if none fits."""
        forms = alternatives(schema, self._root)
        others = {kind for joined in forms for kind in kinds(joined)} - {"string"}
        never = [rf"(?s:.)*({_TAGS})(?s:.)*", *sorted({_LIKE[kind] for kind in others})]
        several = []
        for joined in forms:
            values = fixed(joined)
            if values is None and "string" in kinds(joined):
                several.append(self._text(joined, _TAGS_END, never))
            for value in self._fitting(joined):
                if isinstance(value, str):
                    if any(re.fullmatch(regex, value) for regex in never):
                        raise ConfigError(f"the value {value!r} would be read as another")
                    several.append(quoted(value + _TAGS_END))
        if others:
            several.append(f"{self._json(both([schema, {'type': _NO_TEXT}]))} {quoted(_TAGS_END)}")
        return self._rule(" | ".join(several)) if several else None


GRAMMARS: Mapping[str, type[ToolGrammar]] = {"json": ToolGrammar, "tags": TagGrammar, "braces": BraceGrammar}
"""By ToolFormat.arguments."""
