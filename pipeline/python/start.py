"""Runs in a thread of their own, which the program looks at, reads and cancels meanwhile."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.api.errors import PipelineError
from pipeline.python.job import Job
from pipeline.python.result import Result
from pipeline.python.run import given, run_controlled
from pipeline.results.batches import POLL_S, committed_batches
from pipeline.run_dir.names import DATA
from pipeline.runs.control import Control, Progress
from pipeline.system.terminal import complain


class Started:
    """A run in a thread of its own; `start` returns it. It is cancelled when the program ends.

    Args:
        work: runs the job and returns its results.
        control: of the run.

    Example:
        >>> from pipeline import start
        >>> from pipeline.api.errors import Interrupted
        >>> started = start("quickstart", {"data.limit": 4, "sampling.max_tokens": 4}, progress="none")
        >>> started.cancel()
        >>> try:
        ...     started.result()
        ... except Interrupted as error:
        ...     print('the same call goes on')
        the same call goes on
    """

    def __init__(self, work: Callable[[], Result], control: Control) -> None:
        self._control = control
        self._future: Future[Result] = Future()
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._work, work), name="started run").start()
        threading.Thread(target=self._watch_program, name="program of a started run", daemon=True).start()

    def cancel(self) -> None:
        """End the run after its step. Returns at once; what is committed is kept, and the same call goes on."""
        self._control.cancel()

    def done(self) -> bool:
        """Return True once the run has ended, however it has."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end of the run, and return its results.

        Raises:
            Interrupted: it was cancelled.
            TimeoutError: it works on after `timeout` seconds.
            PipelineError: what `run` raises.
        """
        return self._future.result(timeout)

    def batches(self, folder: str = DATA) -> Iterator[pa.RecordBatch]:
        """Yield the rows chunk by chunk, each when it is committed, those of earlier attempts first, until the run
        ends. Together they are `result().rows(folder)`. Raises what `result` raises, after the last committed row."""
        while not self._control.begun.wait(POLL_S) and not self.done():
            pass
        if not self._control.begun.is_set():
            self.result()  # refused, or failed before a row flowed
        assert self._control.directory is not None
        try:
            yield from committed_batches(self._control.directory, folder, self.done)
        except PipelineError:
            if self.done():
                self.result()  # says why the run has ended
            raise
        self.result()

    def _watch_program(self) -> None:
        program = threading.main_thread()
        while program.is_alive() and not self.done():
            program.join(POLL_S)
        if not self.done():
            complain("the program has ended, and its run with it: the same call goes on")
            self.cancel()

    def _work(self, work: Callable[[], Result]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:
            self._future.set_exception(error)


def start(
    job: str | Path | Job = "generate",
    settings: Mapping[str, Any] | None = None,
    *,
    rows: Any = None,
    directory: str | Path | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **groups: Any,
) -> Started:
    """Run a job in a thread of its own, and return at once. The arguments are those of `run`; `on_progress` is called
    in that thread.

    Example:
        >>> from pipeline import start
        >>> started = start("quickstart", {"data.limit": 4, "chunk_rows": 2, "sampling.max_tokens": 4}, progress="none")
        >>> [batch.num_rows for batch in started.batches()]
        [2, 2]
        >>> started.result().outcome.name
        'DONE'
    """

    control = Control(on_progress)
    values = given(settings, groups, directory)
    return Started(lambda: run_controlled(job, values, rows, control), control)
