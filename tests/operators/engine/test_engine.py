"""The engine's thread: clients, failures, leaving."""

from __future__ import annotations

import threading

import pytest

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.fake import FakeDecoder
from operators.engine.loop.engine import Engine
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import (
    Bench,
    prompts,
    sequences,
    settings_for,
    shape,
    worker_on,
)

pytestmark = pytest.mark.usefixtures("memory")


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


def test_a_failure_of_the_backend_reaches_the_client():
    engine = engine_on(FakeDecoder(shape(4), fail=lambda batch: -3))
    woken = threading.Event()
    client = engine.connect(StageMeter("node"), 1, 1000, woken.set)
    client.submit(sequences(prompts(3)))
    assert woken.wait(10)
    with pytest.raises(DecodeFailed, match="-3"):
        client.collect()
    client.leave()
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
