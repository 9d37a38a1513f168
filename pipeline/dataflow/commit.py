"""ChunkWindow and Committer: when a chunk may begin and when it is committed.

Chunks are committed in order, each once: when chunk k is committed, so are all before it. On this rely ChunkWindow (a
window, not a set), Outbox and Inbox (a ChunkEnd never overtakes another), Executor (a resume seeks the source to one
chunk), RunState.committed_chunks and commit (one number says where a resume begins; the state of an operator is that
of the last chunk, or appended chunk by chunk), Target, Rounds, Limit and Runtime.stop_after_chunk (which rows are the
first ones), WriteBatch (lines in order), the dry run (where a run would begin) and pipeline.runs.repair.

A commit that waits for a later chunk stops the source: only `max_open_chunks` chunks may be uncommitted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from pipeline.api.errors import Cancelled, PipelineError, Released
from pipeline.api.meter import RowCounts, StageMeter, StageState
from pipeline.api.records import ChunkEnd, Shard
from pipeline.dataflow.graph import REJECT_WRITER
from pipeline.dataflow.reject_writer import RejectTally
from pipeline.dataflow.stopper import Stopper
from pipeline.run_dir.chunk_record import ChunkRecord, OperatorState


class ChunkSink(Protocol):
    """Keeps complete chunks. `commit` is called once per chunk, in order, in the thread of some node."""

    def commit(self, record: ChunkRecord) -> None: ...


class ChunkWindow:
    """Bounds the open chunks: a source may begin chunk k when fewer than `max_open` before it are uncommitted.

    Args:
        max_open: chunks that may be open (begun and not committed).
        first: the first uncommitted chunk.
        last: the last chunk that may begin; None for no limit.
    """

    def __init__(self, max_open: int, first: int = 0, last: int | None = None) -> None:
        self._max_open = max_open
        self._committed = first
        self._last = last
        self._stop: type[Cancelled | Released] | None = None
        self._changed = threading.Condition()

    def begin(self, chunk: int, meter: StageMeter) -> None:
        """Wait until `chunk` may begin; the time counts as blocked on `meter`. Raises Released if `chunk` is after the
        last one, and the reason of `stop`."""
        if self._last is not None and chunk > self._last:
            raise Released

        def may_go_on() -> bool:
            return chunk < self._committed + self._max_open or self._stop is not None

        with self._changed:
            if not may_go_on():
                with meter.clock.during(StageState.BLOCKED):
                    self._changed.wait_for(may_go_on)
            if self._stop is not None:
                raise self._stop

    def committed(self, chunk: int) -> None:
        """Move the window: `chunk` and all before it are committed."""
        with self._changed:
            self._committed = max(self._committed, chunk + 1)
            self._changed.notify_all()

    def stop(self, why: type[Cancelled | Released]) -> None:
        """Make `begin` raise `why`, also in a call that is waiting. Cancelled is never replaced by Released."""
        with self._changed:
            if self._stop is not Cancelled:
                self._stop = why
            self._changed.notify_all()


class Committer:
    """Collects the parts of each chunk and commits it, in order, when all sinks and the reject writer have ended it.

    Each node adds its part before it sends the ChunkEnd downstream, so the record is complete when the last sink has
    ended the chunk. A sink that has left counts as having ended every later chunk, but a chunk that no sink has ended
    is not committed. Nothing else commits: neither cancelling nor a failure does.

    Args:
        sinks: names of the nodes without an output.
        keep: where chunks are committed.
        window: moved on every commit.
        stopper: ends the run when the chunk given to `stop_after` is committed, and when a commit fails.
        tally: counts the rows that stay with an error.
    """

    def __init__(
        self, sinks: Sequence[str], keep: ChunkSink, window: ChunkWindow, stopper: Stopper, tally: RejectTally
    ) -> None:
        self._sinks = frozenset(sinks)
        self._live = {*sinks, REJECT_WRITER}
        self._keep = keep
        self._window = window
        self._stopper = stopper
        self._tally = tally
        self._last: int | None = None
        self._committed = -1
        self._open: dict[int, ChunkRecord] = {}
        self._lock = threading.Lock()
        self._committing = threading.Lock()  # a second lock, so that `add` does not wait for the disk
        self.counts: dict[str, RowCounts] = {}
        """Row counts of all chunks committed in this attempt, by node."""

    def add(
        self,
        node: str,
        end: ChunkEnd,
        counts: RowCounts,
        shards: Sequence[Shard] = (),
        state: OperatorState | None = None,
    ) -> None:
        """Add the part of `node` to the record of a chunk that the node has ended. `shards` have temporary names."""
        with self._lock:
            record = self._open.setdefault(end.chunk, ChunkRecord(end.chunk, end.rows))
            record.counts[node] = counts
            record.shards += shards
            for shard in shards:
                record.rejects.update(shard.rejects)
            record.rejects.update(self._tally.keep(node, counts.kept))
            if state is not None:
                record.states[node] = state
        if node in self._live:
            self._commit_ready()

    def leave(self, node: str) -> None:
        """Note that `node` has ended without failure and will add no more parts."""
        with self._lock:
            self._live.discard(node)
        self._commit_ready()

    def stop_after(self, chunk: int) -> None:
        """Commit no chunk after `chunk` (-1: none at all). It may be committed already. Only the first call counts."""
        with self._lock:
            if self._last is not None:
                return
            self._last = chunk
            is_committed = chunk <= self._committed
        if is_committed:
            self._stopper.stop(None)

    def _commit_ready(self) -> None:
        with self._committing:
            while (record := self._next_ready()) is not None:
                for node, counts in record.counts.items():
                    self.counts.setdefault(node, RowCounts()).add(counts)
                record.counts.pop(REJECT_WRITER, None)  # has no account of its own
                self._commit(record)
                with self._lock:
                    del self._open[record.chunk]
                    self._committed = record.chunk
                    is_last = record.chunk == self._last
                self._window.committed(record.chunk)
                if is_last:
                    self._stopper.stop(None)

    def _commit(self, record: ChunkRecord) -> None:
        """Commit in the thread of some node. A failure ends the run, but not in the name of that node."""
        if self._stopper.abandoned.is_set():
            raise Cancelled  # it has ended without this thread
        try:
            self._keep.commit(record)
        except PipelineError as error:
            self._stopper.cancel(error)
            raise Cancelled from error

    def _next_ready(self) -> ChunkRecord | None:
        with self._lock:
            record = self._open[min(self._open)] if self._open else None
            if record is None or (self._last is not None and record.chunk > self._last):
                return None
            ended = record.counts.keys()
            return record if self._live <= ended and self._sinks & ended else None
