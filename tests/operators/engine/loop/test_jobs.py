"""What the engine's thread does beside its steps: the work of other nodes, one at a time and never lost, and adding up
for the machine's limit what its decoder computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.fake import FakeDecoder
from operators.engine.backend.limit import MachineLimit, ModelWork, Peaks
from operators.engine.loop.thread import Closed, EngineThread
from operators.engine.sampling.params import SamplingParams
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import Bench, RecordingDecoder, prompts, sequences, shape
from tests.operators.engine.loop.test_thread import collect_all, engine_on


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


class Noting(MachineLimit):
    """Keeps the tokens, outputs and earlier tokens of each call, and its seconds."""

    def __init__(self) -> None:
        super().__init__(Peaks(1.0, 1.0), ModelWork(macs=1), 2.0)
        self.calls: list[tuple[int, int, float]] = []

    def add(self, spans: Iterable[tuple[int, int]], outputs: int, seconds: float) -> None:
        spans = list(spans)
        super().add(spans, outputs, seconds)
        seen = sum(depth - before for count, depth in spans for before in range(count))
        self.calls.append((sum(count for count, _ in spans), outputs, seen))


@pytest.mark.parametrize("sizes", [{}, {"per_sequence": False, "n_ctx": 600}], ids=["per sequence", "unified"])
def test_a_call_is_added_up_as_the_decoder_gets_it(sizes):
    bench, limit, computed = Bench(shape(deterministic=False, **sizes)), Noting(), []
    decode, buffer = bench.decoder.decode, bench.decoder.batch

    def noting() -> Any:
        n = buffer.n_tokens
        computed.append((n, int(np.count_nonzero(buffer.output[:n])), int((buffer.pos[:n] + 1).sum())))
        return decode()

    bench.decoder.decode = noting  # type: ignore[method-assign]
    bench.worker.log.limit = limit
    texts = prompts(12)
    bench.run(sequences([*texts, *texts[:4]]))  # some begin with the logits of an equal prompt: no call
    assert limit.calls == computed
    assert max(tokens for tokens, _, _ in computed) > 4
    totals = bench.engine.totals()
    assert totals["work_macs"] == sum(tokens for tokens, _, _ in computed)
    assert 0 < totals["work_s"] <= totals["decode_s"]


def test_an_engine_without_a_limit_has_no_such_totals():
    bench = Bench(shape())
    bench.run(sequences(prompts(2)))
    assert not [key for key in bench.engine.totals() if key.startswith("work_")]
