"""Our attention and our routers of experts (F32 matrices) through llama.cpp's own graphs: right, and the same bits in
any company and by any instructions."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from operators.llama.library import initialise
from operators.llama.packed import state
from tests.operators.llama.kernels.library import activations, runnable
from tools.bench.kernels import Bench

GOLDEN = {2: "e83580260980ae6b"}
"""By kernels_version: what attention computes."""
HIDDEN = np.float16(-np.inf)


class Given(NamedTuple):
    """What attention is computed of; see Bench.attend."""

    queries: NDArray[np.float32]
    keys: NDArray[np.float16]
    values: NDArray[np.float16]
    mask: NDArray[np.float16]

    def rows(self, streams: slice, tokens: slice = slice(None), cells: slice = slice(None)) -> Given:
        queries, mask = self.queries[streams, tokens], self.mask[streams, tokens, cells]
        return Given(queries, self.keys[streams, cells], self.values[streams, cells], mask)


class Ours:
    """Attention by kernels of our own, by name, or by llama.cpp's."""

    def __init__(self) -> None:
        initialise()
        library, what = state()
        if library is None:
            pytest.skip(what)
        self.library = library

    def of(
        self, given: Given, name: str = "", *, threads: int = 1, ours: bool = True, **more: object
    ) -> NDArray[np.float32]:
        assert self.library.kernels_use(name.encode())
        self.library.kernels_others()
        self.library.kernels_attend(ours)
        try:
            scale = given.queries.shape[-1] ** -0.5
            made, _ = Bench(threads).attend(*given, **{"scale": scale, **more})
            assert self.library.kernels_others() == (0 if ours else 1)
            return made
        finally:
            self.library.kernels_attend(False)
            self.library.kernels_use(b"")


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


