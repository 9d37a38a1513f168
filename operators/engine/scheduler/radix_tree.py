"""RadixTree: finds common prefixes among waiting prompts and slots.

Users declare nothing: common system prompts or examples are found from the tokens. The edges of the tree are blocks of
BLOCK tokens; two prompts are compared directly beyond their last common block.
"""

from __future__ import annotations

from operators.engine.backend.interface import TokenIds
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import Order, PrefixNode, RowHeap, Slot, Snapshot

BLOCK = 16
"""Tokens of an edge of the tree, and the shortest prefix worth sharing: copying a row of the usual 1,024 cells between
slots takes as long as computing 3 tokens (docs/performance.md)."""
_BYTES = BLOCK * 4


class RadixTree:
    """The prefixes of all waiting sequences, and of all slots and snapshots.

    Args:
        kernel_tokens: prompts of fewer tokens share with each other only, as do the others; 0: all share with all.

    Attributes:
        cached: nodes, by depth, for which a sequence waits and whose tokens a slot or snapshot has.
    """

    def __init__(self, kernel_tokens: int) -> None:
        self._kernel_tokens = kernel_tokens
        self.cached: dict[int, dict[PrefixNode, None]] = {}
        self._roots = {False: PrefixNode(None, b""), True: PrefixNode(None, b"")}

    def add_waiting(self, row: Sequence, order: Order) -> None:
        """Add the prefixes of `row`, which waits in its node queue."""
        if len(row.prompt) <= BLOCK:
            return
        end = node = self._node_of(row.prompt)
        row.placement.node = end
        while node.parent is not None:
            heap = node.waiting.get(row.owner)
            if heap is None:
                heap = node.waiting[row.owner] = RowHeap()
            heap.push(order, row)
            if node.owners:
                self._note_cached(node)
            node = node.parent

    def _node_of(self, prompt: TokenIds) -> PrefixNode:
        """Return the node in which the whole blocks of `prompt` end. It must get a sequence that waits."""
        node = self._roots[len(prompt) >= self._kernel_tokens]
        data = prompt.tobytes()
        for start in range(0, len(data) - _BYTES + 1, _BYTES):
            key = data[start : start + _BYTES]
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = PrefixNode(node, key)
            node = child
        return node

    def remove_waiting(self, row: Sequence) -> None:
        """Remove `row`, which no longer waits. Its slot must be inserted before."""
        node = row.placement.node
        while node is not None and node.parent is not None:
            heap = node.waiting[row.owner]
            heap.discard()
            if not heap.count:
                del node.waiting[row.owner]
                if not node.waiting:
                    self._forget_cached(node)
            node = self._pruned(node)

    def insert(self, owner: Slot | Snapshot, end: PrefixNode | None) -> None:
        """Make `owner` one of the prefixes that end in `end`."""
        node = end
        while node is not None and node.parent is not None:
            node.owners[owner] = None
            if node.waiting:
                self._note_cached(node)
            node = node.parent

    def release(self, owner: Slot | Snapshot, end: PrefixNode | None, depth: int = 0) -> PrefixNode | None:
        """Reduce `owner` to at most `depth` blocks of the prefixes that end in `end`; return its new end."""
        node = end
        while node is not None and node.depth > depth:
            node.owners.pop(owner, None)
            if not node.owners:
                self._forget_cached(node)
            node = self._pruned(node)
        return node

    def _note_cached(self, node: PrefixNode) -> None:
        self.cached.setdefault(node.depth, {})[node] = None

    def _forget_cached(self, node: PrefixNode) -> None:
        nodes = self.cached.get(node.depth)
        if nodes is not None:
            nodes.pop(node, None)
            if not nodes:
                del self.cached[node.depth]

    def _pruned(self, node: PrefixNode) -> PrefixNode | None:
        """Remove `node` from the tree if no slot, waiting sequence or longer prefix needs it; return its parent."""
        unused = not (node.waiting or node.owners or node.children)
        if unused and node.parent is not None and node.parent.children.get(node.key) is node:
            del node.parent.children[node.key]
        return node.parent


def common_length(one: TokenIds, other: TokenIds, known: int = 0) -> int:
    """Return the length of the common prefix of two prompts; `known`: tokens known to be equal."""
    n = min(len(one), len(other))
    different = one[known:n] != other[known:n]
    first = int(different.argmax()) if len(different) else 0
    return known + first if len(different) and different[first] else n
