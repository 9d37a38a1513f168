"""The prefix tree: the decisions of one with a node for each block, at a cost that does not grow with prompts."""

from __future__ import annotations

import gc
import itertools
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.backend.fake import FakeDecoder
from operators.engine.sampling.params import SamplingParams
from operators.engine.scheduler.radix_tree import BLOCK, RadixTree
from operators.engine.scheduler.step_batch import Chunking
from operators.engine.scheduler.waiting_queue import WaitingQueue
from operators.engine.sequence import Sequence, State
from operators.engine.sequence.placement import NodeQueue, Order, PrefixNode, RowHeap, Slot, SlotSnapshot
from operators.settings.runtime import KERNEL_TOKENS, OptimiseSettings
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import GREEDY, Bench, sequences, shape
from tests.sets import often

MOST_CALLS = 40
"""Most calls of functions for a row that is admitted, on average."""
NODES = 2
"""Most nodes that a row adds to the tree: where it ends, and where it leaves another."""


class EveryBlock:
    """A RadixTree with a node for each block, from which no node is ever taken."""

    def __init__(self, kernel_tokens: int) -> None:
        self._kernel_tokens = kernel_tokens
        self._nodes: dict[tuple[int, bool, bytes], PrefixNode] = {}
        self.cached: list[PrefixNode] = []

    def end_of(self, row: Sequence, blocks: int | None = None) -> PrefixNode | None:
        prompt = row.prompt
        if len(prompt) <= BLOCK:
            return None
        node = None
        for depth in range((len(prompt) // BLOCK if blocks is None else blocks) + 1):
            key = row.adapters, len(prompt) >= self._kernel_tokens, prompt[: depth * BLOCK].tobytes()
            node = self._nodes.setdefault(key, PrefixNode(node, b"", depth, prompt))
        return node

    def add_waiting(self, row: Sequence, order: Order) -> None:
        row.placement.node = self.end_of(row)
        self._change(row.placement.node, lambda node: node.waiting.setdefault(row.owner, RowHeap()).push((order, row)))

    def remove_waiting(self, row: Sequence) -> None:
        def leave(node: PrefixNode) -> None:
            node.waiting[row.owner].discard()
            if not node.waiting[row.owner].count:
                del node.waiting[row.owner]

        self._change(row.placement.node, leave)

    def insert(self, owner: Slot | SlotSnapshot, end: PrefixNode | None) -> None:
        self._change(end, lambda node: node.owners.setdefault(owner))

    def release(self, owner: Slot | SlotSnapshot, end: PrefixNode | None, depth: int = 0) -> PrefixNode | None:
        self._change(end, lambda node: node.owners.pop(owner, None) if node.depth > depth else None)
        while end is not None and end.depth > depth:
            end = end.parent
        return end

    def _change(self, node: PrefixNode | None, change: Callable[[PrefixNode], object]) -> None:
        while node is not None and node.depth:
            change(node)
            both = bool(node.waiting and node.owners)
            if both != (node in self.cached):
                (self.cached.append if both else self.cached.remove)(node)
            node = node.parent


def nodes_of(tree: RadixTree) -> list[PrefixNode]:
    """The nodes of `tree` but for its roots. There is none that it could do without."""
    todo, found = list(tree._roots.values()), list[PrefixNode]()
    while todo:
        above = todo.pop()
        for key, node in above.children.items():
            assert (node.parent, node.key) == (above, key)
            assert node.depth > above.depth
            assert any(node.users)
            assert (node in tree.cached) == (node.noted > 0) == all(node.users)
            assert all((below.users, below.noted) != (node.users, node.noted) for below in node.children.values())
            found.append(node)
        todo += above.children.values()
    return found


TEXTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 250), st.sampled_from([0, 1, 15, 16, 17, 40, 100])),
    min_size=5,
    max_size=40,
)
"""Prompts, each of which begins like an earlier one: that one's place, how many of its tokens, and own tokens."""


def prompts_of(texts: list[tuple[int, int, int]]) -> list[np.ndarray]:
    made = [np.arange(200, dtype=np.int32)]
    for own, (earlier, common, length) in enumerate(texts):
        made.append(np.append(made[earlier % len(made)][:common], np.full(max(1, length), own, np.int32))[:400])
    return [text.astype(np.int32) for text in made]