def given(seed: int, tokens: int, heads: tuple[int, int], size: int, seen: list[int], window: int = 10**6) -> Given:
    """Rows of which the last token sees so many cells, and of these at most a window; one token one cell less than the
    next. Behind them are cells of other rows."""
    random = np.random.default_rng(seed)
    cells = -(-max(seen) // 64) * 64
    queries = 2 * random.standard_normal((len(seen), tokens, heads[0], size), np.float32)
    keys, values = random.standard_normal((2, len(seen), cells, heads[1], size), np.float32).astype(np.float16)
    last = np.array(seen)[:, None] - tokens + np.arange(tokens)
    behind = last[:, :, None] - np.arange(cells)
    return Given(queries, keys, values, np.where((behind >= 0) & (behind < window), np.float16(0), HIDDEN))


def truth(given: Given, cap: float = 0.0, sinks: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
    """Attention in double precision."""
    queries, keys, values, mask = (each.astype(np.float64) for each in given)
    shared = queries.shape[2] // keys.shape[2]
    scores = np.einsum("snhd,schd->snhc", queries, keys.repeat(shared, 2)) * queries.shape[-1] ** -0.5
    scores = cap * np.tanh(scores / cap) if cap else scores
    scores = scores + mask[:, :, None]
    if sinks is not None:
        of_sinks = np.broadcast_to(sinks[:, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, of_sinks], -1)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    powers /= powers.sum(-1, keepdims=True)
    return np.einsum("snhc,schd->snhd", powers[..., : keys.shape[1]], values.repeat(shared, 2))


SHAPES = [
    (1, (4, 2), 64, [100]),
    (3, (2, 2), 8, [3, 70, 4]),
    (70, (6, 2), 40, [200]),
    (5, (8, 1), 256, [1000, 1277]),
    (33, (40, 1), 16, [700]),
    (1, (3, 3), 96, [1, 2, 513, 512, 1300]),
    (40, (4, 4), 128, [600]),
    (2, (71, 1), 64, [90]),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_the_exact_one_to_some_roundings_and_the_same_by_all_instructions(ours, shape):
    tokens, heads, size, seen = shape
    sinks = np.linspace(-3, 3, heads[0], dtype=np.float32)
    for window, cap, sink in ((10**6, 0.0, None), (150, 30.0, sinks), (20, 0.0, sinks)):
        each = given(tokens, tokens, heads, size, seen, window)
        exact = truth(each, cap, sink)
        made = [ours.of(each, name, cap=cap, sinks=sink) for name in runnable()]
        assert np.abs(made[0] - exact).max() < 4e-6 * max(1, np.abs(exact).max())
        for name, other in zip(runnable(), made, strict=True):
            assert other.tobytes() == made[0].tobytes(), name


def test_what_a_mask_adds_is_in_the_scores(ours):
    each = given(0, 6, (4, 2), 32, [150, 80])
    random = np.random.default_rng(1)
    each = each._replace(mask=each.mask + random.uniform(-4, 4, each.mask.shape).astype(np.float16))
    assert np.abs(ours.of(each) - truth(each)).max() < 4e-6


@pytest.mark.parametrize("window", [10**6, 100])
def test_a_token_has_its_bits_in_any_company(ours, window):
    """Beside other rows or alone, at once with the tokens before it or after them, by any number of threads, and
    however many cells other rows have: llama.cpp rounds the number up that any row of the call has."""
    each = given(3, 70, (8, 4), 64, [70, 1290, 640], window)
    expected = ours.of(each)
    for threads in (2, 3, 5, 8):
        assert ours.of(each, threads=threads).tobytes() == expected.tobytes(), threads
    for stream, cells in enumerate((128, 1344, 640)):
        alone = each.rows(slice(stream, stream + 1), cells=slice(cells))
        assert ours.of(alone, threads=2).tobytes() == expected[stream : stream + 1].tobytes(), stream
    for first, last in ((0, 1), (1, 2), (2, 40), (40, 69), (69, 70)):
        for threads in (1, 4):
            piece = ours.of(each.rows(slice(None), slice(first, last)), threads=threads)
            assert piece.tobytes() == expected[:, first:last].tobytes(), (first, last, threads)


def test_what_a_token_does_not_see_is_nothing_to_it(ours):
    """Not even what is no number: other rows were there before, and tokens of the same row come later."""
    each = given(4, 20, (4, 2), 32, [100, 90])
    expected = ours.of(each)
    keys, values = each.keys.copy(), each.values.copy()
    keys[0, 95], values[0, 97], values[1, 90:], keys[1, 91:] = np.nan, np.inf, np.nan, -np.inf
    made = ours.of(each._replace(keys=keys, values=values))
    assert made[0, :15].tobytes() == expected[0, :15].tobytes()  # the 15th of 20 is the last that sees 95 cells
    assert made[1].tobytes() == expected[1].tobytes()
    assert np.isnan(made[0, 15:]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_no_number_is_not_lost(ours, bad):
    each = given(5, 2, (2, 2), 16, [600, 40])
    queries = each.queries.copy()
    queries[0, 1, 0, 3] = bad
    for name in runnable():
        made = ours.of(each._replace(queries=queries), name)
        assert np.isnan(made[0, 1, 0]).all()
        made[0, 1, 0] = 0
        assert np.isfinite(made).all()


def test_scores_far_apart_and_alike_are_right(ours):
    each = given(6, 1, (2, 1), 16, [1100])
    for factor in (0, 1e-6, 300, 3e4):
        scaled = each._replace(queries=each.queries * np.float32(factor))
        assert np.abs(ours.of(scaled) - truth(scaled)).max() < 1e-5 + 3e-7 * factor


def test_what_is_not_ours_stays_llama_cpps(ours):
    """With the bits of its kernels, and counted."""
    each = given(7, 3, (4, 2), 64, [100, 50])
    theirs = ours.of(each, ours=False)
    assert theirs.tobytes() != ours.of(each).tobytes()
    assert ours.of(each, ours=False).tobytes() == theirs.tobytes()
    odd = given(8, 3, (4, 2), 12, [100])  # no multiple of 8
    ours.library.kernels_others()
    ours.library.kernels_attend(True)
    try:
        made, _ = Bench(1).attend(*odd, scale=12**-0.5)
    finally:
        ours.library.kernels_attend(False)
    assert ours.library.kernels_others() == 1
    assert np.abs(made - truth(odd)).max() < 0.02


def test_no_bit_changes_without_a_new_version(ours):
    """As of products: who changes the chain raises VERSION in plugin.cpp, and writes the new digest here."""
    each = given(9, 5, (4, 2), 24, [700, 31])  # the mask; the numbers are the same with any NumPy
    parts: list[NDArray[Any]] = [each.queries, each.keys, each.values]
    drawn = [activations(1, part.size, str(i)).reshape(part.shape) for i, part in enumerate(parts)]
    each = Given(drawn[0], drawn[1].astype(np.float16), drawn[2].astype(np.float16), each.mask)
    made = ours.of(each, cap=20.0, sinks=np.linspace(-1, 1, 4, dtype=np.float32))
    digest = hashlib.sha256(made.tobytes()).hexdigest()[:16]
    assert digest == GOLDEN[ours.library.kernels_version()], "bits have changed: raise VERSION in plugin.cpp"


@pytest.mark.laws
@pytest.mark.parametrize("seed", range(200))
def test_any_shape_is_right(ours, seed):
    random = np.random.default_rng(seed)
    key_heads, shared, size = (int(random.integers(1, most)) for most in (4, 9, 33))
    tokens = int(random.integers(1, 80))
    seen = [int(each) for each in random.integers(tokens, 1400, random.integers(1, 4))]
    window = int(random.choice([10**6, 40, 300]))
    each = given(seed, tokens, (key_heads * shared, key_heads), 8 * size, seen, window)
    threads = int(random.integers(1, 9))
    assert np.abs(ours.of(each, threads=threads) - truth(each)).max() < 4e-6


ROUTER = b"blk.7.ffn_gate_inp.weight"


def routed(
    ours: Ours, weights: NDArray[Any], tokens: NDArray[Any], kernels: str = "", threads: int = 1, name: bytes = ROUTER
) -> tuple[NDArray[np.float32], int]:
    """The products (tokens, rows), and how many operations were not ours."""
    assert ours.library.kernels_use(kernels.encode())
    ours.library.kernels_others()
    ours.library.kernels_attend(True)
    try:
        return Bench(threads).multiply(weights, tokens, name), ours.library.kernels_others()
    finally:
        ours.library.kernels_attend(False)
        ours.library.kernels_use(b"")


@pytest.mark.parametrize(("rows", "size", "tokens"), [(8, 64, 1), (3, 8, 5), (130, 256, 33), (32, 1024, 16)])
def test_a_router_is_exact_to_some_roundings_and_has_its_bits_in_any_company(ours, rows, size, tokens):
    random = np.random.default_rng(rows)
    weights = random.standard_normal((rows, size), np.float32)
    inputs = random.standard_normal((tokens, size), np.float32)
    made, not_ours = routed(ours, weights, inputs)
    assert not_ours == 0
    exact = inputs.astype(np.float64) @ weights.T.astype(np.float64)
    assert np.abs(made - exact).max() < 2e-7 * size**0.5 * np.abs(exact).max()
    for kernels in runnable():
        for threads in (1, 3, 8):
            assert routed(ours, weights, inputs, kernels, threads)[0].tobytes() == made.tobytes(), (kernels, threads)
    for token in {0, tokens // 2, tokens - 1}:
        alone, _ = routed(ours, weights, inputs[token : token + 1], threads=2)
        assert alone.tobytes() == made[token : token + 1].tobytes(), token


@pytest.mark.parametrize(("name", "size"), [(b"blk.7.ssm_x.weight", 64), (ROUTER, 60)], ids=["name", "size"])
def test_other_products_in_f32_stay_llama_cpps_and_are_counted(ours, name, size):
    random = np.random.default_rng(1)
    weights, inputs = random.standard_normal((20, size), np.float32), random.standard_normal((4, size), np.float32)
    made, not_ours = routed(ours, weights, inputs, name=name)
    assert not_ours == 1
    assert np.allclose(made, inputs @ weights.T, atol=1e-4)
