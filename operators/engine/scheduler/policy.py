"""The scheduling policy: what is chosen, as functions. Change a rule here; docs/changing.md has what stands elsewhere.

| function | decides | applied by |
|---|---|---|
| `by_depth` | which node's sequences are admitted first | waiting_queue.py |
| `order`, `next_waiting` | which sequence of a node; when a cached prefix goes first, and which | waiting_queue.py |
| `next_of_all`, `next_alike` | which of all; where those with different adapters share no call | waiting_queue.py |
| `may_admit`, `reservation` | whether a sequence may take a free slot | scheduler.py |
| `placing`, `match_rank`, `least_copy` | which slots sequences get, and whose prefix they take over | prefix_cache.py |
| `next_batch` | the kind of the next step: prompts, decoding sequences, or both | scheduler.py |
| `prefill_group`, `prefill_beside` | which prompts share a call | scheduler.py |
| `closes_holes` | whether sequences move to consecutive slots before a decode step | scheduler.py |
| `victim`, `resumed` | which sequence gives up its slot where the KV cache is full, or gets one back | scheduler.py |
| `engine_rank` | which engine makes the next step | operators/engine/loop/thread.py |

The order decides, too, where recurrent models keep a prefix (snapshots.py): with the first of its sequences that is
admitted. How long a piece of a prompt is, is no choice: `Chunking` (step_batch.py) keeps to what llama.cpp computes
alike.

Nothing here moves a sequence. A text is made of the same tokens under any policy, to the bit as long as prompts do not
share a call with decoding sequences in the per-sequence layout; what changes is how long a run takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum, auto

from operators.engine.backend.shape import DecoderShape
from operators.engine.scheduler.radix_tree import BLOCK, RadixTree
from operators.engine.scheduler.step_batch import Chunking, PrefillChunk
from operators.engine.sequence import Sequence
from operators.engine.sequence.placement import NodeQueue, Order, Slot, SlotSnapshot

CHUNKS_OF_ONE_AGE = 2
CELLS_PER_TOKEN = 200
"""Copying this many cells of a row's stream, used or not, takes as long as computing one prompt token: 450 on machines
with slow prefill, some 170 with fast (docs/performance.md)."""
PATIENCE = 8
"""Most steps that an engine with rows to compute waits for others."""

LEAST_PREFIX = 16
"""Tokens at the beginning of a prompt that a slot has, from which on they count as a cached prefix; the radix tree
knows whole blocks of 16."""


def by_depth(nodes: Iterable[NodeQueue]) -> list[NodeQueue]:
    """Return the nodes as their sequences are admitted: the deepest first, so that rows leave the graph."""
    return sorted(nodes, key=lambda node: -node.depth)


def order(seq: Sequence, number: int, *, longest_first: bool) -> Order:
    """Return the sort key of `seq` among the waiting sequences of its node; the lowest is admitted first.

    By age (two neighbouring chunks before later ones, so that no priority keeps a chunk from its end), priority, the
    most tokens (what starts last should end soon, or a few long ones decode alone at the end) and arrival, which is
    `number`.
    """
    most_tokens = seq.max_tokens if longest_first else 0
    return (age(seq), -seq.priority, -most_tokens, number)


def age(seq: Sequence) -> int:
    """Return the number of its age: two neighbouring chunks have the same."""
    return seq.chunk // CHUNKS_OF_ONE_AGE


def next_of_all(nodes: Iterable[NodeQueue], tree: RadixTree) -> Sequence | None:
    """Return the sequence of `nodes` to admit next; None if none has one that it could take back."""
    node = next((node for node in nodes if node.admissible), None)
    return None if node is None else next_waiting(node, tree)


def next_alike(nodes: Iterable[NodeQueue], tree: RadixTree, adapters: int | None) -> Sequence | None:
    """Return the sequence to admit next where all in slots must have the same adapters; None if none may join them.

    Those with the adapters of the sequences in slots go on, the deepest node first, whatever their priority: a change
    drains the slots, and a call of few rows costs nearly as much as a full one. But none goes before a sequence of an
    earlier age with others. Then the slots drain, and the group (the sequences with the same adapters) of the oldest
    comes; of equally old ones that of the deepest node, by `order` in a node. So what waits of an age is computed in
    one run for each group, and the last of these goes on into the next age.

    No sequence waits forever. A node without credit has no say: it neither keeps a group going nor drains one. What is
    in slots needs nothing but steps to end, so they get empty once nothing more joins. What joins while a sequence with
    others waits is of its age or an earlier one, and of these there is an end. In empty slots the oldest sequence of
    all nodes with credit begins. A node without credit gets it when its rows are taken downstream, by nodes of which
    the same is true, and in the end by sinks, which need no slots.

    Args:
        nodes: the deepest first.
        adapters: None: slots are empty.
    """
    able = [(node, first) for node in nodes if node.admissible and (first := node.heap.first()) is not None]
    if not able:
        return None
    if adapters is None:
        _, (_, oldest) = min(able, key=lambda pair: pair[1][0][0])
        adapters = oldest.adapters
    limit = min((order[0] for node, (order, _) in able if node.has_others(adapters)), default=None)
    for node, _ in able:
        row = next_waiting(node, tree, adapters)
        if row is not None and (limit is None or age(row) <= limit):
            return row
    return None


def next_waiting(node: NodeQueue, tree: RadixTree, adapters: int | None = None) -> Sequence | None:
    """Return the sequence of `node`, or of those with `adapters`, to admit next: the first one or, if no slot has the
    beginning of its prompt, the first of those at equal age and priority that share the longest beginning with a slot;
    of equally long ones that which a slot has had longest."""
    heap = node.heap if adapters is None else node.by_adapters.get(adapters)
    first = None if heap is None else heap.first()
    if first is None:
        return None
    order, row = first
    end, least = row.placement.node, LEAST_PREFIX / BLOCK
    if end is None or not tree.cached or any(prefix.owners and prefix.depth >= least for prefix in end.path()):
        return row
    for prefix in sorted(tree.cached, key=lambda prefix: (-prefix.depth, prefix.noted)):
        heap = prefix.waiting.get(node) if prefix.depth >= least else None
        entry = None if heap is None else heap.first()
        if entry is not None and entry[0][:2] <= order[:2] and adapters in (None, entry[1].adapters):
            return entry[1]
    return row


@dataclass(slots=True)
class KvBudget:
    """The cells of a decoder as seen by admission.

    Args:
        cells: shared by all slots, those shared by sequences counted for each; None: every slot has room for a sequence
            of the greatest length, and nothing is decided.
        optimistic: reserve for the expected length, not for the greatest: sequences may then be preempted.
        finished, finished_tokens: sequences that have ended, and their completion tokens.
    """

    cells: int | None
    optimistic: bool = False
    finished: int = 0
    finished_tokens: int = 0

    def reserved(self, rows: Iterable[Sequence]) -> int:
        """Return the cells that are reserved for `rows`."""
        return 0 if self.cells is None else sum(reservation(row, self) for row in rows)


def may_admit(seq: Sequence, budget: KvBudget, reserved: int) -> bool:
    """Return True if `seq` may take a free slot: its reservation fits beside what is `reserved`, or it is alone."""
    return budget.cells is None or not reserved or reserved + reservation(seq, budget) <= budget.cells


def reservation(seq: Sequence, budget: KvBudget) -> int:
    """Return the KV cells to reserve for `seq`: for its greatest length, or for the expected one, the mean of those
    that have ended, but more than drawn so far."""
    tokens = seq.max_tokens
    if budget.optimistic:
        expected = budget.finished_tokens / budget.finished if budget.finished else tokens / 2
        tokens = min(tokens, max(round(expected), len(seq.tokens) + 1))
    return seq.cells(tokens)


def placing(rows: Iterable[Sequence]) -> list[Sequence]:
    """Return the order in which sequences that take over no slot get the lowest free ones: similar lengths get adjacent
    slots, to be computed together."""
    return sorted(rows, key=lambda row: -len(row.prompt))


def match_rank(source: Slot | SlotSnapshot, count: int) -> tuple[int, bool, int]:
    """Return the sort key of a source of the first `count` tokens of a prompt; the highest is the best: the longest
    prefix, rather one that is there already, and of equal ones the lowest slot."""
    return count, source.num_cached >= count, -source.index if isinstance(source, Slot) else 0


def least_copy(shape: DecoderShape) -> int:
    """Return the fewest tokens of a prefix to wait for and copy; fewer are computed again. In the unified layout cells
    are shared and not copied; else the backend copies the whole row."""
    return shape.max_sequence_tokens // CELLS_PER_TOKEN if shape.per_sequence else 0


class StepKind(Enum):
    """The work of a step: sampling from known logits, without a call; a prefill group; one step of every decoding
    sequence; or this with as many prompt tokens as fit into the micro-batch."""

    SAMPLE = auto()
    PREFILL = auto()
    DECODE = auto()
    MIXED = auto()


def next_batch(rows: int, known_logits: int, prefilling: int, *, per_sequence: bool, block: int = 0) -> StepKind | None:
    """Return the kind of the next step; None if there is nothing to do.

    Sampling first, since it costs nothing and the sequences then decode with the others. Prompts before decoding, since
    a slot that prefills later is a slot that does not decode now. In the per-sequence layout they do not share a call:
    llama.cpp cuts a batch into micro-batches of equal token counts over consecutive slots (prompts of 60, 70 and 90
    tokens become 3x60, 2x10, 1x20), so a prompt beside decoding sequences would be cut where its neighbours are, its
    bits would depend on them, and nothing would be gained, since each micro-batch streams the weights anew. In the
    unified layout there is one micro-batch, and blocks are all of one length.

    Args:
        rows, known_logits, prefilling: sequences in slots; those that can sample without a call, or have a prompt to
            compute now.
        per_sequence, block: see DecoderShape.
    """
    if known_logits:
        return StepKind.SAMPLE
    if prefilling:
        return StepKind.PREFILL if per_sequence and not block else StepKind.MIXED
    return StepKind.DECODE if rows else None


def prefill_group(rows: Seq[Sequence], chunking: Chunking, room: int, *, grouped: bool) -> list[PrefillChunk]:
    """Return a chunk of the first of `rows`, which are in slot order; if `grouped`, also chunks of equal length of the
    rows in the following slots, within `room` tokens: one micro-batch. Images and tokens share no call, nor do lone
    tokens between images, where the backend computes one token with other kernels."""
    first = rows[0]
    size, image = chunking.size(first, room), first.next_image is not None
    alone = not grouped or size > room or (size == 1 and chunking.kernel_tokens > 0)
    most = 1 if alone else room // size
    chunks: list[PrefillChunk] = []
    for place, row in enumerate(rows[:most]):
        if row.slot.index != first.slot.index + place or chunking.size(row, room) != size:
            break
        if (row.next_image is not None) != image:
            break
        chunks.append(PrefillChunk(row, size, size == row.to_compute))
    return chunks


def prefill_beside(rows: Iterable[Sequence], chunking: Chunking, room: int) -> list[PrefillChunk]:
    """Return chunks of `rows`, in this order, that fit into `room` tokens beside decoding sequences."""
    chunks: list[PrefillChunk] = []
    for row in rows:
        size = chunking.size(row, room) if room > 0 else 0
        if not size:
            break
        chunks.append(PrefillChunk(row, size, size == row.to_compute))
        room -= size
    return chunks


def closes_holes(shape: DecoderShape, *, compaction: bool, lonely: bool) -> bool:
    """Return True if sequences are to be in consecutive slots for a decode step: a hole cuts it into several
    micro-batches, and the backend computes a row that is alone in one (`lonely`) with other kernels."""
    return shape.per_sequence and (compaction or (shape.needs_rules and lonely))


def victim(seqs: Iterable[Sequence]) -> Sequence:
    """Return which of `seqs`, at least one, is preempted: the youngest, which loses least."""
    return max(seqs, key=lambda seq: seq.placement.admission)


def resumed(seqs: Iterable[Sequence]) -> Sequence:
    """Return which of the preempted `seqs`, at least one, gets a slot first: the oldest."""
    return min(seqs, key=lambda seq: seq.placement.admission)


def engine_rank(passed: int, fullness: float, depth: int) -> tuple[bool, float, int]:
    """Return the sort key of an engine with rows to compute; the highest makes the next step.

    The one that was passed over PATIENCE times in succession, then the one that fills most of its slots, since a step
    costs nearly the same for one row and for many, then the one furthest downstream, so that rows leave the graph.

    Args:
        passed: how often it was passed over in succession.
        fullness: the share of its slots that the next call can fill.
        depth: the greatest depth in the graph of a node with sequences in it.
    """
    return passed >= PATIENCE, fullness, depth
