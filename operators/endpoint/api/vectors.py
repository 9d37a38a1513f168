"""Bodies of /v1/embeddings, /v1/rerank and /v1/score: vectors and scores, in the order of the inputs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from operators.endpoint.api.checks import Unusable, a_list, an_object, answer_of, real

T = TypeVar("T")
_SCORES = ("relevance_score", "score")
"""Of Jina, Cohere, vLLM and llama-server; of vLLM's /v1/score and of text-embeddings-inference."""


def read_vectors(body: object, n: int) -> list[list[float]]:
    """Read the embeddings of `n` inputs, as lists of numbers or base64 of little-endian float32.

    Raises:
        Unusable: it is no such body, or the vectors are not n of one length.
    """
    entries = a_list("data", answer_of(body).get("data"))
    vectors = _by_index(entries, n, "embeddings", lambda entry: _vector(entry.get("embedding")))
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
    answer = answer_of(body)
    key = "data" if answer.get("results") is None and "data" in answer else "results"
    return _by_index(a_list(key, answer.get(key)), n, "scores", _score)


def _by_index(entries: list[Any], n: int, what: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """Read each entry, and return what was read in the order of their `index`; without one in the order they have."""
    if len(entries) != n:
        raise Unusable(f"the answer has {len(entries)} {what} for {n} inputs")
    values: dict[int, T] = {}
    for place, entry in enumerate(entries):
        entry = an_object(f"one of the {what}", entry)
        index = entry.get("index", place)
        if type(index) is not int or not 0 <= index < n or index in values:
            raise Unusable(f"the {what} are not numbered from 0 to {n - 1}")
        values[index] = read(entry)
    return [values[index] for index in range(n)]


def _score(entry: dict[str, Any]) -> float:
    return real("a score", next((entry[key] for key in _SCORES if key in entry), None))


def _vector(value: object) -> list[float]:
    if not isinstance(value, str):
        return [real("a number of an embedding", number) for number in a_list("an embedding", value)]
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unusable("an embedding is a text, and no base64") from error
    if len(raw) % 4:
        raise Unusable("an embedding is base64 of something else than float32")
    numbers = np.frombuffer(raw, "<f4").astype(np.float64)
    if not np.isfinite(numbers).all():
        raise Unusable("an embedding has a number that is not finite")
    vector: list[float] = numbers.tolist()
    return vector


def vector_entry(index: int, vector: np.ndarray, encoding: str | None) -> dict[str, Any]:
    """Write an entry of `data` for a vector of float32: as a list, or with the `encoding` base64 as such a text."""
    is_text = encoding == "base64"
    numbers = base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_text else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": numbers}


def result_entry(index: int, score: float, document: str | None) -> dict[str, Any]:
    """Write an entry of `results` of /v1/rerank, with the document if there is one."""
    return {"index": index, "relevance_score": score} | ({} if document is None else {"document": {"text": document}})


def score_entry(index: int, score: float) -> dict[str, Any]:
    """Write an entry of `data` of /v1/score."""
    return {"index": index, "object": "score", "score": score}
