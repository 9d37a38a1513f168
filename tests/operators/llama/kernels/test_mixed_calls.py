"""Calls whose rows have adapters of their own: each token has the bits that it has with its row's adapter alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType
from numpy.typing import NDArray

from tests.families.test_families import FAMILIES, HERE
from tests.operators.llama.kernels.banks import ALL, Adapter, Floats, Mixing, Span, adapter, write_bank
from tests.operators.llama.kernels.library import runnable
from tests.operators.llama.kernels.test_graphs import DENSE, EXPERTS, padded, written
from tests.sets import often
from tools.models.make_model import quantize_file
from tools.models.shapes import Shape

pytestmark = pytest.mark.slow("writes and loads small models with adapters")

RANKS = (16, 32, 16)
LENGTHS, BASE = (5, 37, 1, 12, 20, 9), 4
"""Of prompts; the row that has no adapter."""
MASKS = np.array([1, 2, 4, 1, 0, 6, 0, 0], np.uint64)


class Bank(NamedTuple):
    """A model, its adapters, and the file that has them side by side."""

    model: Path
    adapters: Sequence[Adapter]
    path: Path
    begins: NDArray[np.int32]


def banked(folder: Path, model: Path, names: str = ALL) -> Bank:
    adapters = [adapter(model, seed, rank, names) for seed, rank in enumerate(RANKS)]
    return Bank(model, adapters, folder / "bank.gguf", write_bank(folder / "bank.gguf", model, adapters))


@pytest.fixture
def bank(tmp_path, monkeypatch) -> Bank:
    return banked(tmp_path, written(tmp_path, monkeypatch, DENSE, "q8_0", padded))


def prompt(row: int) -> list[int]:
    return [5 + (7 * row + 3 * i) % 90 for i in range(LENGTHS[row])]


def spans(rows: Sequence[int], outputs: int = 1) -> list[Span]:
    return [Span(row, 0, prompt(row), min(outputs, LENGTHS[row])) for row in rows]


def steps(rows: Sequence[int], count: int) -> list[Span]:
    """What a draft has: some tokens a row."""
    return [Span(row, LENGTHS[row], [9 + row + i for i in range(count)], count) for row in rows]


def both(context: Mixing, rows: Sequence[int]) -> list[Floats]:
    """Logits of each row, of a call with prompts and one with steps."""
    context.clear()
    prompts, drafts = context.call(spans(rows)), context.call(steps(rows, 2))
    return [np.concatenate([prompts[i : i + 1], drafts[2 * i : 2 * i + 2]]) for i in range(len(rows))]


@pytest.mark.parametrize("shape", ["dense", "experts"])
def test_each_row_of_a_mixed_call_has_the_bits_that_it_has_alone(tmp_path, monkeypatch, shape):
    """In prompts of unequal lengths, with outputs of few tokens, in several micro-batches; by any instructions and
    number of threads. And all operations are ours: such a context is exact as one without adapters."""
    sized = DENSE if shape == "dense" else EXPERTS
    bank = banked(tmp_path, written(tmp_path, monkeypatch, sized, "q8_0", padded))
    rows = range(len(LENGTHS))
    with Mixing(bank.model, None, bank.begins) as plain:
        base = both(plain, [BASE])[0]
    with Mixing(bank.model, bank.path, bank.begins, n_ubatch=16) as context:
        context.masks[:] = MASKS
        alone = [both(context, [row])[0] for row in rows]
        assert alone[BASE].tobytes() == base.tobytes()
        for kernels in runnable():
            for threads in (1, 2, 3, 4) if kernels == runnable()[-1] else (2,):
                context.use(kernels, threads)
                for row, made in enumerate(both(context, rows)):
                    assert made.tobytes() == alone[row].tobytes(), (kernels, threads, row)
                assert (context.unmixed, context.others) == (0, 0)
    assert all(np.abs(first - second).max() > 0.1 for first, second in pairwise(alone))


def test_a_call_has_the_numbers_of_llama_cpps_adapters_to_a_rounding(tmp_path, monkeypatch):
    """And those are llama.cpp's, with whatever it had before, where a call does not say which row has which."""
    bank = banked(tmp_path, written(tmp_path, monkeypatch, DENSE, "f32", padded))
    exact = {"type_k": GGMLType.F32, "type_v": GGMLType.F32, "flash_attn_type": 0}  # nothing else is rounded
    rows, theirs = range(3), []
    for each in bank.adapters:
        write_bank(tmp_path / "single.gguf", bank.model, [each], transposed=False)
        with Mixing(bank.model, tmp_path / "single.gguf", bank.begins, **exact) as context:
            theirs.append(context.call(spans(rows, 3), mixes=False))
            assert context.unmixed == 0
    with Mixing(bank.model, bank.path, bank.begins, **exact) as context:
        for i, expected in enumerate(theirs):
            context.masks[:] = 1 << i
            context.clear()
            assert 0 < np.abs(context.call(spans(rows, 3)) - expected).max() < 1e-4


def test_the_bits_of_a_row_do_not_depend_on_the_bank(bank, tmp_path):
    """Several adapters of a row are one of all their ranks."""
    first, _, last = bank.adapters
    joined = {
        name: (np.concatenate([a, last[name][0]], -2), np.concatenate([b, last[name][1]], -1))
        for name, (a, b) in first.items()
    }
    begins = write_bank(tmp_path / "joined.gguf", bank.model, [joined])
    with Mixing(bank.model, tmp_path / "joined.gguf", begins) as context:
        context.masks[:] = 1
        expected = context.call(spans([3, 1]))
    with Mixing(bank.model, bank.path, bank.begins) as context:
        context.masks[:] = [0, 5, 0, 5, 0, 0, 0, 0]
        assert context.call(spans([3, 1])).tobytes() == expected.tobytes()


