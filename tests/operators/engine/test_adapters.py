"""Rows with adapters: each gets the tokens that it gets alone, mixed in a call or not, and nothing crosses adapters.

Where a decoder does not mix them, the fake one raises for a call of two kinds.
"""

from __future__ import annotations

import itertools
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.fake import FakeDecoder, FakeModel
from operators.engine.sequence import Sequence
from operators.engine.strategies.speculative.lookup import DraftedRow
from operators.generation.duplicates import Duplicates
from tests.operators.engine.block_diffusion.rows import complete
from tests.operators.engine.block_diffusion.test_engine import ENDING, FOUR, RAGGED, SHIFTED, TEXTS
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, RecordingDecoder, prompts, shape
from tests.operators.engine.rules import scheduled
from tests.operators.engine.scheduler.test_prefix_cache import family, mixed_families, tokens_computed
from tests.operators.engine.speculative.drafters import Oracle, speculative
from tests.operators.engine.test_neighbours import WAYS
from tests.operators.engine.test_recovery import some
from tests.sets import often

pytestmark = [pytest.mark.usefixtures("memory"), pytest.mark.slow("schedules random queues of rows with adapters")]

KINDS = (0, 1, 2, 6, 1 << 63)
"""Adapters of rows: none, the first, the second, two of them, the last that there can be."""


@pytest.fixture(params=[True, False], ids=["mixing", "one kind a call"])
def mixes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(FakeDecoder, "mixes_adapters", request.param)
    return bool(request.param)


