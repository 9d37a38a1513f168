"""Calls of methods over a pipe between two processes, several at a time."""

from __future__ import annotations

import logging
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from pipeline.api.errors import Cancelled, ExitCode, PipelineError
from pipeline.api.user_code import spelt
from pipeline.cluster.pool import WorkerLost
from pipeline.cluster.segment_runner import NotOpened, WorkerFailed

PART_S = 10
"""Seconds in which more has to come of a message that has begun: else it has broken off, or was no message."""
log = logging.getLogger(__name__)


class Unreadable(Exception):
    """What the other end sent is no message, or cannot be unpickled: where the next one begins is not known."""


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
        self._gone: Exception | None = None
        self._outgoing: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        limit_parts(pipe)
        for work in (self._read, self._write):
            threading.Thread(target=work, name="rpc", daemon=True).start()

    def call(self, method: str, *args: object) -> Future[Any]:
        """Call `method`; returns at once. Raises what `args` raise when they are pickled."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        message = ForkingPickler.dumps((number, method, args))
        with self._lock:
            gone = self._gone
            if gone is None:
                self._open[number] = future
        if gone is not None:
            future.set_exception(gone)
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
                self._answer(received(self._pipe))
        except (EOFError, OSError):
            gone = self._lost()
        except BaseException as error:
            log.debug("an answer cannot be read", exc_info=error)
            gone = WorkerLost(f"its answer cannot be read: {error if isinstance(error, Unreadable) else spelt(error)}")
        with self._lock:
            self._gone = gone
            futures, self._open = list(self._open.values()), {}
        self._outgoing.put(None)
        for future in futures:
            future.set_exception(gone)

    def _answer(self, message: Any) -> None:
        """Give a call its answer. Raises Unreadable if `message` is none."""
        try:
            number, works, answer = message
            if not works and not isinstance(answer, Exception):
                raise TypeError(f"{type(answer).__name__} is no exception")
            with self._lock:
                future = self._open.pop(number)
        except Exception as error:
            raise Unreadable(f"it answers no call ({spelt(error)})") from error
        (future.set_result if works else future.set_exception)(answer)


def serve(pipe: Connection, target: object, calls: int) -> None:
    """Answer calls of methods of `target`, `calls` at a time, until the other end is gone; a single one in this
    thread. Closes the pipe at the end, also where it raises Unreadable: nobody is to wait for an answer."""
    limit_parts(pipe)
    sending = threading.Lock()

    def answer(number: int, method: str, args: tuple[object, ...]) -> None:
        message = outcome(target, method, args, number)
        with suppress(OSError), sending:  # nobody waits for it any more
            pipe.send_bytes(message)

    threads = ThreadPoolExecutor(calls, "call") if calls > 1 else None
    try:
        while True:
            call = received(pipe)
            if threads is None:
                answer(*call)
            else:
                threads.submit(answer, *call)
    except (EOFError, OSError):
        pass
    finally:
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        with sending:
            pipe.close()


def outcome(target: object, method: str, args: tuple[object, ...], *number: int) -> bytes:
    """Call a method of `target`.

    Returns:
        `number`, True and the result, or `number`, False and an exception, pickled. A result that cannot be pickled is
        an exception, too: without an answer the other end would wait for ever.
    """
    try:
        message = (*number, True, getattr(target, method)(*args))
    except BaseException as error:
        message = (*number, False, portable(error))
    try:
        return bytes(ForkingPickler.dumps(message))
    except BaseException as error:
        failed = WorkerFailed(f"what {method} returned cannot be sent: {spelt(error)}")
        return bytes(ForkingPickler.dumps((*number, False, failed)))


def received(pipe: Connection) -> Any:
    """Wait for the next message. Raises Unreadable if it is none, or breaks off; EOFError, OSError if the other end is
    gone."""
    pipe.poll(None)
    try:
        data = pipe.recv_bytes()
    except BlockingIOError as error:
        raise Unreadable(f"it broke off: nothing more came of it in {PART_S} s") from error
    except (MemoryError, OverflowError) as error:
        raise Unreadable("it says that it is longer than the memory") from error
    return unpickled(data)


def unpickled(data: bytes) -> Any:
    """Return what `data` has. Raises Unreadable."""
    try:
        return ForkingPickler.loads(data)
    except BaseException as error:
        raise Unreadable(spelt(error)) from error


def limit_parts(pipe: Connection) -> None:
    """Have a read of `pipe` raise BlockingIOError that gets nothing in PART_S seconds."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PART_S, 0))


def portable(error: BaseException, host: str = "") -> Exception:
    """Return an exception that can be pickled, whatever `error` is; `host`: where it was raised."""
    if isinstance(error, Cancelled):
        return Cancelled()
    kind = NotOpened if isinstance(error, NotOpened) else WorkerFailed
    if isinstance(error, PipelineError):
        return kind(str(error), error.exit_code, getattr(error, "host", "") or host)
    return WorkerFailed(spelt(error), ExitCode.FAILED, host)
