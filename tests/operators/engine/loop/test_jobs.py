"""Work that other nodes have the engine's thread do: between its steps, one at a time, and never lost."""

from __future__ import annotations

import threading
import time

import pytest

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.fake import FakeDecoder
from operators.engine.loop.thread import Closed, EngineThread
from operators.engine.sampling.params import SamplingParams
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import Bench, RecordingDecoder, prompts, sequences, shape
from tests.operators.engine.test_engine import collect_all, engine_on


@pytest.fixture(params=["with an engine", "without"])
def computes(request):
    thread = EngineThread()
    if request.param == "with an engine":
        engine_on(FakeDecoder(shape(2)), thread).connect(StageMeter("node"), 1, 10, lambda: None)
    yield thread
    thread.close()


def test_it_returns_what_the_work_returns_and_raises_what_it_raises(computes):
    assert [computes.call(lambda i=i: i * i) for i in range(3)] == [0, 1, 4]
    with pytest.raises(ZeroDivisionError):
        computes.call(lambda: 1 / 0)
    assert computes.call(threading.get_ident) == computes.call(threading.get_ident) != threading.get_ident()


def test_of_several_callers_each_gets_its_own(computes):
    found: dict[int, list[int]] = {}
    busy: list[int] = []

    def work(caller: int, i: int) -> int:
        busy.append(caller)
        assert len(busy) == 1
        busy.pop()
        return caller * 1000 + i

    def ask(caller: int) -> None:
        found[caller] = [computes.call(lambda i=i: work(caller, i)) for i in range(200)]

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {caller: [caller * 1000 + i for i in range(200)] for caller in range(4)}


def test_whoever_comes_too_late_is_told(computes):
    computes.call(int)
    computes.close()
    with pytest.raises(Closed):
        computes.call(int)


def test_a_job_waits_for_one_step_and_no_more():
    texts = prompts(20)
    calls = threading.Semaphore(0)
    begun: list[int] = []

    def gate(batch: BatchBuffer) -> int:
        begun.append(batch.n_tokens)
        calls.acquire()
        return 0

    decoder = RecordingDecoder(shape(4), fail=gate)
    thread, woken = EngineThread(), threading.Event()
    client = engine_on(decoder, thread).connect(StageMeter("node"), 1, 1000, woken.set)
    client.submit(sequences(texts))
    calls.release(3)
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(thread.call(lambda: len(decoder.calls))))
    while len(begun) < 4:
        time.sleep(0.001)
    asking.start()
    while not thread._jobs:
        time.sleep(0.001)
    calls.release(1)
    asking.join(30)
    assert found == [4]
    calls.release(100_000)
    assert collect_all(client, woken, 20) == Bench(shape(4)).run(sequences(texts))
    thread.close()


def test_a_failure_of_the_engine_reaches_those_who_wait():
    allowed = threading.Event()
    thread, woken = EngineThread(), threading.Event()
    engine = engine_on(FakeDecoder(shape(2), fail=lambda batch: -3 if allowed.wait(30) else 0), thread)
    client = engine.connect(StageMeter("node"), 1, 1000, woken.set)
    client.submit(sequences(prompts(3), SamplingParams()))
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            while True:
                thread.call(int)
        except DecodeFailed as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    allowed.set()
    asking.join(30)
    assert len(raised) == 1
    client.leave()
    engine.close()
    thread.close()


def test_the_thread_is_the_one_that_makes_the_steps():
    """A second thread would have a second team of compute threads."""
    thread = EngineThread()
    before = thread.call(threading.get_ident)
    steps: set[int] = set()

    def seen(batch: BatchBuffer) -> int:
        steps.add(threading.get_ident())
        return 0

    engines = [engine_on(FakeDecoder(shape(2), fail=seen), thread) for _ in range(2)]
    for engine in engines:
        woken = threading.Event()
        client = engine.connect(StageMeter("node"), 1, 1000, woken.set)
        client.submit(sequences(prompts(3)))
        collect_all(client, woken, 3)
    assert steps == {before} == {thread.call(threading.get_ident)}
    thread.close()
