"""The shape of a forced tool call, as a grammar of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher

from operators.constraints.grammars import NATURAL, Form, fault_of
from operators.constraints.tool_schemas import (
    Joined,
    Schema,
    alternatives,
    both,
    fixed,
    kinds,
    names_in,
    property_of,
    whole,
)
from operators.prompts.tool_formats import ToolFormat, parse_calls
from operators.prompts.tool_readers import BrokenCall
from operators.rows.json_schema import validator
from pipeline.api.errors import ConfigError

Control = Callable[[str], int | None]
_SLOT = re.compile(r"\{(name|json_name|arguments|text)\}")
_MARK = re.compile(r"(</?\|?[a-z_\"]+\|?>|\[[A-Z_]+\])")
"""What may be a control token in the shape of a format."""
_NO_TEXT = ["null", "boolean", "number", "array", "object"]
_NUMBER_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_GREATEST = 2**53
"""Greater numbers are rounded by llguidance."""
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
_DATE = (
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HOST = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_HOST}(\.{_HOST})*"
_LOCAL = "[a-zA-Z0-9!#$%&'*+\\/=?^_`{|}~-]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IN_URI = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_ANY = "(?s:.*)"
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""Of a regex: an escape, a class or a character."""
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "email": rf"{_LOCAL}(\.{_LOCAL})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*:\/\/{_IN_URI}+(\/{_IN_URI}*)*(\?({_IN_URI}|[\/?])*)?(#({_IN_URI}|[\/?])*)?",
    "unknown": "(?s:.)*",
}
"""As llguidance has them in JSON, for texts without quotes; of URIs those with two slashes."""


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
    grammar = _Grammar(form, control)
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
    before = grammar.literal(form.before)
    before = f"({before})? " if "<[" in before else ""  # a text that ends with a control token
    return Form("tool call", grammar.of(f"{before}({' | '.join(calls)})"))


