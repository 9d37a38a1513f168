"""Readers of /v1/embeddings and /v1/rerank: vectors and scores, in the order of the inputs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from operators.endpoint.api.json_shape import Unusable, answer_of, listed, member, real

__all__ = ["read_scores", "read_vectors"]

T = TypeVar("T")
_SCORES = ("relevance_score", "score")
"""Of Jina, Cohere, vLLM and llama-server; of vLLM's /v1/score and of text-embeddings-inference."""


def read_vectors(body: object, n: int) -> list[list[float]]:
    """Read the embeddings of `n` inputs, as lists of numbers or base64 of little-endian float32.

    Raises:
        Unusable: it is no such body, or the vectors are not n of one length.
    """
    whole = answer_of(body)
    vectors = _by_index(listed(whole.get("data"), "data"), n, "embeddings", lambda one: _vector(one.get("embedding")))
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1 or 0 in lengths:
        raise Unusable(f"the embeddings have {' and '.join(map(str, sorted(lengths)))} numbers")
    return vectors


def read_scores(body: object, n: int) -> list[float]:
    """Read the scores of `n` documents from an answer of /v1/rerank or /v1/score.

    Raises:
        Unusable: it is no such body, or the scores are not n.
    """
    if isinstance(body, list):  # text-embeddings-inference
        return _by_index(body, n, "scores", _score)
    whole = answer_of(body)
    key = "data" if whole.get("results") is None and "data" in whole else "results"
    return _by_index(listed(whole.get(key), key), n, "scores", _score)


def _by_index(entries: list[Any], n: int, what: str, read: Callable[[Any], T]) -> list[T]:
    """Read each entry, and return what was read in the order of their `index`; without one in the order they have."""
    if len(entries) != n:
        raise Unusable(f"the answer has {len(entries)} {what} for {n} inputs")
    made: dict[int, T] = {}
    for place, entry in enumerate(entries):
        inner = member(entry, f"one of the {what}")
        index = inner.get("index", place)
        if type(index) is not int or not 0 <= index < n or index in made:
            raise Unusable(f"the {what} are not numbered from 0 to {n - 1}")
        made[index] = read(inner)
    return [made[index] for index in range(n)]


def _score(entry: Any) -> float:
    value = next((entry[key] for key in _SCORES if key in entry), None)
    return real(value, "a score")


def encoded(vector: np.ndarray) -> str:
    """Return a vector as servers write one: base64 of little-endian float32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _vector(given: object) -> list[float]:
    if not isinstance(given, str):
        return [real(number, "a number of an embedding") for number in listed(given, "an embedding")]
    try:
        raw = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unusable("an embedding is a text, and no base64") from error
    if len(raw) % 4:
        raise Unusable("an embedding is base64 of something else than float32")
    numbers = np.frombuffer(raw, "<f4").astype(np.float64)
    if not np.isfinite(numbers).all():
        raise Unusable("an embedding has a number that is not finite")
    made: list[float] = numbers.tolist()
    return made
