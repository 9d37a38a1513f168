"""The commands of contenders, the reasons to skip them, and their figures."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from operators.engine.backend.fake import MASK_ID
from operators.settings import ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config.compose import register, register_job, settings_of
from pipeline.config.jobs import find_job
from pipeline.config.keys import CONF
from tests.tools.bench.work import FAKE, of_sizes, spec, with_mask
from tools.bench.contenders import (
    CELLS,
    SPEC,
    BatchedBench,
    Contender,
    Function,
    JobContender,
    LlamaBench,
    Program,
    Spec,
    sizes,
)
from tools.bench.scenarios import ALL, DYNAMIC, JOB, LADDER, PEERS
from tools.bench.workload import Recipe

pytestmark = pytest.mark.laws  # runs each contender of the benchmark

BATCHED = """\
{"n_kv_max": 4096, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, \
"n_threads": 2, "n_threads_batch": 2, "pp": 64, "tg": 16, "pl": 4, "n_kv": 320, "t_pp": 0.512, "speed_pp": 500.0, \
"t_tg": 0.64, "speed_tg": 100.0, "t": 1.152, "speed": 277.777778}

"""
SINGLE = """\
{"model_type": "qwen3 ?B Q8_0", "n_prompt": 64, "n_gen": 0, "n_depth": 0, "avg_ns": 4811121, "avg_ts": 400.0}
{"model_type": "qwen3 ?B Q8_0", "n_prompt": 0, "n_gen": 8, "n_depth": 0, "avg_ns": 1539612, "avg_ts": 40.0}
"""
"""Shortened output of the programs that were built from llama-cpp-python 0.3.36."""

CEILING, SERIAL = BatchedBench("llama-batched-bench"), LlamaBench("llama-bench")


@pytest.fixture
def made(tmp_path) -> Spec:
    return replace(spec(tmp_path), model=ModelSettings(path="/models/my.gguf"))


@pytest.mark.parametrize("contender", [c for c in PEERS if isinstance(c, Program)])
def test_a_program_that_is_not_built_is_skipped_with_the_remedy(tmp_path, made, contender):
    assert "make peers" in (contender.reason_to_skip(made) or "")
    (tmp_path / contender.name).touch()
    assert contender.reason_to_skip(made) is None
    assert contender.reason_to_skip(replace(made, model=FAKE)) == "it needs a GGUF file (model.path)"


def test_a_contender_with_a_draft_model_needs_one(tmp_path, made):
    contenders = [c for c in ALL["speculative"].contenders if c.drafts]
    assert {type(c) for c in contenders} == {JobContender, Program}
    assert all("bench.draft_model=" in (c.reason_to_skip(made) or "") for c in contenders)
    given = replace(made, bench=replace(made.bench, draft_model="/models/small.gguf"))
    (tmp_path / "llama-server").touch()
    assert not any(c.reason_to_skip(given) for c in contenders)
    job = next(c for c in contenders if isinstance(c, JobContender))
    assert "decode.draft.model=/models/small.gguf" in job.command(given)


LONG = Function("x", "tools.bench.rungs:blocks_fresh", row_tokens=513, makes_blocks=True)


@pytest.mark.parametrize(
    ("contender", "has_mask", "n_ctx_train", "says"),
    [
        (JOB, False, 512, ""),
        (JOB, True, 20, "the model was trained for 20"),
        (LONG, True, 512, "rows of 513 tokens are needed and the model was trained for 512"),
        (replace(LONG, row_tokens=512), True, 512, ""),
        (DYNAMIC, False, 512, r"names no mask token; give one with bench.mask_token_id="),
        (replace(LONG, row_tokens=512), False, 512, r"names no mask token"),
    ],
)
def test_what_a_model_cannot_do_is_skipped(made, contender, has_mask, n_ctx_train, says):
    case = replace(made, workload=replace(made.workload, has_mask=has_mask, n_ctx_train=n_ctx_train))
    assert says in (contender.reason_to_skip(case) or "")
    assert bool(says) is bool(contender.reason_to_skip(case))


def test_a_function_gets_the_case_with_its_own_row_length(made):
    *start, function, folder = replace(LONG, row_tokens=512).command(made)
    assert (start[1:], function) == (["-m", "tools.bench.contenders"], LONG.function)
    case = replace(made, runtime=replace(made.runtime, max_sequence_tokens=512))
    assert pickle.loads((Path(folder) / SPEC).read_bytes()) == case


def measured(contender: Contender, made: Spec):
    """The figures of a job that ran in this process."""
    assert main([*contender.command(made)[3:], "store.enabled=false"]) == ExitCode.DONE
    return contender.figures(made, "")


@pytest.mark.parametrize("name", ["4/4 dynamic", "4/2"])
def test_the_figures_of_blocks_are_those_of_the_calls(tmp_path, name):
    """A block costs its steps and a call that stores it; the last one of a row is not stored."""
    contender = next(c for c in ALL["diffusion"].contenders if c.name == name)
    made = spec(tmp_path, Recipe(16, 16), slots=2)
    figures = measured(contender, made)
    lengths = [len(ids) for ids in made.workload.rows["prompt_ids"].to_pylist()]
    made_tokens = sum(-(-(n + 16) // 4) * 4 - n for n in lengths)  # the last block whole
    blocks = sum(-(-(n + 16) // 4) - n // 4 for n in lengths)
    assert figures.tokens_per_pass is not None
    stored = blocks - len(lengths)
    assert figures.calls_per_block == pytest.approx((made_tokens / figures.tokens_per_pass + stored) / blocks)
    assert 0 < figures.row()["own_share"] < 1


def test_a_mask_may_be_given_for_a_model_that_names_none(tmp_path):
    made = with_mask(spec(tmp_path), MASK_ID)
    assert DYNAMIC.reason_to_skip(made) is None
    assert measured(DYNAMIC, made).new_tokens == made.workload.new_tokens


def composed(job: str, *overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        register()
        found = find_job(job)
        register_job(found)
        return compose("config", [f"job={found.key}", *overrides])


def test_the_settings_of_all_contenders_are_there():
    """A setting that is not fails in Hydra."""
    jobs = [each for plan in ALL.values() for each in plan.contenders if isinstance(each, JobContender)]
    found = [composed("generate", *given) for given in dict.fromkeys(job.overrides for job in jobs)]
    assert False in [settings.runtime.optimise.compaction for settings in found]


@pytest.mark.parametrize("contender", [JOB, next(c for c in LADDER if c.name == "dataflow")])
def test_the_command_of_a_job_composes_to_the_settings_of_the_case(tmp_path, contender):
    texts = ["plain", "it's", "a\\b", "a\\'b", "end\\", "x=1, [y] {z}", "null", "1", "}"]
    made = replace(
        spec(tmp_path, slots=3),
        model=replace(FAKE, system="two\nlines: 'a'", options={"seed": 3}),
        sampling=SamplingSettings(per_row=["max_tokens"], ignore_eos=True, stop=texts, temperature=0.5),
        runtime=EngineSettings(slots=3, max_sequence_tokens=256, threads=2, kv_type="f32"),
    )
    command = contender.command(made)
    assert command[1:3] == ["-m", "pipeline"]
    settings = settings_of(composed(command[3].removeprefix("job="), *command[4:]))
    assert (settings.model, settings.sampling, settings.runtime) == (made.model, made.sampling, made.runtime)
    lines = Path(str(settings.data.path)).read_text().splitlines()
    assert [json.loads(line) for line in lines] == made.workload.rows.select(["prompt", "max_tokens"]).to_pylist()
    assert settings.store.enabled is (contender is JOB)


def test_each_row_has_the_adapter_that_llama_server_gives_it(tmp_path):
    case = replace(spec(tmp_path), model=ModelSettings(path="models/tiny/tiny-q8_0.gguf"))
    command = JobContender("x", adapters=3).command(case)
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    other = case.with_adapters(3)
    assert [row["adapter"] for row in rows] == [str(i) for i in other.adapter_of()]
    settings = settings_of(composed(command[3].removeprefix("job="), *command[4:]))
    assert settings.data.adapter_column == "adapter"
    assert settings.model.adapters == {str(i): str(path) for i, path in enumerate(other.adapters)}
    assert len({path.read_bytes() for path in other.adapters}) == 3


def test_speeds_give_the_time_of_the_workload(made):
    work = made.workload
    ceiling, serial = CEILING.figures(made, BATCHED), SERIAL.figures(made, SINGLE)
    assert ceiling.work_s == pytest.approx(work.prompt_tokens / 500 + work.new_tokens / 100)
    assert ceiling.decode_step_ms == pytest.approx(40)
    assert "4 rows with 64 + 16 tokens" in (ceiling.note or "")
    assert serial.work_s == pytest.approx(work.prompt_tokens / 400 + work.new_tokens / 40)


@pytest.mark.parametrize("contender", [CEILING, SERIAL])
@pytest.mark.parametrize("output", ["", "{broken\n", '{"n_prompt": 1}\n'])
def test_output_without_results_is_an_error(made, contender, output):
    with pytest.raises(ValueError, match="no results"):
        contender.figures(made, output)


@pytest.mark.parametrize(
    "work",
    [
        of_sizes([60, 76] * 8, [90, 110] * 8),
        of_sizes([10] * 4, [3] * 4),
        of_sizes([100] * 4, [500] * 4),
        of_sizes([1], [1]),
    ],
)
def test_its_mean_depth_is_the_workloads(work):
    prompt, steps = sizes(work)
    assert 8 <= steps <= 64
    if work.mean_depth > 32:
        assert prompt + (steps - 1) / 2 == pytest.approx(work.mean_depth, abs=1)


def test_rows_fit_their_context(made):
    words = CEILING.command(made)
    prompt, steps = sizes(made.workload)
    context = int(words[words.index("--ctx-size") + 1])
    assert context >= 4 * (prompt + steps)
    assert context % CELLS == 0
    assert words[words.index("-npl") + 1 :][:1] == ["4"]
    assert words[words.index("-ntg") + 1] == str(steps)
