"""Hand the pieces of a run out to its workers, take their answers, and hand out again what a dead one had.

Everything happens in one thread, which takes events from a queue: a worker opened, answered, reported, or ended.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial

from pipeline.api.errors import PipelineError
from pipeline.api.meter import RowCounts
from pipeline.api.numbers import Number
from pipeline.api.records import Batch, RejectKind
from pipeline.api.runtime import OF_WORKERS, RunContext
from pipeline.cluster.assignments import Assignments
from pipeline.cluster.members import NEWS_S, Event, Members
from pipeline.cluster.pieces import WorkItem, WorkRequest, WorkResult, one_batch, to_ipc
from pipeline.cluster.segments import Segment
from pipeline.dataflow.kept_errors import through_all
from pipeline.dataflow.reject_writer import counted_error
from pipeline.system.known_secrets import hidden

_NOW = {"workers_wanted": "Workers that the run asked for.", "workers_open": "Workers that are open now."}
_COUNTS = {
    "workers": "Workers that have begun, replacements among them.",
    "workers_lost": "Workers that have ended before the run.",
    "workers_stalled": "Workers that were ended since nothing moved in them.",
    "pieces": "Pieces that were sent to workers.",
    "pieces_redone": "Pieces that were sent again since their worker ended.",
    "rows_given_up": "Rows that ended every worker that computed them.",
}
"""What is counted of workers, by name."""
log = logging.getLogger(__name__)


class Dispatcher:
    """The pieces of one run, and the workers that compute them.

    Args:
        members: the workers.
        assignments: of the pieces.
        context: of the run; gets totals and status of the workers.
        segments: that they run.
    """

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        context: RunContext,
        segments: Sequence[Segment],
    ) -> None:
        self._members, self._assignments, self._context = members, assignments, context
        self._segments = {segment.name: segment for segment in segments}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._answers: dict[str, deque[tuple[WorkItem, WorkResult]]] = {name: deque() for name in self._segments}
        self._wake: dict[str, Event] = {}
        self._failure: PipelineError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="dispatcher")

    def start(self) -> None:
        """Begin to start all workers; returns at once."""
        of_the_run = {name: Number(about, group="workers") for name, about in _COUNTS.items()}
        self._context.numbers.update(of_the_run | {name: Number(about, group="") for name, about in _NOW.items()})
        self._context.totals.append(self._totals)
        self._context.statuses.append(self._status)
        self._members.start(self._events.put, self._assignments.join, self._left)
        self._thread.start()

    def connect(self, segment: str, wake: Event) -> None:
        """Have `wake` called when an answer for `segment` has come, or the dispatcher has failed."""
        self._wake[segment] = wake

    def submit(self, segment: str, batch: Batch) -> None:
        """Hand a piece out as soon as a worker can take it."""
        piece = WorkItem(next(self._assignments.numbers), segment, batch, self._context.round_rows())
        self._events.put(partial(self._assignments.add, piece))

    def take(self, segment: str) -> list[tuple[WorkItem, WorkResult]]:
        """Return the answers that came since the last call. Raises what made the dispatcher fail."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            answers = list(self._answers[segment])
            self._answers[segment].clear()
        return answers

    @property
    def has_idle_worker(self) -> bool:
        """True if a worker has nothing to do."""
        return self._assignments.has_idle_worker

    def close(self) -> None:
        """Stop all workers: they finish their step and store what is finished. Ends those that do not."""
        self._events.put(self._close)
        self._thread.join()
        self._members.stop()

    def _close(self) -> None:
        self._closing = True

    def _work(self) -> None:
        """Run the dispatcher's thread."""
        while not self._closing:
            try:
                event = self._events.get(timeout=NEWS_S / 2)
            except queue.Empty:
                event = self._look
            try:
                event()
                for worker, piece in self._assignments.assign():
                    self._send(worker, piece)
                self._look()
            except PipelineError as error:
                self._fail(error)
            except Exception as error:
                log.exception("the dispatcher failed")
                self._fail(PipelineError(f"the workers' dispatcher failed: {type(error).__name__}: {error}"))

    def _look(self) -> None:
        self._members.look(self._assignments.pieces_of)

    def _fail(self, error: PipelineError) -> None:
        if self._failure is None:
            self._failure = error
        for wake in self._wake.values():
            wake()

    def _send(self, worker: str, piece: WorkItem) -> None:
        if not self._assignments.pieces_of(worker)[1:]:
            self._members.note_work(worker)
        task = WorkRequest(piece.number, piece.segment, piece.batch.chunk, to_ipc(piece.batch.data), piece.round_rows)
        self._members.counts["pieces"] += 1
        self._members.call(worker, "compute", partial(self._answered, worker, piece), task)

    def _answered(self, worker: str, piece: WorkItem, answer: WorkResult) -> None:
        if self._assignments.answered(worker, piece.number):
            self._members.note_answer(worker)
            self._members.add_lines(worker, answer.tables)
            self._deliver(piece, answer)

    def _deliver(self, piece: WorkItem, answer: WorkResult) -> None:
        with self._lock:
            self._answers[piece.segment].append((piece, answer))
        self._wake[piece.segment]()

    def _left(self, worker: str, why: str) -> None:
        """Hand the pieces of a worker that has ended out again."""
        if pieces := len(self._assignments.pieces_of(worker)):
            log.info("the %d pieces of worker %s are computed again", pieces, worker)
        for piece in self._assignments.leave(worker):
            self._deliver(piece, self._given_up(worker, piece, why))
            self._members.places.note_given_up(why)

    def _given_up(self, worker: str, piece: WorkItem, why: str) -> WorkResult:
        """Return the answer for a row that ends every worker that computes it, `worker` at last."""
        segment = self._segments[piece.segment]
        alone = f"{piece.deaths_alone} of which computed nothing else"
        reason = f"it ended {piece.deaths} workers, {alone}; the last one, {worker}: {why}"
        first, rows = segment.nodes[0], piece.num_rows
        self._members.counts["rows_given_up"] += rows
        if segment.keepers:
            counts = {name: RowCounts(rows_in=rows, rows_out=rows) for name in segment.nodes}
            counts[first].kept[counted_error(reason)] = rows
            return WorkResult(to_ipc(through_all(segment.keepers, piece.batch.data, hidden(reason))), [], counts)
        rejects = piece.batch.reject(range(rows), reason, RejectKind.ERROR)
        counts = {name: RowCounts() for name in segment.nodes}
        counts[first] = RowCounts(rows_in=rows, rejected=rows)
        return WorkResult(to_ipc(one_batch(segment.made.empty_table())), [(first, rejects.rows)], counts)

    def _totals(self) -> dict[str, float]:
        return {**self._members.totals(), f"{OF_WORKERS}pieces_redone": float(self._assignments.redone)}

    def _status(self) -> str:
        redone = f", {self._assignments.redone} pieces redone" if self._assignments.redone else ""
        resting = self._members.places.resting
        rests = f", {resting} {'rest' if resting > 1 else 'rests'} after failures" if resting else ""
        return f"workers {len(self._assignments.workers)}/{self._members.wanted}{rests}{redone}"
