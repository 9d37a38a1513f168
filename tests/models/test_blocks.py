"""The model that ships for block diffusion: it answers, and the same with any number of slots."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pyarrow.parquet as pq
import pytest

from models.tiny.score import accuracy
from pipeline.cli.main import main

pytestmark = pytest.mark.slow("makes a model and decodes with it")

ROOT = Path(__file__).parents[2]
AUTOREGRESSIVE, BLOCKS = (ROOT / f"models/tiny/{name}-q8_0.gguf" for name in ("tiny", "tiny-sdar"))
SMALL = ("data.limit=42", "chunk_rows=20", "progress=none", "output.completion_ids=true")
JOB = ("job=quickstart", "model=tiny_sdar", "decode=block_diffusion", *SMALL)
MASK = 3


def run(directory: Path, *overrides: str) -> Path:
    """Run the job; returns its data directory."""
    assert main([*JOB, f"output_dir={directory}", *overrides]) == 0
    return directory / "data"


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("run") / "out")


def denoise_passes(data: Path) -> float:
    totals: dict[str, float] = json.loads(pq.read_table(data.parent / "metrics/run.parquet")["totals"][0].as_py())
    return totals["denoise_passes"]


def test_it_answers_and_never_with_a_mask(expected):
    table = accuracy(expected)
    right, rows = table.filter(table["family"] == "all").select("right", "rows").row(0)
    assert rows == 42
    assert right > 30
    ids = pq.read_table(expected)["completion_ids"].to_pylist()
    assert MASK not in {token for row in ids for token in row}


@pytest.mark.laws
def test_a_model_that_has_not_learnt_it_answers_nothing(tmp_path):
    table = accuracy(run(tmp_path / "out", f"model.path={AUTOREGRESSIVE}", "sampling.max_tokens=32"))
    assert table.filter(table["family"] == "all")["right"].item() < 5


@pytest.mark.laws
@pytest.mark.parametrize("slots", [1, 5])
def test_any_number_of_slots_gives_the_same_ids(slots, expected, tmp_path):
    assert pq.read_table(run(tmp_path / "out", f"runtime.slots={slots}")).equals(pq.read_table(expected))


@pytest.mark.laws
def test_where_it_is_sure_it_takes_several_tokens_at_once(expected, tmp_path):
    data = run(tmp_path / "out", "decode.remasking=low_confidence_dynamic")
    assert denoise_passes(data) < 0.6 * denoise_passes(expected)


def test_it_has_the_tokenizer_and_the_template_of_the_other_one():
    one, other = ({k: v.contents() for k, v in gguf.GGUFReader(p).fields.items()} for p in (AUTOREGRESSIVE, BLOCKS))
    assert {k for k in one if one[k] != other[k]} <= {"general.name", "general.description"}
    assert one.keys() == other.keys()