class _Grammar:
    """Rules in Lark's notation, as they are needed."""

    def __init__(self, form: ToolFormat, control: Control) -> None:
        self._form = form
        self._control = control
        self._rules: list[str] = []
        self._root: Schema = True
        self._known: dict[str, str | None] = {}
        """Rules of the values of the tool, by their schema; None: no value fits."""

    def of(self, start: str) -> str:
        return LLMatcher.grammar_from_lark("\n".join([f"start: {start}", *self._rules, "TEXT: /(?s:.*)/"]))

    def literal(self, text: str, **slots: str) -> str:
        """Return an expression for `text`, in which `{slot}` is another expression."""
        parts = []
        for i, part in enumerate(_SLOT.split(text)):
            if i % 2:
                parts.append("TEXT" if part == "text" else slots[part])
            else:
                parts += [self._mark(some) for some in _MARK.split(part) if some]
        return " ".join(parts)

    def call(self, name: str, schema: Schema) -> str:
        """Return the rule of a call. `schema`: of the tool's arguments. Raises ConfigError."""
        if self._read(name, "" if self._form.arguments == "tags" else "{}") != (name, {}):
            raise ConfigError(f"its name {name!r} would be read as another")
        self._root = root = whole(schema, closed=True)
        try:
            return self._call(name, root)
        except ConfigError:
            for joined in alternatives(root, root):
                for argument in names_in(joined):
                    alone = {"properties": {argument: property_of(joined, argument)}}
                    try:
                        self._call(name, {**alone, "required": [argument]} if _required(joined, argument) else alone)
                    except ConfigError as error:
                        raise ConfigError(f"the argument {argument}: {error}") from error
            raise

    def _call(self, name: str, schema: Schema) -> str:
        self._known.clear()
        for keyword, value in _numbers(schema, ""):
            if abs(value) > _GREATEST:
                raise ConfigError(f"{keyword} has {value}, and beyond 2^53 numbers are rounded")
        schema = _object(schema)
        self._check(LLMatcher.grammar_from_lark(f"start: {self._json(schema)}"))  # what JSON cannot keep, no format can
        write = {"json": self._json, "tags": self._tags, "braces": self._braces_of_call}[self._form.arguments]
        slots = {"name": _quoted(name), "json_name": _quoted(_quoted(name)), "arguments": write(schema)}
        rule = self._rule(self.literal(self._form.shape, **slots))
        self._check(self.of(rule))
        return rule

    def _check(self, grammar: str) -> None:
        """Raise ConfigError with llguidance's reason if it cannot compile a grammar."""
        if (reason := fault_of(grammar)) is not None:
            lines = reason.splitlines()
            why = next((line for line in lines if line.startswith("error: ")), lines[0])
            raise ConfigError(why.rpartition("failed to compile JSON schema: ")[2].partition(". Enable")[0])

    def _read(self, name: str, arguments: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return what the reader makes of a call."""
        slots = {"name": name, "json_name": json.dumps(name), "arguments": arguments}
        try:
            found = parse_calls(self._form, _SLOT.sub(lambda slot: slots[slot[1]], self._form.shape))
        except BrokenCall:
            return None
        return (found.calls[0].name, found.calls[0].arguments) if len(found.calls) == 1 else None

    def _mark(self, text: str) -> str:
        token = self._control(text) if _MARK.fullmatch(text) else None
        return _quoted(text) if token is None else f"<[{token}]>"

    def _rule(self, expression: str, terminal: str = "r") -> str:
        name = f"{terminal}{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def _json(self, schema: Schema) -> str:
        """Return the expression of a value in JSON."""
        made: dict[str, Any] = {**schema} if isinstance(schema, Mapping) else {} if schema else {"enum": []}
        if isinstance(self._root, Mapping) and "$defs" in self._root:
            made["$defs"] = self._root["$defs"]
        return f"%json {json.dumps({**made, 'x-guidance': NATURAL})}"

    def _text(self, joined: Joined, end: str, never: Sequence[str]) -> str:
        """Return the terminal of a text without quotes and of the `end` behind it. `never`: regexes of what is none."""
        parts = []
        for one in joined:
            lengths = one.get("minLength", 0), one.get("maxLength")
            if lengths != (0, None):
                parts.append(f"/(?s:.){{{lengths[0]},{'' if lengths[1] is None else lengths[1]}}}/")
            if "pattern" in one:
                parts.append(f"/{_searched(one['pattern'])}/")
            if "format" in one:
                if one["format"] not in _FORMATS:
                    raise ConfigError(f"format {one['format']!r} cannot be kept in texts without quotes")
                parts.append(f"/{_FORMATS[one['format']]}/")
        parts += [f"~/{regex}/" for regex in never]
        return self._rule(f"({' & '.join(['/(?s:.*)/', *parts])}) {_quoted(end) if end else ''}", "T")

    def _tags(self, schema: Schema) -> str:
        """Return the expression of arguments between tags, in the order of the schema."""
        several = []
        for joined in self._objects(schema):
            parts = []
            for name in names_in(joined):
                if (value := self._tag_value(property_of(joined, name))) is None:
                    if _required(joined, name):
                        raise ConfigError(f"no value of {name} fits")
                    continue
                if self._read("f", f"<parameter={name}>\nx{_TAGS_END}") != ("f", {name: "x"}):
                    raise ConfigError("its name cannot be written in a tag")
                expression = f"{_quoted(f'<parameter={name}>' + chr(10))} {value}"
                parts.append(expression if _required(joined, name) else f"({expression})?")
            if (others := self._others(joined)) is not None:
                key = self._rule(f'(/[^<>\\n]+/ & ~/{_any_of(names_in(joined))}/) ">\\n"', "T")
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
                    several.append(_quoted(value + _TAGS_END))
        if others:
            several.append(f"{self._json(both([schema, {'type': _NO_TEXT}]))} {_quoted(_TAGS_END)}")
        return self._rule(" | ".join(several)) if several else None

    def _fitting(self, joined: Joined) -> Iterator[Any]:
        """Iterate the values of `enum` and `const` that fit the other keywords, too."""
        values = fixed(joined)
        if values:
            defs = self._root.get("$defs", {}) if isinstance(self._root, Mapping) else {}
            check = validator({"allOf": [*joined], "$defs": defs}, "it")
            yield from (value for value in values if check(value) is None)

    def _objects(self, schema: Schema) -> list[Joined]:
        """Return the alternatives of an object that can be. Raises ConfigError if none can."""
        found = [
            joined
            for joined in alternatives(schema, self._root)
            if "object" in kinds(joined)
            and not any(_required(joined, name) and property_of(joined, name) is False for name in names_in(joined))
        ]
        if not found:
            raise ConfigError("no arguments fit")
        return found

    def _others(self, joined: Joined) -> Schema | None:
        """Return the schema of properties that are not named; None if there are none."""
        for keyword in ("patternProperties", "minProperties", "maxProperties", "enum", "const"):
            if any(keyword in one for one in joined):
                raise ConfigError(f"{keyword} of an object cannot be kept")
        others = both(one.get("additionalProperties", True) for one in joined)
        return None if others is False else others

    def _braces_of_call(self, schema: Schema) -> str:
        self._objects(schema)
        rule = self._braces(schema)
        if rule is None:
            raise ConfigError("no arguments fit")
        return rule

    def _braces(self, schema: Schema) -> str | None:
        """Return the rule of a value in Gemma's notation; None if none fits."""
        known = json.dumps(schema, sort_keys=True)
        if known not in self._known:
            self._rules.append("")
            at = len(self._rules) - 1
            self._known[known] = f"r{at}"
            several = [one for joined in alternatives(schema, self._root) for one in self._values(joined)]
            self._rules[at] = f"r{at}: {' | '.join(several) or _quoted('')}"
            if not several:
                self._known[known] = None
        return self._known[known]

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
                yield from map(_quoted, words)
        if "string" in types:
            quote = self._mark(self._form.quote)
            never = [f"(?s:.)*{_escaped(self._form.quote)}(?s:.)*"]  # spelt out it ends the text
            end = "" if quote[0] == "<" else self._form.quote
            yield f"{quote} {self._text(joined, end, never)} {'' if end else quote}"
        if "array" in types and (array := self._array(joined)) is not None:
            yield array
        if "object" in types and (made := self._object(joined)) is not None:
            yield made

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
                    f"{'' if i == 0 else _quoted(',')} {item} {behind}" + (' | ""' if i >= least else "")
                )
        return self._rule(f'"[" {behind} "]"')

    def _object(self, joined: Joined) -> str | None:
        """Return the rule of an object, whose keys come in the order of the alphabet, as the template has them; None if
        none fits."""
        first, rest = '""', '""'
        if (others := self._others(joined)) is not None and (value := self._braces(others)) is not None:
            named = _any_of(names_in(joined))
            key = self._rule(rf"(/[^\s:,\x22{{}}\[\]<>]+( [^\s:,\x22{{}}\[\]<>]+)*/ & ~/{named}/) {_quoted(':')}", "T")
            rest = self._rule(f'("," {key} {value})*')
            first = self._rule(f"({key} {value} {rest})?")
        for name in sorted(names_in(joined), reverse=True):
            value = self._braces(property_of(joined, name))
            if value is None and _required(joined, name):
                return None
            if value is None:
                continue
            pair = f"{self._key(name)} {value}"
            alone, behind = self._rule(f"{pair} {rest}"), self._rule(f'"," {pair} {rest}')
            if _required(joined, name):
                first, rest = alone, behind
            else:
                first, rest = self._rule(f"{alone} | {first}"), self._rule(f"{behind} | {rest}")
        return self._rule(f'"{{" {first} "}}"')

    def _key(self, name: str) -> str:
        """Return the expression of a key, in quotes if it has to be."""
        if self._read("f", f"{{{name}:1}}") == ("f", {name: 1}):
            return _quoted(f"{name}:")
        if self._form.quote in name:
            raise ConfigError(f"the name {name!r} cannot be written")
        quote = self._mark(self._form.quote)
        return f"{quote} {_quoted(name)} {quote} {_quoted(':')}"

    def _plain(self, value: Any) -> str:
        """Return the expression of this value alone."""
        if isinstance(value, str):
            if self._form.quote in value:
                raise ConfigError(f"the value {value!r} cannot be written")
            quote = self._mark(self._form.quote)
            return f"{quote} {_quoted(value)} {quote}"
        if isinstance(value, Mapping):
            pairs = [f"{self._key(name)} {self._plain(part)}" for name, part in sorted(value.items())]
            return " ".join(['"{"', ' "," '.join(pairs), '"}"'])
        if isinstance(value, list):
            return " ".join(['"["', ' "," '.join(map(self._plain, value)), '"]"'])
        return _quoted(json.dumps(value))


