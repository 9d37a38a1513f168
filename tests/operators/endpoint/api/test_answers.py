"""What answers of servers say, whatever is in them: each is an answer or there is a reason why not."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import strategies as st

from operators.endpoint.api.answers import Answer, AnsweredCall, from_json, read_answer, to_json
from operators.endpoint.api.checks import Failed, Unusable
from operators.endpoint.api.dialects import CHAT, COMPLETIONS
from operators.endpoint.api.logprobs import LEAST_LOGPROB, Likely
from operators.endpoint.api.usage import odd_usage
from tests.operators.endpoint.api.answered import (
    ENTRY,
    LLAMA_CPP_PYTHON,
    LLAMA_SERVER,
    MESSAGE,
    OPENAI,
    SGLANG,
    VLLM,
)


def chat(message: Any = MESSAGE, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop"} | choice]}


def reason(body: Any, api: str = CHAT) -> str:
    with pytest.raises(Unusable) as raised:
        read_answer(body, api)
    return str(raised.value)


def test_an_answer_of_openai():
    assert read_answer(OPENAI, CHAT) == Answer(
        text="Hello",
        finish_reason="stop",
        finish_detail="stop",
        prompt_tokens=9,
        cached_tokens=4,
        completion_tokens=3,
        reasoning_tokens=2,
        model="m-2026",
    )


def test_an_answer_of_vllm_with_a_stop_string():
    answer = read_answer(VLLM, CHAT)
    assert (answer.text, answer.reasoning) == ("4", "2 and 2")
    assert (answer.finish_reason, answer.finish_detail) == ("stop_string", "stop")
    assert answer.logprobs == (-0.25,)
    assert answer.top_logprobs == ((Likely("5", -9999.0),),)
    stopped = copy.deepcopy(VLLM)
    stopped["choices"][0]["stop_reason"] = 128009  # a token
    assert read_answer(stopped, CHAT).finish_reason == "stop"


def test_an_answer_of_sglang_that_is_all_reasoning():
    answer = read_answer(SGLANG, CHAT)
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("", "let me see", "length")
    assert (answer.reasoning_tokens, answer.cached_tokens) == (7, None)


def test_a_completion_of_llama_server_has_the_shape_of_chats_inside():
    answer = read_answer(LLAMA_SERVER, COMPLETIONS)
    assert (answer.text, answer.finish_reason, answer.cached_tokens) == (" a b", "length", 2)
    assert answer.logprobs == (-1.0,)
    assert answer.top_logprobs == ((Likely(" a", -1.0, 7), Likely("x", -2.5, 8)),)


def test_a_completion_without_usage():
    answer = read_answer(LLAMA_CPP_PYTHON, COMPLETIONS)
    assert answer.top_logprobs == ((Likely(" a", -0.5), Likely("b", -1.5)),)
    assert (answer.prompt_tokens, answer.completion_tokens) == (None, None)


def test_calls():
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1'}},
        {"function": {"name": "g", "arguments": {"b": "ü"}}},
        {"function": {"name": "h"}},
    ]
    answer = read_answer(chat({"content": None, "tool_calls": calls}, finish_reason="tool_calls"), CHAT)
    assert answer.calls == (AnsweredCall("f", '{"a": 1'), AnsweredCall("g", '{"b": "ü"}'), AnsweredCall("h", "{}"))
    assert answer.tool_calls[1] == {"name": "g", "arguments": '{"b": "ü"}'}
    assert (answer.text, answer.finish_reason, answer.finish_detail) == ("", "stop", "tool_calls")
    old = read_answer(chat({"content": None, "function_call": {"name": "f", "arguments": "{}"}}), CHAT)
    assert old.calls == (AnsweredCall("f", "{}"),)


def test_content_in_parts():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    answer = read_answer(chat({"content": parts}), CHAT)
    assert (answer.text, answer.reasoning, answer.refusal) == ("ab", "hm", None)
    assert read_answer(chat({"content": [{"type": "refusal", "refusal": "no"}]}), CHAT).refusal == "no"
    assert read_answer(chat({"content": None, "refusal": "no"}), CHAT).refusal == "no"
    deep: Any = "hm"
    for _ in range(100_000):
        deep = [{"type": "thinking", "thinking": deep}]
    assert reason(chat({"content": deep})) == "the text of a part of thinking is null, not a text"
    assert reason(chat({"content": [{"type": "image_url"}]})) == "content has a part of the type 'image_url'"


def test_half_a_character_becomes_a_replacement():
    half = "a\ud800 \U0001f600"
    assert read_answer({"choices": [{"text": half, "finish_reason": "stop"}]}, COMPLETIONS).text == "a\ufffd \U0001f600"
    assert read_answer(chat({"content": half}), CHAT).text == "a\ufffd \U0001f600"


def test_tokens_by_number():
    entry = ENTRY | {"top_logprobs": [{"token": "token_id:12", "logprob": -1.0}, {"token": "x", "logprob": None}]}
    answer = read_answer(chat(logprobs={"content": [entry]}), CHAT)
    assert answer.top_logprobs == ((Likely("token_id:12", -1.0, 12),),)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "the answer is null, not an object"),
        ([], "the answer is a list, not an object"),
        ({}, "choices is null, not a list"),
        ({"choices": []}, "the answer has no choices"),
        ({"choices": [None]}, "choices[0] is null, not an object"),
        ({"choices": [{"finish_reason": "stop"}]}, "message is null, not an object"),
        (chat({"content": 3}), "content is 3, not a list"),
        (chat({"content": "", "reasoning": {}}), "reasoning is an object, not a text"),
        (chat({"content": "", "tool_calls": [3]}), "a call is 3, not an object"),
        (chat({"tool_calls": [{"function": {"name": None}}]}), "the name of a call is null, not a text"),
        (
            chat({"tool_calls": [{"function": {"name": "f", "arguments": {"a": float("nan")}}}]}),
            "the arguments of a call cannot be written as JSON",
        ),
        (chat(finish_reason=None), "finish_reason is null, not a text"),
        (chat(finish_reason="tired"), "finish_reason is 'tired', which is not known"),
        (chat(finish_reason="content_filter"), "the server's content filter cut the answer"),
        (chat(finish_reason="abort"), "the server gave up the answer"),
        (chat(error={"message": "upstream"}), "the server says: upstream"),
        ({"error": {"message": "too long", "code": 400}}, "the server says: too long"),
        ({"error": "too long"}, "the server says: too long"),
        ({"error": {"code": 3}}, "the server says: error"),
        ({"object": "error", "message": "bad", "code": 400}, "the server says: bad"),
        (chat(logprobs={"content": [{}]}), "a log-probability is null, not a number that float32 holds"),
        (chat(logprobs={"content": [ENTRY | {"logprob": float("nan")}]}), "a log-probability is nan, not a number"),
        (chat(logprobs={"content": [ENTRY | {"logprob": 10**400}]}), "a log-probability is a number, not a number"),
        (chat(logprobs={"token_logprobs": [1.0], "top_logprobs": []}), "logprobs has 1 tokens and 0 lists"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_a_body_that_cannot_be_used(body, said):
    assert reason(body).startswith(said)


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        ([], "that usage is a list, not an object"),
        ("12", "that usage is a text, not an object"),
        ({"prompt_tokens": True}, "that prompt_tokens is true, not a number of tokens"),
        ({"prompt_tokens": -1}, "that prompt_tokens is -1, not a number of tokens"),
        ({"prompt_tokens": "9"}, "that prompt_tokens is a text, not a number of tokens"),
        ({"prompt_tokens": 1.5}, "that prompt_tokens is 1.5, not a number of tokens"),
        ({"prompt_tokens": 2**31}, "that prompt_tokens is 2147483648, not a number of tokens"),
        ({"completion_tokens": float("nan")}, "that completion_tokens is nan, not a number of tokens"),
        ({"completion_tokens": float("inf")}, "that completion_tokens is inf, not a number of tokens"),
        ({"completion_tokens": -35}, "that completion_tokens is -35, not a number of tokens"),
        ({"prompt_tokens_details": {"cached_tokens": -4}}, "that cached_tokens is -4, not a number of tokens"),
        ({"prompt_tokens_details": 3}, None),
        (None, None),
        ({}, None),
    ],
    ids=str,
)
def test_what_an_answer_counts_never_costs_its_text(usage, said):
    body = chat() | {"usage": usage, "model": 3}
    answer = read_answer(body, CHAT)
    assert (answer.text, answer.model) == (read_answer(chat(), CHAT).text, "")
    assert all(value is None for name, value in asdict(answer).items() if name.endswith("_tokens"))
    assert odd_usage(body) == said
    assert from_json(to_json(answer)) == answer


def test_a_token_that_cannot_be_has_the_log_probability_that_vllm_writes_for_it():
    answer = read_answer(chat(logprobs={"content": [ENTRY | {"logprob": float("-inf")}]}), CHAT)
    assert answer.logprobs == (LEAST_LOGPROB,)
    assert from_json(to_json(answer)) == answer


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": "502", "message": "upstream"}}, 502),
        ({"error": {"code": "rate_limit_exceeded"}}, None),
        ({"error": {"code": 7}}, None),
        ({"error": {"code": True}}, None),
        ({"error": "oops"}, None),
        ({"object": "error", "code": 500, "message": "m"}, 500),
        (chat(error={"code": 503, "message": "m"}), 503),
        (chat(finish_reason="error"), None),
        (chat(finish_reason="abort"), None),
        (chat(finish_reason="ERROR"), None),
        (chat(finish_reason="network_error"), None),
        (chat(native_finish_reason="error"), None),
        (chat(provider_specific_fields={"native_finish_reason": "abort"}), None),
        ({"choices": []}, None),
        ({"choices": None}, None),
        (chat({"content": None}) | {"usage": {"completion_tokens": 7}}, None),
    ],
    ids=str,
)
def test_a_server_that_has_failed_may_be_asked_again(body, status):
    with pytest.raises(Failed) as error:
        read_answer(body, CHAT)
    assert error.value.status == status


def test_an_answer_that_is_empty_is_one():
    for message in ({"content": ""}, {"content": None, "reasoning": "hm"}, {"content": None, "refusal": "no"}):
        assert read_answer(chat(message) | {"usage": {"completion_tokens": 7}}, CHAT).text == ""
    assert read_answer(chat({"content": None}), CHAT).text == ""


@pytest.mark.parametrize("said", [None, 3, {}, "STOP", "completed"], ids=str)
def test_other_words_of_the_server_behind_cost_no_text(said):
    for other in ({"native_finish_reason": said}, {"provider_specific_fields": {"native_finish_reason": said}}):
        assert read_answer(chat(**other), CHAT).text == read_answer(chat(), CHAT).text


def test_a_long_message_of_a_server_is_cut():
    assert len(reason({"error": {"message": "x" * 10_000}})) < 400


@pytest.mark.parametrize("stored", ["", "[]", "3", "{}", '{"text": "a"}', '{"calls": [3]}', "[" * 10**5])
def test_a_broken_text_of_the_store(stored):
    with pytest.raises(Unusable):
        from_json(stored)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8)
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    *("choices", "message", "text", "content", "finish_reason", "logprobs", "tool_calls", "function", "arguments"),
    *("usage", "error", "type", "refusal", "prompt_tokens_details", "cached_tokens", "token_logprobs", "top_logprobs"),
    *("token", "logprob", "reasoning", "model", "object", "thinking"),
)
NAMED = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
