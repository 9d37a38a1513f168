"""Sharing of prefixes and prompts: the same tokens with less computed."""

from __future__ import annotations

import math
from unittest.mock import Mock

import numpy as np
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.engine.scheduler import policy
from operators.engine.scheduler.policy import CELLS_PER_TOKEN
from operators.engine.scheduler.radix_tree import RadixTree
from operators.engine.scheduler.step_batch import Chunking
from operators.engine.sequence import Sequence
from operators.settings.runtime import KERNEL_TOKENS
from tests.operators.engine.fixtures import WARM, Bench, RecordingDecoder, in_slot, only, prompts, sequences, shape


def family(count: int, shared: int, seed: int = 0, longest: int = 90) -> list[np.ndarray]:
    """Prompts with `shared` tokens in common."""
    head = np.random.default_rng(seed + 100).integers(0, 256, shared).astype(np.int32)
    return [np.concatenate([head, tail]) for tail in prompts(count, longest, seed)]


def tokens_computed(bench: Bench) -> int:
    return sum(bench.column("prefill_tokens"))


def nodes_in(tree: RadixTree) -> int:
    nodes, found = list(tree._roots.values()), 0
    while nodes:
        node = nodes.pop()
        found += len(node.children)
        nodes += node.children.values()
    return found


def mixed_families() -> list[np.ndarray]:
    """Rows of two long families, a short one, duplicates, and strangers, in no order."""
    texts = [*family(12, 100), *family(12, 70, seed=5), *family(12, 30, seed=9, longest=25), *prompts(12, seed=3)]
    texts += texts[:6]
    return [texts[i] for i in np.random.default_rng(1).permutation(len(texts))]


def test_a_common_prefix_is_computed_once():
    texts = family(20, 128, longest=90)
    texts = [t for t in texts if len(t) >= 192]  # 64 tokens of its own at least, so that all of the prefix can be taken
    bench = Bench(shape(4))
    bench.run(sequences(texts))
    own = sum(len(t) - 128 for t in texts)
    assert tokens_computed(bench) == 128 + own
    assert bench.scheduler.counts.shared_tokens == 128 * (len(texts) - 1)


@pytest.mark.parametrize(
    ("shared", "of_first", "least", "finished"),
    [
        *((128, 0, 16, [0, 2, 1]), (16, 0, 16, [0, 2, 1]), (15, 0, 16, [0, 1, 2]), (128, 48, 16, [0, 1, 2])),
        *((128, 0, 128, [0, 2, 1]), (128, 0, 144, [0, 1, 2]), (128, 48, 64, [0, 2, 1])),
    ],
)
def test_a_row_whose_prefix_is_cached_goes_before_one_that_would_be_first(
    shared, of_first, least, finished, monkeypatch
):
    """Unless that one has a cached prefix, too. `least`: tokens that count as one."""
    monkeypatch.setattr(policy, "LEAST_PREFIX", least)
    one, other = family(2, shared, longest=90)
    rows = sequences([one, np.append(one[:of_first], prompts(1, seed=7)[0]).astype(np.int32), other])
    for row, most in zip(rows, (30, 20, 10), strict=True):
        row.max_tokens = most  # the row that may make most tokens is first
    assert [*Bench(shape(1)).run(rows)] == finished


@pytest.mark.parametrize(("per_sequence", "copied"), [(True, False), (False, True)])
def test_a_prefix_that_takes_less_to_compute_than_to_copy_is_computed(per_sequence, copied):
    texts = [t for t in family(9, 128) if len(t) >= 192]

    def run(cells: int) -> int:
        sizes = shape(len(texts), max_sequence_tokens=cells, per_sequence=per_sequence, deterministic=per_sequence)
        bench = Bench(sizes)
        bench.run(sequences(texts))
        return bench.scheduler.counts.copies

    assert bool(run(129 * CELLS_PER_TOKEN)) == copied
    assert run(128 * CELLS_PER_TOKEN)


@pytest.mark.parametrize("keeps", [True, False])
def test_nothing_is_taken_from_slots_whose_tokens_may_be_overwritten(keeps, monkeypatch):
    """As with a sliding window in the unified layout: tests/families/test_families.py has it on llama.cpp."""
    monkeypatch.setattr(RecordingDecoder, "most_shared", math.inf if keeps else 0)
    bench = Bench(shape(4, per_sequence=False, deterministic=False))
    bench.run(sequences([*family(8, 128), *[prompts(1)[0]] * 4]))
    assert bool(bench.scheduler.counts.shared_tokens) == bool(bench.scheduler.counts.copies) == keeps


