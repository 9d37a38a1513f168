"""Engines on one thread: never two calls at once, all make progress, the fuller and the deeper first; clients that
share one, and leave."""

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
from operators.engine.sequence import Sequence
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import Bench, prompts, sequences, settings_for, shape, worker_on

pytestmark = pytest.mark.usefixtures("memory")

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


def engine_on(decoder: FakeDecoder, thread: EngineThread | None = None) -> Engine:
    return Engine(worker_on(decoder, settings_for(decoder.shape)), thread or EngineThread())


def collect_all(client, woken: threading.Event, count: int):
    rows: list[Sequence] = []
    while len(rows) < count:
        woken.wait(10)
        woken.clear()
        rows += client.collect()
    return {row.handle: row.tokens for row in rows}


def test_two_clients_share_an_engine_and_get_their_own_rows():
    texts = prompts(40)
    expected = Bench(shape(4)).run(sequences(texts))
    engine = engine_on(FakeDecoder(shape(4)))
    woken = [threading.Event(), threading.Event()]
    clients = [engine.connect(StageMeter(f"node{i}"), i, 1000, woken[i].set) for i in range(2)]
    rows = sequences(texts)
    clients[0].submit(rows[:25])
    clients[1].submit(rows[25:])
    assert collect_all(clients[0], woken[0], 25) == {i: expected[i] for i in range(25)}
    assert collect_all(clients[1], woken[1], 15) == {i: expected[i] for i in range(25, 40)}
    assert clients[0].meter.tokens_in == sum(len(t) for t in texts[:25])
    assert clients[1].meter.tokens_out == sum(len(expected[i]) for i in range(25, 40))
    engine.thread.close()


def test_leaving_frees_the_slots_for_the_others():
    calls = threading.Semaphore(0)
    engine = engine_on(FakeDecoder(shape(2), fail=lambda batch: calls.acquire() and 0))
    stays, leaves = threading.Event(), threading.Event()
    first = engine.connect(StageMeter("leaves"), 2, 1000, leaves.set)
    second = engine.connect(StageMeter("stays"), 1, 1000, stays.set)
    first.submit(sequences(prompts(10), SamplingParams(), max_tokens=150))  # no stop tokens: they would go on for long
    calls.release(3)
    leaving = threading.Thread(target=first.leave)
    leaving.start()
    calls.release(2)
    leaving.join(10)
    assert not leaving.is_alive()
    assert engine.active_slots() == "slots 0/2"
    calls.release(100_000)
    texts = prompts(5, seed=9)
    second.submit(sequences(texts))
    assert collect_all(second, stays, 5) == Bench(shape(2)).run(sequences(texts))
    engine.thread.close()


def test_closing_an_engine_that_never_ran():
    engine = engine_on(FakeDecoder(shape(2)))
    engine.close()
    assert engine.totals()["steps"] == 0
