"""Crew: the workers of a run, as its driver sees them: starts them, hands out pieces, takes answers, replaces the dead.

Everything happens in one thread, which takes events from a queue: a worker opened, answered, sent news, or ended.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.api.errors import PipelineError
from pipeline.api.meter import RowCounts
from pipeline.api.records import Batch, RejectKind
from pipeline.api.runtime import RunContext
from pipeline.cluster.cut import ClusterSize, Cut
from pipeline.cluster.identity import check_equal
from pipeline.cluster.ledger import Ledger
from pipeline.cluster.meters import RemoteMeter
from pipeline.cluster.pieces import Answer, News, Piece, Task, to_ipc
from pipeline.cluster.pool import Handle, Pool, WorkerLost
from pipeline.cluster.running_island import WorkerFailed
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.settings import ClusterSettings

NEWS_S = 1.0
"""Seconds between two questions to a worker for its counters; longer with many workers."""
STOP_S = 5.0
"""Seconds that workers have to finish their step when a run ends."""
MOST_SAID = 1000
"""Log lines of workers that are remembered, to say each once."""
MOST_STARTS = 3
"""Workers in a row that may end before they are open."""
MOST_DEATHS = 16
"""Workers in a row, besides two for each that is wanted, that may end without an answer of any."""
log = logging.getLogger(__name__)


@dataclass
class Member:
    """One worker. `place`: its number, which a replacement takes over."""

    name: str
    place: int
    handle: Handle
    opened: bool = False
    asked_at: float = 0.0
    asking: bool = False
    moved_at: float = 0.0
    seen: object = None
    totals: Mapping[str, float] = field(default_factory=dict)


class Crew:
    """The workers of one run.

    Args:
        settings, size: of the cluster.
        pool: starts workers.
        context: of the run; gets totals, parts and status of the workers.
        tables: metrics tables of the run.
        islands: that they run.
        meters: of the nodes of the islands.
        began_with: called with the identity of the first worker that opens; raises if the run began on other machines.
        compares: two answers to one piece must be equal.
        stall_s: seconds after which a worker in which nothing moves is ended; None for never.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        size: ClusterSize,
        pool: Pool,
        context: RunContext,
        tables: MetricsTables,
        islands: Sequence[Cut],
        meters: Mapping[str, RemoteMeter],
        began_with: Callable[[Mapping[str, str]], None],
        *,
        compares: bool = True,
        stall_s: float | None = None,
    ) -> None:
        self._settings, self._pool, self._context = settings, pool, context
        self._size = size
        self._islands = {island.name: island for island in islands}
        self._tables = tables
        self._meters = dict(meters)
        self._began_with = began_with
        self._compares = compares
        self._stall_s = stall_s
        self._ledger = Ledger(settings.in_flight, settings.poison_after, copies=settings.copies)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._answers: dict[str, deque[tuple[Piece, Answer]]] = {name: deque() for name in self._islands}
        self._wake: dict[str, Callable[[], None]] = {}
        self._ended: set[str] = set()
        self._members: dict[str, Member] = {}
        self._identity: tuple[str, Mapping[str, str]] | None = None
        self._digests: dict[int, tuple[str, bytes]] = {}
        self._begun_at = self._added_up_at = 0.0
        self._deaths_at_start = self._deaths_in_a_row = 0
        self._counts = Counter[str]()
        self._lost_totals = Counter[str]()
        self._said: set[tuple[str, str]] = set()
        self._failure: PipelineError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="crew")

    def start(self) -> None:
        """Begin to start all workers; returns at once."""
        self._begun_at = self._context.clock()
        self._context.totals.append(self._totals)
        self._context.statuses.append(self._status)
        for place in range(1, self._size.workers + 1):
            self._hire(place, f"{place}")
        self._thread.start()

    def connect(self, island: str, wake: Callable[[], None]) -> None:
        """Have `wake` called when an answer for `island` has come, or the crew has failed."""
        self._wake[island] = wake

    def submit(self, island: str, batch: Batch) -> None:
        """Hand a piece out as soon as a worker can take it."""
        piece = Piece(next(self._ledger.numbers), island, batch, self._context.round_rows())
        self._events.put(partial(self._ledger.add, piece))

    def take(self, island: str) -> list[tuple[Piece, Answer]]:
        """Return the answers that came since the last call. Raises what made the crew fail."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            found = list(self._answers[island])
            self._answers[island].clear()
        return found

    @property
    def hungry(self) -> bool:
        """True if a worker has nothing to do."""
        return not self._ledger.waiting and any(not self._ledger.pieces_of(name) for name in self._ledger.workers)

    def end(self, island: str) -> None:
        """Note that no more pieces of `island` come."""
        if island not in self._ended:
            self._ended.add(island)
            if len(self._ended) == len(self._islands):
                self._events.put(self._no_more)

    def close(self) -> None:
        """Stop all workers: they finish their step and store what is finished. Ends those that do not."""
        self._events.put(self._close)
        self._thread.join()
        members = [member for member in self._members.values() if member.opened]
        stops = [(member, member.handle.call("stop")) for member in members]
        until = time.monotonic() + STOP_S
        for member, stop in stops:
            try:
                self._take_news(member, stop.result(max(0.0, until - time.monotonic())))
            except Exception as error:  # it is ended next, and its pieces are not committed
                log.debug("worker %s did not stop: %r", member.name, error)
        self._add_up(self._context.clock())
        for member in self._members.values():
            member.handle.kill()
        self._pool.close()

    def _close(self) -> None:
        self._closing = True

    def _no_more(self) -> None:
        self._ledger.ending = True

    def _work(self) -> None:
        """Run the crew's thread."""
        while not self._closing:
            try:
                event = self._events.get(timeout=NEWS_S / 2)
            except queue.Empty:
                event = self._look
            try:
                event()
                for worker, piece in self._ledger.assign():
                    self._send(self._members[worker], piece)
                self._look()
            except PipelineError as error:
                self._fail(error)
            except Exception as error:
                log.exception("the crew failed")
                self._fail(PipelineError(f"the workers' crew failed: {type(error).__name__}: {error}"))

    def _fail(self, error: PipelineError) -> None:
        if self._failure is None:
            self._failure = error
        for wake in self._wake.values():
            wake()

    def _hire(self, place: int, name: str) -> None:
        handle = self._pool.hire(name)
        self._members[name] = member = Member(name, place, handle, moved_at=self._context.clock())
        self._call(member, "open", partial(self._opened, member))

    def _call(self, member: Member, method: str, then: Callable[[Any], None], *args: object) -> None:
        """Call a method of a worker; `then` gets its result in the crew's thread."""

        def answered(future: Future[Any]) -> None:
            self._events.put(partial(self._settle, member, future, then))

        member.handle.call(method, *args).add_done_callback(answered)

    def _settle(self, member: Member, future: Future[Any], then: Callable[[Any], None]) -> None:
        if self._members.get(member.name) is not member:
            return  # it was replaced
        try:
            found = future.result()
        except WorkerLost as error:
            self._lost(member, str(error))
        except WorkerFailed as error:
            raise WorkerFailed(f"worker {member.name}: {error}", error.exit_code) from error
        else:
            then(found)

    def _opened(self, member: Member, identity: Mapping[str, str]) -> None:
        first = self._identity
        if first is None:
            self._identity = f"worker {member.name}", identity
            self._began_with(identity)
        elif self._settings.mixed == "refuse":
            check_equal(*first, f"worker {member.name}", identity, "Make them alike")
        member.opened, member.moved_at = True, self._context.clock()
        self._deaths_at_start = 0
        self._ledger.join(member.name)
        self._counts["workers"] += 1

    def _send(self, member: Member, piece: Piece) -> None:
        if not self._ledger.pieces_of(member.name)[1:]:
            member.moved_at = self._context.clock()
        task = Task(piece.number, piece.island, to_ipc(piece.batch.data), piece.round_rows)
        self._counts["pieces"] += 1
        self._call(member, "compute", partial(self._answered, member, piece), task)

    def _answered(self, member: Member, piece: Piece, answer: Answer) -> None:
        self._deaths_in_a_row = 0
        self._take_news(member, answer.news)
        self._ledger.answered(member.name, piece.number)
        first = self._digests.pop(piece.number, None)
        if first is None:
            if piece.workers and self._compares:
                self._digests[piece.number] = member.name, answer.digest
            self._deliver(piece, answer)
        elif first[1] != answer.digest:
            raise WorkerFailed(
                f"workers {first[0]} and {member.name} gave other bytes for the same {piece.num_rows} rows from row"
                f" {piece.batch.data.column('row')[0].as_py()}: one of the machines is broken, or they are not alike"
            )

    def _deliver(self, piece: Piece, answer: Answer) -> None:
        with self._lock:
            self._answers[piece.island].append((piece, answer))
        self._wake[piece.island]()

    def _lost(self, member: Member, why: str) -> None:
        """Replace a worker that has ended, and hand its pieces out again."""
        del self._members[member.name]
        self._lost_totals.update(member.totals)
        self._deaths_in_a_row += 1
        self._deaths_at_start += not member.opened
        pieces = len(self._ledger.pieces_of(member.name))
        what = f"its {pieces} pieces are computed again" if pieces else "it had no pieces"
        log.warning("worker %s has ended: %s; %s, and another is started", member.name, why, what)
        self._counts["workers_lost"] += 1
        if self._deaths_at_start >= MOST_STARTS:
            raise WorkerFailed(f"workers end before they can begin, {MOST_STARTS} in a row; the last one: {why}")
        if self._deaths_in_a_row >= MOST_DEATHS + 2 * self._size.workers:
            raise WorkerFailed(f"{self._deaths_in_a_row} workers in a row ended without an answer; the last one: {why}")
        for piece in self._ledger.leave(member.name):
            self._deliver(piece, self._given_up(piece, why))
        generation = member.name.partition(".")[2] or "1"
        self._hire(member.place, f"{member.place}.{int(generation) + 1}")

    def _given_up(self, piece: Piece, why: str) -> Answer:
        """Return the answer for a row that ends every worker that computes it."""
        island = self._islands[piece.island]
        alone = f"{piece.deaths_alone} of which computed nothing else"
        reason = f"it ended {piece.deaths} workers, {alone}; the last one: {why}"
        rejects = piece.batch.reject(range(piece.num_rows), reason, RejectKind.ERROR)
        counts = {name: RowCounts() for name in island.nodes}
        counts[island.nodes[0]] = RowCounts(rows_in=piece.num_rows, rejected=piece.num_rows)
        self._counts["rows_given_up"] += piece.num_rows
        return Answer(to_ipc(island.made.empty_table()), [(island.nodes[0], rejects.rows)], counts)

    def _look(self) -> None:
        """Ask workers for news, and end those in which nothing moves."""
        now = self._context.clock()
        if not any(m.opened for m in self._members.values()) and self._counts["workers"] == 0:
            if now - self._begun_at > self._settings.start_timeout_s:
                waited = f"no worker was ready within cluster.start_timeout_s={self._settings.start_timeout_s:g} s"
                raise WorkerFailed(f"{waited}: {self._pool.missing()}")
            return
        if now - self._added_up_at >= NEWS_S:
            self._add_up(now)
        every = max(NEWS_S, len(self._members) / 16)
        for member in list(self._members.values()):
            if member.opened and not member.asking and now - member.asked_at >= every:
                member.asking, member.asked_at = True, now
                self._call(member, "news", partial(self._take_news, member))
            idle = not self._ledger.pieces_of(member.name)
            if member.opened and not idle and self._stall_s and now - member.moved_at > self._stall_s:
                log.error("worker %s: nothing has moved in it for %g s; it is ended", member.name, self._stall_s)
                self._counts["workers_stalled"] += 1
                member.handle.kill()

    def _take_news(self, member: Member, news: News) -> None:
        member.asking = False
        member.totals = news.totals or member.totals
        for reading in news.meters:
            meter = self._meters.get(reading.name)
            if meter is None:
                meter = self._meters[reading.name] = RemoteMeter(reading.name)
                self._context.parts.append(meter)
            meter.update(member.name, reading)
        seen = [(r.name, r.counts["batches"], r.counts["tokens_in"], r.counts["tokens_out"]) for r in news.meters]
        if seen and seen != member.seen:
            member.seen, member.moved_at = seen, self._context.clock()
        for table in news.tables:
            self._tables.get(table.name, table.schema).add(member.name, table.rows)
        for level, name, text in news.log:
            if (name, text) not in self._said:  # most are the same from every worker
                if len(self._said) < MOST_SAID:
                    self._said.add((name, text))
                logging.getLogger(name).log(level, "worker %s: %s", member.name, text)

    def _add_up(self, now: float) -> None:
        """Add up the meters of all workers, once in a while: that takes longer the more there are."""
        self._added_up_at = now
        for meter in list(self._meters.values()):
            meter.add_up()

    def _totals(self) -> dict[str, float]:
        found = Counter(self._lost_totals)
        for member in list(self._members.values()):
            found.update(member.totals)
        counts = {f"cluster/{key}": float(value) for key, value in self._counts.items()}
        ledger = {"cluster/pieces_redone": self._ledger.redone, "cluster/pieces_copied": self._ledger.copied}
        return {**found, **counts, **{key: float(value) for key, value in ledger.items()}}

    def _status(self) -> str:
        redone = f", {self._ledger.redone} pieces redone" if self._ledger.redone else ""
        return f"workers {len(self._ledger.workers)}/{self._size.workers}{redone}"
