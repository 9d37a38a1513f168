"""Jobs with adapters: a row gets the text that it gets in a job with its adapters alone, whoever is beside it."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from operators.generate import DRAINED, MIXED
from operators.llama.adapters.targets import read_base
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.operators.llama.adapters.adapter_files import drawn, write_adapter
from tests.sets import often

pytestmark = pytest.mark.slow("runs jobs with adapters of the model that ships")

AUTO, LLAMA_CPP = "auto", "llama.cpp"
TINY = Path("models/tiny/tiny-q8_0.gguf")
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NAMES = (None, "x", "y", ["z", "x"], "base")
"""Adapters of the rows, in turn."""


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> dict[str, Any]:
    """Three adapters of the tiny model: of other ranks, types, tensors and scales."""
    folder = tmp_path_factory.mktemp("adapters")
    base = read_base(TINY)
    targets = [name for name in base.tensors if any(f".{matrix}.weight" in name for matrix in MATRICES)]
    given: dict[str, Any] = {}
    for i, (name, rank, kind) in enumerate((("x", 4, "F32"), ("y", 24, "F16"), ("z", 8, "F32"))):
        pairs = drawn(base, targets[i:], rank, seed=i)
        given[name] = str(write_adapter(folder / f"{name}.gguf", pairs, base.architecture, alpha=16.0, kind=kind))
    return given | {"y": {"path": given["y"], "scale": 0.5}}


def rows(count: int = 10) -> list[dict[str, Any]]:
    """Rows of unequal lengths, with adapters in turn; neighbours have equal prompts, and all a long beginning."""
    texts = [f"{'Count with me. ' * 12} {i // 2} + {i // 2 % 7} = {'?' * (i // 2 % 5)}" for i in range(count)]
    return [
        {"id": i, "prompt": text, "given": [name] if isinstance(name, str) else name}
        for i, (text, name) in enumerate(zip(texts, NAMES * count, strict=False))
    ]


def texts(out: Path, given: Mapping[str, Any], data: list[dict[str, Any]], *settings: str) -> dict[int, str]:
    """Run a job; return the completion of each row, by its id."""
    path = out.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in data), encoding="utf-8")
    adapters = json.dumps(given)
    job = [
        *("job=generate", "model=tiny", f"data.path={path}", "data.id_column=id", f"model.adapters={adapters}"),
        *("sampling.max_tokens=8", "chunk_rows=8", "progress=none", f"output_dir={out}"),
    ]
    assert main([*job, *settings]) == ExitCode.DONE
    table = pq.read_table(out / "data")
    return dict(zip(table["id"].to_pylist(), table["completion"].to_pylist(), strict=True))


BY_COLUMN = "data.adapter_column=given"
TOKENS, BLOCKS = ("sampling.min_tokens=4",), ("model=tiny_sdar", "decode=block_diffusion")
WAYS: dict[str, tuple[str, ...]] = {
    "as it is": TOKENS,
    "1 slot": (*TOKENS, "runtime.slots=1"),
    "3 slots": (*TOKENS, "runtime.slots=3"),
    "3 slots with drafts": (*TOKENS, "runtime.slots=3", "decode=speculative"),
    "processes": (*TOKENS, "cluster=processes", "cluster.workers=2"),
    "blocks": BLOCKS,
    "blocks, 3 slots": (*BLOCKS, "runtime.slots=3"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, adapters) -> Callable[[str, tuple[str, ...]], dict[int, str]]:
    """The completions of all rows by these kernels, token by token or by blocks, in a job for each set of adapters with
    no other, one row after the other."""

    def run(kernels: str, made: tuple[str, ...]) -> dict[int, str]:
        folder, found = tmp_path_factory.mktemp("alone"), dict[int, str]()
        own = f"runtime.kernels={kernels}", "runtime.slots=1", *made
        for names in ([], ["x"], ["y"], ["x", "z"]):
            some = [row for row in rows() if {*(row["given"] or [])} - {"base"} == {*names}]
            chosen = [f"nodes.generate.op.adapter={json.dumps(names)}"] if names else []
            found |= texts(
                folder / "-".join(["of", *names]), {name: adapters[name] for name in names}, some, *own, *chosen
            )
        return found

    return functools.cache(run)


CASES = [f"{way} by {kernels}" for way, kernels in itertools.product(WAYS, (AUTO, LLAMA_CPP))]


@pytest.mark.parametrize(
    "case", often(CASES, f"as it is by {AUTO}", f"3 slots with drafts by {AUTO}", f"3 slots by {LLAMA_CPP}")
)
def test_rows_with_several_adapters_get_what_jobs_of_one_give(tmp_path, adapters, alone, case):
    """Mixed in a call by kernels of our own, drained one after the other by llama.cpp's."""
    way, _, kernels = case.partition(" by ")
    found = texts(tmp_path / "mixed", adapters, rows(), BY_COLUMN, f"runtime.kernels={kernels}", *WAYS[way])
    assert found == alone(kernels, BLOCKS if way.startswith("blocks") else TOKENS)
    if way != "processes":  # whose workers have logs of their own
        log = (tmp_path / "mixed/run.log").read_text(encoding="utf-8")
        assert f"adapters that the column 'given' names; {MIXED if kernels == AUTO else DRAINED}" in log
    assert len({found[i] for i in range(4)}) > 2  # adapters change texts
