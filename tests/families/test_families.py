"""Model families on real llama.cpp: their texts are those of transformers, however rows are batched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from operators.tuning.choices import CACHE_VARIABLE
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.failpoints import VARIABLE, Failpoint

HERE = Path(__file__).parent
FAMILIES = sorted(path.stem for path in HERE.glob("*.json"))
WAYS = {
    "defaults": (),
    "one by one": ("runtime.slots=1", "runtime.optimise.prefix_sharing=false"),
    "calibrated": ("runtime=auto",),
    "unified": ("runtime.kv=unified", "runtime.deterministic=false"),
}


def reference(family: str) -> dict[str, list[list[int]]]:
    return json.loads((HERE / f"{family}.json").read_text(encoding="utf-8"))


def job(family: str, out: Path, *settings: str) -> list[str]:
    """A job with the prompts of the reference: eight strangers, and forty with seventy tokens in common."""
    data = out.with_suffix(".jsonl")
    prompts = reference(family)["prompts"]
    data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts), encoding="utf-8")
    return [
        *("job=generate", "model=gguf", f"model.path={HERE / family}.gguf", f"data.path={data}"),
        *("nodes.render.op.template='{{ prompt }}'", "sampling=greedy", "sampling.max_tokens=16"),
        *("sampling.min_tokens=16", "output.completion_ids=true", "progress=none", f"output_dir={out}"),
        # As transformers computes: with rounded keys and values near ties fall otherwise.
        *("runtime.kv_type=f32", "runtime.flash_attention=false"),
        *settings,
    ]


def ids(out: Path) -> list[list[int]]:
    return pq.read_table(out / "data").sort_by("row")["completion_ids"].to_pylist()


# Memories that cannot be cut depend on the way; for others tests/families/test_exact.py compares bits.
RECURRENT = ("falcon_h1", "lfm2", "mamba", "mamba2", "qwen3_5")
CASES = [
    pytest.param(name, way, marks=pytest.mark.faults if way in ("one by one", "calibrated") else ())
    for name in FAMILIES
    for way in (WAYS if name in RECURRENT else ("defaults",))
]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_ids_equal_those_of_transformers(family, way, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert main(job(family, tmp_path / "out", *WAYS[way])) == ExitCode.DONE
    assert ids(tmp_path / "out") == reference(family)["ids"]


@pytest.mark.parametrize("family", ["lfm2", "mamba2"])
def test_a_killed_run_of_a_recurrent_model_goes_on_to_the_same_ids(family, tmp_path):
    arguments = job(family, tmp_path / "out", "chunk_rows=16")
    at = {VARIABLE: f"{Failpoint.STATE_COMMITTED}:4"}
    killed = subprocess.run([sys.executable, "-m", "pipeline", *arguments], env=os.environ | at, check=False)
    assert killed.returncode < 0
    assert main(arguments) == ExitCode.DONE
    assert ids(tmp_path / "out") == reference(family)["ids"]
