"""Several engines on one thread: never two calls at once, all make progress, the fuller and the deeper first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.fake import FakeDecoder
from operators.engine.loop.engine import Engine
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.params import SamplingParams
from operators.engine.scheduler.policy import PATIENCE
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import Bench, prompts, sequences, shape
from tests.operators.engine.test_engine import collect_all, engine_on

ENDLESS = SamplingParams()


class Calls:
    """The calls of several engines, in order, by the engine's name. A call waits until it is allowed."""

    def __init__(self) -> None:
        self.thread = EngineThread()
        self._allowed = threading.Semaphore(0)
        self.inside: list[str] = []
        self.log: list[str] = []
        self.reached = threading.Semaphore(0)

    def engine(self, name: str, slots: int = 4, then: Callable[[], int] = lambda: 0) -> Engine:
        """An engine on the thread, whose calls are logged under `name`; `then` gives what they fail with."""

        def call(batch: BatchBuffer) -> int:
            self.inside.append(name)
            assert self.inside == [name], "two calls at once"
            self.reached.release()
            self._allowed.acquire()
            self.log.append(name)
            self.inside.pop()
            return then()

        return engine_on(FakeDecoder(shape(slots), fail=call), self.thread)

    def allow(self, count: int) -> None:
        self._allowed.release(count)

    def make(self, count: int) -> list[str]:
        """Let `count` calls be made, of those that stand and wait; returns who made them."""
        before = len(self.log)
        for _ in range(count):
            assert self.reached.acquire(timeout=30)
            self.allow(1)
        assert self.reached.acquire(timeout=30)
        self.reached.release()
        return self.log[before:]


@pytest.fixture
def calls():
    made = Calls()
    yield made
    made.allow(1_000_000)
    made.thread.close()


def test_two_engines_never_compute_at_once_and_both_finish(calls):
    calls.allow(1_000_000)
    texts = prompts(40)
    expected = Bench(shape(4)).run(sequences(texts))
    found = []
    for depth, name in enumerate(("first", "second"), 1):
        woken = threading.Event()
        client = calls.engine(name).connect(StageMeter(name), depth, 1000, woken.set)
        client.submit(sequences(texts))
        found.append((client, woken))
    assert [collect_all(client, woken, 40) for client, woken in found] == [expected, expected]
    switches = sum(a != b for a, b in zip(calls.log, calls.log[1:], strict=False))
    assert switches > 20, "one engine ran to its end before the other began"


def endless(engine: Engine, depth: int, rows: int) -> None:
    """Rows that decode for as long as a test looks."""
    client = engine.connect(StageMeter("node"), depth, 1000, lambda: None)
    client.submit(sequences(prompts(rows, longest=4), ENDLESS, max_tokens=200))


def test_of_equally_full_engines_the_deeper_comes_first_and_the_other_is_not_starved(calls):
    upstream, downstream = calls.engine("upstream"), calls.engine("downstream")
    endless(upstream, 1, 4)
    endless(downstream, 5, 4)
    calls.make(8)  # prompts
    made = calls.make(5 * (PATIENCE + 1))
    assert made.count("upstream") == 5
    assert made.count("downstream") == 5 * PATIENCE


def test_a_deeper_engine_waits_for_rows_to_fill_its_slots_but_not_for_ever(calls):
    upstream, downstream = calls.engine("upstream"), calls.engine("downstream")
    endless(upstream, 1, 4)
    endless(downstream, 5, 1)
    calls.make(8)
    made = calls.make(5 * (PATIENCE + 1))
    assert made.count("downstream") == 5
    endless(downstream, 5, 3)
    calls.make(8)
    made = calls.make(5 * (PATIENCE + 1))
    assert made.count("upstream") == 5


def test_an_engine_without_credit_lets_the_others_compute(calls):
    calls.allow(1_000_000)
    full, free = threading.Event(), threading.Event()
    texts = prompts(12)
    stuck = calls.engine("downstream").connect(StageMeter("stuck"), 5, 2, full.set)
    stuck.submit(sequences(texts))  # two of them may finish, and nobody takes them
    client = calls.engine("upstream").connect(StageMeter("free"), 1, 1000, free.set)
    client.submit(sequences(texts))
    expected = Bench(shape(4)).run(sequences(texts))
    assert collect_all(client, free, 12) == expected
    full.set()
    assert collect_all(stuck, full, 12) == expected


def test_a_job_is_done_between_the_steps_of_two_engines(calls):
    for name in ("first", "second"):
        endless(calls.engine(name), 1, 4)
    calls.allow(1_000_000)
    assert [calls.thread.call(lambda i=i: (i, list(calls.inside))) for i in range(50)] == [(i, []) for i in range(50)]


def test_a_failure_of_one_engine_reaches_the_nodes_of_the_other(calls):
    calls.allow(1_000_000)
    woken = threading.Event()
    other = calls.engine("other").connect(StageMeter("other"), 1, 1000, woken.set)
    other.submit(sequences(prompts(4), ENDLESS, max_tokens=200))
    endless(calls.engine("broken", then=lambda: -3), 1, 4)
    assert woken.wait(30)
    with pytest.raises(DecodeFailed, match="-3"):
        other.collect()
    other.leave()


def test_an_engine_that_is_closed_makes_no_more_steps_and_the_other_goes_on(calls):
    closing, staying = calls.engine("closing"), calls.engine("staying")
    endless(closing, 5, 4)
    endless(staying, 1, 4)
    calls.make(8)
    while calls.inside != ["closing"]:
        calls.make(1)
    ending = threading.Thread(target=closing.close)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive(), "it did not wait for the step that is being made"
    calls.make(1)
    ending.join(30)
    assert not ending.is_alive()
    assert set(calls.make(20)) == {"staying"}
