"""Responses to requests whose model reasons or calls tools."""

from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletion

from operators.endpoint.api.answers import read_answer
from operators.endpoint.api.logprobs import Likely
from operators.openai.bodies import body_of, line_of
from operators.openai.requests import CHAT
from tests.operators.openai.shapes import OUTPUT_LINES

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
