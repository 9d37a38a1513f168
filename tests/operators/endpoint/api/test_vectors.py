"""Embeddings and scores of servers, in the order of the inputs."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.vectors import read_scores, read_vectors
from tests.operators.endpoint.api.test_any_answer import ANY

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
