"""Which kernels multiply quantised matrices: this project's where they can, llama.cpp's else, and each with its own
bits, whatever else the process computes. tests/operators/llama/kernels has what they compute."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.generate import Generate
from operators.generation.memory import model_memory
from operators.generation.wiring import identity_of
from operators.llama import packed
from operators.llama.header import read_header
from operators.llama.library import forget_errors, recent_lines
from operators.llama.model import LlamaModel
from operators.llama.packed import library_path, state
from operators.score import Score
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.model import KERNELS
from operators.settings.runtime import EngineSettings
from operators.tokens import Tokenize
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.run_dir.names import RUN_LOG
from tests.operators.flow import Flow, Rows, chain
from tests.operators.llama.test_metadata import TINY
from tools.models.make_model import write_model
from tools.models.shapes import SHAPES

pytestmark = [
    pytest.mark.slow("loads models in processes of their own"),
    pytest.mark.skipif(not library_path().exists(), reason="this build has no kernels of its own (x86-64, Linux)"),
]

PROJECT = Path(__file__).parents[3]
AUTO, THEIRS = ModelSettings(path=str(TINY)), ModelSettings(path=str(TINY), kernels="llama.cpp")
MATRICES = 43
NIBBLES = bytes.fromhex("8198adbfcfddeaf6010d192635455971")
"""The table of values of IQ4_NL, as the library has it for each set of instructions."""


def scored(folder: Path, *overrides: str) -> tuple[Any, str]:
    """The log-probabilities that a job writes, and its log."""
    fixed = ("job=score_perplexity", "data.limit=12", "runtime.slots=4", "progress=none", f"output_dir={folder}")
    assert main([*fixed, *overrides]) == ExitCode.DONE
    return pq.read_table(folder / "data").column("logprobs").to_pylist(), (folder / RUN_LOG).read_text()


def test_the_switch_gives_each_job_of_a_process_its_own_bits(tmp_path):
    ours, log = scored(tmp_path / "a")
    assert f"this project's kernels 2 ({state()[1].partition('(')[2]}, {MATRICES} quantised matrices" in log
    theirs, log = scored(tmp_path / "b", "runtime.kernels=llama.cpp")
    assert "this project's kernels" not in log
    assert theirs != ours
    assert scored(tmp_path / "c")[0] == ours
    assert scored(tmp_path / "d", "model.kernels=llama.cpp")[0] == theirs, "one model of a job can have its own"


def test_what_computes_is_a_part_of_what_identifies_a_run():
    models = [LlamaModel(settings) for settings in (AUTO, THEIRS)]
    ours, theirs = (identity_of(model, EngineSettings()) for model in models)
    assert ours == replace(theirs, build=ours.build)
    without = ours.build.removesuffix(f"; kernels 2, {MATRICES} matrices")
    assert without == theirs.build, "this is what it was before there were any"
    for model in models:
        model.close()


@pytest.mark.parametrize(("name", "attention"), [("qwen3", True), ("encoders/bert", False)])
def test_attention_alone_identifies_a_run_too_where_it_is_ours(name, attention):
    """Of a model in F32 no matrix is ours; of an encoder nothing is, and its runs go on."""
    path = next(PROJECT.glob(f"tests/families/{name}*.gguf"))
    ours, theirs = (LlamaModel(ModelSettings(path=str(path), kernels=each)) for each in KERNELS)
    assert ours.packed.tensors == 0
    assert (ours.kernels != theirs.kernels) == attention
    ours.close()
    theirs.close()


@pytest.mark.parametrize("tied", [True, False])
def test_packed_weights_are_counted_for_each_process_and_a_tied_table_twice(tmp_path, tied):
    shape = replace(SHAPES["tiny"], tied_embeddings=False)
    path = TINY if tied else write_model(tmp_path / "m.gguf", file_type="q8_0", shape=shape).path
    settings = [replace(each, path=str(path)) for each in (AUTO, THEIRS)]
    ours, theirs = (list(model_memory(each, EngineSettings(), "key")) for each in settings)
    weights, private = ours[:2]
    assert theirs[0].size_bytes == path.stat().st_size
    assert [each.shared for each in (theirs[0], weights, private)] == [True, True, False]
    size, copied = read_header(path).packed
    assert private.size_bytes == size
    assert weights.size_bytes + size == path.stat().st_size + copied
    assert (copied > 0) == tied


@pytest.mark.parametrize(("free", "tensors"), [(0, 0), (1, MATRICES - 1), (2, MATRICES)])
def test_without_memory_for_them_llama_cpps_kernels_compute(monkeypatch, caplog, free, tensors):
    """All of it, or the last matrix alone, for which the table of tokens would be in memory twice."""
    size, tied = read_header(TINY).packed
    monkeypatch.setattr(packed, "free_memory", lambda: [0, size - tied, size][free])
    model = LlamaModel(AUTO)
    assert model.packed.tensors == tensors
    assert ("are free" in caplog.text) == (tensors == 0)
    model.close()


def test_what_ours_leave_is_repacked_only_where_it_was_before(tmp_path):
    """llama.cpp's repacked K-quants have other bits for other numbers of rows."""
    shape = replace(SHAPES["tiny-256"], n_head=32, n_head_kv=1, head_dim=24)  # keys of 24 rows: llama.cpp repacks 8
    path = write_model(tmp_path / "m.gguf", file_type="q4_k_m", shape=shape).path
    buffers = {}
    for kernels in KERNELS:
        forget_errors()
        model = LlamaModel(replace(AUTO, path=str(path), kernels=kernels))
        buffers[kernels] = {line.split()[1] for line in recent_lines() if "model buffer size" in line}
        model.close()
    assert buffers["auto"] == buffers["llama.cpp"] | {"PACKED"}


