"""What a contender is started with, and why it is skipped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from operators.bench.contenders import Entry
from operators.bench.figures import Figures
from operators.bench.rungs import Rungs
from operators.bench.scenarios import JOB, LADDER, PEERS, SCENARIOS, Contender, Kind, Recipe
from operators.bench.spec import Spec, as_object, missing_setting, overrides_of, written
from operators.bench.workload import Facts, Workload, facts_of, make
from operators.decoding.fake import MASK_ID
from operators.engine_settings import EngineSettings
from operators.settings import ModelSettings, SamplingSettings
from pipeline.__main__ import main
from pipeline.config import CONF, register, register_job, settings_of
from pipeline.errors import ExitCode
from pipeline.jobs import find_job
from tests.bench.work import FAKE, request, spec
from tests.diffusion.fakes import load

FACTS = facts_of([60, 70], [10, 90], 512, [])


def entry(contender: Contender, made: Spec, folder) -> Entry:
    return Entry(contender, made, FACTS, folder)


def with_model(made: Spec) -> Spec:
    return replace(made, model=ModelSettings(path="/models/my.gguf"))


@pytest.mark.parametrize(
    "contender", [c for c in PEERS if c.kind in (Kind.SERVER, Kind.BATCHED_BENCH, Kind.LLAMA_BENCH)]
)
def test_a_program_that_is_not_built_is_skipped_with_the_remedy(tmp_path, contender):
    made = with_model(spec(tmp_path))
    assert "make peers" in (entry(contender, made, tmp_path).reason_to_skip() or "")
    (tmp_path / contender.kind.value).touch()
    assert entry(contender, made, tmp_path).reason_to_skip() is None


def test_a_setting_that_is_not_there_is_named(tmp_path):
    contender = Contender("x", Kind.JOB, ("runtime.turbo=true",))
    assert entry(contender, spec(tmp_path), tmp_path).reason_to_skip() == "this version has no setting runtime.turbo"
    assert entry(JOB, spec(tmp_path), tmp_path).reason_to_skip() is None


def test_rows_that_are_too_long_for_the_model_are_skipped(tmp_path):
    long = replace(FACTS, longest=513)
    assert "513" in (Entry(JOB, spec(tmp_path), long, tmp_path).reason_to_skip() or "")


def test_a_context_that_is_too_long_for_the_model_is_skipped(tmp_path):
    long = Contender("x", Kind.RUNG, rung="blocks-fresh", row_tokens=513)
    assert "its context has 513 tokens" in (entry(long, spec(tmp_path), tmp_path).reason_to_skip() or "")
    command = entry(replace(long, row_tokens=512), spec(tmp_path), tmp_path).command()
    assert command[3] == "blocks-fresh"
    assert Spec.load(Path(command[4])).runtime.max_sequence_tokens == 512


def measured(contender: Contender, made: Spec, facts: Facts, folder: Path) -> Figures:
    """The figures of a job that ran in this process."""
    entry = Entry(contender, made, facts, folder)
    assert main([*entry.command()[3:], "store.enabled=false"]) == ExitCode.DONE
    return entry.figures("")


@pytest.mark.parametrize("name", ["4/4 dynamic", "4/2 fused"])
def test_the_figures_of_blocks_are_those_of_the_calls(tmp_path, name):
    """A block costs its steps and, unless that is fused, a call that stores it; the last one of a row is not stored."""
    contender = next(c for c in SCENARIOS["diffusion"].contenders if c.name == name)
    made = spec(tmp_path, Recipe(16, 16, confident=4), slots=2)
    figures = measured(contender, made, Workload(Path(made.workload)).facts, tmp_path)
    sizes = [len(ids) for ids in Workload(Path(made.workload)).rendered()["prompt_ids"].to_pylist()]
    made_tokens = sum(-(-(n + 16) // 4) * 4 - n for n in sizes)  # the last block whole
    blocks = sum(-(-(n + 16) // 4) - n // 4 for n in sizes)
    assert figures.tokens_per_pass is not None
    stored = 0 if "fused" in name else blocks - len(sizes)
    assert figures.calls_per_block == pytest.approx((made_tokens / figures.tokens_per_pass + stored) / blocks)
    assert 0 < (figures.own_share or 0) < 1


def test_a_threshold_is_that_of_the_workload(tmp_path):
    """With it a step of a block of four commits about two."""
    contender = next(c for c in SCENARIOS["diffusion"].contenders if c.likely_threshold)
    made = spec(tmp_path, Recipe(16, 16, confident=4), slots=2)
    facts = Workload(Path(made.workload)).facts
    assert facts.likely_threshold is not None
    figures = measured(contender, made, facts, tmp_path)
    assert figures.note == f"decode.confidence_threshold={facts.likely_threshold:.6g}"
    assert 1.7 < (figures.tokens_per_pass or 0) < 2.3
    blind = replace(facts, likely_threshold=None)
    for each in SCENARIOS["diffusion"].contenders:
        reason = Entry(each, made, blind, tmp_path).reason_to_skip()
        assert (reason is None) is (each is JOB), each.name


def test_a_mask_may_be_given_for_a_model_that_names_none(tmp_path):
    """To the jobs, the rungs and where the threshold is looked for."""
    nameless = replace(FAKE, loader="tests.diffusion.fakes:load")
    asked = replace(request(tmp_path, Recipe(8, 8, confident=4), rows=2), model=nameless)
    assert make(asked, tmp_path / "blind").facts.likely_threshold is None
    rows = make(replace(asked, mask_token_id=MASK_ID), tmp_path / "given")
    assert rows.facts.likely_threshold is not None
    made = replace(spec(tmp_path, slots=2), model=nameless, workload=str(rows.folder), mask_token_id=MASK_ID)
    contender = next(c for c in SCENARIOS["diffusion"].contenders if c.likely_threshold)
    figures = measured(contender, made, rows.facts, tmp_path)
    assert (figures.note or "").startswith(f"decode.mask_token_id={MASK_ID}, decode.confidence_threshold=")
    assert Rungs(made, load(nameless)).blocks_reused().new_tokens == 16


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


def test_nested_settings_come_back_from_json():
    assert as_object(Outer, {"size": 3, "inner": {"fast": False}}) == Outer(3, Inner(False))


def test_a_spec_comes_back_from_its_file(tmp_path):
    made = spec(tmp_path)
    made.save(tmp_path / "spec.json")
    assert Spec.load(tmp_path / "spec.json") == made


@pytest.mark.parametrize(
    ("override", "missing"),
    [
        ("runtime.slots=4", None),
        ("nodes.write.op.x=1", None),
        ("runtime.slots.more=4", "runtime.slots.more"),
        ("sampling.nothing=4", "sampling.nothing"),
    ],
)
def test_missing_settings(override, missing):
    assert missing_setting(override) == missing


@pytest.mark.parametrize("value", ["plain", "it's", "a\\b", "a\\'b", "end\\", "x=1, [y] {z}", "", "null"])
def test_hydra_reads_what_is_written(value):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        register()
        register_job(find_job("generate"))
        config = compose("config", ["job=generate", f"model.system={written(value)}"])
    assert config.model.system == value


@pytest.mark.parametrize("contender", [JOB, next(c for c in LADDER if c.name == "dataflow")])
def test_the_command_of_a_job_composes_to_the_settings_of_the_case(tmp_path, contender):
    made = replace(
        spec(tmp_path, slots=3),
        sampling=SamplingSettings(per_row=["max_tokens"], ignore_eos=True, stop=["'", "}"], temperature=0.5),
        runtime=EngineSettings(slots=3, max_sequence_tokens=256, threads=2, kv_type="f32"),
    )
    command = entry(contender, made, tmp_path).command()
    assert command[1:4] == ["-m", "pipeline", "job=generate"]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        register()
        register_job(find_job("generate"))
        settings = settings_of(compose("config", command[3:]))
    assert (settings.sampling, settings.runtime) == (made.sampling, made.runtime)
    assert settings.model.loader == made.model.loader
    assert settings.data.path == str(Workload(tmp_path / "workload").prompts)
    assert settings.store.enabled is (contender is JOB)
