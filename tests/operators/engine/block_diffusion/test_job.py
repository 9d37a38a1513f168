"""`decode=block_diffusion` in a job: what is refused before anything runs, and what a store and a resume make of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from operators.generation.wiring import decode_setup
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.block_diffusion import BlockDiffusionSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from tests.sets import often_cases
from tools.bench.contenders import JobContender
from tools.bench.scenarios import SCENARIOS

SMALL = ("data.limit=20", "sampling.max_tokens=24", "runtime.slots=4", "chunk_rows=8", "progress=none")


def run(out: Path, *overrides: str, code: int = ExitCode.DONE) -> list[dict[str, Any]]:
    """The rows of a job on the fake model."""
    assert main(["job=diffuse", "model=fake", f"output_dir={out}", *SMALL, *overrides]) == code
    return [row for shard in sorted((out / "data").glob("*.parquet")) for row in pq.read_table(shard).to_pylist()]


def totals(out: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(pq.read_table(out / "metrics/run.parquet")["totals"][0].as_py())
    return found


@pytest.mark.parametrize(
    ("override", "said"),
    often_cases(
        [
            (
                "decode.remasking=best",
                "one of low_confidence_static, low_confidence_dynamic, sequential, entropy_bounded",
            ),
            ("decode.mask_token_id=320", "decode.mask_token_id=320 cannot work: the model's ids are 0 to 319"),
            ("decode.blocklength=4", "did you mean decode.block_length?"),
            ("sampling.structured.regex=a+", "sampling.structured=regex cannot work with decode=block_diffusion"),
            ("sampling.per_row=[logprobs]", "a column 'logprobs' cannot work with decode=block_diffusion"),
            (
                "decode.block_length=256",
                "runtime.slots=4 x decode.block_length=256 = 1024 tokens, which llama.cpp must",
            ),
        ],
        "decode.mask_token_id=320",
        "sampling.structured.regex=a+",
    ),
)
def test_what_cannot_work_ends_with_exit_code_2(override, said, tmp_path, capsys):
    run(tmp_path / "out", override, code=ExitCode.CONFIG)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"block_length": 0}, "decode.block_length=0 cannot work: it is 1 to 1024"),
        ({"denoising_steps": 0}, "decode.denoising_steps=0 cannot work: 1 or more"),
        ({"confidence_threshold": 1.5}, "decode.confidence_threshold=1.5 cannot work: it is a probability"),
        ({"eb_threshold": -1}, "decode.eb_threshold=-1"),
        ({"mask_token_id": -1}, "decode.mask_token_id=-1 cannot work"),
    ],
)
def test_a_value_that_cannot_work_is_refused(values, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        BlockDiffusionSettings(**values)


@pytest.mark.parametrize(
    ("sampling", "runtime", "said"),
    [
        ({"logprobs": 0}, {}, "sampling.logprobs=0 cannot work with decode=block_diffusion"),
        ({"min_tokens": 2}, {}, "sampling.min_tokens=2 cannot work"),
        ({}, {"slots": 0}, "runtime=auto measures steps of one token a row"),
        ({}, {"window_cache": "small"}, "decode=block_diffusion needs runtime.window_cache=full"),
        ({}, {"slots": 129}, "runtime.slots=129 x decode.block_length=4 = 516 tokens"),
    ],
)
def test_what_cannot_work_together_is_refused(sampling, runtime, said):
    setup = decode_setup(BlockDiffusionSettings())
    sampling_that_works = SamplingSettings(temperature=0.7, top_k=5, stop=["a"], stop_token_ids=[3], n=2)
    setup.check(sampling_that_works, EngineSettings(), ModelSettings())
    with pytest.raises(ConfigError, match=re.escape(said)):
        setup.check(SamplingSettings(**sampling), EngineSettings(**runtime), ModelSettings())


def test_a_class_that_is_no_strategy_is_named():
    with pytest.raises(ConfigError, match=re.escape("decode.strategy='json:JSONDecoder' is no decode strategy")):
        decode_setup(DecodeSettings(strategy="json:JSONDecoder"))


def test_a_strategy_wants_its_own_settings(tmp_path, capsys):
    strategy = "decode.strategy=operators.engine.strategies.block_diffusion.denoise:BlockDiffusion"
    run(tmp_path / "out", "decode=autoregressive", strategy, code=ExitCode.CONFIG)
    assert "use decode=block_diffusion" in capsys.readouterr().err


def test_a_model_without_a_mask_is_refused_and_the_mask_never_guessed(tmp_path, capsys):
    loader = "model.loader=tests.operators.engine.block_diffusion.fakes:load"
    run(tmp_path / "out", loader, code=ExitCode.CONFIG)
    assert "needs the id of the mask token" in capsys.readouterr().err
    assert len(run(tmp_path / "given", loader, "decode.mask_token_id=258")) == 20


def test_what_a_store_has_is_found_and_cut_and_not_found_under_other_settings(tmp_path):
    store = f"store.path={tmp_path / 'store.sqlite'}"
    whole = run(tmp_path / "one", store)
    assert run(tmp_path / "two", store) == whole
    assert totals(tmp_path / "two")["generate/store_hits"] == 20
    cut = run(tmp_path / "three", store, "sampling.max_tokens=9")
    assert cut == run(tmp_path / "apart", "sampling.max_tokens=9")
    assert totals(tmp_path / "three")["generate/store_hits"] == 20
    run(tmp_path / "four", store, "decode.denoising_steps=2")
    assert totals(tmp_path / "four")["generate/store_hits"] == 0


def test_samples_differ_and_equal_greedy_rows_are_made_once(tmp_path):
    hot = ("sampling.temperature=1.2", "sampling.ignore_eos=true")
    warm = run(tmp_path / "warm", "sampling.n=3", "data.limit=5", *hot)
    assert len({row["completion"] for row in warm}) == 15
    run(tmp_path / "cold", "sampling.n=3", "data.limit=5")
    assert totals(tmp_path / "cold")["generate/identical"] == 10


@pytest.mark.laws
def test_the_contenders_of_the_benchmark_are_jobs(tmp_path):
    jobs = [each for each in SCENARIOS["diffusion"].contenders if isinstance(each, JobContender)]
    contenders = [each for each in jobs if each.name.startswith("4/")]
    small = ("data.limit=4", "sampling.max_tokens=10")
    made = {each.name: run(tmp_path / each.name.replace("/", "-"), *each.overrides, *small) for each in contenders}
    assert len(made) == 4
    assert made["4/4"] != made["4/2"]


def test_rows_have_lengths_of_their_own(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"id": {i}, "prompt": "a{"b" * i}", "max_tokens": {1 + i}}}\n' for i in range(9)))
    rows = run(tmp_path / "out", f"data.path={data}", "sampling.per_row=[max_tokens]", "sampling.ignore_eos=true")
    assert [row["completion_token_count"] for row in rows] == [1 + i for i in range(9)]
    assert {row["finish_reason"] for row in rows} == {"length"}


def test_a_row_has_room_for_whole_blocks(tmp_path):
    """42 tokens fit, that is ten blocks of four; the prompt has 30, so 10 are left; one of 40 leaves none."""
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"id": {n}, "prompt": "{"a" * n}"}}\n' for n in (30, 40)))
    more = ("runtime.max_sequence_tokens=42", "sampling.ignore_eos=true", "nodes.render.op.template='{{ prompt }}'")
    rows = run(tmp_path / "out", f"data.path={data}", *more, "max_error_rate=1")
    assert [(row["prompt_token_count"], row["completion_token_count"]) for row in rows] == [(30, 10)]
    rejects = pq.read_table(next((tmp_path / "out/rejects").glob("*.parquet"))).to_pylist()
    assert "leaves no room for a completion" in rejects[0]["reason"]
