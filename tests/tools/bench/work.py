"""Small workloads for the tests of the benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from operators.settings import DataSettings, ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from tools.bench.contenders import Spec
from tools.bench.settings import BenchSettings
from tools.bench.workload import ROWS_SCHEMA, Recipe, Workload, make

FOLDER = PROJECT / "tests/families/images"
WITH_IMAGES = ModelSettings(path=f"{FOLDER}/smolvlm.gguf", mmproj=f"{FOLDER}/mmproj-smolvlm.gguf")
FAKE = ModelSettings(loader="operators.engine.backend.fake:load")


def write_data(folder: Path, rows: int = 6) -> Path:
    path = folder / "questions.jsonl"
    lines = [{"prompt": f"How much is {i} + {i}? " + "?" * i, "answer": "a" * (3 * i + 1)} for i in range(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def workload(
    folder: Path,
    recipe: Recipe | None = None,
    rows: int = 6,
    copies: int = 1,
    column: str = "prompt",
    model: ModelSettings = FAKE,
    **bench: str,
) -> Workload:
    data = DataSettings(path=str(write_data(folder)), prompt_column=column)
    settings = BenchSettings(shots=2, **bench)  # type: ignore[arg-type]
    return make(recipe or Recipe(), rows, copies, data, model, settings, cap=10)


def of_sizes(prompts: Sequence[int], lengths: Sequence[int]) -> Workload:
    """Rows with so many tokens of a prompt and of a completion."""
    rows = [{"prompt_ids": [0] * p, "max_tokens": n} for p, n in zip(prompts, lengths, strict=True)]
    return Workload(pa.Table.from_pylist(rows, ROWS_SCHEMA), 4096, [])


def spec(folder: Path, recipe: Recipe | None = None, slots: int = 4, rows: int = 6) -> Spec:
    return Spec(
        workload=workload(folder, recipe, rows),
        folder=folder,
        model=replace(FAKE),
        runtime=EngineSettings(slots=slots, max_sequence_tokens=256),
        sampling=SamplingSettings(per_row=["max_tokens"], ignore_eos=True),
        bench=BenchSettings(peers=str(folder)),
    )


def with_images(folder: Path, rows: int = 6, slots: int = 4) -> Spec:
    """A case with two questions about each image."""
    made = spec(folder, slots=slots)
    rows_of = workload(folder, Recipe(3, 5, words=2, questions=2), rows, model=WITH_IMAGES)
    return replace(made, model=WITH_IMAGES, workload=rows_of, share_prefix=True)


def with_mask(made: Spec, token: int | None) -> Spec:
    """The case on a model whose vocabulary names no mask, with `token` as its mask."""
    model = replace(FAKE, loader="tests.operators.engine.block_diffusion.fakes:load")
    return replace(
        made,
        model=model,
        workload=replace(made.workload, has_mask=False),
        bench=replace(made.bench, mask_token_id=token),
    )
