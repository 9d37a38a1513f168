"""The completion store: found before and after it is written, and after its process died; and what computes, in one
value: content keys have all of it, and nodes share an engine only where it is equal."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.engine.backend.fake import FakeModel
from operators.engine.sampling.logprobs import Scored
from operators.generate import Generate
from operators.generation.journal import FLUSH_ROWS, StoredCompletion
from operators.generation.store import _SCHEMA, CompletionStore
from operators.generation.store_lookup import CompletionKeys
from operators.generation.wiring import identity_of, shared_engine
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import InputError, PipelineError
from pipeline.api.identity import Identity
from pipeline.api.meter import StageMeter
from pipeline.api.records import Batch, ChunkEnd
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.cluster.identity import identities_of
from pipeline.dataflow.inbox import NodeInbox
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.run_dir.store_check import RowCheck, check_rows, remove_damaged
from tests.pipeline.damage import damaged_values
from tests.sets import often

ROOT = Path(__file__).parents[3]


def stored(number: int) -> StoredCompletion:
    return StoredCompletion([number, 2, 3], f"text {number} ✓", "stop")


def key(number: int) -> bytes:
    return CompletionKeys("model").key(b"", np.array([number], np.int32))


def count(path: Path) -> int:
    with sqlite3.connect(path) as database:
        return int(database.execute("SELECT COUNT(*) FROM completions").fetchone()[0])


def keys_in(path: Path) -> set[bytes]:
    """What another connection sees."""
    with sqlite3.connect(path) as database:
        return {key for (key,) in database.execute("SELECT key FROM completions")}


def wait_for(holds: Callable[[], bool]) -> None:
    """Until it holds; a minute is more than it ever takes."""
    for _ in range(12_000):
        if holds():
            return
        time.sleep(0.005)
    pytest.fail("it never came to hold")


def test_found_at_once_and_after_it_is_opened_again(tmp_path):
    store = CompletionStore(tmp_path / "store.sqlite")
    store.put({key(i): stored(i) for i in range(3)})
    for _ in range(2):
        found = store.find([key(i) for i in range(5)])
        assert set(found) == {key(i) for i in range(3)}
        assert found[key(1)].text == "text 1 ✓"
        assert list(found[key(1)].ids) == [1, 2, 3]
        store.close()
        store = CompletionStore(tmp_path / "store.sqlite")
    store.close()
    assert len({key(i) for i in range(100)} | {CompletionKeys("other").key(b"", np.array([1], np.int32))}) == 101


@pytest.mark.parametrize("bits", often([1, 8], 1))
def test_no_changed_value_is_served_and_verify_finds_it(tmp_path, caplog, bits):
    """A bit of any value, or scores that are gone, leave a file in which SQLite's own check finds nothing."""
    scored = replace(stored(2), scores=[Scored(-0.5, ((1, -0.5),))] * 3, least=3, run="a")
    told = {key(1): stored(1), key(2): scored, key(3): replace(stored(3), text="")}
    with closing(CompletionStore(tmp_path / "store.sqlite")) as store:
        store.write(told, {b"s" * 16})
        before, db = store.find(list(told)), store._reader
        assert (len(before), check_rows(db)) == (3, RowCheck(0, 0))
        for what in damaged_values(db, bits):
            found = store.find(list(told))
            assert {k: repr(v) for k, v in found.items()}.items() <= {k: repr(v) for k, v in before.items()}.items()
            lost = what.startswith(("completions: removed", "settings: removed", "used: "))
            assert lost or check_rows(db).damaged + check_rows(db).unsealed, what
        assert "stored completions have other values than were written" in caplog.text
        assert len(caplog.records) == 1
        db.execute("UPDATE completions SET text = 'other' WHERE key = ?", (key(1),))
        remove_damaged(tmp_path / "store.sqlite")
        assert check_rows(db) == RowCheck(0, 0)
        assert set(store.find(list(told))) == {key(2), key(3)}
        store.write({key(1): stored(1)}, set())
        assert store.find([key(1)])[key(1)].text == stored(1).text


