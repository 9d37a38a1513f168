"""The workers of a run, as its driver sees them: started, compared, asked for reports, replaced when they end."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.api.numbers import added
from pipeline.api.runtime import OF_WORKERS, RunContext
from pipeline.cluster.identity import WorkerIdentity, check_equal
from pipeline.cluster.meters import RemoteMeter
from pipeline.cluster.pieces import TableRows, WorkerReport, from_ipc
from pipeline.cluster.places import Member, Place, Places, has_hope
from pipeline.cluster.pool import Pool, WorkerLost
from pipeline.cluster.segment_runner import NotOpened, WorkerFailed
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.settings import ClusterSettings

NEWS_S = 1.0
"""Seconds between two questions to a worker for its counters; longer with many workers."""
LOOK_S = 0.25
"""Seconds between two looks at all workers."""
STOP_S = 5.0
"""Seconds that workers have to finish their step when a run ends."""
MOST_SAID = 1000
"""Log lines of workers that are remembered, to say each once."""
STACKS_S = 2.0
"""Seconds that a worker in which nothing moves has to say where its threads are."""
ALIKE = "Give a run machines with the same build and the same kind of processor"
log = logging.getLogger(__name__)

Event = Callable[[], None]


class Members:
    """Starts the workers of a run and watches them. All is called by one thread, but `totals`.

    Args:
        settings: of the cluster.
        wanted: number of workers.
        pool: starts workers.
        context: of the run.
        tables: metrics tables of the run.
        meters: of the nodes of the segments.
        began_with: called with what computes the nodes in the first worker that opens; raises if the run began on other
            machines.
        stall_s: seconds after which a busy worker in which nothing moves is ended; None for never.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        wanted: int,
        pool: Pool,
        context: RunContext,
        tables: MetricsTables,
        meters: Mapping[str, RemoteMeter],
        began_with: Callable[[Mapping[str, str]], None],
        stall_s: float | None,
    ) -> None:
        self._settings, self.wanted, self._pool, self._context = settings, wanted, pool, context
        self._tables, self._meters, self._began_with, self._stall_s = tables, dict(meters), began_with, stall_s
        self._members: dict[str, Member] = {}
        self.places = Places(wanted)
        self._first: tuple[str, WorkerIdentity] | None = None
        self._none_open_at = self._looked_at = self._added_up_at = 0.0
        self.counts = Counter[str]()
        """Of workers and of their pieces."""
        self._totals: dict[str, Mapping[str, float]] = {}
        self._logged: set[tuple[str, str]] = set()

    def start(
        self, post: Callable[[Event], None], joined: Callable[[str], None], left: Callable[[str, str], None]
    ) -> None:
        """Begin to start all workers.

        Args:
            post: has an event called later, by the thread.
            joined: called with the name of each worker that can take pieces.
            left: called with the name of each that has ended, and why.
        """
        self._post, self._joined, self._left = post, joined, left
        self._none_open_at = self._context.clock()
        for place in self.places.all:
            self._start_worker(place)

    def call(self, name: str, method: str, then: Callable[[Any], None], *args: object) -> None:
        """Call a method of the worker `name`; `then` gets its result as an event."""
        self._call(self._members[name], method, then, *args)

    def note_work(self, name: str) -> None:
        """Note that the worker `name` begins to work: it has not stalled before."""
        self._members[name].moved_at = self._context.clock()

    def note_answer(self, name: str) -> None:
        """Note that the worker `name` has answered a piece."""
        self.places.note_answer(self._members[name])
        self._members[name].moved_at = self._context.clock()

    def add_lines(self, name: str, tables: Sequence[TableRows]) -> None:
        """Add lines of metrics tables of the worker `name`."""
        for table in tables:
            lines = from_ipc(table.rows)
            self._tables.get(table.name, lines.schema).extend(lines.columns, name)

    def look(self, busy: Callable[[str], object]) -> None:
        """Start workers in places that have rested, ask for reports, and end those in which nothing moves though they
        are `busy`: it returns what the worker of a name has to do. Raises WorkerFailed if none has opened in time, or
        none can be reached any more."""
        now = self._context.clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if (lost := self._pool.lost) is not None:
            raise WorkerFailed(lost)
        if self._opened_count():
            self._none_open_at = now
        elif now - self._none_open_at > self._settings.start_timeout_s:
            waited = f"no worker was ready within cluster.start_timeout_s={self._settings.start_timeout_s:g} s"
            last = f"; the last one that ended: {self.places.last_end}" if self.places.last_end else ""
            raise WorkerFailed(f"{waited}: {self._pool.missing()}{last}")
        for place in self.places.rested(now):
            self._start_worker(place)
        if now - self._added_up_at >= NEWS_S:
            self._add_up(now)
        every = max(NEWS_S, len(self._members) / 8)
        for member in list(self._members.values()):
            if member.opened and not member.asking and now - member.asked_at >= every:
                member.asking, member.asked_at = True, now
                self._call(member, "report", partial(self._take_report, member))
            if not member.opened or not busy(member.name):
                continue
            if self._stall_s and now - member.moved_at > self._stall_s:
                self._end_stalled(member, now)

    def stop(self) -> None:
        """Stop all workers: they finish their step and store what is finished. Ends those that do not."""
        if self._pool.lost is None:
            self._stop_all()
        self._add_up(self._context.clock())

    def totals(self) -> dict[str, float]:
        """Return what all workers have counted, and counts of the workers."""
        counts = {**self.counts, "workers_wanted": self.wanted, "workers_open": self._opened_count()}
        totals = added(*list(self._totals.values()))
        return {**totals, **{f"{OF_WORKERS}{key}": float(value) for key, value in counts.items()}}

    def _opened_count(self) -> int:
        return sum(member.opened for member in list(self._members.values()))

    def _stop_all(self) -> None:
        opened = [member for member in self._members.values() if member.opened]
        stops = [(member, member.handle.call("stop")) for member in opened]
        until = time.monotonic() + STOP_S
        for member, stop in stops:
            try:
                self._take_report(member, stop.result(max(0.0, until - time.monotonic())))
            except Exception as error:  # it is ended next, and its pieces are not committed
                log.debug("worker %s did not stop: %r", member.name, error)
        for member in self._members.values():
            member.handle.kill()

    def _start_worker(self, place: Place) -> None:
        name = place.next_name()
        handle = self._pool.start_worker(name)
        self._members[name] = member = Member(name, place, handle, moved_at=self._context.clock())
        self._call(member, "open", partial(self._opened, member))

    def _call(self, member: Member, method: str, then: Callable[[Any], None], *args: object) -> None:
        def answered(future: Future[Any]) -> None:
            self._post(partial(self._settle, member, future, then))

        member.handle.call(method, *args).add_done_callback(answered)

    def _settle(self, member: Member, future: Future[Any], then: Callable[[Any], None]) -> None:
        if self._members.get(member.name) is not member:
            return  # it was replaced
        try:
            answer = future.result()
        except WorkerLost as error:
            self._lost(member, str(error), error.host)
        except WorkerFailed as error:
            others = [other for other in self._members.values() if other is not member]
            if not isinstance(error, NotOpened) or not has_hope(others):
                raise WorkerFailed(f"{member.named(error.host)}: {error}", error.exit_code) from error
            member.place.unfit = True
            self._lost(member, f"it cannot begin: {error}", error.host)
        else:
            then(answer)

    def _opened(self, member: Member, identity: WorkerIdentity) -> None:
        member.host = identity.host
        if self._first is None:
            self._first = member.named(), identity
            try:
                self._began_with(identity.nodes)
            except ConfigError as error:
                raise ConfigError(f"{member.named()}: {error}") from error
        else:
            name, first = self._first
            theirs, its = ({**of.program, **of.nodes} for of in (first, identity))
            check_equal(name, theirs, member.named(), its, ALIKE)
        member.opened, member.moved_at = True, self._context.clock()
        member.place.never_opened, member.place.unfit = 0, False
        self.counts["workers"] += 1
        self._joined(member.name)

    def _lost(self, member: Member, why: str, host: str) -> None:
        """Replace a worker that has ended, or cannot be reached: it is ended then, since it holds a place. The place
        rests first if its workers end again and again, and there are others. Raises WorkerFailed if no worker is open,
        and none can be expected to open."""
        del self._members[member.name]
        member.handle.kill()
        self.counts["workers_lost"] += 1
        if host := member.host or host:
            why = f"on {host}: {why}"
        log.log(member.place.level, "worker %s has ended: %s", member.name, why)
        self._left(member.name, why)
        if self.places.end(member, why, self._members.values(), self._context.clock()):
            self._start_worker(member.place)

    def _end_stalled(self, member: Member, now: float) -> None:
        """End a worker in which nothing moves, once it has said where its threads are."""
        if member.stalled_at is None:
            log.error("%s: nothing has moved in it for %g s; it is ended", member.named(), self._stall_s)
            self.counts["workers_stalled"] += 1
            member.stalled_at = now
            self._call(member, "stacks", partial(self._say_stacks, member))
        elif now - member.stalled_at > STACKS_S:
            member.handle.kill()

    def _say_stacks(self, member: Member, stacks: str) -> None:
        log.error("worker %s, where nothing moves:\n%s", member.name, stacks)
        member.handle.kill()

    def _take_report(self, member: Member, report: WorkerReport) -> None:
        member.asking = False
        self._totals[member.name] = report.totals or self._totals.get(member.name, {})
        self._context.numbers.update(report.numbers)
        for name, reading in report.meters.items():
            if (meter := self._meters.get(name)) is None:
                meter = self._meters[name] = RemoteMeter(name)
                self._context.parts.append(meter)
            meter.update(member.name, reading)
        moving = ("batches", "tokens_in", "tokens_out")
        counts = [(name, *(reading["counts"][key] for key in moving)) for name, reading in report.meters.items()]
        if counts and counts != member.counts:
            member.counts, member.moved_at = counts, self._context.clock()
        self.add_lines(member.name, report.tables)
        self._say(member.name, report.log)

    def _say(self, name: str, records: Sequence[tuple[int, str, str]]) -> None:
        """Log what a worker has logged, but nothing twice: most is the same from every worker."""
        for level, logger, text in records:
            if (logger, text) not in self._logged:
                if len(self._logged) < MOST_SAID:
                    self._logged.add((logger, text))
                logging.getLogger(logger).log(level, "worker %s: %s", name, text)

    def _add_up(self, now: float) -> None:
        """Add up the meters of all workers, once in a while: that takes longer the more there are."""
        self._added_up_at = now
        for meter in list(self._meters.values()):
            meter.add_up()