def decisions(texts: list[np.ndarray], draws: list[int], kinds: list[bool], tree: type) -> list[Any]:
    """What the scheduler decides about `texts`, some of which come after each of its steps, with such a tree."""
    per_sequence, recurrent, preempts, longest_first = kinds
    decided: list[Any] = []
    steps = itertools.cycle(draws)
    with (
        patch("operators.engine.scheduler.waiting_queue.RadixTree", tree),
        patch.object(FakeDecoder, "partial", not recurrent),
    ):
        bench = Bench(
            shape(
                1 + next(steps), per_sequence=per_sequence or recurrent, deterministic=False, max_sequence_tokens=512
            ),
            preempt_every=2 if preempts else None,
            optimise=OptimiseSettings(longest_first=longest_first),
        )
        clients = [bench.client(depth, capacity=5) for depth in (1, 2)]
        rows = [
            Sequence(i, text, GREEDY, i, 1 + i % 5, priority=float(i % 7 == 0), chunk=i // 20, adapters=i % 9 // 6)
            for i, text in enumerate(texts)
        ]
        todo = rows
        while any(row.state is not State.FINISHED for row in rows):
            count = next(steps)
            clients[count % 2].submit(todo[:count])
            todo = todo[count:]
            for client in clients:
                client.collect()
            if bench.scheduler.runnable:
                bench.worker.step()
            held = [
                (row.handle, row.placement.shared_tokens, row.placement.stop) for row in bench.scheduler.slots.rows()
            ]
            decided.append([row.placement.admission for row in rows] + held)
            if isinstance(bench.queue.tree, RadixTree):
                assert len(nodes_of(bench.queue.tree)) <= NODES * (
                    len(rows) + len(held) + len(bench.scheduler.slots.slots) + bench.scheduler.counts.snapshots_taken
                )
        decided.append((bench.scheduler.counts, [row.tokens for row in rows]))
        bench.scheduler.cache.forget()
        if isinstance(bench.queue.tree, RadixTree):
            assert not nodes_of(bench.queue.tree)
            assert not bench.queue.tree.cached
    return decided


@settings(max_examples=40)
@given(TEXTS, st.lists(st.integers(0, 9), min_size=2, max_size=20), st.lists(st.booleans(), min_size=4, max_size=4))
def test_rows_are_taken_and_prefixes_shared_as_with_a_node_for_each_block(texts, draws, kinds):
    if any(draws):
        made = prompts_of(texts)
        assert decisions(made, draws, kinds, RadixTree) == decisions(made, draws, kinds, EveryBlock)


def queue_of(texts: list[np.ndarray]) -> tuple[WaitingQueue, NodeQueue, list[Sequence]]:
    """A queue, a node in it, and rows that it does not have yet."""
    queue = WaitingQueue(OptimiseSettings(), Chunking(KERNEL_TOKENS))
    node = NodeQueue(StageMeter("node"), 1, 1000, lambda: None)
    queue.add(node)
    return queue, node, [Sequence(i, text, SamplingParams(), i, 1) for i, text in enumerate(texts)]


SHAPES: dict[str, Callable[[int], list[int]]] = {
    "strangers": lambda length: [0] * 12,
    "a family": lambda length: [length // 2] * 12,
    "families within it": lambda length: [length // 2] * 6 + [length * 3 // 4] * 6,
    "each leaves it elsewhere": lambda length: [length * i // 13 for i in range(12)],
    "equal": lambda length: [length] * 12,
}
"""How many tokens of a common text rows begin with."""


def rows_of(name: str, length: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    head, *tails = (random.integers(0, 150_000, length, np.int32) for _ in range(13))
    return [np.append(head[:n], tail[n:]) for n, tail in zip(SHAPES[name](length), tails, strict=True)]


@pytest.mark.parametrize("length", often([8_192, 16_384, 32_768], 8_192))
@pytest.mark.parametrize("name", SHAPES)
def test_a_waiting_row_costs_at_most_eight_bytes_a_token_beside_its_ids(name, length):
    queue, node, rows = queue_of(rows_of(name, length))
    gc.collect()
    tracemalloc.start()
    try:
        queue.submit(node, rows)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used <= 8 * length * len(rows)
    assert len(nodes_of(queue.tree)) <= NODES * len(rows)


def calls(work: Callable[[], object]) -> int:
    """Calls of functions, those of C included, during `work`."""
    found = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # hypothesis has it call a function
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_the_work_for_a_row_does_not_grow_with_its_prompt(name):
    def work(length: int) -> list[int]:
        queue, node, rows = queue_of(rows_of(name, length))
        return [calls(lambda: queue.submit(node, rows)), calls(lambda: queue.drop(node))]

    assert work(512) == work(8_192) == work(32_768)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("longest_first", [True, False])
@pytest.mark.parametrize(("times", "length"), [(5, 512), (100, 512), (5, 1536)])
def test_the_work_of_an_admission_grows_neither_with_the_queue_nor_with_prompts(name, longest_first, times, length):
    """Rows of the same texts are in slots, so that many prefixes are cached."""
    sizes = shape(4, max_sequence_tokens=2048, n_batch=2048, n_ubatch=2048, deterministic=False)
    bench = Bench(sizes, optimise=OptimiseSettings(longest_first=longest_first))
    bench.client().submit(sequences(rows_of(name, length) * times))
    for _ in range(4):
        bench.worker.step()
    admitted = [calls(lambda: bench.queue.take(lambda _: True)) for _ in range(20)]
    assert sum(admitted) <= MOST_CALLS * len(admitted)


def test_the_ids_of_rows_that_have_left_are_freed():
    """Though others have a prefix that they were the first to have."""
    tree = RadixTree(0)
    rows = sequences([np.arange(length, dtype=np.int32) for length in (400, 300, 200)])
    for number, row in enumerate(rows):
        row.placement.queued = True
        tree.add_waiting(row, (0, 0.0, 0, number))
    first, second = (weakref.ref(row.prompt) for row in rows[:2])
    for row in rows[:2]:
        row.placement.queued = False
        tree.remove_waiting(row)
    del row, rows[:2]
    assert first() is second() is None
    assert len(nodes_of(tree)) == 1
