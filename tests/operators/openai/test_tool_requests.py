"""Requests whose model calls tools or reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from operators.endpoint.api.answers import read_answer
from operators.endpoint.api.logprobs import Likely
from operators.openai.bodies import body_of, line_of
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
        ]
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


CALL = {"name": "f", "arguments": '{"x": 1}'}
PIECES = [b"<think>", b"so", b"</think>", b"yes", b"END", b"!"]


def row(**columns: Any) -> dict[str, Any]:
    """A row of a chat behind Generate."""
    plain = {"row": 0, "custom_id": "a", "url": CHAT, "model": "m", "sample": 0, "choices": 1, "prompt_ids": [1, 2]}
    drawn = {"completion": "yes", "completion_ids": [3], "completion_token_count": 1, "finish_reason": "stop"}
    return {**plain, **drawn, "logprobs": None, "top_logprobs": None, **columns}


def line(*rows: dict[str, Any]) -> dict[str, Any]:
    """The line that answers a request of these rows, checked against the shape of the API."""
    made = line_of(0, "a", body_of(rows, PIECES, "fp_1"))
    OUTPUT_LINES[CHAT].validate(made)
    return made


def choice(**columns: Any) -> dict[str, Any]:
    found: dict[str, Any] = line(row(**columns))["response"]["body"]["choices"][0]
    return found


def test_reasoning_stands_apart_and_is_counted():
    thought = {"reasoning": "so", "reasoning_token_count": 3, "completion_token_count": 4}
    body = line(row(**thought), row(**thought, sample=1))["response"]["body"]
    assert [each["message"]["reasoning_content"] for each in body["choices"]] == ["so", "so"]
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 6}
    assert "reasoning_content" not in choice(reasoning=None, reasoning_token_count=None)["message"]
    assert "completion_tokens_details" not in line(row())["response"]["body"]["usage"]


def test_calls_have_ids_of_their_own_and_say_why_the_text_ended():
    found = choice(tool_calls=[CALL, CALL], completion="")
    assert [call["function"] for call in found["message"]["tool_calls"]] == [CALL, CALL]
    assert len({call["id"] for call in found["message"]["tool_calls"]}) == 2
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    assert choice(tool_calls=[CALL], completion="so: ")["message"]["content"] == "so: "
    assert choice(tool_calls=[CALL], finish_reason="length")["finish_reason"] == "length"
    assert choice(tool_calls=None)["finish_reason"] == "stop"


def test_log_probabilities_end_with_the_text_also_behind_reasoning():
    ids = [0, 1, 2, 3, 4]
    scored = {"completion_ids": ids, "logprobs": [0.0] * 5, "top_logprobs": [[]] * 5, "finish_reason": "stop_string"}
    found = choice(**scored, reasoning="so", reasoning_token_count=3)["logprobs"]["content"]
    assert [entry["token"] for entry in found] == ["<think>", "so", "</think>", "yes"]


def test_what_a_batch_file_answers_is_read_as_the_answer_of_a_server_is():
    """OpenAI's bodies are the same in both directions."""
    likely = [[{"id": 5, "logprob": -2.0}]]
    scored = {"logprobs": [-0.5], "top_logprobs": likely, "reasoning": "so", "reasoning_token_count": 3}
    answer = read_answer(line(row(**scored, tool_calls=[CALL]))["response"]["body"], "chat")
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("yes", "so", "stop")
    assert (answer.tool_calls, answer.logprobs, answer.top_logprobs) == ([CALL], (-0.5,), ((Likely("!", -2.0),),))
    assert (answer.prompt_tokens, answer.completion_tokens, answer.reasoning_tokens) == (2, 1, 3)


def test_the_types_of_the_openai_package_take_every_line():
    cut = row(completion="", finish_reason="length")
    for made in (row(), row(reasoning="so", reasoning_token_count=3), cut, row(completion="", tool_calls=[CALL])):
        body = line(made)["response"]["body"]
        read = ChatCompletion.model_validate_json(json.dumps(body), strict=True)
        assert read.model_dump(exclude_unset=True) == body
        assert read.choices[0].message.content == (made["completion"] if "tool_calls" not in made else None)
