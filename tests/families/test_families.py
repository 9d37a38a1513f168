"""Jobs with models of every family: the texts are those of transformers, and no setting of the engine changes them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from operators.llama.model import inspect
from operators.settings import ModelSettings
from operators.settings.runtime import OptimiseSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.file_cache import PLACE
from tests.families.make import LARGEST, LEAST_GAP, LEAST_TOKENS, NEAR, NEW_TOKENS, PROMPTS, STRANGERS
from tests.operators.engine.rules import scheduled

pytestmark = pytest.mark.slow("runs a job with a model of each family")

HERE = Path(__file__).parent
REFERENCES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.json"))
}
FAMILIES = [name for name, reference in REFERENCES.items() if "ids" in reference]
OFTEN = ("qwen3", "qwen3moe", "deepseek2", "gemma3", "gpt-oss", "lfm2", "mamba2", "rwkv7", "qwen3_5", "granite_hybrid")
"""Those that stand for the others where every test run tries some: of each kind of cache, state and feed-forward."""
ALL_OFF = tuple(f"runtime.optimise.{field.name}=false" for field in fields(OptimiseSettings))
EXACT_WAYS: dict[str, tuple[str, ...]] = {
    "without optimisations, shuffled": (*ALL_OFF, "runtime.slots=4"),
    "1 slot": ("runtime.slots=1",),
    "4 slots": ("runtime.slots=4",),
    "shuffled": (),
    **{f"without {field.name}": (off,) for field, off in zip(fields(OptimiseSettings), ALL_OFF, strict=True)},
}
"""Ways to run a job that change no byte of its data."""
RULES: dict[str, dict[str, int]] = {"without optimisations, shuffled": {"shuffle": 1}, "shuffled": {"shuffle": 2}}
"""Rules of scheduling for some of these ways."""
OTHER_WAYS: dict[str, tuple[str, ...]] = {
    "calibrated": ("runtime=auto",),
    "unified": ("runtime.kv=unified", "runtime.deterministic=false"),
    "a full cache": (
        *("runtime.kv=unified", "runtime.deterministic=false"),
        *("runtime.n_ctx=600", "runtime.admission=optimistic"),
    ),
}


def job(family: str, out: Path, *settings: str) -> list[str]:
    """A job with the prompts of the reference: eight strangers, and forty with seventy tokens in common."""
    data = out.with_suffix(".jsonl")
    prompts = REFERENCES[family]["prompts"]
    data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts), encoding="utf-8")
    return [
        *("job=generate", "model=gguf", f"model.path={HERE / family}.gguf", f"data.path={data}"),
        *("nodes.render.op.template='{{ prompt }}'", "sampling=greedy", f"sampling.max_tokens={NEW_TOKENS}"),
        *(f"sampling.min_tokens={NEW_TOKENS}", "output.completion_ids=true", "progress=none", f"output_dir={out}"),
        # As transformers computes: with rounded keys and values near ties fall otherwise.
        *("runtime.kv_type=f32", "runtime.flash_attention=false"),
        *settings,
    ]


def data(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "data").iterdir())}


def differences(family: str, out: Path) -> list[str]:
    """Where the completions differ from the reference, for each row; it says if the reference is a near tie there."""
    expected = REFERENCES[family]
    ties = {(prompt, token): gap for prompt, token, _, _, gap in expected["near_ties"]}
    found = pq.read_table(out / "data").sort_by("row")["completion_ids"].to_pylist()
    said = []
    for row, (ours, theirs) in enumerate(zip(found, expected["ids"], strict=True)):
        at = next((i for i, token in enumerate(theirs) if ours[i : i + 1] != [token]), None)
        if at is not None:
            gap = ties.get((row, at))
            said.append(f"prompt {row} differs from token {at} on" + (f", a near tie ({gap})" if gap else ""))
    return said


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A function: the directory of a family's job with default slots, run once."""
    folder, done = tmp_path_factory.mktemp("usual"), set()

    def run(family: str) -> Path:
        if family not in done:
            assert main(job(family, folder / family)) == ExitCode.DONE
            done.add(family)
        return folder / family

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_equal_those_of_transformers(family, usual):
    assert not differences(family, usual(family))


@pytest.mark.laws
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", EXACT_WAYS)
def test_no_way_changes_a_byte_of_the_data(family, way, usual, tmp_path):
    with scheduled(**RULES.get(way, {})):
        assert main(job(family, tmp_path / "out", *EXACT_WAYS[way])) == ExitCode.DONE
    assert data(tmp_path / "out") == data(usual(family))


@pytest.mark.laws
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_ids_hold_where_bits_may_not(family, way, tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path))
    assert main(job(family, tmp_path / "out", *OTHER_WAYS[way])) == ExitCode.DONE
    assert not differences(family, tmp_path / "out")


@pytest.mark.laws
@pytest.mark.parametrize("family", FAMILIES)
def test_candidates_change_no_byte_of_the_data(family, usual, tmp_path, capfd):
    """Sampling on the device, which is the CPU here; a model that cannot go back is refused."""
    code = main(job(family, tmp_path / "out", "runtime.device_sampling=true"))
    sizes = inspect(ModelSettings(path=str(HERE / f"{family}.gguf"))).sizes
    if sizes is not None and sizes.recurrent:
        assert code == ExitCode.CONFIG
        assert "runtime.device_sampling=true cannot work" in capfd.readouterr().err
    else:
        assert code == ExitCode.DONE
        assert data(tmp_path / "out") == data(usual(family))


def test_a_reference_says_enough_and_rests_on_no_tie():
    for family in FAMILIES:
        reference = REFERENCES[family]
        assert reference["prompts"] == [*PROMPTS]
        assert len(reference["ids"]) == len(PROMPTS)
        assert {len(ids) for ids in reference["ids"]} == {NEW_TOKENS}
        assert len({token for ids in reference["ids"][:STRANGERS] for token in ids}) >= LEAST_TOKENS
        assert reference["least_gap"] >= LEAST_GAP
        assert all(LEAST_GAP <= gap < NEAR for *_, gap in reference["near_ties"])
        assert (HERE / f"{family}.gguf").stat().st_size <= LARGEST


def test_all_files_are_small_together():
    assert sum(path.stat().st_size for path in HERE.iterdir() if path.is_file()) < 12_000_000
