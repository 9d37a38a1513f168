"""TagGrammar: arguments between tags (Qwen3-Coder and others), in which a text has no quotes."""

from __future__ import annotations

import re

from operators.constraints.tool_grammar import ToolGrammar, any_of, quoted, requires
from operators.constraints.tool_schemas import Schema, alternatives, both, fixed, kinds, names_in, property_of
from pipeline.api.errors import ConfigError

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


class TagGrammar(ToolGrammar):
    """Arguments between tags, one after the other."""

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
