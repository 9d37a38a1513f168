"""What each parameter of a request does to its answer, beside a request that differs in it alone."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest

from operators.openai.requests import CHAT, COMPLETIONS, EMBEDDINGS
from tests.operators.openai.answered import Answered, on_fake, requests
from tests.operators.openai.cases import schema, user

STOPS = ["P", "q", "7", "!"]
"""Some of them come in what the fake model writes."""


@pytest.fixture(scope="module")
def effects(tmp_path_factory) -> Answered:
    """What parameters do, each beside a request that differs in it alone."""
    once = {"model": "m", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "min_tokens": 20}
    hot = {**once, "temperature": 1.5}
    chat = {"model": "m", "messages": user("hi"), "temperature": 0, "max_tokens": 20, "min_tokens": 20}
    vector, ids = {"model": "m", "input": "Once upon a time"}, list(b"Once upon a time")
    yes_or_no = schema({"schema": {"enum": ["yes", "no"]}})
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("once", COMPLETIONS, once),
        ("short", COMPLETIONS, once | {"max_tokens": 5, "min_tokens": 5}),
        ("default", COMPLETIONS, {"model": "m", "prompt": "Once upon a time", "min_tokens": 16}),
        ("ids", COMPLETIONS, once | {"prompt": ids}),
        ("echo", COMPLETIONS, once | {"echo": True}),
        ("echo ids", COMPLETIONS, once | {"prompt": ids, "echo": True}),
        ("two", COMPLETIONS, once | {"prompt": ["Once upon a time", "hi", "ho"]}),
        ("scored", COMPLETIONS, once | {"logprobs": 2}),
        ("seven", COMPLETIONS, hot | {"seed": 7}),
        ("seven again", COMPLETIONS, hot | {"seed": 7}),
        ("eight", COMPLETIONS, hot | {"seed": 8}),
        ("narrow", COMPLETIONS, hot | {"seed": 8, "top_p": 0}),
        ("top 1", COMPLETIONS, hot | {"seed": 8, "top_k": 1}),
        ("min p", COMPLETIONS, hot | {"seed": 8, "min_p": 0.99}),
        ("several", COMPLETIONS, hot | {"seed": 7, "n": 3}),
        ("stopped", COMPLETIONS, once | {"stop": STOPS}),
        ("stopped scored", COMPLETIONS, once | {"stop": STOPS, "logprobs": 0}),
        ("wished", COMPLETIONS, once | {"logit_bias": {str(ord("A")): 100}}),
        ("frequent", COMPLETIONS, once | {"frequency_penalty": 2}),
        ("present", COMPLETIONS, once | {"presence_penalty": 2}),
        ("repeated", COMPLETIONS, once | {"repetition_penalty": 100}),
        ("chat", CHAT, chat),
        ("developer", CHAT, chat | {"messages": [{"role": "developer", "content": "x"}, *user("hi")]}),
        ("system", CHAT, chat | {"messages": [{"role": "system", "content": "x"}, *user("hi")]}),
        ("parts", CHAT, chat | {"messages": user([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}])}),
        ("joined", CHAT, chat | {"messages": user("h\ni")}),
        ("chat scored", CHAT, chat | {"logprobs": True, "top_logprobs": 3}),
        ("newer", CHAT, {k: v for k, v in chat.items() if k != "max_tokens"} | {"max_completion_tokens": 20}),
        ("json", CHAT, chat | {"max_tokens": 200, "min_tokens": 0, "response_format": yes_or_no}),
        ("vector", EMBEDDINGS, vector),
        ("vector ids", EMBEDDINGS, {"model": "m", "input": [ids, list(b"hi")]}),
        ("vector text", EMBEDDINGS, {"model": "m", "input": ["Once upon a time", "hi"], "encoding_format": "base64"}),
        ("vector of 2", EMBEDDINGS, vector | {"dimensions": 2}),
        ("text of 2", EMBEDDINGS, vector | {"dimensions": 2, "encoding_format": "base64"}),
        ("strange id", COMPLETIONS, once | {"prompt": [5, 999]}),
        ("strange ids", EMBEDDINGS, {"model": "m", "input": [[5], [999]]}),
        ("long", COMPLETIONS, once | {"prompt": "x" * 400}),
        ("cut", CHAT, chat | {"n": 2, "response_format": schema({"schema": {"type": "string", "minLength": 300}})}),
    ]
    return on_fake(tmp_path_factory.mktemp("effects"), requests(*asked))


def test_lengths_and_usage(effects):
    assert effects.body("once")["usage"] == {"prompt_tokens": 16, "completion_tokens": 20, "total_tokens": 36}
    assert effects.body("once")["choices"][0]["finish_reason"] == "length"
    assert effects.text("short") == effects.text("once")[:5]
    assert effects.body("default")["usage"]["completion_tokens"] == 16
    assert effects.body("newer")["usage"]["completion_tokens"] == 20
    assert effects.body("two")["usage"] == {"prompt_tokens": 20, "completion_tokens": 60, "total_tokens": 80}
    assert effects.body("several")["usage"]["prompt_tokens"] == 16


def test_a_prompt_may_be_text_ids_or_several(effects):
    assert effects.text("ids") == effects.text("once") == effects.text("two", 0)
    assert len({effects.text("two", i) for i in range(3)}) == 3
    assert effects.text("echo") == effects.text("echo ids") == "Once upon a time" + effects.text("once")


def test_seeds_and_samples(effects):
    assert effects.text("seven") == effects.text("seven again") == effects.text("several", 0)
    assert effects.text("seven") != effects.text("eight")
    assert len({effects.text("several", i) for i in range(3)}) == 3


def test_cuts_leave_the_likeliest_token(effects):
    assert effects.text("narrow") == effects.text("top 1") == effects.text("min p") == effects.text("once")


def test_penalties_and_bias_change_the_text(effects):
    assert effects.text("once") not in [effects.text(name) for name in ("frequent", "present", "repeated")]
    assert effects.text("wished") == "A" * 20


def test_a_stop_string_is_left_out_of_text_and_logprobs(effects):
    text = effects.text("once")
    cut = text[: min(text.index(stop) for stop in STOPS if stop in text)]
    assert effects.text("stopped") == effects.text("stopped scored") == cut != ""
    assert effects.body("stopped")["choices"][0]["finish_reason"] == "stop"
    assert "".join(effects.body("stopped scored")["choices"][0]["logprobs"]["tokens"]) == cut


def test_messages(effects):
    assert effects.text("developer") == effects.text("system") != effects.text("chat")
    assert effects.text("parts") == effects.text("joined")
    assert effects.text("json") in ('"yes"', '"no"')


def test_log_probabilities_are_those_of_the_tokens(effects):
    scored = effects.body("scored")["choices"][0]
    assert "".join(scored["logprobs"]["tokens"]) == scored["text"] == effects.text("once")
    assert scored["logprobs"]["text_offset"] == list(range(20))
    columns = (scored["logprobs"][key] for key in ("tokens", "token_logprobs", "top_logprobs"))
    for token, own, top in zip(*columns, strict=True):
        assert top[token] == own
        assert len(top) in (2, 3)
        assert sum(map(math.exp, top.values())) <= 1 + 1e-6
    content = effects.body("chat scored")["choices"][0]["logprobs"]["content"]
    spelt = bytes(byte for entry in content for byte in entry["bytes"])
    assert spelt.decode("utf-8", "replace") == effects.text("chat")
    assert {len(entry["top_logprobs"]) for entry in content} == {3}


def test_embeddings(effects):
    (plain,) = effects.body("vector")["data"]
    ids, text = (effects.body(name)["data"] for name in ("vector ids", "vector text"))
    assert [entry["index"] for entry in ids] == [0, 1]
    assert plain["embedding"] == ids[0]["embedding"]
    for one, encoded in zip(ids, text, strict=True):
        decoded = np.frombuffer(base64.b64decode(encoded["embedding"]), "<f4")
        assert decoded.tolist() == np.array(one["embedding"], np.float32).tolist()
        assert np.linalg.norm(decoded) == pytest.approx(1)
    assert effects.body("vector ids")["usage"] == {"prompt_tokens": 18, "total_tokens": 18}


def test_dimensions_are_the_first_numbers_of_an_embedding_with_length_1(effects):
    (plain,), (two,), (text,) = (effects.body(name)["data"] for name in ("vector", "vector of 2", "text of 2"))
    first = np.array(plain["embedding"][:2])
    assert two["embedding"] == pytest.approx((first / np.linalg.norm(first)).tolist(), abs=1e-6)
    assert np.frombuffer(base64.b64decode(text["embedding"]), "<f4").tolist() == two["embedding"]


def test_what_goes_wrong_behind_the_parser_is_an_error_line_too(effects):
    code, message = effects.error("strange id")
    assert (code, "token id 999" in message) == ("request_failed", True)
    assert "token id 999" in effects.error("strange ids")[1]
    assert "has 400 tokens" in effects.error("long")[1]
    code, message = effects.error("cut")
    assert (code, message.endswith("cut by max_tokens=20 before the JSON was complete")) == ("request_failed", True)
