"""Calls of methods over a pipe between two processes, several at a time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from pipeline.api.errors import Cancelled, ExitCode, PipelineError
from pipeline.cluster.running_island import WorkerFailed

log = logging.getLogger(__name__)


class Caller:
    """Calls methods of the object at the other end. Thread-safe; no call waits for the other end to read.

    Args:
        pipe: to it.
        lost: makes the exception of calls that have no answer when the other end is gone.
    """

    def __init__(self, pipe: Connection, lost: Callable[[], Exception]) -> None:
        self._pipe = pipe
        self._lost = lost
        self._lock = threading.Lock()
        self._numbers = count()
        self._open: dict[int, Future[Any]] = {}
        self._gone = False
        self._outgoing: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, name="rpc", daemon=True).start()

    def call(self, method: str, *args: object) -> Future[Any]:
        """Call `method`; returns at once. Raises what `args` raise when they are pickled."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        message = ForkingPickler.dumps((number, method, args))
        with self._lock:
            gone = self._gone
            if not gone:
                self._open[number] = future
        if gone:
            future.set_exception(self._lost())
        else:
            self._outgoing.put(message)
        return future

    def _write(self) -> None:
        with suppress(OSError):  # the other end is gone, which the reading thread finds, too
            while (message := self._outgoing.get()) is not None:
                self._pipe.send_bytes(message)

    def _read(self) -> None:
        try:
            while True:
                number, works, found = self._pipe.recv()
                with self._lock:
                    future = self._open.pop(number)
                if works:
                    future.set_result(found)
                else:
                    future.set_exception(found)
        except BaseException as error:  # it is gone, or its answer cannot be read: nobody waits for the next one
            if not isinstance(error, EOFError | OSError):
                log.error("the answer of a worker cannot be read, so it counts as lost", exc_info=error)
            with self._lock:
                self._gone = True
                futures, self._open = list(self._open.values()), {}
            self._outgoing.put(None)
            for future in futures:
                future.set_exception(self._lost())


def serve(pipe: Connection, target: object, calls: int) -> None:
    """Answer calls of methods of `target`, `calls` at a time, until the other end is gone; a single one in this
    thread."""
    sending = threading.Lock()

    def answer(number: int, method: str, args: tuple[object, ...]) -> None:
        try:
            message = (number, True, getattr(target, method)(*args))
        except BaseException as error:
            message = (number, False, portable(error))
        try:
            with sending:
                pipe.send(message)
        except OSError:
            pass  # nobody waits for it any more

    threads = ThreadPoolExecutor(calls, "call") if calls > 1 else None
    try:
        while True:
            call = pipe.recv()
            if threads is None:
                answer(*call)
            else:
                threads.submit(answer, *call)
    except (EOFError, OSError):
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)


def portable(error: BaseException) -> Exception:
    """Return an exception that can be pickled, whatever `error` is."""
    if isinstance(error, WorkerFailed | Cancelled):
        return error
    if isinstance(error, PipelineError):
        return WorkerFailed(str(error), error.exit_code)
    return WorkerFailed(f"{type(error).__name__}: {error}", ExitCode.FAILED)
