"""What a model multiplies and reads, by hand; what a machine can do at most, measured once; and the line on both."""

from __future__ import annotations

import json
import math
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf import GGML_QUANT_SIZES

from operators.engine.backend.limit import MachineLimit, ModelWork, Peaks
from operators.llama import limits
from operators.llama.gguf_check import check_gguf
from operators.llama.header import read_header
from operators.llama.packed import library
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import read_results
from pipeline.results.report.totals import totals
from pipeline.system.file_cache import PLACE
from tools.models.make_model import write_model
from tools.models.shapes import SHAPES

FAMILIES = sorted((PROJECT / "tests/families").glob("*.gguf"))
Q8_0 = 34 / 32
"""Bytes of a weight in Q8_0."""


@pytest.mark.parametrize("name", ["tiny", "tiny-llama", "tiny-qwen3moe"])
def test_a_token_is_multiplied_with_each_matrix_and_each_is_read_once(tmp_path, name):
    path = write_model(tmp_path / "model.gguf", shape=name, file_type="q8_0").path
    shape, header = SHAPES[name], read_header(path)
    attention = shape.n_embd * (2 * shape.q_dim + 2 * shape.kv_dim)
    feed_forward = 3 * shape.n_embd * shape.n_ff
    output = shape.n_embd * header.n_vocab
    experts = shape.n_expert > 1
    router = shape.n_embd * shape.n_expert if experts else 0  # in F32
    dense = shape.n_layer * (attention + (0 if experts else feed_forward))
    of_experts = shape.n_layer * shape.n_expert * feed_forward if experts else 0
    assert header.work == ModelWork(
        macs=dense + shape.n_layer * router,
        bytes=int(dense * Q8_0) + 4 * shape.n_layer * router,
        expert_macs=of_experts,
        expert_bytes=int(of_experts * Q8_0),
        experts=shape.n_expert,
        experts_used=shape.n_expert_used,
        output_macs=output,  # tied or not
        output_bytes=int(output * Q8_0),
        kv_values=2 * shape.n_layer * shape.kv_dim,
        attention_macs=2 * shape.n_layer * shape.q_dim,
    )


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_every_matrix_of_every_family_is_counted_once_but_for_a_table_that_is_only_looked_up(path):
    contents = check_gguf(path)
    architecture = contents.values[b"general.architecture"].scalar
    assert isinstance(architecture, bytes)
    matrices = {name: tensor for name, tensor in contents.tensors.items() if len(tensor.lengths) > 1}
    if b"output.weight" in matrices:
        del matrices[b"token_embd.weight"]
    sizes = {name: math.prod(tensor.lengths) for name, tensor in matrices.items()}
    n_bytes = 0
    for name, size in sizes.items():
        values, each = GGML_QUANT_SIZES[matrices[name].kind]
        n_bytes += size // values * each
    work = limits.work_of([contents], architecture.decode(), None)
    assert work.macs + work.expert_macs + work.output_macs == sum(sizes.values())
    assert work.bytes + work.expert_bytes + work.output_bytes == n_bytes
    assert (work.expert_macs > 0) == (work.experts > 1)
    assert 0 < work.experts_used <= work.experts
    names = list(contents.tensors)
    parts = [contents._replace(tensors={n: contents.tensors[n] for n in half}) for half in (names[::2], names[1::2])]
    assert limits.work_of(parts, architecture.decode(), None) == work, "of a model in two files"
    assert work.window == (32 if path.stem in ("gemma3", "gpt-oss") else math.inf)


@pytest.mark.parametrize("scalar", [None, b"text", -1, -(2**31), 0.5, math.nan, math.inf])
def test_a_key_that_is_no_number_is_left_out_and_makes_nothing_negative(scalar):
    contents = check_gguf(PROJECT / "tests/families/gpt-oss.gguf")
    keys = ("nextn_predict_layers", "expert_used_count", "attention.head_count", "attention.sliding_window")
    for key in (*keys, "attention.head_count_kv", "block_count", "expert_count"):
        odd = {f"gpt-oss.{key}".encode(): contents.values[b"gpt-oss.block_count"]._replace(scalar=scalar)}
        work = limits.work_of([contents._replace(values={**contents.values, **odd})], "gpt-oss", 8)
        assert work.macs_of(3, 1, 9) > 0 < work.bytes_of(3, 1, 9, 2.0) < math.inf
        assert 0 < work.experts_used <= work.experts
        assert work.attention_macs >= 0 < work.window


