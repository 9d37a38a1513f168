"""The shape of a forced tool call, as a grammar of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher

from operators.constraints.grammars import NATURAL, Form, fault_of
from operators.prompts.tool_formats import ToolFormat
from pipeline.api.errors import ConfigError

Control = Callable[[str], int | None]
_SLOT = re.compile(r"\{(name|json_name|arguments|text)\}")
_MARK = re.compile(r"(</?\|?[a-z_\"]+\|?>|\[[A-Z_]+\])")
"""What may be a control token in the shape of a format."""
_PLAIN = ("integer", "number", "boolean", "null")
"""Types that Gemma writes as JSON."""


def tool_shape(form: ToolFormat, tools: Sequence[Mapping[str, Any]], control: Control) -> Form:
    """Return the grammar of one call of one of `tools` (OpenAI's function tools).

    Args:
        control: returns the id of a control token by its name; None for a text that is none.

    Raises:
        ConfigError: there are no tools, or the schema of one cannot be compiled.
    """
    if not tools:
        raise ConfigError("a tool call is to be forced, and there are no tools")
    grammar = _Grammar(form, control)
    calls = []
    for tool in tools:
        name, schema = tool["function"]["name"], closed(tool["function"].get("parameters") or {})
        calls.append(grammar.call(name, schema))
        if (reason := grammar.fault or fault_of(LLMatcher.grammar_from_lark(grammar.text(calls[-1])))) is not None:
            raise ConfigError(f"a call of the tool {name} cannot be forced: {reason}; take sampling.tools=auto")
    before = grammar.literal(form.before)
    before = f"({before})? " if "<[" in before else ""  # a text that ends with a control token
    return Form("tool call", LLMatcher.grammar_from_lark(grammar.text(f"{before}({' | '.join(calls)})")))


def closed(schema: Any) -> Any:
    """Return a schema in which objects with properties have no others unless it says so: a call is to have the
    arguments that are described."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    if isinstance(named := schema.get("properties"), Mapping):
        made["properties"] = {key: closed(part) for key, part in named.items()}
    if "items" in schema:
        made["items"] = closed(schema["items"])
    if schema.get("type", "object") == "object" and not {"additionalProperties", "$ref", "anyOf", "allOf"} & {*schema}:
        made.setdefault("additionalProperties", False)
    return made


class _Grammar:
    """Rules in Lark's notation, as they are needed."""

    def __init__(self, form: ToolFormat, control: Control) -> None:
        self._form = form
        self._control = control
        self._rules: list[str] = []
        self.fault: str | None = None
        """The reason why an argument cannot be written."""

    def text(self, start: str) -> str:
        quoted = f"QUOTED: /(?s:.*)/ & ~/(?s:.*){re.escape(self._form.quote)}(?s:.*)/"  # spelt out it ends no text
        return "\n".join([f"start: {start}", *self._rules, "TEXT: /(?s:.*)/", quoted])

    def literal(self, text: str, **slots: str) -> str:
        """Return an expression for `text`, in which `{slot}` is another expression."""
        parts = []
        for i, part in enumerate(_SLOT.split(text)):
            if i % 2:
                parts.append("TEXT" if part == "text" else slots[part])
            else:
                parts += [self._mark(some) for some in _MARK.split(part) if some]
        return " ".join(parts)

    def call(self, name: str, schema: Mapping[str, Any]) -> str:
        """Return the rule of a call."""
        write = {"json": self._json, "tags": self._tags, "braces": self._braces}[self._form.arguments]
        arguments = write({"type": "object", **schema} if schema.get("type", "object") == "object" else schema)
        slots = {"name": json.dumps(name), "json_name": json.dumps(json.dumps(name)), "arguments": arguments}
        return self._rule(self.literal(self._form.shape, **slots))

    def _mark(self, text: str) -> str:
        token = self._control(text) if _MARK.fullmatch(text) else None
        return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"

    def _rule(self, expression: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def _up_to(self, end: str) -> str:
        """Return the rule of a text that ends with the first `end`."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}[suffix={json.dumps(end)}]: /(?s:.*)/")
        return name

    def _json(self, schema: Any) -> str:
        return f"%json {json.dumps({**schema, 'x-guidance': NATURAL} if isinstance(schema, Mapping) else schema)}"

    def _tags(self, schema: Mapping[str, Any]) -> str:
        parts = []
        for key, part in _properties(schema).items():
            end = json.dumps("\n</parameter>\n")
            if isinstance(part, Mapping) and part.get("type") == "string" and "enum" not in part:
                value = f"{self._up_to('</parameter>')} {json.dumps(chr(10))}"
            elif isinstance(part, Mapping) and part.get("type") == "string":
                value = f"({' | '.join(map(json.dumps, part['enum']))}) {end}"
            else:
                value = f"{self._json(part)} {end}"
            expression = f"{json.dumps(f'<parameter={key}>' + chr(10))} {value}"
            parts.append(expression if key in schema.get("required", ()) else f"({expression})?")
        return " ".join(parts) or '""'

    def _braces(self, schema: Any) -> str:
        """Return the expression of a value in Gemma's notation."""
        if not isinstance(schema, Mapping):
            schema = {}
        if "enum" in schema:
            return f"({' | '.join(self._plain(value) for value in schema['enum'])})"
        kind = schema.get("type")
        if kind == "string":
            quote = self._mark(self._form.quote)
            return self._rule(f"{quote} " + (f"QUOTED {quote}" if quote[0] == "<" else self._up_to(self._form.quote)))
        if kind == "array":
            item = self._braces(schema.get("items", {}))
            return self._rule(f'"[" ({item} ("," {item})*)? "]"')
        if kind == "object":
            return self._object(schema)
        if kind in _PLAIN:
            return self._json(schema)
        self.fault = f"in Gemma's format no argument can have the type {json.dumps(kind)}"
        return '""'

    def _object(self, schema: Mapping[str, Any]) -> str:
        """Return the rule of an object, whose keys come in the order of the alphabet, as the template has them."""
        first, rest = '""', '""'
        for key, part in sorted(_properties(schema).items(), reverse=True):
            pair = f"{json.dumps(key + ':')} {self._braces(part)}"
            alone, behind = self._rule(f"{pair} {rest}"), self._rule(f'"," {pair} {rest}')
            if key in schema.get("required", ()):
                first, rest = alone, behind
            else:
                first, rest = self._rule(f"{alone} | {first}"), self._rule(f"{behind} | {rest}")
        return self._rule(f'"{{" {first} "}}"')

    def _plain(self, value: Any) -> str:
        if not isinstance(value, str):
            return json.dumps(json.dumps(value))
        quote = self._mark(self._form.quote)
        return f"{quote} {json.dumps(value)} {quote}"


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema.get("properties") or {}
