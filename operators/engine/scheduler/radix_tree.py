"""What prompts have in common: a tree over the prompts that wait and those in the slots.

Nothing is declared by the user: rows that begin with the same system prompt or the same examples are found from their
tokens. The tree is a radix tree whose edges are blocks of BLOCK tokens; how far two prompts agree beyond the last
common block is then seen by comparing the two.

How a prompt may be cut. CPU flash attention has one kernel for 64 tokens and more of a row (KERNEL_TOKENS in
operators/settings/runtime.py) and another for fewer, and a lone token has a third. So a prompt keeps its bits wherever
it is cut as long as every piece is computed by the kernel that the whole would have been: pieces of 64 tokens or more
for a prompt of 64 or more, of 2 to 63 for a shorter one (tests/operators/llama/test_cuts.py). And a short prompt may
not take the beginning of a long one, nor the reverse: the tree keeps them apart.
"""

from __future__ import annotations

from operators.engine.backend.interface import TokenIds
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import PrefixNode, Slot
from operators.engine.sequence.row_heap import Order, RowHeap

BLOCK = 16
"""Tokens of an edge of the tree, and the fewest that are worth sharing: to copy a row of the usual 1,024 cells between
slots takes as long as to compute 3 tokens (docs/performance.md)."""
_BYTES = BLOCK * 4


class PrefixTree:
    """The prefixes of all rows that wait and of all slots.

    Args:
        kernel_tokens: prompts of fewer tokens share with each other only, as do the others; 0: all share with all.
    """

    def __init__(self, kernel_tokens: int) -> None:
        self._kernel_tokens = kernel_tokens
        self.at_hand: dict[int, dict[PrefixNode, None]] = {}
        """By depth the nodes of which a row waits that a slot begins like: with each node those above it."""
        self._roots = {False: PrefixNode(None, b""), True: PrefixNode(None, b"")}

    def __len__(self) -> int:
        nodes, found = list(self._roots.values()), 0
        while nodes:
            node = nodes.pop()
            found += len(node.children)
            nodes += node.children.values()
        return found

    def enter(self, row: Sequence, order: Order) -> None:
        """`row` waits in its line."""
        ids = row.prompt
        if len(ids) <= BLOCK:
            return
        node = self._roots[len(ids) >= self._kernel_tokens]
        data = ids.tobytes()
        for start in range(0, len(data) - _BYTES + 1, _BYTES):
            key = data[start : start + _BYTES]
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = PrefixNode(node, key)
            heap = child.waiting.get(row.placement.node_queue)
            if heap is None:
                heap = child.waiting[row.placement.node_queue] = RowHeap()
            heap.push(order, row)
            if child.holders:
                self._at_hand(child)
            node = child
        row.placement.node = node

    def leave(self, row: Sequence) -> None:
        """`row` has left its line. A slot that is given to it is said to `hold` its prefixes before."""
        node = row.placement.node
        while node is not None and node.parent is not None:
            heap = node.waiting[row.placement.node_queue]
            heap.left()
            if not heap.count:
                del node.waiting[row.placement.node_queue]
                if not node.waiting:
                    self._not_at_hand(node)
            node = self._pruned(node)

    def hold(self, slot: Slot, end: PrefixNode | None) -> None:
        """`slot` has the prefixes that end in `end`."""
        node = end
        while node is not None and node.parent is not None:
            node.holders[slot] = None
            if node.waiting:
                self._at_hand(node)
            node = node.parent

    def drop(self, slot: Slot, end: PrefixNode | None, depth: int = 0) -> PrefixNode | None:
        """`slot` has no more than `depth` blocks of the prefixes that end in `end`; returns where it ends now."""
        node = end
        while node is not None and node.depth > depth:
            node.holders.pop(slot, None)
            if not node.holders:
                self._not_at_hand(node)
            node = self._pruned(node)
        return node

    def _at_hand(self, node: PrefixNode) -> None:
        self.at_hand.setdefault(node.depth, {})[node] = None

    def _not_at_hand(self, node: PrefixNode) -> None:
        nodes = self.at_hand.get(node.depth)
        if nodes is not None:
            nodes.pop(node, None)
            if not nodes:
                del self.at_hand[node.depth]

    def _pruned(self, node: PrefixNode) -> PrefixNode | None:
        """Take `node` out of the tree if nobody needs it; returns its parent."""
        if node.unused and node.parent is not None and node.parent.children.get(node.key) is node:
            del node.parent.children[node.key]
        return node.parent


def common_length(one: TokenIds, other: TokenIds, known: int = 0) -> int:
    """How many tokens two prompts have in common at their beginning, where the first `known` of them are."""
    n = min(len(one), len(other))
    different = one[known:n] != other[known:n]
    first = int(different.argmax()) if len(different) else 0
    return known + first if len(different) and different[first] else n
