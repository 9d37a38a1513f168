"""Every finished constrained text is held against its constraint before it is called good, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from operators.constraints.compiler import LlgConstraint
from operators.constraints.grammars import form_of
from operators.generation.structured import answer_check
from operators.settings.structured import StructuredSettings
from pipeline import run
from pipeline.api.errors import ConfigError
from tests.operators.endpoint.fault_server import Fault, FaultServer
from tests.sets import often, often_cases

PAIR = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CHECKED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"json_schema": PAIR}, ['{"a": 1}', '{"a": 12345678901234567890}'], ['{"a": 1, "\\u0061": "x"}', '{"a": 1', "[]"]),
    ({"json_schema": {"type": "number"}}, ["1e300", "-0.5"], ["1e400", "NaN", "01"]),
    ({"json_schema": True}, ["1", '{"x": null}'], ["nothing", '{"x": 1, "x": 2}']),
    ({"regex": r"\d+(ab)?"}, ["12", "7ab"], ["12a", "", "x12"]),
    ({"choices": ["yes", "no"]}, ["yes"], ["yes ", "Yes", ""]),
    ({"grammar": 'start: "a" /[b-d]+/'}, ["ab", "adcb"], ["a", "abe"]),
    ({"grammar": 'root ::= "a" [b-d]+'}, ["ab", "adcb"], ["a", "abe"]),
]


@pytest.mark.parametrize(("structured", "good", "bad"), CHECKED, ids=lambda value: str(value)[:30])
def test_a_text_is_held_against_each_kind_of_constraint(structured, good, bad):
    settings = StructuredSettings(**structured)
    form, of_servers = form_of(settings), answer_check(settings)
    assert form is not None
    assert of_servers is not None
    for check in (form.check, of_servers):
        assert {text: check(text) for text in good} == dict.fromkeys(good)
        assert [text for text in bad if check(text) is None] == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": 9007199254740993}, "#/const"),
        ({"type": "integer", "enum": [1, 1234567890123456789]}, "#/enum/1"),
        ({"properties": {"a": {"maximum": 9007199254740995}}}, "#/properties/a/maximum"),
        ({"$defs": {"x": {"items": {"exclusiveMinimum": -(2**60)}}}, "$ref": "#/$defs/x"}, "#/$defs/x/items/excl"),
        ({"anyOf": [{"multipleOf": 1e23}]}, "#/anyOf/0/multipleOf"),
    ],
)
def test_numbers_that_would_be_written_as_others_are_refused_at_their_place(schema, place):
    with pytest.raises(ConfigError) as refused:
        form_of(StructuredSettings(json_schema=schema))
    assert f"at {place}" in str(refused.value)


def test_a_schema_that_nothing_fits_is_refused():
    with pytest.raises(ConfigError, match="json_schema"):
        form_of(StructuredSettings(json_schema=False))


def generated(directory: Path, rows: int = 6, **settings: Any) -> tuple[list[Any], list[str]]:
    """The completions and the reasons of the rejects."""
    known = {"max_error_rate": 1.0, "sampling.max_tokens": 12, "runtime.slots": 2}
    known |= {key.replace("__", "."): value for key, value in settings.items() if key != "model"}
    data = [{"id": i, "prompt": f"row {i}"} for i in range(rows)]
    how: dict[str, Any] = {"directory": directory, "progress": "none", "report": False, "rows": data}
    result = run("generate", known, model=settings.get("model", "tiny"), **how)
    texts = result.rows().collect()["completion"].to_list() if result.counts["data_rows"] else []
    return texts, result.rejects().collect()["reason"].to_list() if result.counts["error_rejects"] else []


def test_what_a_model_of_this_process_wrote_is_held_against_it_also_from_the_store(tmp_path, monkeypatch):
    wanted = {"model": "fake", "sampling__structured__choices": ["aa", "bb"], "sampling__temperature": 3.0}
    wanted |= {"store__path": str(tmp_path / "store.sqlite")}
    texts, reasons = generated(tmp_path / "before", 12, **wanted)
    assert ({*texts}, reasons) == ({"aa", "bb"}, [])
    refuses_bb = property(lambda constraint: lambda text: "no bb" if text == "bb" else None, lambda *_: None)
    monkeypatch.setattr(LlgConstraint, "check", refuses_bb, raising=False)
    again, reasons = generated(tmp_path / "again", 12, **wanted)
    assert {*again} == {"aa"}
    assert (len(again), reasons) == (texts.count("aa"), ["no bb"] * texts.count("bb"))


@pytest.mark.parametrize(
    ("structured", "fits"),
    often_cases(
        [
            ({"json_schema": {"type": "string"}}, False),
            ({"regex": "answer [0-9a-f]{8}"}, True),
            ({"regex": "answer [0-9]"}, False),
            ({"choices": ["answer"]}, False),
            ({"grammar": 'start: "answer " /[0-9a-f]+/'}, True),
            ({"grammar": 'start: "question"'}, False),
        ],
        {"regex": "answer [0-9a-f]{8}"},
        {"json_schema": {"type": "string"}},
    ),
    ids=lambda value: str(value)[:30],
)
def test_what_a_server_wrote_is_held_against_it(tmp_path, structured, fits):
    ((key, value),) = structured.items()
    with FaultServer() as server:
        settings = {f"sampling__structured__{key}": value, "model__url": server.url, "model__retries": 0}
        texts, reasons = generated(tmp_path / "out", model="endpoint", **settings)
    assert (len(texts), len(reasons)) == ((6, 0) if fits else (0, 6))
    assert all("sampling.structured" in reason for reason in reasons)


def test_an_answer_that_cannot_be_as_long_as_it_has_to_is_a_reject(tmp_path):
    wanted = {"sampling__structured__regex": "[0-9]{1,3}", "sampling__min_tokens": 5}
    texts, reasons = generated(tmp_path / "out", 2, **wanted)
    assert (texts, len(reasons)) == ([], 2)


def test_a_choice_that_begins_with_a_tag_of_reasoning_never_becomes_another_text(tmp_path):
    wanted: dict[str, Any] = {"sampling__structured__choices": ["<think>x", "<think>y"]}
    wanted["model__reasoning_tags"] = ["<think>", "</think>"]
    assert generated(tmp_path / "out", 2, **wanted)[0] == []


@pytest.mark.parametrize("choice", often(["required", "now"], "required"))
@pytest.mark.parametrize("by_row", often([False, True], False))
def test_a_server_that_makes_no_call_where_one_is_forced_has_an_error_and_keeps_its_text(tmp_path, choice, by_row):
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    sampling = {"sampling.per_row": ["tools"]} if by_row else {"sampling.tools": choice}
    with FaultServer() as server:
        known = {"model.url": server.url, "data.tools": [tool], **sampling}
        rows = [{"prompt": "a", "tools": choice}, {"prompt": "b", "tools": choice}]
        how: dict[str, Any] = {"directory": tmp_path / "out", "progress": "none", "report": False, "rows": rows}
        found = run("generate", known, model="endpoint", **how).rows().collect()
    assert found["tool_error"].to_list() == [f"sampling.tools={choice} forces a call, and the text has none"] * 2
    assert all(text.startswith("answer") for text in found["completion"])


@pytest.mark.parametrize("by_row", often([False, True], True))
def test_calls_of_a_server_are_held_against_the_tools_of_the_job_or_of_the_row(tmp_path, by_row):
    def tool(name: str, kind: str) -> list[dict[str, Any]]:
        parameters = {"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]}
        return [{"type": "function", "function": {"name": name, "parameters": parameters}}]

    def calls(number: int, body: dict[str, Any]) -> Fault:
        call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"n": "x"}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return Fault(200, {"choices": [{"message": message, "finish_reason": "tool_calls"}]})

    kinds = [("now", "string"), ("now", "integer"), ("then", "string"), ("now", "no type")]
    rows = [{"prompt": str(i), "tools": json.dumps(tool(*kind))} for i, kind in enumerate(kinds)]
    rows += [{"prompt": "none", "tools": ""}]
    tools: dict[str, Any] = {"data.tools_column": "tools"} if by_row else {"data.tools": tool(*kinds[1])}
    with FaultServer(calls) as server:
        how: dict[str, Any] = {"directory": tmp_path / "out", "progress": "none", "report": False}
        how["rows"] = rows if by_row else rows[:1]
        found = (
            run("generate", {"model.url": server.url, **tools}, model="endpoint", **how).rows().sort("row").collect()
        )
    errors = found["tool_error"].to_list()
    wrong = "the arguments of now: "
    if not by_row:
        assert [error[: len(wrong)] for error in errors] == [wrong]
        return
    right, integer, other, broken, none = errors
    assert right is None
    assert integer.startswith(wrong)
    assert (other, none) == ("'now' is called, and the tools are then", "'now' is called, and the tools are none")
    assert broken.startswith("the tool now")
