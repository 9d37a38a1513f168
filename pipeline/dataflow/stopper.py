"""Stopper: what ends a run early. It cancels all nodes, and aborts the calls of those that compute on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pipeline.api.errors import PipelineError
from pipeline.api.runtime import RunContext
from pipeline.api.user_code import or_else

GRACE_S = 2.0
"""Seconds that a stopped run has to finish its step before calls of the model are aborted."""
ABORT_S = 15.0
"""Seconds that aborting has, before all that it may use is left open."""
log = logging.getLogger(__name__)


class Stopper:
    """Stops a run once, in a thread of its own while its block is open: who stops it may hold locks that are taken
    here. `release`: ends all waits of all nodes."""

    def __init__(self, context: RunContext, release: Callable[[], None]) -> None:
        self._context = context
        self._release = release
        self._lock = threading.Lock()
        self._enough = False
        self._why: PipelineError | None = None
        self._told = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="stop", daemon=True)
        self.failure: PipelineError | None = None
        """The first failure, which the run raises."""
        self.abandoned = threading.Event()
        """Set when threads that compute on are no longer waited for."""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._told.set()
        self._thread.join(ABORT_S)
        if self._thread.is_alive():
            self.abandoned.set()

    def stop(self, why: PipelineError | None) -> None:
        """Stop the run because of `why`, None if enough is committed. Returns at once. The first call counts."""
        if not self._told.is_set():
            self._why = why
            self._told.set()

    def cancel(self, why: PipelineError | None) -> None:
        """Cancel all nodes because of `why`; None if enough is committed. Then later failures are only logged."""
        with self._lock:
            if why is None:
                self._enough = self.failure is None
            elif self._enough:
                log.info("after the last chunk was committed: %s", why)
            elif self.failure is None:
                self.failure = why
        self._context.cancelled.set()
        self._release()
        self._told.set()

    def _work(self) -> None:
        self._told.wait()
        if self._ended.is_set():
            return
        if not self._context.cancelled.is_set():
            self.cancel(self._why)
        if not self._ended.wait(GRACE_S):
            for cut_off in list(self._context.when_stuck):
                or_else("a long call cannot be aborted", cut_off, None)
