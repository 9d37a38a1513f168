"""A sweep over jobs that generate: one model for all of them, results of their own for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml

from operators.engine.backend import fake
from operators.engine.backend.fake import FakeModel, inspect
from operators.engine.backend.loading import ModelFacts, ModelSizes
from operators.settings import ModelSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

pytestmark = pytest.mark.slow("runs sweeps")

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


events: list[str] = []


class Weights(FakeModel):
    """The fake model, with a name in `events`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        events.append(f"load {name}")

    def close(self) -> None:
        events.append(f"close {self.name}")


def load_a(settings: ModelSettings) -> FakeModel:
    return Weights("a")


def load_b(settings: ModelSettings) -> FakeModel:
    return Weights("b")


def test_a_sweep_frees_a_model_before_it_loads_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        f"{__name__}.inspect", lambda s: replace(fake.inspect(s), sizes=ModelSizes(1 << 20, fake.N_VOCAB))
    )
    events.clear()
    Path("prompts.jsonl").write_text('{"prompt": "x"}\n')
    loaders = ",".join(f"{__name__}:load_{name}" for name in "ab")
    assert (
        main(
            (
                "job=generate",
                "model=fake",
                "data.path=prompts.jsonl",
                "sampling.max_tokens=4",
                "progress=none",
                "-m",
                f"model.loader={loaders}",
                "seed=1,2",
            )
        )
        == ExitCode.DONE
    )
    assert events == ["load a", "close a", "load b", "close b"]


def test_what_changes_no_result_does_not_change_where_a_sweep_runs_but_a_sweep_over_it_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes = {
        "numbers": {"op": {"_target_": "tests.pipeline.job_ops.Numbers", "rows": 20}},
        "square": {"inputs": "numbers", "op": {"_target_": "tests.pipeline.job_ops.Square", "bad": [3]}},
        "write": {"inputs": "square", "op": {"_target_": "tests.pipeline.job_ops.Parquet"}},
    }
    Path("squares.yaml").write_text(yaml.safe_dump({"progress": "none", "report": False, "nodes": nodes}))
    sweep = ["job=squares.yaml", "target.accepted_rows=15", "-m", "seed=1"]
    assert main(sweep) == ExitCode.REJECTS
    assert main([*sweep, "max_error_rate=0.5", "target.max_minutes=9e0", 'on_finish.command=["true"]']) == ExitCode.DONE
    assert len(list(Path("outputs").glob("squares-*"))) == 1
    assert main(["job=squares.yaml", "-m", "max_error_rate=0.4,0.5"]) == ExitCode.DONE
    assert len(list(Path("outputs").glob("squares-*"))) == 3
