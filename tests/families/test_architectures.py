"""What is known of architectures: refusals, warnings, and the tables of docs/models.md."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest
from gguf import LlamaFileType

from operators.llama.header import REFUSED
from operators.llama.kernels import CLASSES, PROVEN, doubt, system_info
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.operators.llama.gguf_files import header_alone
from tools.models.make_model import FILE_TYPES, write_model
from tools.models.shapes import ARCHITECTURES, SHAPES
from tools.models.vocabularies import builtin_vocabulary

F32, Q5_0 = llama_cpp.LLAMA_FTYPE_ALL_F32, llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_0
Q8_0 = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0


def rows(heading: str) -> dict[str, list[str]]:
    """The table below a heading of docs/models.md: the other cells of a row by what stands in code in its first."""
    text = (
        (PROJECT / "docs" / "models.md")
        .read_text(encoding="utf-8")
        .partition(f"## {heading}\n")[2]
        .partition("\n## ")[0]
    )
    lines = [
        [cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {name: cells for first, *cells in lines for name in re.findall(r"`([^`]+)`", first)}


def test_docs_have_the_tables_of_the_code():
    assert {name: cells[0] for name, cells in rows("Families").items()} == CLASSES
    assert {name: cells[0] for name, cells in rows("Refused").items()} == REFUSED
    named = {LlamaFileType["ALL_F32" if name == "f32" else f"MOSTLY_{name.upper()}"]: name for name in FILE_TYPES}
    for name, cells in rows("Families").items():
        proven = {named[code] for code in PROVEN[CLASSES[name]] if code in named}
        assert set(re.findall(r"`([^`]+)`", cells[1])) == proven


@pytest.mark.parametrize(
    ("architecture", "file_type", "machine", "reason"),
    [
        ("qwen3", F32, "x86_64", None),
        ("mamba2", F32, "AMD64", None),
        ("qwen3", F32, "riscv64", "no test ran on a processor of this kind, riscv64"),
        ("qwen3", F32, "aarch64", "on arm64 only dense models in q8_0 and q4_0 are the same to the bit"),
        ("mamba2", Q8_0, "arm64", "on arm64 only dense models in q8_0 and q4_0 are the same to the bit"),
        ("qwen3moe", Q5_0, "x86_64", "its file type is not tested with its architecture, qwen3moe (experts)"),
        ("gemma4", F32, "x86_64", "no test ran a model of its architecture, gemma4"),
    ],
)
def test_what_no_test_proves_is_doubted(architecture, file_type, machine, reason):
    assert doubt(architecture, file_type, machine) == reason


@pytest.mark.parametrize(
    ("architecture", "machine", "proven"),
    [("qwen3", "x86_64", True), ("gemma3", "x86_64", False), ("lfm2", "x86_64", False), ("qwen3", "aarch64", False)],
)
def test_unlike_types_of_keys_and_values_are_proven_where_they_were_compared(architecture, machine, proven):
    reason = doubt(architecture, llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, machine, packed=True, kv_types=("q8_0", "f16"))
    assert (reason is None) == proven
    assert proven or "unlike types of keys and values" in str(reason)


@pytest.mark.parametrize(
    ("compiled", "tested"),
    [
        (" FP16_VA = 1 | DOTPROD = 1 | ", True),
        (" FP16_VA = 1 | MATMUL_INT8 = 1 | DOTPROD = 1 | ", False),
        (" DOTPROD = 1 | ", False),
        (" NEON = 1 | ", False),
    ],
)
def test_on_arm64_the_instructions_that_were_compiled_in_decide(monkeypatch, compiled, tested):
    monkeypatch.setattr("llama_cpp.llama_print_system_info", compiled.encode)
    said = None if tested else "on arm64 only kernels with dotprod and fp16 and without i8mm, SVE and SME are tested"
    assert doubt("qwen3", Q8_0, "arm64") == said


def test_threads_that_ask_for_the_instructions_at_once_wait_for_each_other(monkeypatch):
    """llama.cpp writes the answer to one string: what two threads write at once differs between workers."""
    asking: list[bool] = []

    def ask() -> bytes:
        assert not asking
        asking.append(True)
        time.sleep(0.01)
        asking.clear()
        return b"AVX = 1 | "

    monkeypatch.setattr("llama_cpp.llama_print_system_info", ask)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: system_info(), range(8))) == {b"AVX = 1 | "}


def job(model: Path, out: Path) -> list[str]:
    data = out.with_suffix(".jsonl")
    data.write_text('{"prompt": "a"}\n', encoding="utf-8")
    return [
        *("job=generate", "model=gguf", f"model.path={model}", f"data.path={data}", f"output_dir={out}"),
        *("sampling.max_tokens=2", "progress=none"),
    ]


def test_a_doubt_is_said_once(tmp_path, caplog):
    write_model(tmp_path / "model.gguf", file_type="q5_0")
    assert main(job(tmp_path / "model.gguf", tmp_path / "out")) == ExitCode.DONE
    assert caplog.text.count("runtime.deterministic is not proven for this model (its file type is not tested") == 1


def test_a_model_of_a_family_that_no_test_knows_runs_with_a_warning(tmp_path, caplog, monkeypatch):
    """SmolLM3 has the tensors of Llama."""
    monkeypatch.setitem(ARCHITECTURES, "smollm3", ARCHITECTURES["llama"])
    write_model(tmp_path / "model.gguf", shape=replace(SHAPES["tiny-llama"], arch="smollm3"))
    assert main(job(tmp_path / "model.gguf", tmp_path / "out")) == ExitCode.DONE
    said = "runtime.deterministic is not proven for this model (no test ran a model of its architecture, smollm3)"
    assert caplog.text.count(said) == 1


@pytest.mark.parametrize(
    ("architecture", "causal", "reason"),
    [
        ("bert", None, "is an encoder"),
        ("dream", None, "is a diffusion model"),
        ("qwen3", False, "looks at what comes behind a token"),
    ],
)
def test_a_model_that_cannot_complete_is_refused_before_it_is_loaded(tmp_path, capfd, architecture, causal, reason):
    """The file has no weights: to load it would be another error."""
    keys = {} if causal is None else {"attention.causal": causal}
    path = header_alone(tmp_path / "model.gguf", architecture, builtin_vocabulary().values, **keys)
    assert main(job(path, tmp_path / "out")) == ExitCode.CONFIG
    assert f"a model of the architecture {architecture} {reason}" in capfd.readouterr().err