def test_a_row_that_waits_for_another_is_looked_at_once_a_step(monkeypatch):
    bench = Bench(shape(2, max_sequence_tokens=2048))
    cache = bench.scheduler.cache
    asked = Mock(side_effect=cache._lookup)
    monkeypatch.setattr(cache, "_lookup", asked)
    bench.client().submit(sequences([np.arange(1000, dtype=np.int32)] * 2))
    bench.worker.step()
    asked.reset_mock()
    for _ in range(5):
        bench.worker.step()
    assert asked.call_count == 5


def test_samples_that_are_admitted_much_later_still_share():
    """Four slots, thirty samples: most begin when the first have long ended."""
    text = prompts(1, seed=11)[0]
    bench = Bench(shape(4), optimise=only(sample_sharing=True))
    rows = sequences([text] * 30, WARM)
    assert bench.run(rows) == Bench(shape(4), optimise=only()).run(sequences([text] * 30, WARM))
    assert tokens_computed(bench) == len(text)
    assert all(row.placement.group is None for row in rows)


def test_a_node_that_leaves_takes_its_rows_out_of_the_tree():
    bench = Bench(shape(2))
    client = bench.client()
    rows = sequences([*family(10, 40), *[prompts(1)[0]] * 4])
    client.submit(rows)
    bench.worker.step()
    client.leave()
    for slot in bench.scheduler.slots.slots:
        bench.scheduler.cache.clear(slot)
    assert nodes_in(bench.queue.tree) == 0
    assert not bench.queue._groups
    assert not bench.scheduler.runnable


@pytest.mark.parametrize("common", [200, 250])
def test_no_row_waits_for_the_rest_of_a_prompt_whose_row_has_left(common):
    """It takes what was computed: the first piece of 128 tokens. With 250 tokens in common it has the very prompt."""
    head, stranger = np.arange(250, dtype=np.int32), np.full(251, 7, np.int32)
    bench = Bench(shape(2))
    first, second = bench.client(), bench.client()
    first.submit(sequences([stranger], max_tokens=1))
    second.submit(sequences([head]))
    for _ in range(3):
        bench.worker.step()
    second.leave()
    rows = sequences([np.concatenate([head[:common], stranger])[:250]])
    first.submit(rows)
    for _ in range(6):
        bench.worker.step()
    assert rows[0].tokens
    assert rows[0].placement.shared_tokens == 128


def test_a_row_that_left_early_hides_no_slot_that_has_more():
    """It had 256 of its 400 tokens; the one that took these has 380."""
    head = np.arange(400, dtype=np.int32)
    bench = Bench(shape(2, deterministic=False, max_sequence_tokens=512))
    first, second = bench.client(), bench.client()
    rows = [sequences([head[:length]], max_tokens=1)[0] for length in (380, 400)]
    second.submit(sequences([head]))
    bench.worker.step()
    first.submit(rows[:1])
    bench.worker.step()
    second.leave()
    bench.worker.step()
    first.submit(rows[1:])
    bench.worker.step()
    assert [row.placement.shared_tokens for row in rows] == [256, 380]


def test_the_tree_is_written_under_the_lock(monkeypatch):
    """Nodes add their sequences to it meanwhile."""
    bench, written = Bench(shape(4)), []

    def guard(name: str) -> None:
        write = getattr(RadixTree, name)

        def guarded(*args: object) -> object:
            assert bench.queue.lock._is_owned()  # type: ignore[attr-defined]
            written.append(name)
            return write(*args)

        monkeypatch.setattr(RadixTree, name, guarded)

    for name in ("add_waiting", "remove_waiting", "insert", "release"):
        guard(name)
    bench.run(sequences(mixed_families(), WARM))
    assert set(written) == {"add_waiting", "remove_waiting", "insert", "release"}


def test_what_may_be_shared_depends_on_the_kernel_of_both():
    chunking = Chunking(KERNEL_TOKENS)
    text = np.arange(200, dtype=np.int32)

    assert chunking.shared(text, text) == 200 - 64
    assert chunking.shared(text[:130], text) == 66
    assert chunking.shared(text[:127], text) == 0
    assert chunking.shared(text[:60], text) == 0
    assert chunking.shared(text[:60], text[:50]) == 50
    assert chunking.shared(text[:60], text[:60]) == 58
    assert Chunking(0).shared(text[:60], text) == 59


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 500])
@pytest.mark.parametrize("room", [64, 100, 128])
def test_chunks_end_and_keep_their_kernel(length, room):
    chunking = Chunking(KERNEL_TOKENS)
    row = in_slot(Sequence(0, np.zeros(length, np.int32), SamplingParams(), 0, 1))
    sizes = []
    while row.to_compute:
        sizes.append(chunking.size(row, room))
        if not sizes[-1]:
            break
        row.slot.num_cached += sizes[-1]
    if room >= 128 or length <= room:
        assert sum(sizes) == length
    least = 64 if length >= 64 else min(2, length)
    assert all(size >= least or size == 0 for size in sizes)
