"""The shipped model through the pipeline: the same answers with any number of slots and after a resume."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import llama_cpp
import polars as pl
import pytest

from models.tiny.card import filled
from models.tiny.dequantise import dequantise
from models.tiny.score import accuracy
from pipeline.cli.main import main

pytestmark = pytest.mark.slow("runs a job with a model that it makes")

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/tiny/tiny-q8_0.gguf"
JOB = ["job=quickstart", "chunk_rows=20", "progress=none", "report=false"]


def run(directory: Path, *overrides: str) -> Path:
    """Run the quickstart job; returns its data directory."""
    assert main([*JOB, f"output_dir={directory}", *overrides]) == 0
    return directory / "data"


def digest(data: Path) -> str:
    """Of the bytes of all shards."""
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(data.glob("*.parquet")))).hexdigest()


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("run") / "sixteen", "data.limit=60", "runtime.slots=16")


@pytest.mark.laws
@pytest.mark.parametrize("slots", [1, 4])
def test_any_number_of_slots_gives_the_same_answers(tmp_path, expected, slots):
    data = run(tmp_path / "out", "data.limit=60", f"runtime.slots={slots}")
    assert accuracy(data).equals(accuracy(expected))
    assert digest(data) == digest(expected)


@pytest.mark.laws
def test_an_interrupted_run_gives_the_same_answers_when_it_is_resumed(tmp_path, expected):
    directory = tmp_path / "out"
    command = [sys.executable, "-m", "pipeline", *JOB, f"output_dir={directory}", "data.limit=60", "runtime.slots=2"]
    with subprocess.Popen(command, cwd=ROOT) as process:
        while process.poll() is None and not any(directory.glob("data/part-*.parquet")):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 4
    assert main([a for a in command[3:] if a != "runtime.slots=2"]) == 0
    assert digest(directory / "data") == digest(expected)
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["status"] == "done"


def test_greedy_ids_are_those_of_llama_cpp_python(tmp_path):  # in F32 throughout
    exact = tmp_path / "tiny-f32.gguf"
    dequantise(MODEL, exact)
    overrides = [
        "data.limit=21",
        f"model.path={exact}",
        "runtime.kv_type=f32",
        "runtime.flash_attention=false",
        "output.completion_ids=true",
        "output.prompt_text=true",
    ]
    rows = pl.read_parquet(run(tmp_path / "out", *overrides) / "*.parquet")
    theirs = llama_cpp.Llama(str(exact), n_ctx=512, type_k=0, type_v=0, verbose=False)
    for text, ids in rows.select("prompt_text", "completion_ids").iter_rows():
        theirs.reset()
        made = theirs.generate(theirs.tokenize(text.encode(), add_bos=True, special=True), temp=0.0, top_k=1)
        assert [next(made) for _ in ids] == ids
        assert len(ids) == 256 or next(made) == theirs.token_eos()
    theirs.close()


def test_the_card_takes_the_table_of_a_run(expected):
    card = filled("before\n<!-- accuracy -->\nold\n<!-- end -->\nafter\n", expected)
    assert card.startswith("before\n<!-- accuracy -->\n| family | right | of | accuracy |\n")
    assert card.endswith("%|\n<!-- end -->\nafter\n".replace("%|", "% |"))
    assert "old" not in card
    with pytest.raises(ValueError, match="no place for the table"):
        filled("nothing", expected)
