"""Adapters on models of every family: rows with one get the text of a model into which it was merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from operators.llama.adapters.targets import MULTIPLIED, NOT_MULTIPLIED, read_base
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.families.test_families import FAMILIES, HERE, REFERENCES, job
from tests.operators.llama.adapters.adapter_files import drawn, merged, write_adapter
from tests.sets import often

pytestmark = pytest.mark.slow("runs jobs with a model of each family")

ALPHA, RANK, SCALE = 16.0, 8, 0.75
MIXED, LEFT_TO_LLAMA_CPP = "auto", "llama.cpp"


def targets_of(path: Path) -> list[str]:
    """The matrices of a model that llama.cpp multiplies with adapters, but for the table of tokens."""
    base = read_base(path)
    names = MULTIPLIED - {*NOT_MULTIPLIED.get(base.architecture, ()), "token_embd", "output"}
    endings = tuple(f".{name}.weight" for name in names)
    return [name for name, shape in base.tensors.items() if name.endswith(endings) and len(shape) > 1]


def ids(out: Path, family: str, *settings: str) -> list[list[int]]:
    assert main(job(family, out, *settings)) == ExitCode.DONE
    found: list[list[int]] = pq.read_table(out / "data").sort_by("row")["completion_ids"].to_pylist()
    return found


@pytest.mark.parametrize("family", often(FAMILIES, "qwen3"))
@pytest.mark.parametrize("kernels", often((MIXED, LEFT_TO_LLAMA_CPP), MIXED))
def test_rows_with_an_adapter_are_those_of_merged_weights(family, kernels, tmp_path):
    """Beside rows of the base and of another adapter, which keep theirs."""
    base = HERE / f"{family}.gguf"
    own: dict[str, Any] = {"x": {}, "y": {}}
    wanted = [REFERENCES[family]["ids"]]
    for seed, name in enumerate(own):
        pairs = drawn(read_base(base), targets_of(base), RANK, seed)
        path = write_adapter(tmp_path / f"{name}.gguf", pairs, read_base(base).architecture, alpha=ALPHA)
        own[name] = {"path": str(path), "scale": SCALE}
        model = merged(base, tmp_path / f"{name}-merged.gguf", pairs, SCALE * ALPHA / RANK)
        wanted.append(ids(tmp_path / name, family, f"model.path={model}", f"runtime.kernels={kernels}"))
    prompts = REFERENCES[family]["prompts"]
    rows = [{"prompt": text, "own": (None, "x", "y")[i % 3]} for i, text in enumerate(prompts)]
    data = tmp_path / "mixed-rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = f"model.adapters={json.dumps(own)}", "data.adapter_column=own", f"runtime.kernels={kernels}"
    found = ids(tmp_path / "mixed", family, *given, f"data.path={data}")
    assert found == [wanted[i % 3][i] for i in range(len(rows))]
    assert wanted[1] != wanted[0] != wanted[2] != wanted[1]
