"""WaitingQueue: the sequences that wait for a slot. Their order is that of policy.py."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from operators.engine.scheduler import policy
from operators.engine.scheduler.radix_tree import RadixTree
from operators.engine.scheduler.step_batch import Chunking, IdleReason
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue, PromptGroup, Slot, SlotSnapshot
from operators.settings.runtime import OptimiseSettings


class WaitingQueue:
    """The queues of all nodes. Safe to use from several threads. `mixes_adapters`: see Decoder."""

    def __init__(self, optimise: OptimiseSettings, chunking: Chunking, *, mixes_adapters: bool = True) -> None:
        self.lock = threading.RLock()
        self.tree = RadixTree(chunking.kernel_tokens)
        self.nodes: list[NodeQueue] = []
        self._optimise = optimise if chunking.shares_logits else replace(optimise, sample_sharing=False)
        self._groups: dict[bytes, PromptGroup] = {}
        self._numbers = itertools.count()
        self._mixes_adapters = mixes_adapters

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
                node.dequeue(row)
                self.tree.remove_waiting(row)
                self.leave_group(row)

    def submit(self, node: NodeQueue, rows: Iterable[Sequence]) -> None:
        """Add `rows` to `node`."""
        with self.lock:
            for row in rows:
                row.owner, row.placement.queued = node, True
                order = policy.order(row, next(self._numbers), longest_first=self._optimise.longest_first)
                node.enqueue((order, row), apart=not self._mixes_adapters)
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

    def joining(self, adapters: int | None) -> int:
        """Return how many of the admissible sequences may join those in slots, which have these `adapters`; None: there
        are none."""
        if self._mixes_adapters or adapters is None:
            return self.admissible
        return sum(min(node.admissible, node.waiting_with(adapters)) for node in self.nodes)

    def take(self, fits: Callable[[Sequence], bool], adapters: int | None = None) -> Sequence | IdleReason:
        """Return the next sequence for a slot, if it `fits`, or why there is none. `adapters`: of the sequences in
        slots; None: there are none."""
        with self.lock:
            if self._mixes_adapters:
                row = policy.next_of_all(self.nodes, self.tree)
            else:
                row = policy.next_alike(self.nodes, self.tree, adapters)
            if row is None and self.waiting:
                return IdleReason.ADAPTERS if self.admissible else IdleReason.CREDIT
            if row is None:
                return IdleReason.TAIL if self.ended else IdleReason.INPUT
            if not fits(row):
                return IdleReason.ROOM
            row.owner.admitted += 1
            row.owner.dequeue(row)
            return row

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
        adapters = row.adapters.to_bytes(8, "little")
        key = hashlib.blake2b(row.prompt.tobytes(), digest_size=16, salt=adapters).digest()
        group = self._groups.get(key)
        if group is None or not group.waiting:
            group = self._groups[key] = PromptGroup(key)
        group.waiting += 1
        row.placement.group = group
