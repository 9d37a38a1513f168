"""Calls to a worker's process never wait for it; each worker gets GPUs of those that the driver has."""

from __future__ import annotations

from multiprocessing.connection import Pipe
from pickle import PicklingError

import pytest

from pipeline.api.errors import ConfigError
from pipeline.cluster.pool import WorkerLost
from pipeline.cluster.process_pool import devices_of
from pipeline.cluster.rpc import Caller


def test_a_call_does_not_wait_for_a_worker_that_does_not_read() -> None:
    """A stopped process does not read; the driver has others to serve, and has to notice that it is stopped."""
    ours, theirs = Pipe()
    caller = Caller(ours, lambda: WorkerLost("gone"))
    calls = [caller.call("compute", bytes(1 << 20)) for _ in range(4)]
    assert not any(call.done() for call in calls)
    theirs.close()
    for call in (*calls, caller.call("news")):
        assert isinstance(call.exception(timeout=60), WorkerLost)


def test_what_cannot_be_sent_is_said_to_who_calls() -> None:
    """Else nobody would ever answer."""
    ours, theirs = Pipe()
    caller = Caller(ours, lambda: WorkerLost("gone"))
    with pytest.raises((AttributeError, TypeError, PicklingError)):
        caller.call("compute", lambda: None)
    call = caller.call("news", 3)
    assert theirs.recv() == (1, "news", (3,))
    theirs.send((1, True, "all well"))
    assert call.result(timeout=60) == "all well"


def _unreadable() -> None:
    raise ImportError("no module of that name here")


class Unreadable:
    def __reduce__(self):
        return _unreadable, ()


def test_an_answer_that_cannot_be_read_ends_all_calls() -> None:
    ours, theirs = Pipe()
    caller = Caller(ours, lambda: WorkerLost("gone"))
    calls = [caller.call("news"), caller.call("compute", 1)]
    theirs.send((0, True, Unreadable()))
    for call in (*calls, caller.call("news")):
        assert isinstance(call.exception(timeout=60), WorkerLost)


@pytest.mark.parametrize(
    ("gpus", "visible", "each"),
    [
        (1, None, (["0"], ["1"], ["2"])),
        (2, None, (["0", "1"], ["2", "3"])),
        (1, "2,3", (["2"], ["3"])),
        (1, "GPU-a,GPU-b", (["GPU-a"], ["GPU-b"])),
        (0.5, "4,5", (["4"], ["4"], ["5"], ["5"])),
    ],
)
def test_each_worker_has_gpus_of_its_own(gpus, visible, each) -> None:
    assert tuple(devices_of(place, gpus, visible) for place in range(len(each))) == each


def test_too_few_gpus_are_said() -> None:
    with pytest.raises(ConfigError, match="worker 3 would have GPU 3 of the 2 in CUDA_VISIBLE_DEVICES=2,3;"):
        devices_of(2, 1, "2,3")
