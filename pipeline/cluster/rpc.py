"""Calls of methods over a pipe between two processes, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from pipeline.api.errors import Cancelled, ExitCode, PipelineError
from pipeline.cluster.running_island import WorkerFailed


class Caller:
    """Calls methods of the object at the other end. Thread-safe.

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
        self._thread = threading.Thread(target=self._read, name="rpc", daemon=True)
        self._thread.start()

    def call(self, method: str, *args: object) -> Future[Any]:
        """Call `method`; returns at once."""
        future: Future[Any] = Future()
        with self._lock:
            gone, number = self._gone, next(self._numbers)
            if not gone:
                self._open[number] = future
                try:
                    self._pipe.send((number, method, args))
                except OSError:
                    del self._open[number]
                    gone = True
        if gone:
            future.set_exception(self._lost())
        return future

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
        except (EOFError, OSError):
            with self._lock:
                self._gone = True
                futures, self._open = list(self._open.values()), {}
            for future in futures:
                future.set_exception(self._lost())


def serve(pipe: Connection, target: object, calls: int) -> None:
    """Answer calls of methods of `target`, `calls` at a time, until the other end is gone."""
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

    threads = ThreadPoolExecutor(calls, "call")
    try:
        while True:
            threads.submit(answer, *pipe.recv())
    except (EOFError, OSError):
        threads.shutdown(wait=False, cancel_futures=True)


def portable(error: BaseException) -> Exception:
    """Return an exception that can be pickled, whatever `error` is."""
    if isinstance(error, WorkerFailed | Cancelled):
        return error
    if isinstance(error, PipelineError):
        return WorkerFailed(str(error), error.exit_code)
    return WorkerFailed(f"{type(error).__name__}: {error}", ExitCode.FAILED)
