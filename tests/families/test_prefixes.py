"""Prompts with a common beginning on recurrent and hybrid models: computed once, told in the metrics and the report."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from operators.engine.sampling.params import SamplingParams
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import OptimiseSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import read_results
from pipeline.results.report.time_spent import counted
from tests.families.test_families import HERE, REFERENCES, differences, job
from tests.operators.llama.test_decoding import COUNTS, complete
from tests.sets import often

SHARING = ("falcon_h1", "granite_hybrid", "jamba", "lfm2", "mamba", "mamba2", "nemotron_h", "qwen3_5", "rwkv7")


@pytest.mark.parametrize("flash_attention", often([True, False], True))
@pytest.mark.parametrize(
    "family",
    often(SHARING, "qwen3_5", "rwkv7"),
)
def test_no_bit_of_the_logits_depends_on_a_snapshot(family, flash_attention):
    random = np.random.default_rng(5)
    head = random.integers(0, 255, 300).astype(np.int32)
    prompts = [
        np.concatenate([head, random.integers(0, 255, n).astype(np.int32)]) for n in (2, 40, 63, 64, 100, 150) * 2
    ]
    model = LlamaModel(ModelSettings(path=str(HERE / f"{family}.gguf")))
    alone = OptimiseSettings(prefix_sharing=False, sample_sharing=False)
    settings = {"params": SamplingParams(temperature=1.0, top_k=40), "flash_attention": flash_attention}
    expected = complete(model, prompts, range(12), slots=12, optimise=alone, **settings)
    for slots in (12, 3):
        assert complete(model, prompts, range(12), slots=slots, **settings) == expected
        assert COUNTS["snapshots_used"] >= 6
    model.close()


@pytest.mark.parametrize("family", ["lfm2", "mamba2"])
def test_a_common_prefix_is_computed_once(family, tmp_path):
    out = tmp_path / "out"
    assert main(job(family, out, "runtime.slots=4")) == ExitCode.DONE
    assert not differences(family, out)
    steps = pq.read_table(out / "metrics" / "steps.parquet")
    prompts = REFERENCES[family]["prompts"]
    once = sum(map(len, prompts)) - 39 * 70  # forty have 70 tokens in common
    assert sum(steps["prefill_tokens"].to_pylist()) <= 1.05 * once
    (totals,) = (json.loads(text) for text in pq.read_table(out / "metrics" / "run.parquet")["totals"].to_pylist())
    assert totals["snapshots_taken"] == sum(steps["snapshots_taken"].to_pylist()) >= 1
    assert totals["snapshots_used"] >= 39
    (panel,) = counted(read_results(out))
    assert "snapshots of prefixes taken" in [row[1] for table in panel.tables for row in table.rows]


def test_snapshots_are_in_the_plan_and_within_the_limit(tmp_path, capfd):
    assert main([*job("lfm2", tmp_path / "out"), "dry_run=true"]) == ExitCode.DONE
    assert "snapshots" in capfd.readouterr().out
    limited = job("lfm2", tmp_path / "other", "runtime.memory_limit=100MiB")
    assert main(limited) == ExitCode.CONFIG
    assert "runtime.snapshot_mb" in capfd.readouterr().err
    assert main([*limited, "runtime.snapshot_mb=10"]) == ExitCode.DONE
