"""ParseJson: texts of JSON as columns with types, or a reject that says what and where."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.parse_json import ParseJson
from operators.rows.json_values import schema_fields
from pipeline.api.errors import ConfigError, InputError, SchemaError
from pipeline.api.records import ROW
from tests.operators.arrivals import Outcome, in_order
from tests.operators.rows.schemas import PERSON

TEXT = pa.schema([ROW, ("text", pa.string())])
FIELDS = {"name": "string", "age": "int64", "tags": "list<string>", "rest": "json"}
OPTIONAL = ["age", "tags", "rest"]


def parsed(op: ParseJson, *texts: str | None) -> Outcome:
    op.plan(TEXT)
    return Outcome().take(op, in_order([[{"row": i, "text": t} for i, t in enumerate(texts)]], TEXT))


def reason(op: ParseJson, text: str | None) -> str:
    ((kind, why),) = parsed(op, text).rejects.values()
    assert kind == "error"
    return why


def test_keys_become_columns_of_their_types():
    op = ParseJson("text", FIELDS, OPTIONAL)
    assert op.plan(TEXT).types[2:] == [pa.string(), pa.int64(), pa.list_(pa.string()), pa.string()]
    text = '{"name": "é", "age": 3.0, "tags": ["a", null], "rest": {"x": [1]}, "more": 1}'
    assert list(parsed(op, text).rows.values()) == [
        {"row": 0, "text": text, "name": "é", "age": 3, "tags": ["a", None], "rest": '{"x": [1]}'}
    ]
    (row,) = parsed(op, '{"name": "x", "age": null}').rows.values()
    assert (row["age"], row["tags"], row["rest"]) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "text: it is null"),
        ("", "text: no JSON: Expecting value, at line 1, column 1"),
        ('{"name": "x",\n}', "at line 2, column 1"),
        ("[1]", "text: $ is no object"),
        ("{}", "text: $.name is missing"),
        ('{"name": null}', "text: $.name is null"),
        ('{"name": 3}', "text: $.name is a number, not string"),
        ('{"name": true}', "text: $.name is true or false, not string"),
        ('{"name": "x", "age": "3"}', "text: $.age is a text, not int64"),
        ('{"name": "x", "age": 3.5}', "text: $.age is a number, not int64"),
        ('{"name": "x", "age": true}', "text: $.age is true or false, not int64"),
        ('{"name": "x", "age": 1e400}', "text: $.age is a number, not int64"),
        ('{"name": "x", "age": 9223372036854775808}', "text: $.age is beyond what int64 holds"),
        ('{"name": "x", "tags": ["a", {}]}', "text: $.tags[1] is an object, not string"),
        ('{"name": "x", "tags": "a"}', "text: $.tags is a text, not list"),
        ('{"name": "\\ud800"}', "text: $.name has half of a surrogate pair"),
        ('{"name": "x", "rest": ["\\ud800"]}', "text: $.rest has half of a surrogate pair"),
        ('{"name": NaN}', "text: no JSON: NaN is not a number of JSON"),
        ('{"age": ' + "9" * 5000 + "}", "text: no JSON: Exceeds the limit"),
        ("[" * 100_000, "text: no JSON: "),
        ('{"name": "x", "rest": [1e-400]}', "text: no JSON: 1e-400 is too near to 0 for a double"),
        ('{"name": "x", "age": 1, "age": 2}', "text: it has the key 'age' twice"),
        ('{"name": "x", "rest": [1e999]}', "text: $.rest has a number beyond what a double holds"),
    ],
)
def test_what_is_not_asked_for_is_a_reject_with_its_place(text, says):
    assert says in reason(ParseJson("text", FIELDS, OPTIONAL), text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=50)
@given(VALUES, st.sampled_from(["string", "int32", "float", "double", "list<int64>", "struct<x: bool>", "json"]))
def test_every_value_is_a_column_or_a_reject(value, kind):
    """What passes the check is what pyarrow takes."""
    outcome = parsed(ParseJson("text", {"v": kind}), json.dumps({"v": value}))
    assert len(outcome.rows) + len(outcome.rejects) == 1


@pytest.mark.parametrize(("kind", "value"), [("double", "1e999"), ("float", "1e39"), ("float", "-1e39")])
def test_no_number_becomes_infinity(kind, value):
    assert f"$.v is beyond what {kind} holds" in reason(ParseJson("text", {"v": kind}), f'{{"v": {value}}}')
    assert parsed(ParseJson("text", {"v": kind}), '{"v": 1e38}').rows
    assert "beyond what double holds" in reason(ParseJson("text", {"v": "double"}), '{"v": 9007199254740993}')


TREE = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "properties": {"v": {"$ref": "#/$defs/n"}}}


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        (TREE, "[" * 400 + "]" * 400, "$ is nested too deeply for the schema"),
        ({"properties": {"v": {"multipleOf": 0.7}}}, "9" * 400, "$.v: 9999"),
    ],
    ids=["deep", "large"],
)
def test_a_value_that_the_schema_cannot_be_held_against_costs_its_row_only(schema, value, says):
    outcome = parsed(ParseJson("text", {"v": "json"}, schema=schema), f'{{"v": {value}}}', '{"v": []}')
    assert says in outcome.rejects[0, ()][1]
    assert [row["v"] for row in outcome.rows.values()] == ["[]"]


@pytest.mark.parametrize("place", ["#/$defs/none", "#nowhere", "http://x/y", "other.json"])
@pytest.mark.parametrize("draft", ["2020-12/schema", "draft-07/schema#"])
def test_a_reference_that_leads_nowhere_is_refused_before_a_row_is_read(place, draft):
    where = "http://json-schema.org/" if "07" in draft else "https://json-schema.org/draft/"
    schema = {"$schema": where + draft, "properties": {"v": {"items": {"$ref": place}}}, "const": {"$ref": "data"}}
    with pytest.raises(ConfigError, match="leads out of it or nowhere"):
        ParseJson("text", {"v": "json"}, schema=schema)
    ParseJson("text", {"v": "json"}, schema={**TREE, "const": {"$ref": "data"}})


FENCED = 'Here it is:\n```json\n{"name": "x"}\n```\nand\n```\n{"name": "y"}\n```'


def test_a_fenced_block_is_taken_where_the_whole_text_is_no_json():
    op = ParseJson("text", {"name": "string"})
    inside = json.dumps({"name": "```json\n{}\n```"})
    rows = parsed(op, FENCED, inside, '```\n{"name": "z"}```').rows.values()
    assert [row["name"] for row in rows] == ["x", "```json\n{}\n```", "z"]
    assert "no JSON" in reason(ParseJson("text", {"name": "string"}, fenced=False), FENCED)


def test_rejects_may_be_filtered_instead_of_errors():
    outcome = parsed(ParseJson("text", {"name": "string"}, invalid="filtered"), "no", '{"name": "x"}')
    assert [kind for kind, _ in outcome.rejects.values()] == ["filtered"]
    assert len(outcome.rows) == 1


def test_a_schema_gives_the_columns_and_says_what_breaks_it(tmp_path):
    file = tmp_path / "person.json"
    file.write_text(json.dumps(PERSON))
    for schema in (PERSON, json.dumps(PERSON), str(file)):
        op = ParseJson("text", schema=schema)
        assert op.plan(TEXT).types[2:] == [pa.string(), pa.int64()]
        outcome = parsed(op, '{"name": "x", "age": 3}', '{"name": "x", "age": 131}', '{"name": "x"}')
        assert [row["age"] for row in outcome.rows.values()] == [3]
        assert [why for _, why in outcome.rejects.values()] == [
            "text: $.age: 131 is greater than the maximum of 130",
            "text: $: 'age' is a required property",
        ]


def test_a_schema_and_fields_go_together():
    schema: dict[str, Any] = {"properties": {"name": {"minLength": 2}}}
    op = ParseJson("text", {"name": "string"}, schema=schema)
    outcome = parsed(op, '{"name": "xy"}', '{"name": "x"}')
    assert [row["name"] for row in outcome.rows.values()] == ["xy"]
    assert "$.name: 'x' is too short" in next(iter(outcome.rejects.values()))[1]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, pa.string()),
        ({"type": ["integer", "null"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"const": 3}, pa.int64()),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, pa.bool_()),
        ({"$ref": "#/$defs/a~1b"}, pa.list_(pa.struct([("x", pa.float64())]))),
    ],
)
def test_types_follow_from_a_schema(schema, kind):
    inner = {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}}
    (field,) = schema_fields({"type": "object", "properties": {"v": schema}, "$defs": {"a/b": inner}})
    assert (field.name, field.type) == ("v", kind)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, "its type is not object with properties"),
        ({"type": "object"}, "at #: no single type"),
        ({"type": "object", "properties": {"v": {}}}, "at #/properties/v: no single type .*fields as well"),
        ({"type": "object", "properties": {"v": {"enum": [1, "a"]}}}, "at #/properties/v: no single type"),
        ({"type": "object", "properties": {"v": {"type": "array"}}}, "at #/properties/v: no single type"),
        ({"type": "object", "properties": {"v": True}}, "at #/properties/v: no single type follows from True"),
        ({"type": "object", "properties": {"v": {"$ref": "#/$defs/w"}}}, "at #/properties/v: .* from {'.ref'"),
        ({"type": "object", "properties": {"v": {"$ref": "http://x/y"}}}, "no single type follows from {'.ref'"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "at #: no single type"),
        ({"type": "object", "properties": {"v": {"anyOf": [{"$ref": "#"}]}}}, "a type in it holds itself"),
    ],
)
def test_a_schema_without_columns_is_refused_with_the_place(schema, message):
    with pytest.raises(ConfigError, match=message):
        schema_fields(schema)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give fields or schema"),
        ({"fields": {"a": "text"}}, "fields.a='text' is not a type: unknown type 'text'; write int32"),
        ({"fields": {"a": "string"}, "invalid": "drop"}, "invalid='drop' cannot work: it is one of error, filtered"),
        ({"fields": {"a": "string"}, "schema": {"type": "strin"}}, r"schema, at \$.type: 'strin' is not valid"),
        ({"schema": "{"}, "schema is no JSON"),
        ({"fields": {"a": "string"}, "optional": ["b"]}, "optional names 'b', which is none of the fields a"),
    ],
)
def test_what_cannot_work_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ParseJson("text", **arguments)


def test_a_schema_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"schema=.*none.json cannot be read"):
        ParseJson("text", schema=str(tmp_path / "none.json"))


def test_a_column_that_is_there_already_is_refused():
    with pytest.raises(SchemaError, match="would write the column 'text'"):
        ParseJson("text", {"text": "string"}).plan(TEXT)


def test_the_content_of_the_schema_counts_and_not_its_place(tmp_path):
    file = tmp_path / "person.json"
    file.write_text(json.dumps(PERSON))
    assert ParseJson("text", schema=str(file)).fingerprint() == ParseJson("text", schema=PERSON).fingerprint()
    other = ParseJson("text", schema={**PERSON, "required": []}).fingerprint()
    assert other != ParseJson("text", schema=PERSON).fingerprint()


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[json\]'"):
        ParseJson("text", schema=PERSON)
    ParseJson("text", {"name": "string"})