UNTIED = replace(DENSE, tied_embeddings=False)


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        (UNTIED, r"^(token_embd|output)\.weight"),
        (DENSE, rf"blk\.{DENSE.n_layer - 1}\.ffn_down"),  # when the indices of its tokens are long overwritten
        (EXPERTS, r"ffn_gate_inp\.weight|_exps"),
    ],
    ids=["table and head", "the last matrix", "router"],
)
def test_any_matrix_can_have_adapters(tmp_path, monkeypatch, shape: Shape, names: str):
    bank = banked(tmp_path, written(tmp_path, monkeypatch, shape, "q8_0", padded), names)
    with Mixing(bank.model, bank.path, bank.begins) as context:
        context.masks[:] = MASKS
        alone = [both(context, [row])[0] for row in range(6)]
        assert [each.tobytes() for each in both(context, range(6))] == [each.tobytes() for each in alone]
        assert (context.unmixed, context.others) == (0, 0)
        context.masks[:] = 0
        base = both(context, range(6))
    for row, (one, other) in enumerate(zip(alone, base, strict=True)):
        assert (np.abs(one - other).max() > 1e-3) == (row != BASE), row


NO_CACHE = ("mamba", "mamba2", "rwkv7")
"""Of the families. Others are hybrids: their layers that attend tell which row a token is."""
RECURRENT = r"(ssm_(in|out|alpha|beta)|shortconv\.(in|out)_proj|attn_gate)\.weight$|time_mix_key"


@pytest.mark.parametrize("family", often((*FAMILIES,), "gemma3", "lfm2", "qwen3_5", "mamba"))
def test_every_family_computes_a_mixed_call_or_says_that_it_cannot(tmp_path, family):
    """Whose kernels compute is no part of that: as many rows are in both calls."""
    model = tmp_path / "model.gguf"
    quantize_file(HERE / f"{family}.gguf", model, "q8_0")
    bank = banked(tmp_path, model, f"{ALL}|{RECURRENT}")
    calls = [[Span(row, 0, prompt(row)[:4], 1 + (row == 1)) for row in (0, 1, 3)]]
    calls.append([Span(row, 4, [7, 8], 2) for row in (0, 1, 3)])
    with Mixing(model, bank.path, bank.begins, swa_full=False) as context:
        masks = context.masks[:] = MASKS[[0, 1, 1, 2, 0, 0, 0, 0]]
        made = [context.call(each) for each in calls]
        if family in NO_CACHE:
            assert context.unmixed > 0
            assert np.isnan(made[0]).all()
            return
        assert context.unmixed == 0
        rows = [np.repeat([0, 1, 3], [span.outputs for span in call]) for call in calls]
        for row, other in ((0, 1), (1, 3), (3, 0)):
            for mask, is_same in ((masks[row], True), (masks[other], False)):
                context.clear()
                context.masks[:] = mask
                for call, expected, of in zip(calls, made, rows, strict=True):
                    assert np.array_equal(context.call(call)[of == row], expected[of == row]) == is_same, (row, mask)


@pytest.mark.parametrize("why", ["one stream for all rows", "an adapter that is not there", "ranks of another bank"])
def test_rows_that_are_not_known_have_no_numbers(bank, why):
    begins = np.array([0, 16, 18], np.int32) if why == "ranks of another bank" else bank.begins
    with Mixing(bank.model, bank.path, begins, kv_unified=why == "one stream for all rows") as context:
        context.masks[:] = MASKS
        if why == "an adapter that is not there":
            context.masks[1] = 8
            made = context.call(spans(range(3)))
            assert np.isnan(made).any(axis=1).tolist() == [False, True, False]
            assert context.unmixed == 0
        else:
            assert np.isnan(context.call(spans(range(3)))).all()
            assert context.unmixed > 0
            assert context.unmixed % (14 * DENSE.n_layer) == 0  # of each micro-batch


def test_contexts_beside_each_other_do_not_mix_their_rows(bank):
    """In turn on one thread, with graphs that llama.cpp uses again, and on two threads at once."""
    with Mixing(bank.model, bank.path, bank.begins) as first, Mixing(bank.model, bank.path, bank.begins) as second:
        first.masks[:], second.masks[:] = MASKS, MASKS[::-1]
        pair = (first, second)
        expected = [np.concatenate(both(each, range(6))).tobytes() for each in pair]
        for each in pair:
            each.clear()
        prompts, drafts = ([each.call(call) for each in pair] for call in (spans(range(6)), steps(range(6), 2)))
        made = [np.concatenate([x[:, None], y.reshape(6, 2, -1)], 1) for x, y in zip(prompts, drafts, strict=True)]
        assert [each.tobytes() for each in made] == expected
        with ThreadPoolExecutor(2) as pool:
            for _ in range(3):
                again = pool.map(both, pair, [range(6)] * 2)
                assert [np.concatenate(rows).tobytes() for rows in again] == expected


def test_a_call_that_is_only_planned_says_whether_its_rows_are_known_and_leaves_nothing(bank):
    probe = [Span(row, 0, [5] * 4, 1 + row) for row in (0, 1)]
    with Mixing(bank.model, bank.path, bank.begins) as context, Mixing(bank.model, bank.path, bank.begins) as other:
        context.masks[:] = other.masks[:] = MASKS
        expected = np.concatenate(both(context, range(6))).tobytes()
        other.plan(probe)
        assert (other.unmixed, other.others) == (0, 0)
        assert np.concatenate(both(context, range(6))).tobytes() == expected
        assert np.concatenate(both(other, range(6))).tobytes() == expected
