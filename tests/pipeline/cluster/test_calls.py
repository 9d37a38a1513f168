"""Calls to a worker's process never wait for it."""

from __future__ import annotations

import errno
import os
import pickle
import platform
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pickle import PicklingError
from typing import Any

import pytest

from pipeline.api.errors import PipelineError
from pipeline.cluster import rpc
from pipeline.cluster.pool import WorkerLost
from pipeline.cluster.process_pool import PipeServices, ProcessPool
from pipeline.cluster.rpc import Caller, serve
from pipeline.cluster.segment_runner import WorkerFailed
from pipeline.settings import ClusterSettings


def test_a_call_does_not_wait_for_a_worker_that_does_not_read() -> None:
    """A stopped process does not read; the driver has others to serve, and has to notice that it is stopped."""
    ours, theirs = Pipe()
    caller = Caller(ours, lambda: WorkerLost("gone"))
    calls = [caller.call("compute", bytes(1 << 20)) for _ in range(4)]
    assert not any(call.done() for call in calls)
    theirs.close()
    for call in (*calls, caller.call("report")):
        assert isinstance(call.exception(timeout=60), WorkerLost)


def test_what_cannot_be_sent_is_said_to_who_calls() -> None:
    """Else nobody would ever answer."""
    ours, theirs = Pipe()
    caller = Caller(ours, lambda: WorkerLost("gone"))
    with pytest.raises((AttributeError, TypeError, PicklingError)):
        caller.call("compute", lambda: None)
    call = caller.call("report", 3)
    assert theirs.recv() == (1, "report", (3,))
    theirs.send((1, True, "all well"))
    assert call.result(timeout=60) == "all well"


def _unreadable(error: type[BaseException]) -> None:
    raise error("no module of that name here")


class Unreadable:
    def __init__(self, error: type[BaseException] = ImportError) -> None:
        self._error = error

    def __reduce__(self):
        return _unreadable, (self._error,)


NO_ANSWERS: dict[str, Callable[[Connection], object]] = {
    "cannot be unpickled": lambda pipe: pipe.send((0, True, Unreadable())),
    "leaves the process": lambda pipe: pipe.send((0, True, Unreadable(SystemExit))),
    "looks like the end of the pipe": lambda pipe: pipe.send((0, True, Unreadable(EOFError))),
    "to a call that nobody made": lambda pipe: pipe.send((7, True, "all well")),
    "without its number": lambda pipe: pipe.send("all well"),
    "an error that is none": lambda pipe: pipe.send((0, False, "all well")),
    "empty": lambda pipe: pipe.send_bytes(b""),
    "no pickle": lambda pipe: pipe.send_bytes(b"all well"),
    "half a pickle": lambda pipe: pipe.send_bytes(pickle.dumps((0, True, "all well"))[:-9]),
    "half a message": lambda pipe: os.write(pipe.fileno(), struct.pack("!i", 99) + pickle.dumps((0, True, 1))),
    "half a length": lambda pipe: os.write(pipe.fileno(), b"\0\0"),
    "a printed line": lambda pipe: os.write(pipe.fileno(), b"ggml_cuda_init: found 1 device\n"),
    "a length below 0": lambda pipe: os.write(pipe.fileno(), struct.pack("!i", -5)),
    "longer than the memory": lambda pipe: os.write(pipe.fileno(), struct.pack("!iQ", -1, 1 << 62)),
    "longer than a number": lambda pipe: os.write(pipe.fileno(), struct.pack("!iQ", -1, (1 << 64) - 1)),
}
"""What a worker may send that is no answer, though it lives on, by what it is."""


@pytest.mark.parametrize("what", NO_ANSWERS)
def test_what_is_no_answer_ends_all_calls_and_says_so(what: str, monkeypatch) -> None:
    monkeypatch.setattr(rpc, "PART_S", 1)
    ours, theirs = Pipe()
    caller = Caller(ours, lambda: WorkerLost("gone"))
    calls = [caller.call("report"), caller.call("compute", 1)]
    NO_ANSWERS[what](theirs)
    for call in (*calls, caller.call("report")):
        error = call.exception(timeout=60)
        assert isinstance(error, WorkerLost)
        assert re.match(r"its answer cannot be read: \w.*", str(error))


def test_half_an_answer_of_a_worker_that_ends_is_its_end() -> None:
    ours, theirs = Pipe()
    call = Caller(ours, lambda: WorkerLost("gone")).call("report")
    os.write(theirs.fileno(), struct.pack("!i", 99) + b"half")
    theirs.close()
    assert str(call.exception(timeout=60)) == "gone"


class Untold(Exception):
    """It cannot be printed, and what it holds cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise ValueError


class Worker:
    """Methods whose answers cannot be sent as they are."""

    def function(self):
        return lambda: None

    def deep(self):
        found: list[Any] = []
        for _ in range(100_000):
            found = [found]
        return found

    def untold(self):
        raise Untold

    def leaves(self):
        sys.exit(3)

    def of_its_own(self):
        raise type("OfItsOwn", (PipelineError,), {})("a class that nobody else has")

    def report(self):
        return "all well"


@pytest.mark.parametrize("at_a_time", [1, 2])
@pytest.mark.parametrize("method", ["function", "deep", "untold", "leaves", "of_its_own", "nothing_of_that_name"])
def test_an_answer_that_cannot_be_sent_is_one_that_says_so(method: str, at_a_time: int) -> None:
    """Else its call would wait until nothing has moved for the whole of runtime.stall_timeout_s."""
    ours, theirs = Pipe()
    threading.Thread(target=serve, args=(theirs, Worker(), at_a_time), daemon=True).start()
    caller = Caller(ours, lambda: WorkerLost("gone"))
    error = caller.call(method).exception(timeout=60)
    assert isinstance(error, WorkerFailed)
    assert str(error)
    assert caller.call("report").result(timeout=60) == "all well"
    ours.close()


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_a_call_that_cannot_be_read_closes_the_pipe(at_a_time: int) -> None:
    """So that whoever called finds that nobody answers."""
    ours, theirs = Pipe()
    ours.send((0, "report", (Unreadable(),)))
    with pytest.raises(rpc.Unreadable, match="no module of that name"):
        serve(theirs, Worker(), at_a_time)
    with pytest.raises(EOFError):
        ours.recv()


def test_a_worker_without_its_driver_leaves(monkeypatch, capsys) -> None:
    """As an error of its operator this would end the run, though another worker can compute its rows."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    ours, theirs = Pipe()
    services = PipeServices(ours)
    NO_ANSWERS["no pickle"](theirs)
    with pytest.raises(SystemExit):
        services.call("store", list, "count", 1)
    assert "a worker ends: its answer cannot be read: UnpicklingError" in capsys.readouterr().err


def test_a_process_that_cannot_be_started_is_a_worker_that_ended(monkeypatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    plan: Any = None
    pool = ProcessPool(ClusterSettings(), plan, 1, 1, on_cpu=False)
    error = pool.start_worker("1").call("open").exception(timeout=60)
    pool.close()
    assert isinstance(error, WorkerLost)
    assert str(error) == "its process cannot be started: [Errno 11] Resource temporarily unavailable"
    assert error.host == platform.node()