def test_rows_of_an_earlier_version_serve_and_new_ones_get_a_digest(tmp_path):
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"{_SCHEMA} PRAGMA user_version = 2;")
        for number in (1, 2):
            row = (key(number), np.array([number, 2, 3], np.int32).tobytes(), f"text {number} ✓", "stop", 0, "")
            db.execute("INSERT INTO completions VALUES (?, ?, ?, ?, ?, ?)", row)
        db.execute("UPDATE completions SET text = CAST(x'ff' AS TEXT) WHERE key = ?", (key(2),))
        db.commit()
        assert check_rows(db) == RowCheck(0, 2)
    for _ in range(2):
        with closing(CompletionStore(path)) as store:
            store.write({key(3): stored(3)}, set())
            assert set(store.find([key(i) for i in range(5)])) == {key(1), key(3)}
            assert check_rows(store._reader) == RowCheck(0, 2)


def test_many_keys_at_once(tmp_path):
    store = CompletionStore(tmp_path / "store.sqlite")
    store.put({key(i): stored(i) for i in range(3000)})
    assert len(store.find([key(i) for i in range(4000)])) == 3000
    store.close()


def test_what_was_flushed_outlives_the_process(tmp_path):
    path = tmp_path / "store.sqlite"
    code = f"""
import os
from tests.operators.generation.test_store import *
store = CompletionStore(Path({str(path)!r}))
store.put({{key(i): stored(i) for i in range(FLUSH_ROWS)}})
while store._unsaved or store._writing:
    time.sleep(0.001)
store.put({{key(9999): stored(9999)}})
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 9
    store = CompletionStore(path)
    assert len(store.find([key(i) for i in range(FLUSH_ROWS)])) == FLUSH_ROWS
    store.close()


def test_one_row_is_durable_though_nothing_else_happens(tmp_path):
    store = CompletionStore(tmp_path / "store.sqlite")
    store.put({key(1): stored(1)})
    wait_for(lambda: count(tmp_path / "store.sqlite") == 1)
    assert keys_in(tmp_path / "store.sqlite") == {key(1)}
    store.close()


def test_a_store_that_cannot_be_written_says_so_at_the_next_put_and_at_the_end(tmp_path):
    store = CompletionStore(tmp_path / "store.sqlite")
    store._writer.execute("DROP TABLE completions")
    store.put({key(1): stored(1)})
    wait_for(lambda: store._failure is not None)
    with pytest.raises(PipelineError, match=r"store\.sqlite fails: no such table"):
        store.put({key(2): stored(2)})
    with pytest.raises(PipelineError, match="no such table"):
        store.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells open files by /proc")
@pytest.mark.parametrize("version", [0, 99])
def test_a_store_of_another_format_is_named_and_left_closed(tmp_path, version):
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        database.execute("CREATE TABLE completions (key BLOB)")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()
    with pytest.raises(
        InputError, match=rf"store\.sqlite cannot be used: it has format {version}.*store\.path="
    ) as held:
        CompletionStore(tmp_path / "store.sqlite")
    still_open = [each for each in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(each)]
    assert not still_open, "while the error is at hand, as in a notebook, a disk could not be taken away"
    del held


@pytest.mark.parametrize("blocked", [True, False], ids=["blocked", "stopped"])
def test_rows_that_were_finished_and_not_collected_are_kept(tmp_path, blocked):
    """While the node waits for its reader (here: for the next `next`), and when it is stopped."""
    settings = EngineSettings(slots=4, max_sequence_tokens=128)
    sampling = SamplingSettings(max_tokens=20, ignore_eos=True, per_row=["max_tokens"])
    model = ModelSettings(loader="operators.engine.backend.fake:load")
    op = Generate(model, sampling, DecodeSettings(), settings, StoreSettings())
    ids = pa.array([[1], [2], [3], [4]], pa.list_(pa.int32()))
    data = pa.RecordBatch.from_pydict({"row": [0, 1, 2, 3], "max_tokens": [1, 20, 20, 20], "prompt_ids": ids})
    op.plan(data.schema)
    context = RunContext(tmp_path, Resources(), MetricsTables(tmp_path).get)
    op.open(Runtime(context, "generate", 1, StageMeter("generate")))
    meter = StageMeter("generate")
    inbox = NodeInbox(meter)
    channel = inbox.connect(100)
    channel.inbox.put(channel, Batch(0, data), meter)
    channel.inbox.put(channel, ChunkEnd(0, 4), meter)
    decoder = op._engine.loop.decoder
    decode, gate = decoder.decode, threading.Semaphore(1)
    decoder.decode = lambda: decode() if gate.acquire() else None  # type: ignore
    running = op.run(inbox)
    first = next(running)
    assert isinstance(first, Batch)
    assert first.num_rows == 1
    gate.release(100)
    while context.statuses[0]() != "slots 0/4":
        time.sleep(0.001)
    if blocked:
        wait_for(lambda: count(tmp_path / "completions.sqlite") == 4)
    running.close()  # type: ignore[attr-defined]  # a generator, though its type does not say so
    context.resources.close()
    assert count(tmp_path / "completions.sqlite") == 4


HERE = Identity("sha256 1", "llama-cpp-python 0.3", "CPU", None, "any", "{'kv_type': 'f16'}")


def graph_of(identity: Identity) -> Any:
    """A graph of one node that computes so."""
    return SimpleNamespace(with_role=lambda role: {"reply": SimpleNamespace(identity=lambda: identity)})


def test_what_runs_and_stores_of_before_have_of_it_stays():
    """The words and their order: content keys are hashes of them, and a run keeps them in state.sqlite."""
    words = {
        "the model": "sha256 1",
        "llama.cpp": "llama-cpp-python 0.3",
        "the device": "CPU",
        "what is not proven": "None",
        "runtime.threads": "any",
        "runtime": "{'kv_type': 'f16'}",
    }
    assert list(HERE.in_words().items()) == list(words.items())
    kept = {f"{what} of node 'reply'": text for what, text in words.items()}
    assert identities_of(graph_of(HERE)) == kept
    with_bits = kept | {"the bits of fixed texts of node 'reply'": "00"}
    assert identities_of(graph_of(replace(HERE, bits="00"))) == with_bits


@pytest.mark.parametrize("part", [f.name for f in fields(Identity)])
def test_each_part_of_it_is_in_a_content_key(part):
    keys = (CompletionKeys(one.in_words()).settings(b"") for one in (HERE, replace(HERE, **{part: "another"})))
    assert len(set(keys)) == 2


PARTS = {
    "model": ("fingerprint", lambda self: "another"),
    "build": ("kernels", "another"),
    "device": ("device", "another"),
    "doubt": ("doubt", lambda self, settings: "another"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_model_says_what_it_is_and_where_it_runs(part, monkeypatch):
    before = identity_of(FakeModel(), settings := EngineSettings(threads=1))
    monkeypatch.setattr(FakeModel, *PARTS[part])
    threads = 1 if part == "doubt" else "any"
    assert identity_of(FakeModel(), settings) == replace(before, threads=threads, **{part: "another"})


def test_nodes_share_an_engine_only_where_the_same_computes(tmp_path: Path):
    """Equal content and build do not suffice: one of them may be on a GPU."""
    context = RunContext(tmp_path, Resources(), MetricsTables(tmp_path).get)
    runtime = Runtime(context, "generate", 1, StageMeter("generate"))
    models = FakeModel(), FakeModel(), FakeModel()
    models[2].device = "3 layers on a GPU"
    try:
        one, same, other = (shared_engine(runtime, model, EngineSettings(), DecodeSettings()) for model in models)
        assert one is same
        assert other is not one
    finally:
        context.resources.close()
