"""sampling.structured: what is refused and where, and what comes of it in a Generate on the fake model."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.constraints.grammars import form_of
from operators.settings import SamplingSettings, StoreSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError, ExitCode, InputError, SchemaError
from pipeline.cli.main import main
from tests.operators.rows.schemas import PERSON, valid
from tests.operators.test_generate import flow, generate, prompts
from tests.sets import often

SCHEMA_COLUMN = pa.field("schema", pa.string())


def structured(**values: Any) -> dict[str, Any]:
    return {"structured": StructuredSettings(**values), "max_tokens": 90}


def person(age: Any) -> dict[str, Any]:
    """PERSON with another schema for the age."""
    return {**PERSON, "properties": {**PERSON["properties"], "age": age}}


UNUSABLE: list[tuple[Any, str, str]] = [
    (person({"type": "integr"}), "#/properties/age", "Invalid type: integr"),
    (person({"anyOf": [{"type": "null"}, {"minLength": "x"}]}), "#/properties/age/anyOf/1", "positive integer"),
    (
        person({"type": "array", "items": {"type": "string", "pattern": "a(?!b)"}}),
        "#/properties/age/items",
        "look-ahead",
    ),
    (person({"type": "string", "format": "colour"}), "#/properties/age", "Unknown format: colour"),
    (person({"not": {"type": "string"}}), "#/properties/age", "not"),
    (person({"$ref": "#/$defs/missing"}), "#/properties/age", "does not exist"),
    (
        {"$defs": {"a/b": {"type": "object", "properties": {"x": {"type": 7}}}}, "items": {"$ref": "#/$defs/a~1b"}},
        "#/$defs/a~1b/properties/x",
        "type must be a string",
    ),
    ({"type": "object", "properties": ["a"]}, "#", "properties must be an object"),
    ({**PERSON, "required": ["size"]}, "#", "'size' is unsatisfiable"),
]


@pytest.mark.parametrize(("schema", "place", "reason"), UNUSABLE, ids=[place for _, place, _ in UNUSABLE])
def test_a_schema_that_cannot_be_compiled_is_refused_with_the_place(tmp_path, schema, place, reason):
    with pytest.raises(ConfigError) as raised:
        flow(tmp_path, [], generate(structured(json_schema=schema)))
    said = str(raised.value)
    assert f"sampling.structured.json_schema cannot be compiled at {place}: " in said
    assert reason in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"regex": "[a"}, r"structured\.regex cannot be compiled: .*unclosed character class"),
        ({"grammar": 'start: "a" b\n'}, r'structured\.grammar cannot be compiled: .*unknown name: "b"'),
        ({"grammar": 'root ::= "a" b\n'}, "cannot be read as GBNF: Rule 'b' not found"),
        ({"grammar": "nonsense"}, "has no rule `start:`"),
        ({"json_schema": "{not json"}, "json_schema is no JSON: .*line 1 column 2"),
        ({"json_schema": {"x-guidance": {"lenient": True}}}, "'x-guidance'"),
    ],
)
def test_what_else_cannot_be_compiled(values, said):
    with pytest.raises(ConfigError, match=re.compile(said, re.S)):
        form_of(StructuredSettings(**values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"regex": "a", "choices": ["b"]}, "has regex and choices; give one of them"),
        ({"choices": []}, "one string or more"),
        ({"choices": ["a", ""]}, "one string or more"),
        ({"regex": "a", "whitespace": "much"}, "natural, compact, pretty"),
    ],
)
def test_settings_that_cannot_work(values, said):
    with pytest.raises(ConfigError, match=said):
        StructuredSettings(**values)


@pytest.mark.parametrize("other", [{"stop": ["x"]}, {"stop_token_ids": [7]}, {"ignore_eos": True}], ids=str)
def test_nothing_else_may_cut_the_text(other):
    with pytest.raises(ConfigError, match=r"beside sampling\.structured"):
        SamplingSettings(structured=StructuredSettings(regex="a"), **other)


def test_files_are_read_and_missing_ones_named(tmp_path):
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    assert form_of(StructuredSettings(json_schema=str(tmp_path / "person.json"))) == form_of(
        StructuredSettings(json_schema=PERSON)
    )
    (tmp_path / "ab.gbnf").write_text('root ::= "a" | "b"\n')
    assert form_of(StructuredSettings(grammar=str(tmp_path / "ab.gbnf"))) is not None
    for missing in (StructuredSettings(json_schema="none.json"), StructuredSettings(grammar="none.lark")):
        with pytest.raises(InputError, match=r"none\.(json|lark) cannot be read"):
            form_of(missing)


def test_a_run_is_not_resumed_with_another_schema_in_the_same_file(tmp_path):
    path = tmp_path / "schema.json"
    prints = []
    for schema in (PERSON, person({"type": "null"})):
        path.write_text(json.dumps(schema))
        prints.append(generate(structured(json_schema=str(path))).fingerprint())
    assert prints[0] != prints[1]


def test_without_llguidance_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "operators.constraints.grammars", None)
    with pytest.raises(ConfigError, match=r"needs llguidance .*pip install -e '\.\[structured\]'"):
        flow(tmp_path, [], generate(structured(regex="a")))
    flow(tmp_path, [], generate())


KINDS: dict[str, tuple[dict[str, Any], Callable[[str], object]]] = {
    "json": ({"json_schema": PERSON}, lambda text: valid(PERSON, json.loads(text))),
    "text": ({"json_schema": json.dumps(PERSON)}, lambda text: valid(PERSON, json.loads(text))),
    "regex": ({"regex": "[a-z]{2,5}[0-9]"}, re.compile("[a-z]{2,5}[0-9]").fullmatch),
    "choices": ({"choices": ["red", 'a "b"', "grün\n"]}, lambda text: text in ("red", 'a "b"', "grün\n")),
    "lark": ({"grammar": 'start: "<" /[a-z]{1,9}/ ">"\n'}, re.compile("<[a-z]{1,9}>").fullmatch),
    "gbnf": ({"grammar": 'root ::= "<" [a-z]+ ">"\n'}, re.compile("<[a-z]+>").fullmatch),
}


@pytest.mark.parametrize("kind", often(KINDS, "json", "choices", "lark"))
@pytest.mark.parametrize("temperature", often([0.0, 1.0], 1.0))
def test_every_row_fits_or_is_a_reject_that_was_cut(tmp_path, kind, temperature):
    wanted, fits = KINDS[kind]
    run = flow(tmp_path, prompts(40), generate(structured(**wanted) | {"temperature": temperature}))
    out = run.run()
    assert len(out) > 20
    for row in out:
        assert fits(row["completion"])
        assert row["finish_reason"] == "stop"
    assert len(out) + run.tally.errors == 40
    assert all(reason.startswith("cut by ") for _, _, reason in run.tally.by_reason)


@pytest.mark.parametrize(
    ("whitespace", "pattern"),
    [
        ("natural", r'\{"name": "[^"]+", "age": \d+\}'),
        ("compact", r'\{"name":"[^"]+","age":\d+\}'),
        ("pretty", r'\{W"name"W:W"[^"]+"W,W"age"W:W\d+W\}'.replace("W", r"( |\n {0,20})?")),
    ],
)
def test_white_space_is_bounded(tmp_path, whitespace, pattern):
    plain = {"type": "string", "pattern": "^[a-z ]{1,9}$"}
    schema = {**PERSON, "properties": {"name": plain, "age": {"type": "integer", "minimum": 0, "maximum": 130}}}
    sampling = structured(json_schema=schema, whitespace=whitespace) | {"max_tokens": 200}
    out = flow(tmp_path, prompts(20), generate(sampling, {"max_sequence_tokens": 300})).run()
    assert len(out) > 10
    assert all(re.fullmatch(pattern, row["completion"]) for row in out)


def test_what_was_cut_says_so_and_is_not_computed_again(tmp_path):
    store = StoreSettings(path=str(tmp_path / "store.sqlite"))
    sampling = structured(json_schema=PERSON) | {"max_tokens": 14}
    for attempt in range(2):
        run = flow(tmp_path / str(attempt), prompts(12), generate(sampling, store=store, as_="reply"))
        assert run.run() == []
        assert {reason for _, _, reason in run.tally.by_reason} == {"cut by max_tokens=N before the JSON was complete"}
        assert run.tally.errors == 12
        records = map(json.loads, pq.read_table(tmp_path / str(attempt) / "rejects")["record"].to_pylist())
        assert all(record["reply_completion"].startswith('{"name": ') for record in records)
        totals = run.context.counted()
        assert totals["generate/store_hits"] == 12 * attempt
        assert (totals["generate/constrained_tokens"] > 0) == (attempt == 0)


def test_a_row_that_had_no_room_says_so(tmp_path):
    rows = [{"prompt_text": "x" * 110}]
    run = flow(tmp_path, rows, generate(structured(regex="[a-z]{40}")))
    assert run.run() == []
    ((_, _, reason),) = run.tally.by_reason
    assert reason.startswith("cut by runtime.max_sequence_tokens (or runtime.n_ctx) at N tokens, after N tokens, ")
    assert reason.endswith("before the match of the regex was complete")


def test_each_row_has_a_schema_of_its_own(tmp_path):
    small = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    unusable = json.dumps(person({"type": "integr"}))
    schemas = [json.dumps(small), json.dumps(PERSON), "true or false", None, unusable, '"x.json"']
    rows = [{"prompt_text": f"row {i}", "schema": schema} for i, schema in enumerate(schemas * 4)]
    run = flow(tmp_path, rows, generate(structured(json_schema_column="schema")), SCHEMA_COLUMN)
    out = run.run()
    assert {row["row"] % 6 for row in out} == {0, 1}
    for row in out:
        assert valid(json.loads(row["schema"]), json.loads(row["completion"]))
    said = "\n".join(reason for _, _, reason in run.tally.by_reason)
    for part in (
        "its value is no JSON",
        " is null; it has to hold the JSON schema of the row",
        "at #/properties/age: Invalid type",
        "no JSON schema",
    ):
        assert part in said, part


def test_a_row_without_a_schema_may_have_any_text_where_that_is_said(tmp_path):
    rows = [row | {"schema": '{"enum": ["yes"]}' if i % 2 else None} for i, row in enumerate(prompts(12))]
    free = {row["row"]: row["completion"] for row in flow(tmp_path / "free", rows, generate(), SCHEMA_COLUMN).run()}
    op = generate(structured(json_schema_column="schema", optional=True) | {"max_tokens": 20})
    for row in flow(tmp_path / "some", rows, op, SCHEMA_COLUMN).run():
        assert row["completion"] == (free[row["row"]] if row["schema"] is None else '"yes"')
    with pytest.raises(ConfigError, match="json_schema_column, which is not given"):
        StructuredSettings(regex="a", optional=True)


def test_the_column_of_schemas_must_be_there(tmp_path):
    with pytest.raises(SchemaError, match="needs a column 'schema'"):
        flow(tmp_path, [], generate(structured(json_schema_column="schema")))


def test_the_job_reports_what_a_token_cost(tmp_path, capsys):
    code = main(["job=extract", "data.limit=6", "chunk_rows=2", f"output_dir={tmp_path / 'out'}", "progress=none"])
    assert code == ExitCode.DONE
    said = re.search(
        r"generate: structured output: (\d+) of (\d+) tokens forced by the grammar", capsys.readouterr().out
    )
    assert said is not None
    assert int(said[2]) > int(said[1]) > 0
    rows = pl.read_parquet(tmp_path / "out/data/*.parquet")
    assert [set(json.loads(text)) for text in rows["completion"]] == [{"name", "age"}] * 6
