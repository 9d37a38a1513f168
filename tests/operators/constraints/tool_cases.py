"""Schemas of tool arguments: all keywords, alone and together, and the formats that refuse to force them."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": WHOLE, "y": {"type": "number"}}, "required": ["x"]}
NODE = {"type": "object", "properties": {"v": TEXT, "next": {"$ref": "#/$defs/Node"}}, "required": ["v"]}
TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}}
COLOUR = {"enum": ["red", "dark blue"]}
JSON = ("hermes", "llama3", "mistral", "mistral_args", "harmony")
GEMMA = ("gemma", "function_gemma")
BARE = ("tags", *GEMMA)
ALL = (*JSON, *BARE)


def one(schema: Any, **beside: Any) -> dict[str, Any]:
    """Arguments with `k` of this schema."""
    return {"type": "object", "properties": {"k": schema}, "required": ["k"], **beside}


VALUES: dict[str, Any] = {
    "text": TEXT,
    "integer": WHOLE,
    "number": {"type": "number", "minimum": -3, "exclusiveMaximum": 7.5},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "const": {"const": 3},
    "const text": {"const": "a b"},
    "const null": {"const": None},
    "const object": {"const": {"a": [1, "x", None]}},
    "enum": {"type": "string", "enum": ["c", "f"]},
    "enum without type": COLOUR,
    "enum of numbers": {"enum": [1, 2, -0.5]},
    "enum of some of each": {"enum": ["x", 7, None, True, ["y"], {"a": 1}]},
    "enum beside type": {"type": "integer", "enum": [1, "a", 2]},
    "enum beside pattern": {"enum": ["ab", "cd", 5], "pattern": "^a"},
    "text or null": {"type": ["string", "null"]},
    "text, integer or boolean": {"type": ["string", "integer", "boolean"]},
    "all but texts": {"type": ["null", "boolean", "number"]},
    "anything": {},
    "anything described": {"description": "Whatever."},
    "true": True,
    "optional integer": {"anyOf": [WHOLE, {"type": "null"}], "default": None},
    "optional text": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
    "one of": {"oneOf": [TEXT, {"type": "array", "items": WHOLE}]},
    "text or list": {"anyOf": [TEXT, {"type": "array", "items": TEXT}]},
    "nested choices": {"anyOf": [{"anyOf": [WHOLE, {"type": "boolean"}]}, {"anyOf": [TEXT, {"type": "null"}]}]},
    "all of": {"allOf": [{"type": "string"}, {"maxLength": 3}]},
    "all of choices": {"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]},
    "object": POINT,
    "object or null": {"type": ["object", "null"], "properties": {"a": WHOLE}},
    "all of objects": {"allOf": [POINT, {"type": "object", "properties": {"z": TEXT}, "required": ["z"]}]},
    "object with choices": {
        "type": "object",
        "properties": {"a": WHOLE, "b": TEXT},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "told apart": {
        "oneOf": [
            {"type": "object", "properties": {"is": {"const": "a"}, "n": WHOLE}, "required": ["is", "n"]},
            {"type": "object", "properties": {"is": {"const": "b"}, "s": TEXT}, "required": ["is"]},
        ]
    },
    "map": {"type": "object", "additionalProperties": WHOLE},
    "open object": {"type": "object", "properties": {"a": WHOLE}, "additionalProperties": True},
    "open to texts": {"type": "object", "properties": {"a": WHOLE}, "additionalProperties": TEXT, "required": ["b"]},
    "list": {"type": "array", "items": TEXT},
    "list of anything": {"type": "array"},
    "list of lists": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
    "list of 2 to 3": {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 3},
    "list of none": {"type": "array", "maxItems": 0},
    "list of 1": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 1},
    "list that may repeat": {"type": "array", "items": WHOLE, "uniqueItems": False},
    "tuple": {"type": "array", "prefixItems": [WHOLE, TEXT], "items": False, "minItems": 2},
    "tuple with more": {"type": "array", "prefixItems": [WHOLE], "items": TEXT, "minItems": 3},
    "pattern": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "pattern within": {"type": "string", "pattern": "a|^b$|[/\\[]c", "maxLength": 9},
    "pattern of many": {"type": "string", "pattern": "^(?:x|y/z)+$", "minLength": 2, "maxLength": 6},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 3},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "date-time"},
    "address": {"type": "string", "format": "email", "maxLength": 20},
    "ids": {"type": "array", "items": {"type": "string", "format": "uuid"}, "maxItems": 1},
    "uri": {"type": "string", "format": "uri"},
    "bounds": {"type": "integer", "minimum": 3, "maximum": 11, "multipleOf": 2},
}
"""Of one argument."""

CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    **{name: (one(schema), ()) for name, schema in VALUES.items()},
    "no schema": ({}, ()),
    "no properties": ({"type": "object"}, ()),
    "empty properties": ({"type": "object", "properties": {}}, ()),
    "no type": ({"properties": {"k": WHOLE}}, ()),
    "all optional": ({"type": "object", "properties": {"a": WHOLE, "b": TEXT, "c": COLOUR}}, ()),
    "referred": (one({"$ref": "#/$defs/P"}, **{"$defs": {"P": POINT}}), ()),
    "referred by its old name": (one({"$ref": "#/definitions/P"}, definitions={"P": POINT}), ()),
    "referred by name": (one({"$ref": "#p"}, **{"$defs": {"P": {"$anchor": "p", **POINT}}}), ()),
    "referred and described": (one({"$ref": "#/$defs/C", "description": "C."}, **{"$defs": {"C": COLOUR}}), ()),
    "referred, with a default": (one({"allOf": [{"$ref": "#/$defs/P"}], "default": {}}, **{"$defs": {"P": POINT}}), ()),
    "referred or null": (one({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}, **{"$defs": {"P": POINT}}), ()),
    "referred twice": (
        one({"$ref": "#/$defs/A"}, **{"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/P"}, "P": POINT}}),
        (),
    ),
    "referred in a list": (one({"type": "array", "items": {"$ref": "#/$defs/P"}}, **{"$defs": {"P": POINT}}), ()),
    "referred in a map": (
        one({"type": "object", "additionalProperties": {"$ref": "#/$defs/P"}}, **{"$defs": {"P": POINT}}),
        (),
    ),
    "itself": (one({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": NODE}}), ()),
    "the whole": (TREE, ()),
    "referred to a neighbour": (
        {"type": "object", "properties": {"a": POINT, "k": {"$ref": "#/properties/a"}}, "required": ["k"]},
        (),
    ),
    "referred by an id": (
        {"$id": "https://x.org/t", **one({"$ref": "p"}, **{"$defs": {"P": {"$id": "p", **POINT}}})},
        (),
    ),
    "another draft": (
        one(
            {"type": "array", "items": [WHOLE, TEXT], "additionalItems": False, "minItems": 2},
            **{"$schema": "http://json-schema.org/draft-07/schema#"},
        ),
        (),
    ),
    "the first drafts": (
        one(
            {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5},
            **{"$schema": "http://json-schema.org/draft-04/schema#"},
        ),
        (),
    ),
    "never": ({"type": "object", "properties": {"a": False, "k": WHOLE}}, ()),
    "many choices": (one({"anyOf": [{"const": f"c{i}"} for i in range(100)]}), ()),
    "all referred": ({"$ref": "#/$defs/P", "$defs": {"P": POINT}}, ()),
    "extended": (
        {"allOf": [{"$ref": "#/$defs/P"}, {"type": "object", "properties": {"k": TEXT}}], "$defs": {"P": POINT}},
        (),
    ),
    "referred and more": ({"$ref": "#/$defs/P", "properties": {"k": TEXT}, "$defs": {"P": POINT}}, ()),
    "one of two": (
        {"type": "object", "properties": {"a": WHOLE, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        (),
    ),
    "one of two objects": ({"anyOf": [POINT, one({"type": "boolean"})]}, ()),
    "open": (one(WHOLE, additionalProperties=True), ()),
    "open to numbers": (one(WHOLE, additionalProperties={"type": "number"}), ()),
    "required and not described": ({"type": "object", "properties": {"a": WHOLE}, "required": ["a", "b"]}, ALL),
    "required and open": ({"type": "object", "additionalProperties": TEXT, "required": ["b"]}, ()),
    "odd names": (
        {
            "type": "object",
            "properties": dict.fromkeys(("a b", "ключ", "😀", "a-b.c", "$x", 'q"', "it's", "\\", "@/#"), WHOLE),
            "required": ["a b", "ключ", "😀", "a-b.c", "$x", 'q"', "it's", "\\", "@/#"],
        },
        (),
    ),
    "names with signs": ({"type": "object", "properties": {"a:b": TEXT, "{c}": WHOLE, "": WHOLE, " d ": WHOLE}}, ()),
    "a name with a tag": ({"type": "object", "properties": {"a>b": WHOLE}}, ("tags",)),
    "patterns of names": (one(WHOLE, patternProperties={"^x_": TEXT}), BARE),
    "text that reads as a number": (one({"enum": ["1", 1]}), ("tags",)),
    "text with a tag": (one({"enum": ["<parameter=a>", "b"]}), ("tags",)),
    "text with a quote": (one({"const": 'a<|"|>b<escape>'}), GEMMA),
    "unique items": (one({"type": "array", "items": WHOLE, "uniqueItems": True}), ALL),
    "unknown format": (one({"type": "string", "format": "colour"}), ALL),
    "long network address": (one({"type": "string", "format": "ipv6"}), BARE),
    "look ahead": (one({"type": "string", "pattern": "^(?=a)b"}), ALL),
    "not": (one({"not": TEXT}), ALL),
    "contains": (one({"type": "array", "contains": WHOLE}), ALL),
    "names by pattern": (one({"type": "object", "propertyNames": {"pattern": "^a"}}), ALL),
    "if": (one({"if": TEXT, "then": {"maxLength": 3}}), ALL),
    "one of what both may be": (one({"oneOf": [TEXT, {"maxLength": 3}]}), ALL),
    "great number": (one({"enum": [1234567890123456789]}), ALL),
    "great bound": (one({"type": "integer", "maximum": 9007199254740993}), ALL),
    "contradiction": (one({"type": "string", "minLength": 5, "maxLength": 2}), ALL),
    "no object": ({"type": "string"}, ALL),
    "nowhere": (one({"$ref": "#/$defs/none"}), ALL),
    "round and round": (one({"$ref": "#/$defs/A"}, **{"$defs": {"A": {"$ref": "#/$defs/A"}}}), ALL),
    "half a sign": (one({"const": "\ud83d"}), ALL),
    "some properties": (one({"type": "object", "additionalProperties": WHOLE, "minProperties": 1}), GEMMA),
}
"""By name: the schema of a tool, and the formats in which a call of it is not forced."""
