"""RadixTree: finds common prefixes among waiting prompts and slots.

Users declare nothing: common system prompts or examples are found from the tokens. Prefixes are whole blocks of BLOCK
tokens; two prompts are compared directly beyond their last common block. There is a node only where prompts end or
branch: its edge stands for all the blocks since the node above, whose sequences and owners are those of the node. So a
prompt that begins like no other is a single node, however long it is, and no token is copied.
"""

from __future__ import annotations

import itertools

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Order, PrefixNode, RowHeap, Slot, SlotSnapshot

BLOCK = 16
"""Tokens of the shortest prefix worth sharing, of which all in the tree are multiples: copying a row of the usual 1,024
cells between slots takes as long as computing 3 tokens (docs/performance.md)."""


class RadixTree:
    """The prefixes of all waiting sequences, and of all slots and snapshots.

    Args:
        kernel_tokens: prompts of fewer tokens share with each other only, as do the others; 0: all share with all.
            Those of sequences with different adapters never share: they have roots of their own.

    Attributes:
        cached: nodes for which a sequence waits and whose tokens a slot or snapshot has.
    """

    def __init__(self, kernel_tokens: int) -> None:
        self._kernel_tokens = kernel_tokens
        self._numbers = itertools.count(1)
        self.cached: dict[PrefixNode, None] = {}
        self._roots: dict[tuple[int, bool], PrefixNode] = {}

    def add_waiting(self, row: Sequence, order: Order) -> None:
        """Add the prefixes of `row`, which waits in its node queue."""
        number, entry = next(self._numbers), (order, row)
        end = row.placement.node = self.end_of(row)
        for node in () if end is None else end.path():
            heap = node.waiting.get(row.owner)
            if heap is None:
                heap = node.waiting[row.owner] = RowHeap()
            heap.push(entry)
            self._note_cached(node, number)

    def end_of(self, row: Sequence, blocks: int | None = None) -> PrefixNode | None:
        """Return the node in which the first `blocks` blocks of the prompt of `row` end, by default all whole ones;
        None if it is too short to be shared. The node must get a sequence that waits, or an owner."""
        prompt = row.prompt
        if len(prompt) <= BLOCK:
            return None
        kind = row.adapters, len(prompt) >= self._kernel_tokens
        node = self._roots.get(kind)
        if node is None:
            node = self._roots[kind] = PrefixNode(None, b"", 0, np.empty(0, np.int32))
        blocks = len(prompt) // BLOCK if blocks is None else blocks
        while node.depth < blocks:
            key = _key(prompt, node.depth)
            child = node.children.get(key)
            if child is None:
                node.children[key] = PrefixNode(node, key, blocks, prompt)
                return node.children[key]
            ends = child.prompt[: min(blocks, child.depth) * BLOCK], prompt[: blocks * BLOCK]
            common = common_length(*ends, (node.depth + 1) * BLOCK) // BLOCK
            node = child if common == child.depth else self._split(child, common)
        return node

    def remove_waiting(self, row: Sequence) -> None:
        """Remove `row`, which no longer waits. Its slot must be inserted before."""
        node = row.placement.node
        while node is not None and node.parent is not None:
            heap = node.waiting[row.owner]
            heap.discard()
            if not heap.count:
                del node.waiting[row.owner]
            node = self._left(node, node.parent)

    def insert(self, owner: Slot | SlotSnapshot, end: PrefixNode | None) -> None:
        """Make `owner` one of the prefixes that end in `end`."""
        number = next(self._numbers)
        for node in () if end is None else end.path():
            node.owners[owner] = None
            self._note_cached(node, number)

    def release(self, owner: Slot | SlotSnapshot, end: PrefixNode | None, depth: int = 0) -> PrefixNode | None:
        """Reduce `owner` to at most `depth` blocks of the prefixes that end in `end`; return its new end."""
        node = end
        while node is not None and node.parent is not None and node.depth > depth:
            above = node.parent if node.parent.depth >= depth else self._split(node, depth)
            node.owners.pop(owner, None)
            node = self._left(node, above)
        return node

    def _note_cached(self, node: PrefixNode, number: int) -> None:
        if node.waiting and node.owners and not node.noted:
            node.noted = number
            self.cached[node] = None

    def _forget_cached(self, node: PrefixNode) -> None:
        node.noted = 0
        self.cached.pop(node, None)

    def _split(self, node: PrefixNode, depth: int) -> PrefixNode:
        """Put a node of `depth` blocks into the edge of `node`, and return it. `node` keeps its end."""
        assert node.parent is not None
        above = node.parent.children[node.key] = PrefixNode(node.parent, node.key, depth, node.prompt)
        above.waiting = {owner: heap.copy() for owner, heap in node.waiting.items()}
        above.owners = node.owners.copy()
        if node.noted:
            above.noted = node.noted
            self.cached[above] = None
        node.parent, node.key = above, _key(node.prompt, depth)
        above.children[node.key] = node
        return above

    def _left(self, node: PrefixNode, parent: PrefixNode) -> PrefixNode:
        """Take `node`, which a sequence or an owner has left, out of the tree if nothing has its prefix, or if all that
        have it go on to the same node below; return its `parent`."""
        below = next(iter(node.children.values()), None)
        if not (node.waiting and node.owners):
            self._forget_cached(node)
        if not (node.waiting or node.owners):
            del parent.children[node.key]
        elif below is not None and (below.users, below.noted) == (node.users, node.noted):
            parent.children[node.key] = below
            below.parent, below.key = parent, node.key
            self._forget_cached(node)
        else:
            node.prompt = node.any_prompt()
        return parent


def _key(prompt: TokenIds, depth: int) -> bytes:
    """Return the block of `prompt` after the first `depth`."""
    return prompt[depth * BLOCK : (depth + 1) * BLOCK].tobytes()


def common_length(one: TokenIds, other: TokenIds, known: int = 0) -> int:
    """Return the length of the common prefix of two prompts; `known`: tokens known to be equal."""
    n = min(len(one), len(other))
    different = one[known:n] != other[known:n]
    first = int(different.argmax()) if len(different) else 0
    return known + first if len(different) and different[first] else n