def test_layers_that_guess_tokens_for_drafts_are_not_counted():
    contents = check_gguf(PROJECT / "tests/families/qwen3.gguf")
    without = limits.work_of([contents], "qwen3", None)
    guesses = contents.values[b"qwen3.block_count"]._replace(scalar=1)
    found = limits.work_of(
        [contents._replace(values={**contents.values, b"qwen3.nextn_predict_layers": guesses})], "qwen3", None
    )
    assert 2 * found.macs == without.macs
    assert found.output_macs == without.output_macs


def test_a_call_is_what_its_rows_multiply_and_read():
    work = ModelWork(100, 50, 80, 40, 8, 2, output_macs=10, output_bytes=5, kv_values=4, attention_macs=3)
    limit = MachineLimit(Peaks(macs=10.0, bytes=1.0), work, value_bytes=2.0)
    limit.add([(1, 7), (1, 9)], outputs=2, seconds=100.0)  # two rows decode
    macs = 2 * (100 + 80 * 2 / 8) + 2 * 10 + 3 * (7 + 9)
    n_bytes = 50 + 40 * (1 - 0.75**2) + 5 + 4 * 2 * (7 + 9)
    assert astuple(limit.sums) == pytest.approx((100.0, n_bytes, macs, macs / 10, n_bytes, n_bytes))
    limit = MachineLimit(Peaks(macs=1.0, bytes=1e9), work, value_bytes=2.0)
    limit.add([(4, 6)], outputs=0, seconds=1.0)  # a chunk of a prompt behind two tokens, without logits
    assert limit.sums.work_macs == 4 * 120 + 3 * (3 + 4 + 5 + 6) == limit.sums.work_limit_s
    assert limit.sums.work_bytes == pytest.approx(50 + 40 * (1 - 0.75**4) + 4 * 2 * 6)


def test_a_token_sees_no_more_than_the_window():
    limit = MachineLimit(Peaks(1.0, 1.0), ModelWork(kv_values=1, attention_macs=1, window=32), 1.0)
    limit.add([(1, 1000), (1, 10)], 2, 1.0)
    assert limit.sums.work_bytes == limit.sums.work_macs == 42


class Native:
    """A library that says what it measured, and counts how often."""

    def __init__(self, products: float = 4e9, read: float = 2e9, sources: bytes = b"one") -> None:
        self.measured, self.read = 0, read
        self.kernels_products = lambda times: products
        self.kernels_sources = lambda: sources

    def products(self, threads: int) -> float:
        self.measured += 1
        return self.kernels_products(1) * threads


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """`ask(native, threads)`: the peaks as a process says them that begins now. `alone`: the share of the cores that it
    had; `load`: of the machine before."""
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    monkeypatch.setattr(limits, "has_amx", lambda: False)
    monkeypatch.setattr(limits, "free_memory", lambda: limits._ROOM_BYTES)

    def ask(native: Any, threads: int = 2, alone: float = 1.0, load: float = 0.0) -> Peaks | None:
        monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
        wall, cpu = iter((0.0, 1.0)), iter((0.0, threads * alone))
        clocks = SimpleNamespace(perf_counter=lambda: next(wall), process_time=lambda: next(cpu))
        monkeypatch.setattr(limits, "time", clocks)
        monkeypatch.setattr(limits, "library", lambda: native)
        monkeypatch.setattr(limits, "peak_products", lambda native, threads: native.products(threads))
        monkeypatch.setattr(limits, "peak_bytes", lambda native, threads: native.read)
        limits.peaks.cache_clear()
        return limits.peaks(threads)

    yield ask
    limits.peaks.cache_clear()


def kept_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache/peaks").iterdir() if not path.name.startswith(".")]


