"""Control: what the program that runs a job may do meanwhile. It is told of the progress, and may cancel the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.api.errors import Interrupted
from pipeline.monitor.snapshot import Snapshot
from pipeline.monitor.summary import Outcome

INTERVAL_S = 1.0
COUNTS = ("rows", "rejects", "tokens_in", "tokens_out")
CANCELLED = "cancelled; the same call goes on"


@dataclass(frozen=True)
class Progress:
    """How far a run is, as `on_progress` is told. Numbers of a run never fall.

    Args:
        rows: finished rows of the input, those of earlier attempts included; under a target the accepted rows.
        total: all rows of the input, under a target those wanted; None while it is not known. It may be an estimate.
        rejects: rejected rows, those that were filtered out too.
        tokens_in, tokens_out: prompt and completion tokens of this attempt.
        seconds: since the attempt began.
        eta: seconds left; None while they cannot be told.
        directory: of the results, which says which run of a sweep it is.

    Example:
        >>> from pipeline import run
        >>> told = []
        >>> few = {"data.limit": 3, "sampling.max_tokens": 4}
        >>> result = run("quickstart", few, progress="none", on_progress=told.append)
        >>> told[-1].rows, told[-1].total, told[-1].eta
        (3, 3, 0.0)
    """

    rows: int
    total: int | None
    rejects: int
    tokens_in: int
    tokens_out: int
    seconds: float
    eta: float | None
    directory: Path


class Control:
    """The hold that a program has on one run. `on_progress` is called in the thread that runs the job; what it raises
    ends the run."""

    def __init__(self, on_progress: Callable[[Progress], object] | None = None) -> None:
        self._on_progress = on_progress
        self._last: Progress | None = None
        self._next_s = 0.0
        self._lock = threading.Lock()  # of the two below
        self._cancelled = False
        self._interrupt: Callable[[], None] = lambda: None
        self.directory: Path | None = None
        """Of the results, once it is known."""
        self.begun = threading.Event()
        """Set when rows flow: what was in the directory before is gone, or is gone on with."""
        self.outcomes: list[Outcome] = []
        """Of the attempt, if there was one."""
        self.raised: BaseException | None = None
        """What `on_progress` has raised."""

    def cancel(self) -> None:
        """Have the run end after its step, as a signal does; from any thread, at any time. Returns at once."""
        with self._lock:
            self._cancelled, interrupt = True, self._interrupt
        interrupt()

    def refuse_cancelled(self) -> None:
        """Raise Interrupted if the run has been cancelled already."""
        if self._cancelled:
            raise Interrupted(CANCELLED)

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have `cancel` call `interrupt` during the block, at once if it was called before."""
        with self._lock:
            self._interrupt, cancelled = interrupt, self._cancelled
        if cancelled:
            interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._interrupt = lambda: None

    def tell(self, shot: Snapshot, directory: Path) -> None:
        """Tell of the progress if it is time. Called several times a second while rows flow."""
        self.begun.set()
        if shot.elapsed_s < self._next_s:
            return
        self._next_s = shot.elapsed_s + INTERVAL_S
        rows, total = (shot.rows, shot.rows_total) if shot.wanted is None else (shot.accepted or 0, shot.wanted)
        rejects, tokens = shot.errors + shot.filtered, (shot.tokens_in, shot.tokens_out)
        self._tell(Progress(rows, total, rejects, *tokens, shot.elapsed_s, shot.eta_s, directory))

    def tell_end(self, o: Outcome) -> None:
        """Tell of the end of a run."""
        rows, total = (o.rows, o.rows) if o.target is None else (o.target.counted, o.target.wanted)
        rejects = o.rejects.errors + o.rejects.filtered
        self._tell(Progress(rows, total, rejects, o.tokens_in, o.tokens_out, o.wall_s, 0.0, o.directory))

    def _tell(self, now: Progress) -> None:
        # Rows of open chunks are an estimate, which falls when a row becomes several.
        for name in COUNTS if self._last is not None else ():
            now = replace(now, **{name: max(getattr(now, name), getattr(self._last, name))})
        if now.total is not None:
            now = replace(now, total=max(now.total, now.rows))
        self._last = now
        if self._on_progress is not None:
            try:
                self._on_progress(now)
            except BaseException as error:
                self.raised = error
                raise
