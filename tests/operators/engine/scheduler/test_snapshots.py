"""Prefixes of recurrent models: computed once, kept as snapshots, and the same tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.fake import FakeDecoder
from operators.settings.runtime import OptimiseSettings
from tests.operators.engine.fixtures import GREEDY, WARM, Bench, only, prompts, sequences, shape
from tests.operators.engine.scheduler.test_prefix_cache import family, mixed_families, nodes_in, tokens_computed
from tests.sets import often


@pytest.fixture(autouse=True)
def recurrent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDecoder, "partial", False)


def distinct(texts: list[np.ndarray]) -> int:
    """Tokens that differ from those of all texts before: what must be computed at least."""
    before: set[bytes] = set()
    for text in texts:
        before |= {text[: n + 1].tobytes() for n in range(len(text))}
    return len(before)


def sizes(slots: int, **others: int | bool | None):
    return shape(slots, flash_attention=False, max_sequence_tokens=512, **others)


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_a_common_prefix_is_computed_once(slots):
    texts = family(40, 128)
    bench = Bench(sizes(slots), flash_attention=False)
    bench.run(sequences(texts))
    assert distinct(texts) <= tokens_computed(bench) + len(texts) <= 1.05 * distinct(texts) + len(texts)
    counts = bench.scheduler.counts
    assert counts.snapshots_taken == 1
    assert counts.snapshots_used == len(texts) - 1
    assert sum(bench.column("snapshots_used")) == counts.snapshots_used
    # One has a single token more, which may not be computed alone.
    assert max(bench.column("snapshot_bytes")) == bench.scheduler.cache.snapshot_bytes == 8 * 128


@pytest.mark.parametrize("slots", [1, 5])
def test_prefixes_within_prefixes_are_computed_once(slots):
    """A system prompt for all, and examples for each of three tasks."""
    system = prompts(1, seed=50)[0][:40].repeat(2)
    texts = [np.concatenate([system, text]) for seed in (1, 2, 3) for text in family(8, 100, seed=seed)]
    texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
    bench = Bench(sizes(slots), flash_attention=False)
    assert bench.run(sequences(texts, WARM)) == Bench(sizes(slots), optimise=only()).run(sequences(texts, WARM))
    assert tokens_computed(bench) <= 1.05 * distinct(texts)
    assert bench.scheduler.counts.snapshots_taken == 4


def test_where_kernels_differ_a_stop_suits_all_that_branch_off():
    """With flash attention a chunk has 64 tokens or more, so some take less than they have in common."""
    texts = [np.concatenate([family(1, 200)[0][:200], tail]) for tail in prompts(16, seed=3)]
    bench = Bench(shape(4, max_sequence_tokens=512))
    bench.run(sequences(texts))
    assert bench.scheduler.counts.snapshots_used >= 15
    assert distinct(texts) < tokens_computed(bench) <= distinct(texts) + 64 * len(texts)
    calls = zip(bench.column("prefill_tokens"), bench.column("rows"), strict=True)
    assert all(tokens >= 64 * rows for tokens, rows in calls if tokens)


def test_prompts_that_share_little_make_no_stop():
    head, tails = np.arange(40, dtype=np.int32), prompts(3, seed=4)
    texts = [np.concatenate([head[:common], tail]) for common, tail in zip((40, 40, 20), tails, strict=True)]
    for slots in (1, 4):
        bench = Bench(sizes(slots), flash_attention=False)
        bench.run(sequences(texts))
        assert bench.scheduler.counts.snapshots_taken == 0


def test_equal_prompts_share_the_state_and_the_logits():
    texts = [text for text in prompts(6, seed=7) for _ in range(8)]
    bench = Bench(sizes(3), optimise=only(sample_sharing=True))
    rows = sequences(texts, WARM)
    assert bench.run(rows) == Bench(sizes(3), optimise=only()).run(sequences(texts, WARM))
    assert tokens_computed(bench) == sum(len(text) for text in texts[::8] if len(text) > 1)
    assert all(row.placement.group is None for row in rows)
    assert bench.scheduler.cache.snapshot_bytes <= 8 * 91  # of the last; those whose prompts have all begun are gone


@pytest.mark.parametrize(("slots", "params"), [(1, WARM), (4, GREEDY), (4, WARM)])
@pytest.mark.parametrize("budget", often([0, 1, 512], 1))
def test_no_budget_changes_a_token(slots, params, budget, monkeypatch):
    monkeypatch.setattr("operators.engine.scheduler.snapshots.MIB", 3000)  # room for two or three
    texts = mixed_families()
    bench = Bench(sizes(slots), flash_attention=False, snapshot_mb=budget)
    expected = Bench(sizes(slots), optimise=only()).run(sequences(texts, params))
    assert bench.run(sequences(texts, params)) == expected
    assert max(bench.column("snapshot_bytes")) <= 3000 * budget
    counts = bench.scheduler.counts
    assert bool(counts.shared_tokens) == bool(budget)
    assert bool(counts.snapshots_evicted) == (budget == 1), "rows come in an order of which budget 1 keeps a part"


def test_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr("operators.engine.scheduler.snapshots.MIB", 2 * 8 * 129)  # room for two
    often, once, later = (family(8, 128, seed=seed) for seed in (1, 2, 3))
    parts = (often[:3], once[:2], often[3:5], later, often[5:])
    bench = Bench(sizes(1), flash_attention=False, snapshot_mb=1, optimise=OptimiseSettings(longest_first=False))
    client = bench.client()
    for some in parts:
        client.submit(sequences(some))
        while bench.scheduler.runnable:
            bench.worker.step()
    assert len(client.collect()) == sum(map(len, parts))
    assert bench.scheduler.counts.snapshots_taken == 3  # that of `often` was never made again
    assert bench.scheduler.counts.snapshots_evicted == 1


def test_a_snapshot_above_the_budget_is_told_once_and_prompts_are_computed_whole(monkeypatch, caplog):
    monkeypatch.setattr("operators.engine.scheduler.snapshots.MIB", 100)
    texts = family(6, 128)
    bench = Bench(sizes(2), flash_attention=False, snapshot_mb=1)
    assert bench.run(sequences(texts)) == Bench(sizes(2), optimise=only()).run(sequences(texts))
    assert bench.scheduler.counts.snapshots_taken == bench.scheduler.cache.snapshot_bytes == 0
    assert caplog.text.count("runtime.snapshot_mb=1") == 1


def test_a_damaged_snapshot_is_computed_again(monkeypatch, caplog):
    restore, calls = FakeDecoder.restore, itertools.count()

    def damaged(decoder, slot, saved):
        if next(calls) in (0, 3):
            raise DecodeFailed(1, "the state of a row cannot be restored")
        restore(decoder, slot, saved)

    texts = family(20, 128)
    expected = Bench(sizes(4), optimise=only()).run(sequences(texts))
    monkeypatch.setattr(FakeDecoder, "restore", damaged)
    bench = Bench(sizes(4), flash_attention=False)
    assert bench.run(sequences(texts)) == expected
    assert bench.scheduler.counts.snapshots_evicted == 2
    assert bench.scheduler.counts.snapshots_taken == 3
    assert caplog.text.count("computed again") == 2


def test_no_snapshot_is_taken_while_a_copy_waits_for_a_call():
    """llama.cpp copies at the next call. To have it done earlier costs a token, which a recurrent state keeps."""
    bench = Bench(sizes(4), flash_attention=False)
    done: list[str] = []

    def note(name: str) -> None:
        call = getattr(bench.decoder, name)

        def noted(*args: object) -> object:
            done.append(name)
            return call(*args)

        setattr(bench.decoder, name, noted)

    for name in ("copy", "save", "decode"):
        note(name)
    bench.run(sequences(mixed_families()))
    assert {"copy", "save"} <= set(done)
    assert ("copy", "save") not in itertools.pairwise(done)


def test_nothing_is_left_in_the_tree_but_the_snapshots():
    bench = Bench(sizes(3), flash_attention=False)
    bench.run(sequences(mixed_families()))
    assert bench.scheduler.cache.snapshot_bytes
    bench.scheduler.cache.forget()
    assert bench.scheduler.cache.snapshot_bytes == nodes_in(bench.queue.tree) == 0
    assert not bench.queue.tree.cached
    assert not bench.queue._groups
