"""A sweep over jobs that generate: one model for all of them, results of their own for each."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from operators.decoding import fake
from operators.decoding.fake import FakeModel, inspect
from operators.decoding.model import ModelFacts
from operators.settings import ModelSettings
from pipeline.__main__ import main
from pipeline.errors import ExitCode

__all__ = ["inspect"]
loads: list[ModelSettings] = []


def load(settings: ModelSettings) -> FakeModel:
    """The fake model, counted."""
    loads.append(settings)
    return fake.load(settings)


def test_a_model_is_loaded_once_and_each_job_has_its_own_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loads.clear()
    assert isinstance(inspect(ModelSettings()), ModelFacts)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"prompt {i}"}) + "\n" for i in range(6)))
    job = ("job=generate", "model=fake", "model.loader=tests.test_sweeps:load", "data.path=prompts.jsonl")
    sweep = (*job, "sampling.temperature=0.8", "sampling.max_tokens=8", "progress=none", "-m", "seed=1,2")
    assert main(sweep) == ExitCode.DONE
    assert len(loads) == 1
    results = sorted(Path("outputs").glob("generate-*"))
    texts = {tuple(pl.read_parquet(out / "data/*.parquet")["completion"]) for out in results}
    assert len(results) == len(texts) == 2