def rows_of(kind: type[Sequence] = Sequence) -> list[Sequence]:
    """Rows of some families, duplicates and samples among them, of several ages and priorities, with random adapters;
    and each of a few prompts with all of them."""
    random, texts = np.random.default_rng(4), mixed_families()
    adapters = [KINDS[i] for i in random.integers(0, len(KINDS), len(texts))]
    pairs = [*zip(texts, adapters, strict=True), *itertools.product(texts[:4], KINDS)]
    return [
        kind(i, text, (GREEDY, WARM)[i % 2], 1000 + i, 40, priority=float(i % 3), chunk=i // 9, adapters=adapters)
        for i, (text, adapters) in enumerate(pairs)
    ]


@cache
def alone() -> dict[object, list[int]]:
    """The tokens of each row in an engine of its own."""
    return {row.handle: Bench(shape(1)).run([row])[row.handle] for row in rows_of()}


def row_with(adapters: int, number: int = 0, chunk: int = 0, text: np.ndarray | None = None) -> Sequence:
    """A short greedy row."""
    prompt = np.full(5, number % 200, np.int32) if text is None else text
    return Sequence(number, prompt, GREEDY, 0, 4, priority=float(number % 3), chunk=chunk, adapters=adapters)


def calls_of(bench: Bench) -> list[set[int]]:
    """The adapters of the rows of each call of `bench`, from now on."""
    calls: list[set[int]] = []
    decode = bench.decoder.decode

    def noted() -> Any:
        batch = bench.decoder.batch
        calls.append(set(batch.adapters[batch.seq_id[: batch.n_tokens]].tolist()))
        return decode()

    bench.decoder.decode = noted  # type: ignore[method-assign]
    return calls


def test_adapters_change_texts():
    texts = prompts(6)
    made = [Bench(shape(6)).run([row_with(kind, i, text=text) for i, text in enumerate(texts)]) for kind in KINDS]
    assert all(one != other for one, other in itertools.combinations(made, 2))


@pytest.mark.parametrize("slots", often((1, 3, 5, 16), 5))
@pytest.mark.parametrize("way", often(WAYS, "all optimised", "unified, few cells", "preempted at times"))
def test_a_row_gets_the_tokens_that_it_gets_alone(slots, way, mixes):
    rules = dict(WAYS[way])
    sizes = shape(slots, **{key: rules.pop(key) for key in ("per_sequence", "deterministic", "n_ctx") if key in rules})
    bench, rows = Bench(sizes, **rules), rows_of()
    calls = calls_of(bench)
    assert bench.run([rows[i] for i in np.random.default_rng(slots).permutation(len(rows))]) == alone()
    assert (max(map(len, calls)) > 1) == (mixes and slots > 1)
    assert not any(node.by_adapters for node in bench.queue.nodes)
    assert bool(sum(bench.column("unfilled_adapters"))) == (not mixes and slots > 1)
    if way == "all optimised":
        assert bench.scheduler.counts.shared_tokens > 150
    assert bench.scheduler.counts.preempted > 10 or "preempt_every" not in WAYS[way] or slots == 1


@pytest.mark.parametrize("code", often([1, 2, -1, -3], -3))
def test_calls_that_fail_are_made_again_in_parts_with_the_same_adapters(code, mixes, memory):
    if FakeDecoder.partial:
        bench = Bench(shape(6))
        bench.decoder = RecordingDecoder(shape(6), some(5, code))
        bench.use(None)
        assert bench.run(rows_of()) == alone()
        assert bench.scheduler.counts.failed_calls


@pytest.mark.parametrize("slots", [1, 5])
def test_drafts_change_no_token(slots, mixes):
    if FakeDecoder.partial:
        bench = Bench(shape(slots))
        bench.use(partial(speculative, Oracle(alone(), 0.8), adaptive=False, draft_tokens=3))
        assert bench.run(rows_of(DraftedRow)) == alone()
        assert bench.engine.totals()["accepted_tokens"]


@pytest.mark.parametrize("decode", [FOUR, SHIFTED], ids=["", "shifted"])
def test_blocks_are_those_of_a_row_alone(decode, mixes):
    if FakeDecoder.partial:
        adapters = [KINDS[i % 3] for i in range(len(TEXTS))]
        texts = [TEXTS[i // 3 * 3] for i in range(len(TEXTS))]  # each with all three
        with scheduled(preempt_every=3):
            done = complete(FakeModel(), decode, texts, RAGGED, ENDING, slots=6, adapters=adapters)
        pairs = enumerate(zip(texts, RAGGED, adapters, strict=True))
        expected = {i: complete(FakeModel(), decode, [t], n, ENDING, adapters=[a]).ids[0] for i, (t, n, a) in pairs}
        assert done.ids == expected
        assert done.ids != complete(FakeModel(), decode, texts, RAGGED, ENDING, slots=6).ids


@pytest.mark.parametrize("kinds", [(1, 1), (1, 2), (0, 4)])
def test_equal_prompts_share_with_equal_adapters_alone(kinds, mixes):
    """Their tokens, their logits, and the state after them: four samples of one prompt with each."""
    text = family(1, 128)[0]
    bench = Bench(shape(8))
    rows = [Sequence(i, text, WARM, i, 10, adapters=kinds[i // 4]) for i in range(8)]
    bench.run(rows)
    assert tokens_computed(bench) == len(text) * len(set(kinds))
    assert sum(row.placement.shared_logits for row in rows) == 8 - len(set(kinds))


def test_no_row_stops_for_those_with_other_adapters():
    """A state at a common beginning is saved for others that can use it."""
    texts = [text for text in family(9, 128) if len(text) >= 192]
    for kinds, snapshots in (((1, 1), 1), ((1, 2), 0)):
        bench = Bench(shape(2))
        bench.run([Sequence(i, texts[i], GREEDY, i, 5, adapters=kind) for i, kind in enumerate(kinds)])
        assert bench.scheduler.counts.snapshots_taken == (0 if FakeDecoder.partial else snapshots)
        assert bool(bench.scheduler.counts.shared_tokens) == bool(snapshots)


def test_duplicates_have_the_same_adapters():
    rows = [Sequence(i, np.arange(9, dtype=np.int32), GREEDY, i, 5, adapters=kind) for i, kind in enumerate((3, 0, 3))]
    duplicates = Duplicates[Sequence](enabled=True)
    assert [duplicates.joins(row) for row in rows] == [False, False, True]
