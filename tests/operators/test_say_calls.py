"""Say: calls of tools in the last message are answered, or say why not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.say import Say
from pipeline.api.by_batch import OnError
from pipeline.api.errors import NodeFailed
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_say import CALLS, calculate, said


def call(name: str, arguments: Any, **keys: Any) -> dict[str, Any]:
    return {**keys, "type": "function", "function": {"name": name, "arguments": arguments}}


def asking(*calls: Any) -> str:
    return json.dumps([{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": list(calls)}])


def test_each_call_of_the_last_message_is_answered(tmp_path: Path) -> None:
    numbers = {"a": 1, "b": 2}
    flat = {"name": "add", "arguments": numbers}
    values = [
        asking(call("divide", json.dumps(numbers), id="x"), flat),
        asking(),
        json.dumps([*json.loads(asking(flat)), {"role": "tool", "content": "3"}]),
        "[]",
    ]
    made, _ = said(tmp_path, Say("tool", function=calculate), values)
    added = [
        {"role": "tool", "tool_call_id": "x", "name": "divide", "content": "0.5"},
        {"role": "tool", "name": "add", "content": '{"sum": 3, "of_row": 0}'},
    ]
    assert made == [[*json.loads(values[0]), *added], *(json.loads(value) for value in values[1:])]


def test_a_text_of_a_tool_is_its_content_as_it_is(tmp_path: Path) -> None:
    made, _ = said(tmp_path, Say("tool", function=lambda name, arguments, row: "é"), [asking(call("f", None))])
    assert made[0][-1] == {"role": "tool", "name": "f", "content": "é"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (call("add", "{", id="x"), "tool call N of the last message (add) has arguments that are not JSON"),
        (call("add", [1]), "tool call N of the last message (add) has arguments that are a list; they are an object"),
        ({"type": "function"}, "tool call N of the last message has no name of a function"),
        ("add", "tool call N of the last message has no name of a function"),
    ],
)
def test_a_call_that_cannot_be_made_is_a_reject(tmp_path: Path, given: Any, says: str) -> None:
    _, rejects = said(tmp_path, Say("tool", function=calculate), [asking(given)])
    assert [reason.startswith(says) for reason in rejects] == [True]


def test_what_a_tool_raises_is_for_on_error_and_names_the_tool(tmp_path: Path) -> None:
    values = [asking(call("divide", {"a": 1, "b": b})) for b in (2, 0, 4)]
    op = Say("tool", function=calculate)
    with pytest.raises(
        NodeFailed,
        match=rf"tool 'divide': ZeroDivisionError: .*\(row 1; {re.escape(calculate.__code__.co_filename)}:\d+\)",
    ):
        said(tmp_path / "fail", op, values)
    op.on_error = OnError.REJECT
    made, rejects = said(tmp_path / "reject", op, values)
    assert [row[-1]["content"] for row in made] == ["0.5", "0.25"]
    assert rejects == ["RuntimeError: tool '…': ZeroDivisionError: division by zero"]


def test_ids_of_calls_count_on_through_the_conversation(tmp_path: Path) -> None:
    row = {"x": "", "x_tool_calls": [{"name": "f", "arguments": "{}"}] * 2}
    schema = pa.schema([("x", pa.string()), ("x_tool_calls", CALLS)])
    ops = {name: Say("assistant", answer="x") for name in ("first", "second")}
    (made,) = Flow(tmp_path, chain(Rows([row], schema), **ops)).run()
    ids = [c["id"] for message in json.loads(made["messages"]) for c in message["tool_calls"]]
    assert ids == ["call00000", "call00001", "call00002", "call00003"]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in ids)
