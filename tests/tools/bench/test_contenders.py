"""What a contender is started with, why it is skipped, and what follows from what it prints."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
from tests.tools.bench.work import FAKE, spec, with_facts
from tools.bench.contenders import CELLS, BatchedBench, Contender, Function, Job, LlamaBench, Program, sizes
from tools.bench.scenarios import JOB, LADDER, PEERS, SCENARIOS, TOGGLES, scenario
from tools.bench.spec import Spec, overrides_of, written
from tools.bench.workload import PROMPTS, Recipe, facts_of

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
DYNAMIC = next(c for c in SCENARIOS["diffusion"].contenders if c.name == "4/4 dynamic")


@pytest.fixture
def made(tmp_path) -> Spec:
    return replace(spec(tmp_path), model=ModelSettings(path="/models/my.gguf"))


@pytest.mark.parametrize("contender", [c for c in PEERS if isinstance(c, Program)])
def test_a_program_that_is_not_built_is_skipped_with_the_remedy(tmp_path, made, contender):
    assert "make peers" in (contender.reason_to_skip(made) or "")
    (tmp_path / contender.name).touch()
    assert contender.reason_to_skip(made) is None
    assert contender.reason_to_skip(replace(made, model=FAKE)) == "it needs a GGUF file (model.path)"


LONG = Function("x", "tools.bench.rungs:blocks_fresh", row_tokens=513)


@pytest.mark.parametrize(
    ("contender", "facts", "says"),
    [
        (JOB, {}, ""),
        (JOB, {"longest": 513}, "rows of 513 tokens are needed and the model was trained for 512"),
        (LONG, {}, "rows of 513 tokens are needed"),
        (replace(LONG, row_tokens=512), {}, ""),
        (JOB, {"has_mask": False}, ""),
        (DYNAMIC, {"has_mask": False}, r"names no mask token; give one with bench.mask_token_id="),
        (replace(LONG, row_tokens=512), {"has_mask": False}, r"names no mask token"),
    ],
)
def test_what_a_model_cannot_do_is_skipped(made, contender, facts, says):
    assert says in (contender.reason_to_skip(with_facts(made, n_ctx_train=512, **facts)) or "")
    if not says:
        assert contender.reason_to_skip(made) is None


def test_a_function_gets_the_case_with_its_own_row_length(made):
    *start, function, path = replace(LONG, row_tokens=512).command(made)
    assert (start[1:], function) == (["-m", "tools.bench"], LONG.function)
    assert Spec.load(Path(path)) == replace(made, runtime=replace(made.runtime, max_sequence_tokens=512))


def measured(contender: Contender, made: Spec):
    """The figures of a job that ran in this process."""
    assert main([*contender.command(made)[3:], "store.enabled=false"]) == ExitCode.DONE
    return contender.figures(made, "")


@pytest.mark.parametrize("name", ["4/4 dynamic", "4/2"])
def test_the_figures_of_blocks_are_those_of_the_calls(tmp_path, name):
    """A block costs its steps and a call that stores it; the last one of a row is not stored."""
    contender = next(c for c in SCENARIOS["diffusion"].contenders if c.name == name)
    made = spec(tmp_path, Recipe(16, 16), slots=2)
    figures = measured(contender, made)
    lengths = [len(ids) for ids in made.rows.rendered()["prompt_ids"].to_pylist()]
    made_tokens = sum(-(-(n + 16) // 4) * 4 - n for n in lengths)  # the last block whole
    blocks = sum(-(-(n + 16) // 4) - n // 4 for n in lengths)
    assert figures.tokens_per_pass is not None
    stored = blocks - len(lengths)
    assert figures.calls_per_block == pytest.approx((made_tokens / figures.tokens_per_pass + stored) / blocks)
    assert 0 < figures.row()["own_share"] < 1


def test_a_mask_may_be_given_for_a_model_that_names_none(tmp_path):
    nameless = replace(FAKE, loader="tests.operators.engine.block_diffusion.fakes:load")
    made = replace(with_facts(spec(tmp_path), has_mask=False), model=nameless, mask_token_id=MASK_ID)
    assert DYNAMIC.reason_to_skip(made) is None
    assert measured(DYNAMIC, made).new_tokens == made.rows.facts.new_tokens


@dataclass
class Inner:
    fast: bool = True


@dataclass
class Outer:
    size: int = 1
    inner: Inner = field(default_factory=Inner)


def test_only_what_differs_is_written():
    assert overrides_of("runtime", Outer()) == []
    assert overrides_of("runtime", Outer(2, Inner(False))) == ["runtime.size=2", "runtime.inner.fast=false"]


def composed(*overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        register()
        register_job(find_job("generate"))
        return compose("config", ["job=generate", *overrides])


@pytest.mark.parametrize("value", ["plain", "it's", "a\\b", "a\\'b", "end\\", "x=1, [y] {z}", "", "null"])
def test_hydra_reads_what_is_written(value):
    assert composed(f"model.system={written(value)}").model.system == value


def test_the_settings_of_all_contenders_are_there():
    """A setting that is not fails in Hydra."""
    plans = [*SCENARIOS.values(), *(scenario(f"toggle_{name}") for name in TOGGLES)]
    jobs = [each for plan in plans for each in plan.contenders if isinstance(each, Job)]
    given = {each.partition("=")[0]: each for job in jobs for each in job.overrides}
    assert composed(*given.values()).runtime.optimise.compaction is False


@pytest.mark.parametrize("contender", [JOB, next(c for c in LADDER if c.name == "dataflow")])
def test_the_command_of_a_job_composes_to_the_settings_of_the_case(tmp_path, contender):
    made = replace(
        spec(tmp_path, slots=3),
        sampling=SamplingSettings(per_row=["max_tokens"], ignore_eos=True, stop=["'", "}"], temperature=0.5),
        runtime=EngineSettings(slots=3, max_sequence_tokens=256, threads=2, kv_type="f32"),
    )
    command = contender.command(made)
    assert command[1:4] == ["-m", "pipeline", "job=generate"]
    settings = settings_of(composed(*command[4:]))
    assert (settings.sampling, settings.runtime) == (made.sampling, made.runtime)
    assert settings.model.loader == made.model.loader
    assert settings.data.path == str(made.rows.folder / PROMPTS)
    assert settings.store.enabled is (contender is JOB)


FACTS = facts_of([60, 76] * 8, [90, 110] * 8, 4096, [])


def test_speeds_give_the_time_of_the_workload(made):
    facts = made.rows.facts
    ceiling, serial = CEILING.figures(made, BATCHED), SERIAL.figures(made, SINGLE)
    assert ceiling.work_s == pytest.approx(facts.prompt_tokens / 500 + facts.new_tokens / 100)
    assert ceiling.decode_step_ms == pytest.approx(40)
    assert "4 rows with 64 + 16 tokens" in (ceiling.note or "")
    assert serial.work_s == pytest.approx(facts.prompt_tokens / 400 + facts.new_tokens / 40)


@pytest.mark.parametrize("contender", [CEILING, SERIAL])
@pytest.mark.parametrize("output", ["", "{broken\n", '{"n_prompt": 1}\n'])
def test_output_without_results_is_an_error(made, contender, output):
    with pytest.raises(ValueError, match="no results"):
        contender.figures(made, output)


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        facts_of([10] * 4, [3] * 4, 4096, []),
        facts_of([100] * 4, [500] * 4, 4096, []),
        facts_of([1], [1], 64, []),
    ],
)
def test_its_mean_depth_is_the_workloads(facts):
    prompt, steps = sizes(facts)
    assert 8 <= steps <= 64
    if facts.mean_depth > 32:
        assert prompt + (steps - 1) / 2 == pytest.approx(facts.mean_depth, abs=1)


def test_rows_fit_their_context(made):
    words = CEILING.command(made)
    prompt, steps = sizes(made.rows.facts)
    context = int(words[words.index("--ctx-size") + 1])
    assert context >= 4 * (prompt + steps)
    assert context % CELLS == 0
    assert words[words.index("-npl") + 1 :][:1] == ["4"]
    assert words[words.index("-ntg") + 1] == str(steps)
