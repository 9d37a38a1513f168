"""Whole models on llama.cpp: each matrix that can be ours is, the numbers are llama.cpp's to a rounding, and the bits
depend on neither company nor threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFReader, TokenType
from numpy.typing import NDArray

from operators.llama.kernels import keep_rows_apart
from operators.llama.library import initialise
from operators.llama.packed import load_model, state
from tests.operators.llama.gguf_files import with_tokens
from tests.operators.llama.kernels.library import GROUP, KINDS
from tests.sets import often
from tools.models import make_model
from tools.models.shapes import Shape
from tools.models.vocabularies import Vocabulary, builtin_vocabulary

pytestmark = pytest.mark.slow("writes and loads a model of each type")

TOKENS, MOST_ROWS = 6, 16
"""Of each row: a prompt of three, and three steps; llama.cpp's attention changes its kernel far beyond."""
DENSE = Shape(n_embd=256, head_dim=64, n_ff=512)
EXPERTS = Shape("qwen3moe", n_embd=256, head_dim=64, n_ff=256, n_expert=8, n_expert_used=2)
MOST_APART = {"q8_0": 0.02, "q4_0": 0.02, "q6_k": 0.04, "q5_k_m": 0.04, "q4_k_m": 0.04}
"""Of the logits' spread, in the usual call (a row whose router chooses another expert is far from it): llama.cpp rounds
the activations of Q8_0 and Q4_0 as we do, in blocks of 32, and those of K-quants in blocks of 256."""


def padded() -> Vocabulary:
    """A vocabulary of a multiple of 16 tokens, so that the output, too, can be packed."""
    more = -builtin_vocabulary().n_tokens % GROUP
    return with_tokens({f"<unused {i}>": TokenType.UNUSED for i in range(more)})


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, shape: Shape, file_type: str, vocabulary: Any) -> Path:
    monkeypatch.setattr(make_model, "builtin_vocabulary", vocabulary)
    return make_model.write_model(folder / "model.gguf", shape=shape, file_type=file_type).path


def packable(path: Path) -> int:
    """How many matrices of a file can be packed; the table of tokens where it is the output, too."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    return sum(
        tensor.tensor_type.name in KINDS
        and tensor.shape[1] % GROUP == 0
        and (name != "token_embd.weight" or "output.weight" not in tensors)
        for name, tensor in tensors.items()
    )


@contextmanager
def loaded(path: Path, *, ours: bool) -> Iterator[tuple[Any, int]]:
    """The model, and how many of its matrices are ours."""
    initialise()
    keep_rows_apart(True)  # read at the first product of a process, which other tests are in
    if state()[0] is None:
        pytest.skip(state()[1])
    model, kernels = load_model(path, llama_cpp.llama_model_default_params(), (0, 0), ours=ours, repacks=False)
    try:
        yield model, kernels.tensors
    finally:
        llama_cpp.llama_model_free(model)


def logits(model: Any, rows: int, threads: int = 1) -> NDArray[np.float32]:
    """Of rows that are computed together, after their prompts and each step: (rows, steps, tokens)."""
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max, settings.kv_unified = 64 * MOST_ROWS, MOST_ROWS, False
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(MOST_ROWS * TOKENS, 0, 1)
    steps = []
    for first, last in ((0, 3), (3, 4), (4, 5), (5, TOKENS)):
        batch.n_tokens = rows * (last - first)
        for i in range(batch.n_tokens):
            row, at = i // (last - first), first + i % (last - first)
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = 5 + 11 * row + 3 * at, at, 1
            batch.seq_id[i][0], batch.logits[i] = row, at == last - 1
        assert llama_cpp.llama_decode(context, batch) == 0
        steps.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (rows, n_vocab)).copy())
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return np.stack(steps, axis=1)


CASES = [(kind, shape, tied) for kind in MOST_APART for shape in ("dense", "experts") for tied in (True, False)]


@pytest.mark.parametrize("case", often(CASES, ("q8_0", "dense", True), ("q4_k_m", "experts", False)), ids=str)
def test_a_model_is_ours_and_its_numbers_are_llama_cpps_and_its_bits_its_own(tmp_path, monkeypatch, case):
    file_type, shape, tied = case
    sized = replace(DENSE if shape == "dense" else EXPERTS, tied_embeddings=tied)
    path = written(tmp_path, monkeypatch, sized, file_type, padded)
    with loaded(path, ours=False) as (model, tensors):
        assert tensors == 0
        theirs = logits(model, MOST_ROWS)
    with loaded(path, ours=True) as (model, tensors):
        assert tensors == packable(path) == 7 * sized.n_layer + 1
        ours = logits(model, MOST_ROWS)
        apart = np.median((ours - theirs).std(axis=2) / theirs.std(axis=2))
        assert 0 < apart < MOST_APART[file_type]
        least = 1 if shape == "dense" else 2  # routers are F32 and so llama.cpp's, which has a kernel for lone rows
        for rows, threads in ((least, 1), (3, 1), (least, 2), (3, 3), *((MOST_ROWS, n) for n in (2, 3, 5, 8))):
            assert logits(model, rows, threads).tobytes() == ours[:rows].tobytes(), (rows, threads)


def test_a_matrix_that_cannot_be_packed_stays_llama_cpps(tmp_path, monkeypatch):
    """The table of tokens: 468 rows are no multiple of 16."""
    path = written(tmp_path, monkeypatch, DENSE, "q8_0", builtin_vocabulary)
    with loaded(path, ours=True) as (model, tensors):
        assert tensors == packable(path) == 7 * DENSE.n_layer
        assert np.isfinite(logits(model, 3)).all()


def test_a_model_that_is_not_ours_has_the_bits_that_it_had_before_one_was(tmp_path, monkeypatch):
    path = written(tmp_path, monkeypatch, DENSE, "q8_0", padded)
    with loaded(path, ours=False) as (before, _):
        expected = logits(before, 3).tobytes()
        with loaded(path, ours=True) as (between, _), loaded(path, ours=False) as (after, _):
            ours = logits(between, 3).tobytes()
            assert logits(before, 3).tobytes() == logits(after, 3).tobytes() == expected != ours
            assert logits(between, 3).tobytes() == ours
