"""Small workloads for the tests of the benchmark."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from operators.settings import DataSettings, ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from tools.bench.spec import Spec
from tools.bench.workload import FACTS, Recipe, Request, Workload, make

FAKE = ModelSettings(loader="operators.engine.backend.fake:load")


def write_data(folder: Path, rows: int = 6) -> Path:
    path = folder / "questions.jsonl"
    lines = [{"prompt": f"How much is {i} + {i}? " + "?" * i, "answer": "a" * (3 * i + 1)} for i in range(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def request(folder: Path, recipe: Recipe | None = None, **values: object) -> Request:
    given = {"rows": 6, "copies": 1, "answer_column": "answer", "cap": 10, "shots": 2, "stop": []} | values
    data = DataSettings(path=str(write_data(folder)))
    return Request(recipe=recipe or Recipe(), data=data, model=FAKE, **given)  # type: ignore[arg-type]


def workload(folder: Path, recipe: Recipe | None = None, **values: object) -> Workload:
    return make(request(folder, recipe, **values), folder / "workload")


def spec(folder: Path, recipe: Recipe | None = None, slots: int = 4, **values: object) -> Spec:
    return Spec(
        workload=str(workload(folder, recipe, **values).folder),
        folder=str(folder),
        model=FAKE,
        runtime=EngineSettings(slots=slots, max_sequence_tokens=256),
        sampling=SamplingSettings(per_row=["max_tokens"], ignore_eos=True),
        peers=str(folder),
    )


def with_facts(made: Spec, **values: object) -> Spec:
    """The case with other facts of its rows."""
    facts = asdict(made.rows.facts) | values
    (made.rows.folder / FACTS).write_text(json.dumps(facts))
    return made
