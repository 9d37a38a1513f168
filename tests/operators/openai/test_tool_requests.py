"""Requests with tools, answered by the small model under a chat template that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from operators.openai.requests import CHAT
from tests.operators.openai.answered import Answered, answered, requests
from tests.operators.openai.cases import CALL, user
from tests.operators.openai.shapes import OUTPUT_LINES

TEMPLATE = Path(__file__).with_name("tools.jinja")
NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
ADD = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": ADD, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "none": {"tools": TOOLS, "tool_choice": "none"},
    "auto": {"tools": TOOLS, "parallel_tool_calls": True},
    "required": {"tools": TOOLS, "tool_choice": "required", "n": 2, "logprobs": True},
    "add": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}},
    "now": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}},
    "unforceable": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}],
        "tool_choice": "required",
    },
    "unknown": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
    "history": {
        "messages": [
            *user("a"),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "c", "tool_call_id": "1"},
        ],
    },
}


@pytest.fixture(scope="module")
def tooled(tmp_path_factory) -> Answered:
    folder = tmp_path_factory.mktemp("tools")
    bodies = {
        name: {"model": "m", "messages": user("2 and 3?"), "max_tokens": 60} | asked for name, asked in ASKED.items()
    }
    data = folder / "in.jsonl"
    data.write_text("\n".join(requests(*((name, CHAT, body) for name, body in bodies.items()))), encoding="utf-8")
    return answered(folder / "out", f"data.path={data}", f"model.chat_template={TEMPLATE}")


def test_every_answer_has_the_shape_of_the_api(tooled):
    assert [line["custom_id"] for line in tooled.errors] == ["unforceable", "unknown"]
    for line in tooled.output.values():
        OUTPUT_LINES[CHAT].validate(line)
        body = line["response"]["body"]
        assert ChatCompletion.model_validate_json(json.dumps(body), strict=True).model_dump(exclude_unset=True) == body


@pytest.mark.parametrize("name", ["plain", "none", "auto", "history"])
def test_an_answer_that_calls_nothing_is_a_text(tooled, name):
    (choice,) = tooled.body(name)["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(("name", "called"), [("required", {"add", "now"}), ("add", {"add"}), ("now", {"now"})])
def test_an_answer_that_has_to_be_a_call_is_one(tooled, name, called):
    choices = tooled.body(name)["choices"]
    assert len(choices) == ASKED[name].get("n", 1)
    ids = set()
    for choice in choices:
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert call["function"]["name"] in called
        assert json.loads(call["function"]["arguments"]).keys() == (
            {"a", "b"} if call["function"]["name"] == "add" else set()
        )
        ids.add(call["id"])
    assert len(ids) == len(choices)


def test_a_call_that_cannot_be_forced_is_an_error_of_its_line(tooled):
    assert "a call of the tool f cannot be forced" in tooled.error("unforceable")[1]
    assert tooled.error("unknown") == ("invalid_value", "line 8: tool_choice names 'g'; the tools are add, now")
