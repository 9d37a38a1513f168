"""WaitingQueue: the sequences that wait for a slot. Their order is that of policy.py."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from operators.engine.scheduler import policy
from operators.engine.scheduler.radix_tree import RadixTree
from operators.engine.scheduler.step_batch import Chunking
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue, PromptGroup, Slot, SlotSnapshot
from operators.settings.runtime import OptimiseSettings


class WaitingQueue:
    """The queues of all nodes. Safe to use from several threads."""

    def __init__(self, optimise: OptimiseSettings, chunking: Chunking) -> None:
        self.lock = threading.RLock()
        self.tree = RadixTree(chunking.kernel_tokens)
        self.nodes: list[NodeQueue] = []
        self._optimise = optimise if chunking.shares_logits else replace(optimise, sample_sharing=False)
        self._groups: dict[bytes, PromptGroup] = {}
        self._numbers = itertools.count()

    @property
    def shares(self) -> bool:
        """True if sequences may use each other's KV cache."""
        return self._optimise.prefix_sharing or self._optimise.sample_sharing

    def share_nothing(self) -> None:
        """Have sequences submitted from now on compute all of their prompts."""
        self._optimise = replace(self._optimise, prefix_sharing=False, sample_sharing=False)

    def add(self, node: NodeQueue) -> None:
        """Serve the sequences of `node` from now on."""
        with self.lock:
            self.nodes = policy.by_depth([*self.nodes, node])

    def drop(self, node: NodeQueue) -> None:
        """Stop serving `node`; its sequences in slots go on."""
        with self.lock:
            self.nodes = [other for other in self.nodes if other is not node]
            for row in node.heap.rows():
                row.placement.queued = False
                node.heap.discard()
                self.tree.remove_waiting(row)
                self.leave_group(row)

    def submit(self, node: NodeQueue, rows: Iterable[Sequence]) -> None:
        """Add `rows` to `node`."""
        with self.lock:
            for row in rows:
                row.owner, row.placement.queued = node, True
                order = policy.order(row, next(self._numbers), longest_first=self._optimise.longest_first)
                node.heap.push((order, row))
                if self._optimise.prefix_sharing:
                    self.tree.add_waiting(row, order)
                if self._optimise.sample_sharing and len(row.prompt) > 1:
                    self._join_group(row)

    @property
    def waiting(self) -> bool:
        return any(node.waiting for node in self.nodes)

    @property
    def admissible(self) -> int:
        """Number of waiting sequences whose node has room to take them back."""
        return sum(node.admissible for node in self.nodes)

    @property
    def ended(self) -> bool:
        """True if no more sequences will come."""
        return all(node.ended for node in self.nodes)

    def take(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the next sequence for a slot, if it `fits`."""
        with self.lock:
            for node in self.nodes:
                if node.admissible:
                    row = policy.next_waiting(node, self.tree)
                    if row is None or not fits(row):
                        return None
                    node.admitted += 1
                    row.placement.queued = False
                    node.heap.discard()
                    return row
        return None

    def own(self, owner: Slot | SlotSnapshot) -> None:
        """Have rows find the prompt of `owner` in it."""
        with self.lock:
            self.tree.insert(owner, owner.node)
            if owner.group is not None:
                owner.group.owners.add(owner)

    def disown(self, owner: Slot | SlotSnapshot) -> None:
        """Have no row find the prompt of `owner` in it any more."""
        with self.lock:
            self.tree.release(owner, owner.node)
            if owner.group is not None:
                owner.group.owners.discard(owner)

    def leave_group(self, row: Sequence) -> None:
        """Remove `row`, which has its prompt or no longer needs it, from its prompt group."""
        group, row.placement.group = row.placement.group, None
        if group is not None:
            with self.lock:
                group.waiting -= 1
                if not group.waiting:
                    group.logits = None
                    if self._groups.get(group.key) is group:
                        del self._groups[group.key]

    def _join_group(self, row: Sequence) -> None:
        key = hashlib.blake2b(row.prompt.tobytes(), digest_size=16).digest()
        group = self._groups.get(key)
        if group is None or not group.waiting:
            group = self._groups[key] = PromptGroup(key)
        group.waiting += 1
        row.placement.group = group
