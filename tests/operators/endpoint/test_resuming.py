"""Answers of a server are paid for once, however often a run ends before its time."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from collections.abc import Mapping

import pytest

from operators.generation.journal import Journal, StoredCompletion
from pipeline.api.errors import ExitCode, NodeFailed, StorageError
from pipeline.results.figures import run_figures
from pipeline.results.reader import read_results
from tests.operators.endpoint.asking import ROWS, asked, started, texts
from tests.operators.endpoint.fault_server import Fault, FaultServer

pytestmark = pytest.mark.slow("kills runs fifty times")


def test_each_row_is_asked_once_and_answered(tmp_path, expected):
    assert len(expected) == ROWS
    assert len(set(expected.values())) == ROWS
    with FaultServer() as server:
        result = asked(server, tmp_path / "out", model__price_per_million={"input": 1.0, "output": 2.0, "cached": 0.5})
        assert set(server.served.values()) == {1}
        again = asked(server, tmp_path / "second", store__path=str(tmp_path / "out/completions.sqlite"))
        assert server.requests == ROWS  # the second run has all answers from the store
    assert texts(result) == expected == texts(again)
    (totals,) = result.metrics("run").select("totals").collect()["totals"]
    assert json.loads(totals)["cost"] == pytest.approx(ROWS * (6 * 1.0 + 4 * 0.5 + 5 * 2.0) / 1e6)


@pytest.mark.parametrize(("job", "api", "kept"), [("generate", "chat", 10), ("embed", "embeddings", 2)])
def test_a_store_that_fails_ends_the_run_at_once_and_what_it_has_is_not_asked_again(
    tmp_path, monkeypatch, job, api, kept
):
    put = Journal.put
    stored: list[int] = []

    def fails(self: Journal, completions: Mapping[bytes, StoredCompletion]) -> None:
        if len(stored) > kept:  # the first is what the server says of itself
            raise StorageError("the disk is full", tmp_path, full=True)
        stored.append(1)
        put(self, completions)

    monkeypatch.setattr(Journal, "put", fails)
    with FaultServer(delay_s=0.01) as server:
        with pytest.raises(NodeFailed, match="the disk is full"):
            asked(server, tmp_path / "out", 96, job=job, model__api=api, model__concurrency=2)
        before = server.requests
        assert before <= kept + 2 * 2
        monkeypatch.undo()
        result = asked(server, tmp_path / "out", 96, job=job, model__api=api, model__concurrency=2)
        assert server.requests == before + (96 if job == "generate" else 96 // 16) - kept
    assert result.rows().collect().height == 96


def test_answers_that_another_version_stored_otherwise_are_asked_for_again(tmp_path):
    older = ["", "[]", "{}", '{"text": "a", "calls": []}', '{"calls": [], "of_old": 1}']
    with FaultServer() as server:
        once = texts(asked(server, tmp_path / "out", 6))
        with sqlite3.connect(tmp_path / "out/completions.sqlite") as store:
            keys = store.execute("SELECT key FROM completions WHERE text LIKE '%calls%' LIMIT 5").fetchall()
            changed = zip(older, [key for (key,) in keys], strict=True)
            store.executemany("UPDATE completions SET text = ?, seal = NULL WHERE key = ?", changed)
        for _ in range(2):
            assert texts(asked(server, tmp_path / "out", 6, overwrite=True)) == once
            assert server.requests == 6 + 5  # the new answers are kept


@pytest.mark.faults
def test_fifty_kills_lose_and_double_nothing(tmp_path):
    kills, rng = 50, random.Random(50)
    with FaultServer() as server:
        expected = texts(asked(server, tmp_path / "left alone", 60, chunk_rows=20))
    with FaultServer(delay_s=0.1) as server:
        for _ in range(kills):
            process = started(server, tmp_path / "out")
            before = server.requests
            until = time.monotonic() + 60
            while (
                server.requests < before + rng.randrange(1, 12) and process.poll() is None and time.monotonic() < until
            ):
                time.sleep(0.01)
            process.kill()
            process.communicate()
        result = asked(server, tmp_path / "out", 60, model__concurrency=4, chunk_rows=20)
        # An answer that arrived half a second before the kill is in the store; those in flight are asked for again.
        assert sum(server.served.values()) <= 60 + kills * (4 + 20)
    assert texts(result) == expected
    assert len(expected) == 60


def test_an_interrupt_ends_the_run_and_keeps_what_is_answered(tmp_path):
    with FaultServer(lambda number, body: Fault(hang_s=60) if number >= 20 else None) as server:
        process = started(server, tmp_path / "out")
        until = time.monotonic() + 60
        while server.requests < 24 and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=30)
        answered = set(server.served)
        server.faults = None
        asked(server, tmp_path / "out", 60, model__concurrency=4, chunk_rows=20)
        assert len(answered) == 20
        assert all(server.served[body] == 1 for body in answered)


def test_a_target_ends_when_its_money_is_spent_over_all_attempts(tmp_path):
    price = {"input": 0.0, "cached": 0.0, "output": 2e5}  # 5 tokens cost 1
    target = {
        "target__accepted_rows": 200,
        "target__chunk_rows": 10,
        "model__price_per_million": price,
        "chunk_rows": 10,
    }
    with FaultServer() as server:
        result = asked(server, tmp_path / "out", 300, **target, target__max_cost=35.0, max_open_chunks=1)
        assert result.outcome == ExitCode.BUDGET
        sent, spent = server.requests, run_figures(read_results(tmp_path / "out"))["cost at servers"].value
        assert spent is not None
        assert 35 <= spent <= sent < 100  # an answer that comes when the run has ended costs, and nobody knows of it
        # Four chunks of 10 are committed at least; what is answered beyond them counts once its chunk is.
        asked(server, tmp_path / "out", 300, **target, target__max_cost=39.0, max_open_chunks=1)
        assert server.requests == sent
        result = asked(server, tmp_path / "out", 300, **target, max_open_chunks=1)
        assert result.outcome == ExitCode.DONE
    assert result.rows().collect().height == 200
    figures = run_figures(read_results(tmp_path / "out"))
    cost = figures["cost at servers"].value  # over both attempts that asked
    assert cost is not None
    assert max(spent + 1, 200) <= cost <= server.requests
