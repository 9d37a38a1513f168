"""Embed, on the fake decoder: the column, pooling, rejects, independence of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.embed import POOLING, Embed
from operators.engine.backend.fake import N_EMBD
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from tests.operators.flow import Flow
from tests.operators.test_generate import FAKE
from tests.operators.test_score import IDS, flow, texts


def embedder(runtime: dict[str, Any] | None = None, **kwargs: Any) -> Embed:
    settings = {"slots": 4, "max_sequence_tokens": 200, "n_ubatch": 128} | (runtime or {})
    return Embed(FAKE, EngineSettings(**settings), **kwargs)


def vectors(run: Flow) -> np.ndarray:
    return np.array([row["embedding"] for row in run.run()], np.float32)


@pytest.mark.parametrize("pooling", POOLING)
@pytest.mark.parametrize("normalize", [True, False])
def test_every_text_has_a_vector_of_one_size(tmp_path, pooling, normalize):
    run = flow(tmp_path, texts(40), embedder(pooling=pooling, normalize=normalize))
    made = vectors(run)
    assert made.shape == (40, N_EMBD)
    assert {batch.data.schema.field("embedding").type for batch in run.sink.batches} == {pa.list_(pa.float32(), N_EMBD)}
    lengths = np.linalg.norm(made, axis=1)
    assert np.allclose(lengths, 1, atol=1e-6) == normalize


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("size", [1, 3, N_EMBD])
def test_dimensions_keeps_the_first_numbers_and_scales_them_again(tmp_path, normalize, size):
    whole = vectors(flow(tmp_path / "a", texts(10), embedder(normalize=False)))[:, :size]
    run = flow(tmp_path / "b", texts(10), embedder(normalize=normalize, dimensions=size))
    made = vectors(run)
    lengths = np.linalg.norm(whole, axis=1, keepdims=True) if normalize else 1
    assert np.allclose(made, whole / lengths, atol=1e-6)
    assert run.sink.batches[0].data.schema.field("embedding").type == pa.list_(pa.float32(), size)


@pytest.mark.parametrize("size", [0, -1, N_EMBD + 1])
def test_dimensions_that_the_model_has_not_are_refused(size):
    with pytest.raises(ConfigError, match=rf"dimensions={size} cannot work: 1 to {N_EMBD}, the numbers of the model's"):
        embedder(dimensions=size).plan(pa.schema([("text", pa.string())]))


def test_pooling_takes_the_tokens_that_it_says(tmp_path):
    """Of a causal model the last token of a text's beginning is the last token of a shorter text."""
    rows = [{"text": "a"}, {"text": "ab"}, {"text": "abc"}]
    last, first, mean = (
        vectors(flow(tmp_path / pooling, rows, embedder(pooling=pooling, normalize=False)))
        for pooling in ("last", "cls", "mean")
    )
    assert (first == last[0]).all()
    assert np.allclose(mean, [last[:n].mean(axis=0) for n in (1, 2, 3)], atol=1e-6)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("pooling", POOLING)
def test_embeddings_do_not_depend_on_the_batch(tmp_path, batch, pooling):
    rows = [{"text": row["text"] * (1 + i % 3)} for i, row in enumerate(texts(30))]
    rows = [row for row in rows if len(row["text"]) <= 200]
    expected = vectors(flow(tmp_path / "a", rows, embedder(pooling=pooling)))
    order = np.random.default_rng(batch).permutation(len(rows)).tolist()
    how = {"slots": 16, "n_ubatch": 150}
    shuffled = vectors(flow(tmp_path / "b", [rows[i] for i in order], embedder(how, pooling=pooling), batch=batch))
    assert shuffled.tobytes() == expected[order].tobytes()


def test_what_cannot_be_embedded_is_rejected_with_the_reason(tmp_path):
    run = flow(tmp_path, [{"text": text} for text in (None, "", "x" * 201, "x" * 200, "a")], embedder())
    assert [row["row"] for row in run.run()] == [3, 4]
    reasons = " | ".join(reason for _, _, reason in run.tally.by_reason)
    for part in ("is null", "is empty", "tokens, and runtime.max_sequence_tokens is"):
        assert part in reasons
    assert run.tally.errors == 3


def test_token_ids_are_taken_as_they_are(tmp_path):
    run = flow(tmp_path / "a", [{"ids": [97, 98]}], embedder(text_column="ids", as_="my"), pa.schema([IDS]))
    (row,) = run.run()
    assert row["my_embedding"] == vectors(flow(tmp_path / "b", [{"text": "ab"}], embedder()))[0].tolist()


def test_a_pooling_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="pooling='max' cannot work: it is one of mean, cls, last"):
        embedder(pooling="max")