def test_a_machine_is_measured_once_for_each_number_of_threads_and_version(measured, tmp_path):
    native, other = Native(), Native(sources=b"two")
    assert measured(native, 2) == measured(native, 2) == Peaks(8e9, 2e9)
    assert native.measured == 1
    assert measured(native, 1) == Peaks(4e9, 2e9)
    assert native.measured == 2
    assert measured(other, 1) == Peaks(4e9, 2e9)
    assert other.measured == 1
    assert len(kept_files(tmp_path)) == 3


@pytest.mark.parametrize("text", ["", "1.0", "1 2 3", "nonsense", "0 5", "nan 1", "inf 1", "-1 -1", "\udcff"])
def test_a_damaged_measurement_is_made_anew(measured, tmp_path, text):
    native = Native()
    measured(native)
    (kept,) = kept_files(tmp_path)
    kept.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert measured(native) == measured(native) == Peaks(8e9, 2e9)
    assert native.measured == 2


def test_beside_other_work_nothing_is_kept_and_nothing_is_told(measured, tmp_path, caplog):
    native = Native()
    with caplog.at_level("INFO"):
        assert measured(native, load=1000.0) is None
        assert native.measured == 0
        assert measured(native, alone=0.5) is None
    assert caplog.text.count("is not told: other work is using the cores") == 2
    assert not kept_files(tmp_path)
    assert measured(native) == Peaks(8e9, 2e9)


@pytest.mark.parametrize(
    ("native", "why"),
    [
        (None, {}),
        (SimpleNamespace(kernels_sources=lambda: b""), {}),
        (Native(products=0.0), {}),
        (Native(), {"free_memory": lambda: limits._ROOM_BYTES - 1}),
        (Native(), {"has_amx": lambda: True}),
    ],
    ids=["no library", "an older one", "no AVX2", "memory is short", "AMX, whose products are not measured"],
)
def test_where_nothing_can_be_measured_there_is_no_limit(measured, monkeypatch, native, why):
    for name, what in why.items():
        monkeypatch.setattr(limits, name, what)
    assert measured(native) is None
    assert limits.machine_limit(ModelWork(), EngineSettings(threads=2)) is None
    assert not why or native.measured == 0


def test_a_cache_that_cannot_be_written_costs_the_line_and_no_run(measured, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    with caplog.at_level("INFO"):
        assert measured(Native()) is None
    assert "how near the run comes to this machine's limit is not told" in caplog.text


def test_what_is_measured_is_more_than_nothing(monkeypatch):
    monkeypatch.setattr(limits, "_ROUND_S", 0.005)
    monkeypatch.setattr(limits, "_LONG_ENOUGH_S", 0.02)
    monkeypatch.setattr(limits, "_ROOM_BYTES", 64 << 20)
    native = library()
    if native is None or not hasattr(native, "kernels_products"):
        pytest.skip("the library of kernels is not built here")
    for threads in (1, 2):
        assert 0 < limits.peak_products(native, threads) < 1e15
        assert 0 < limits.peak_bytes(native, threads) < 1e15


@pytest.mark.parametrize("known", [True, False])
def test_a_run_tells_how_near_it_came_to_the_limit_or_says_nothing(tmp_path, monkeypatch, known):
    monkeypatch.setattr(limits, "peaks", lambda threads: Peaks(2e12, 1e12) if known else None)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text("".join(json.dumps({"id": i, "prompt": f"Say {i}."}) + "\n" for i in range(4)))
    given = (f"data.path={prompts}", f"output_dir={out}", "progress=none", "sampling.max_tokens=4", "report=false")
    assert main(["job=generate", "model=tiny", *given]) == ExitCode.DONE
    logged = [line for line in (out / "run.log").read_text().splitlines() if "of this machine's limit" in line]
    shown = dict(totals(read_results(out)))
    assert len(logged) == ("calls of the model" in shown) == known
    if known:
        assert "of 1,000 GB/s and " in shown["calls of the model"]
        assert " of 2,000 GMAC/s: " in shown["calls of the model"]
        assert logged[0].endswith(f"calls of the model: {shown['calls of the model']}")
