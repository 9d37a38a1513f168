"""ToolGrammar: the rules of forced tool calls, with arguments as JSON; formats that write them otherwise extend it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher

from operators.constraints.grammars import NATURAL, fault_of, rounded_numbers
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
_ANY = "(?s:.*)"
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""Of a regex: an escape, a class or a character."""

_DATE = (
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HOST = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_HOST}(\.{_HOST})*"
_LOCAL = "[a-zA-Z0-9!#$%&'*+\\/=?^_`{|}~-]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IN_URI = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
FORMATS = {
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


class ToolGrammar:
    """Rules in Lark's notation, as they are needed."""

    def __init__(self, form: ToolFormat, control: Control) -> None:
        self._form = form
        self._control = control
        self._rules: list[str] = []
        self._root: Schema = True
        self._rule_names: dict[str, str | None] = {}
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
                        self._call(name, {**alone, "required": [argument]} if requires(joined, argument) else alone)
                    except ConfigError as error:
                        raise ConfigError(f"the argument {argument}: {error}") from error
            raise

    def _call(self, name: str, schema: Schema) -> str:
        self._rule_names.clear()
        for place, value in rounded_numbers(schema):
            raise ConfigError(f"{place.rpartition('/')[2]} has {value}, and beyond 2^53 numbers are rounded")
        schema = arguments_of(schema)
        self._check(LLMatcher.grammar_from_lark(f"start: {self._json(schema)}"))  # what JSON cannot keep, no format can
        slots = {"name": quoted(name), "json_name": quoted(quoted(name)), "arguments": self._arguments(schema)}
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
            _, calls = parse_calls(self._form, _SLOT.sub(lambda slot: slots[slot[1]], self._form.shape))
        except BrokenCall:
            return None
        return (calls[0].name, calls[0].arguments) if len(calls) == 1 else None

    def _mark(self, text: str) -> str:
        token = self._control(text) if _MARK.fullmatch(text) else None
        return quoted(text) if token is None else f"<[{token}]>"

    def _rule(self, expression: str, terminal: str = "r") -> str:
        name = f"{terminal}{len(self._rules)}"
        self._rules.append(f"{name}: {expression}")
        return name

    def _arguments(self, schema: Schema) -> str:
        """Return the expression of the arguments of a call. Raises ConfigError if the format cannot keep them."""
        return self._json(schema)

    def _json(self, schema: Schema) -> str:
        """Return the expression of a value in JSON."""
        keywords: dict[str, Any] = {**schema} if isinstance(schema, Mapping) else {} if schema else {"enum": []}
        if isinstance(self._root, Mapping) and "$defs" in self._root:
            keywords["$defs"] = self._root["$defs"]
        return f"%json {json.dumps({**keywords, 'x-guidance': NATURAL})}"

    def _text(self, joined: Joined, end: str, never: Sequence[str]) -> str:
        """Return the terminal of a text without quotes and of the `end` behind it. `never`: regexes of what is none."""
        parts = []
        for one in joined:
            lengths = one.get("minLength", 0), one.get("maxLength")
            if lengths != (0, None):
                parts.append(f"/(?s:.){{{lengths[0]},{'' if lengths[1] is None else lengths[1]}}}/")
            if "pattern" in one:
                parts.append(f"/{searched(one['pattern'])}/")
            if "format" in one:
                if one["format"] not in FORMATS:
                    raise ConfigError(f"format {one['format']!r} cannot be kept in texts without quotes")
                parts.append(f"/{FORMATS[one['format']]}/")
        parts += [f"~/{regex}/" for regex in never]
        return self._rule(f"({' & '.join(['/(?s:.*)/', *parts])}) {quoted(end) if end else ''}", "T")

    def _fitting(self, joined: Joined) -> Iterator[Any]:
        """Iterate the values of `enum` and `const` that fit the other keywords, too."""
        values = fixed(joined)
        if values:
            defs = self._root.get("$defs", {}) if isinstance(self._root, Mapping) else {}
            check = validator({"allOf": [*joined], "$defs": defs}, "it")
            yield from (value for value in values if check(value) is None)

    def _objects(self, schema: Schema) -> list[Joined]:
        """Return the alternatives of an object that can be. Raises ConfigError if none can."""
        possible = [
            joined
            for joined in alternatives(schema, self._root)
            if "object" in kinds(joined)
            and not any(requires(joined, name) and property_of(joined, name) is False for name in names_in(joined))
        ]
        if not possible:
            raise ConfigError("no arguments fit")
        return possible

    def _others(self, joined: Joined) -> Schema | None:
        """Return the schema of properties that are not named; None if there are none."""
        for keyword in ("patternProperties", "minProperties", "maxProperties", "enum", "const"):
            if any(keyword in one for one in joined):
                raise ConfigError(f"{keyword} of an object cannot be kept")
        others = both(one.get("additionalProperties", True) for one in joined)
        return None if others is False else others


def arguments_of(root: Schema) -> Schema:
    """Return the schema of arguments, which are an object, whatever its schema says."""
    keys = root if isinstance(root, bool) else {key: part for key, part in root.items() if key != "$defs"}
    if keys is True or keys == {}:
        return {"type": "object", "additionalProperties": False}
    if isinstance(keys, Mapping) and keys.keys().isdisjoint({"type", "allOf", "anyOf", "oneOf", "$ref"}):
        return {"type": "object", **keys}
    return both([keys, {"type": "object"}]) if isinstance(keys, Mapping) and keys.get("type") != "object" else keys


def requires(joined: Joined, name: str) -> bool:
    return any(name in one.get("required", ()) for one in joined)


def quoted(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def any_of(names: Sequence[str]) -> str:
    """Return a regex of these names, between the slashes of Lark."""
    return f"({'|'.join(map(escaped, names))})" if names else r"[^\s\S]"


def searched(pattern: str) -> str:
    """Return a regex of Lark for the texts in which one of JSON Schema is found; llguidance refuses anchors in it."""
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
