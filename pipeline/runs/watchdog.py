"""Watchdog: end a stalled run, after logging the state of all nodes and threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pipeline.api.errors import ExitCode, PipelineError
from pipeline.api.meter import Clock
from pipeline.dataflow.executor import Executor
from pipeline.system.deadlines import leave_after, stacks

CHECK_S = 0.5
LEAVE_S = 15.0
"""Seconds for which a stalled run that was stopped waits for its threads, and then for its main thread."""
HANGS = "the run does not end; the process leaves. Run the same command again to resume"
log = logging.getLogger(__name__)


class Watchdog:
    """Watches a run while its block is open, in a thread of its own that takes no lock of the run and writes nothing
    before it has decided. Any change of a counter of any meter is progress.

    Args:
        timeout_s: seconds without progress after which the run is stopped; None for never.
        executor: of the run.
        record: records the failure, if the main thread hangs and the process is ended; it may hang, too.
        clock: in seconds.
    """

    def __init__(self, timeout_s: float | None, executor: Executor, record: Callable[[], None], clock: Clock) -> None:
        self._timeout_s = timeout_s
        self._executor = executor
        self._record = record
        self._clock = clock
        self._counts: list[object] = []
        self._since = clock()
        self._stopped_at: float | None = None
        self._stay: Callable[[], None] = lambda: None
        self._left = threading.Event()

    def __enter__(self) -> None:
        if self._timeout_s is not None:
            threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._left.set()
        self._stay()

    def _work(self) -> None:
        while not self._left.wait(min(CHECK_S, self._timeout_s or CHECK_S)) and self.check():
            pass

    def check(self) -> bool:
        """Check for progress. Returns False when there is nothing more to check."""
        now = self._clock()
        meters = self._executor.meters
        counts: list[object] = [
            (m.rows_in, m.rows_out, m.rejected, m.batches, m.tokens_in, m.tokens_out) for m in meters
        ]
        if self._stopped_at is not None:
            if now - self._stopped_at < LEAVE_S:
                return True
            self._executor.abandon()
            self._stay = leave_after(LEAVE_S, ExitCode.FAILED, HANGS, self._say_last)
            if self._left.is_set():  # meanwhile
                self._stay()
            return False
        if counts != self._counts:
            self._counts, self._since = counts, now
            return True
        most_s = max(self._timeout_s or 0.0, self._executor.patience_s)
        if self._timeout_s is not None and now - self._since >= most_s:
            self._stopped_at = now
            why = (
                f"nothing has moved for {most_s:g} s; run.log says where every thread and every channel stood."
                " Run the same command again to resume; if steps do take that long, raise runtime.stall_timeout_s"
            )
            self._executor.stop(PipelineError(why))
            # The log may be on a disk that hangs, and a description takes locks.
            threading.Thread(target=self._describe, args=(now - self._since,), name="last words", daemon=True).start()
        return True

    def _say_last(self) -> None:
        self._record()
        log.error("%s", HANGS)

    def _describe(self, seconds: float) -> None:
        threads = stacks()
        log.error("nothing has moved for %g s\n%s\n\n%s", seconds, "\n".join(self._executor.describe()), threads)