def _object(root: Schema) -> Schema:
    """Return the schema of arguments, which are an object, whatever its schema says."""
    own = root if isinstance(root, bool) else {key: part for key, part in root.items() if key != "$defs"}
    if own is True or own == {}:
        return {"type": "object", "additionalProperties": False}
    if isinstance(own, Mapping) and own.keys().isdisjoint({"type", "allOf", "anyOf", "oneOf", "$ref"}):
        return {"type": "object", **own}
    return both([own, {"type": "object"}]) if isinstance(own, Mapping) and own.get("type") != "object" else own


def _required(joined: Joined, name: str) -> bool:
    return any(name in one.get("required", ()) for one in joined)


def _numbers(value: Any, keyword: str) -> Iterator[tuple[str, float]]:
    """Iterate the numbers in a schema, each with its keyword."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _numbers(part, keyword)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield keyword, value


def _any_of(names: Sequence[str]) -> str:
    """Return a regex of these names, between the slashes of Lark."""
    return f"({'|'.join(map(_escaped, names))})" if names else r"[^\s\S]"


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def _searched(pattern: str) -> str:
    """Return a regex, between the slashes of Lark, of the texts in which a regex of JSON Schema is found. llguidance
    refuses anchors within it."""
    branches: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECE.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            branches.append([])
        elif len(piece) > 1 and piece[0] == "[":  # in which Rust has operators and classes of classes
            branches[-1].append("[" + re.sub(r"(?<!\\)([\[&~/])", r"\\\1", piece[1:]).replace("\n", r"\n"))
        else:
            branches[-1].append({"/": r"\/", "\n": r"\n"}.get(piece, piece))
    several = []
    for branch in branches:
        begin, end = branch[:1] == ["^"], branch[-1:] == ["$"]
        inner = "".join(branch[begin : len(branch) - end])
        several.append(f"{'' if begin else _ANY}({inner}){'' if end else _ANY}")
    return "|".join(several)


def _quoted(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)
