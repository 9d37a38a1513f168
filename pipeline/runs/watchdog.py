"""Watchdog: end a stalled run, after logging the state of all nodes and threads."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pipeline.api.errors import PipelineError
from pipeline.api.meter import Clock
from pipeline.dataflow.executor import Executor
from pipeline.system.stacks import stacks

LEAVE_S = 15.0
"""Seconds after which the process ends if a stalled run was stopped and its threads do not end."""
log = logging.getLogger(__name__)


class Watchdog:
    """Watches a run from its main thread. Any change of a counter of any meter is progress.

    Args:
        timeout_s: seconds without progress after which the run is stopped; None for never.
        executor: of the run.
        leave: ends the process, if the stopped run does not end.
        clock: in seconds.
    """

    def __init__(self, timeout_s: float | None, executor: Executor, leave: Callable[[], None], clock: Clock) -> None:
        self._timeout_s = timeout_s
        self._executor = executor
        self._leave = leave
        self._clock = clock
        self._seen: list[object] = []
        self._since = clock()
        self._stalled_at: float | None = None

    def check(self) -> None:
        """Check for progress. To be called about every second or more often."""
        if self._timeout_s is None:
            return
        now = self._clock()
        seen: list[object] = [
            (m.rows_in, m.rows_out, m.rejected, m.batches, m.tokens_in, m.tokens_out) for m in self._executor.meters
        ]
        if self._stalled_at is not None:
            if now - self._stalled_at >= LEAVE_S:
                self._leave()
        elif seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since >= self._timeout_s:
            self._stalled_at = now
            nodes = "\n".join(self._executor.describe())
            log.error("nothing has moved for %g s\n%s\n\n%s", now - self._since, nodes, stacks())
            why = (
                f"nothing has moved for {self._timeout_s:g} s; run.log says where every thread and every channel stood."
                " Run the same command again to resume; if steps do take that long, raise runtime.stall_timeout_s"
            )
            self._executor.stop(PipelineError(why))