def test_a_model_before_that_has_none_changes_nothing():
    """llama.cpp copies its list of buffer types when the first model is loaded."""
    script = (
        "import sys; from operators.llama.model import LlamaModel; from operators.settings import ModelSettings\n"
        "for kernels in ('llama.cpp', 'auto', 'llama.cpp'):\n"
        "    print(LlamaModel(ModelSettings(path=sys.argv[1], probe=False, kernels=kernels)).packed.tensors)"
    )
    done = subprocess.run([sys.executable, "-c", script, TINY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", str(MATRICES), "0"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"0.25.", b"9.99.", "they were compiled for ggml 9.99."),
        (b"ggml_threadpool_chunk_set", b"ggml_threadpool_chunk_let", "llama.cpp has no ggml_threadpool_chunk_let"),
        (NIBBLES, NIBBLES[:-1] + b"\x70", "they failed their test: the products of iq4_nl by"),
    ],
)
def test_a_library_that_does_not_fit_is_left_out_with_one_line(tmp_path, old, new, said):
    data = library_path().read_bytes()
    assert data.count(old) >= 1
    other = tmp_path / "other.so"
    other.write_bytes(data.replace(old, new))
    lines, tensors = said_of_a_library(other)
    assert tensors == 0
    assert len(lines) == 1
    assert f"llama.cpp's kernels, not those of this project: {said}" in lines[0]
    assert "pipeline build" in lines[0]


def said_of_a_library(path: Path) -> tuple[list[str], int]:
    """The lines of the log when a model is loaded beside the library in `path`, and how many matrices are ours."""
    script = (
        "import logging, sys; from pathlib import Path; from operators.llama import packed\n"
        "from operators.llama.model import LlamaModel; from operators.settings import ModelSettings\n"
        "logging.basicConfig(level=logging.INFO, format='%(message)s', stream=sys.stdout)\n"
        "packed.library_path = lambda: Path(sys.argv[1])\n"
        "model = LlamaModel(ModelSettings(path=sys.argv[2], probe=False)); print(model.packed.tensors)"
    )
    done = subprocess.run([sys.executable, "-c", script, path, TINY], capture_output=True, text=True, check=True)
    *lines, tensors = done.stdout.splitlines()
    return lines, int(tensors)


ASKED: list[tuple[ModelSettings, dict[str, Any]]] = [(AUTO, {}), (AUTO, {"kernels": "llama.cpp"}), (THEIRS, {})]


def generate(model: ModelSettings, runtime: dict[str, Any], name: str) -> Generate:
    sampling, settings = SamplingSettings(max_tokens=4, logprobs=1), EngineSettings(slots=2, **runtime)
    return Generate(model, sampling, DecodeSettings(), settings, StoreSettings(enabled=False), as_=name)


def score(model: ModelSettings, runtime: dict[str, Any], name: str) -> Score:
    return Score(model, EngineSettings(slots=2, **runtime), "prompt_text", as_=name)


@pytest.mark.parametrize("reads", [generate, score])
def test_nodes_of_a_run_have_the_kernels_that_they_ask_for(tmp_path, reads):
    """Also outside of a job, which gives the model those of its engine."""
    rows = [{"prompt_text": "Put these words in alphabetical order: hare, goose, fox"}]
    nodes = {f"n{i}": reads(*asked, f"n{i}") for i, asked in enumerate(ASKED)}
    source = Rows(rows, pa.schema([("prompt_text", pa.string())]))
    (row,) = Flow(tmp_path, chain(source, tokens=Tokenize(AUTO), **nodes)).run()
    ours, theirs, also_theirs = (row[f"n{i}_logprobs"] for i in range(3))
    assert ours != theirs == also_theirs


def test_a_draft_model_has_the_kernels_of_its_engine(tmp_path):
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(TINY.read_bytes())
    drafting = ("decode=speculative", f"decode.draft.model={draft}", "sampling.max_tokens=4")
    fixed = ("job=quickstart", "data.limit=2", "runtime.slots=2", "progress=none", *drafting)
    for kernels, files in (("auto", {TINY.name, draft.name}), ("llama.cpp", set())):
        out = tmp_path / kernels
        assert main([*fixed, f"output_dir={out}", f"runtime.kernels={kernels}"]) == ExitCode.DONE
        lines = [line.split() for line in (out / RUN_LOG).read_text().splitlines() if "this project's kernels" in line]
        assert {name for line in lines for name in (f"{TINY.name}:", f"{draft.name}:") if name in line} == {
            f"{name}:" for name in files
        }
