"""Embeddings and scores of servers, in the order of the inputs, and the echo of a prompt with its log-probabilities."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.echo import read_echo
from operators.endpoint.api.vectors import read_scores, read_vectors
from pipeline.api.errors import ConfigError
from tests.operators.endpoint.api.test_answers import ANY

VECTORS = [[0.5, -1.0], [2.0, 0.25]]
JINA = {
    "model": "m",
    "usage": {},
    "results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -3}],
}


def encoded(vector: list[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()


def embeddings(*vectors: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]}


def test_vectors_come_in_the_order_of_their_inputs():
    assert read_vectors(embeddings(*VECTORS), 2) == VECTORS
    assert read_vectors(embeddings(*map(encoded, VECTORS)), 2) == VECTORS
    assert read_vectors({"data": embeddings(*VECTORS)["data"][::-1]}, 2) == VECTORS
    assert read_vectors({"data": [{"embedding": vector} for vector in VECTORS]}, 2) == VECTORS


def test_scores_come_in_the_order_of_their_documents():
    assert read_scores(JINA, 2) == [-3.0, 0.9]
    assert read_scores({"data": [{"index": 0, "score": 0.5, "object": "score"}]}, 1) == [0.5]
    assert read_scores([{"index": 1, "score": 0.5}, {"index": 0, "score": 1}], 2) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "the answer is null"),
        ({"error": {"message": "no embeddings here"}}, "the server says: no embeddings here"),
        ({"data": None}, "data is null, not a list"),
        (embeddings([1.0]), "the answer has 1 embeddings for 2 inputs"),
        ({"data": [{"index": 0, "embedding": [1.0]}] * 2}, "the embeddings are not numbered from 0 to 1"),
        ({"data": [{"index": True, "embedding": [1.0]}] * 2}, "the embeddings are not numbered"),
        (embeddings([1.0], [1.0, 2.0]), "the embeddings have 1 and 2 numbers"),
        (embeddings([], []), "the embeddings have 0 numbers"),
        (embeddings([[1.0]], [[1.0]]), "a number of an embedding is a list"),
        (embeddings([1.0], [float("nan")]), "a number of an embedding is nan"),
        (embeddings([1.0], "#"), "an embedding is a text, and no base64"),
        (embeddings([1.0], "AAA="), "an embedding is base64 of something else than float32"),
        (embeddings([1.0], "é"), "an embedding is a text, and no base64"),
        (embeddings([1.0], encoded([float("inf")])), "an embedding has a number that is not finite"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_embeddings_that_cannot_be_used(body, said):
    with pytest.raises(Unusable) as raised:
        read_vectors(body, 2)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "results is null, not a list"),
        ({"results": [{"index": 0}] * 2}, "a score is null"),
        ({"results": [{"index": 2, "relevance_score": 1}] * 2}, "the scores are not numbered from 0 to 1"),
        ([3, 4], "one of the scores is 3, not an object"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_scores_that_cannot_be_used(body, said):
    with pytest.raises(Unusable) as raised:
        read_scores(body, 2)
    assert str(raised.value).startswith(said)


ENTRY = st.fixed_dictionaries({}, optional={"index": ANY | st.integers(0, 2), "embedding": ANY, "relevance_score": ANY})
BODY = ANY | st.fixed_dictionaries(
    {}, optional={"data": st.lists(ENTRY, max_size=2), "results": st.lists(ENTRY, max_size=2)}
)


@given(BODY, st.integers(0, 2))
def test_any_json_gives_numbers_or_a_reason(body, n):
    for read in (read_vectors, read_scores):
        with suppress(Unusable):
            assert len(read(body, n)) == n


def echo(*tokens: str, prompt: int, completion: int = 1) -> dict[str, Any]:
    """The log-probability of the token at place i is -i; the others at its place are less likely, but for place 2."""
    logprobs = {
        "tokens": list(tokens),
        "token_logprobs": [None, *(-float(i) for i in range(1, len(tokens)))],
        "top_logprobs": [None, *({"x": -1.5, token: -float(i)} for i, token in enumerate(tokens[1:], 1))],
    }
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [{"text": "".join(tokens), "logprobs": logprobs, "finish_reason": "length"}], "usage": usage}


@pytest.mark.parametrize(
    ("body", "before", "text", "logprobs"),
    [
        (echo("Once", " upon", " a", " time", prompt=3), "", "Once upon a", [-1, -2]),
        (echo("Once", " upon", " a", " time", prompt=3), "Once", " upon a", [-1, -2]),
        (echo("Once", " upon", " a", " time", prompt=3), "Once upon", " a", [-2]),
        (echo("Once", " upon", " a", prompt=3, completion=0), "Once upon", " a", [-2]),
        (echo("Once", " upon", " a", " time", prompt=3), "On", "ce upon a", [-1, -2]),
        (echo("<s>", "Once", " upon", " a", prompt=3), "", "Once upon", [-1, -2]),
        (echo("<s>", "Once", " upon", " a", prompt=3), "Once", " upon", [-2]),
        # llama-cpp-python leaves <s> out, and counts it
        (echo("Once", " upon", " a", prompt=3), "Once", " upon", [-1]),
        (echo("a", "\ufffd", "\ufffd", " b", "c", prompt=4), "", "a\u00fc b", [-1, -2, -3]),
        (echo("a", "\ufffd", "\ufffd", " b", "c", prompt=4), "a", "\u00fc b", [-1, -2, -3]),
        (echo("a", "\ufffd", "\ufffd", " b", "c", prompt=4), "a\u00fc", " b", [-3]),
    ],
)
def test_the_tokens_of_the_text_are_read(body, before, text, logprobs):
    assert read_echo(body, before, text) == (logprobs, logprobs == [-1])


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (None, Unusable, "the answer is null"),
        ({"error": {"message": "too long"}}, Unusable, "too long"),
        ({"choices": []}, Unusable, "no choices"),
        ({"choices": [{"text": "a b"}]}, ConfigError, "no log-probabilities of a prompt"),
        (echo("a", " b", prompt=2), ConfigError, "one token off"),
        (echo("c", " d", "e", prompt=2), Unusable, "not those of the text"),
        (echo("a b", " c", prompt=1), Unusable, "a single token"),
    ],
)
def test_an_echo_that_cannot_be_used(body, kind, said):
    with pytest.raises(kind, match=said):
        read_echo(body, "", "a b")


LISTS = st.lists(ANY | st.text(max_size=3) | st.floats(), max_size=3)
LOGPROBS = st.fixed_dictionaries({}, optional=dict.fromkeys(("tokens", "token_logprobs", "top_logprobs"), LISTS | ANY))
CHOICE = ANY | st.fixed_dictionaries({}, optional={"logprobs": LOGPROBS | ANY})
USAGE = st.fixed_dictionaries({}, optional=dict.fromkeys(("prompt_tokens", "completion_tokens"), st.integers(0, 3)))
ECHOED = ANY | st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)}, optional={"usage": USAGE})


@given(ECHOED, st.sampled_from(["", "a"]))
def test_any_json_gives_an_echo_or_a_reason(body, before):
    with suppress(Unusable, ConfigError):
        logprobs, is_greedy = read_echo(body, before, "b")
        assert logprobs
        assert is_greedy in (True, False)
