"""Types of weights, measured: what `model.weights=auto` takes, and what `python -m pipeline weights` shows."""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from operators.engine.backend.loading import close_model
from operators.llama import model as llama_model
from operators.llama.context import LlamaContext
from operators.llama.convert import converted
from operators.llama.model import LlamaModel, load
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from operators.tuning.machine_load import OtherWork
from operators.weights import candidates, weighing
from operators.weights.divergence import Predictions, sample_of
from operators.weights.speed import Lengths, Speed, SpeedTest
from operators.weights.weighing import MOST_KL, Weighing
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.system.file_cache import PLACE, weights_cache
from tests.pipeline.command_line import refused

TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
AS_IS = ModelSettings(path=str(TINY))
ENGINE = EngineSettings(slots=4, max_sequence_tokens=256)
LITTLE = "there is too little memory for it"
PROMPTS = [np.arange(20 + i, 60 + i, dtype=np.int32) for i in range(8)]
JOB = ["job=quickstart", "data.limit=4", "sampling.max_tokens=4", "runtime.slots=4", "progress=none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    """The tests share what is converted; what is measured is forgotten."""
    for file in folder.glob("weights-*.json"):
        file.unlink()
    monkeypatch.setenv(PLACE, str(folder))
    monkeypatch.setattr(OtherWork, "share", lambda self: 0.0)
    return folder


@pytest.fixture
def as_bf16(monkeypatch):
    """Seconds of everything by type of weights, to be set by a test; as_is takes 1. And the measurements."""
    seconds, measured = {"bf16": 0.5, "f16": 2.0, "f32": 2.0}, []
    make = SpeedTest.__init__
    taken: dict[int, float] = {}

    def note(self: SpeedTest, model: LlamaModel, *others: object) -> None:
        make(self, model, *others)  # type: ignore[arg-type]
        taken[id(self)] = next((s for name, s in seconds.items() if f"-{name}-" in str(model._path)), 1.0)

    def measure(self: SpeedTest) -> Speed:
        measured.append(taken[id(self)])
        return Speed(measured[-1], measured[-1])

    monkeypatch.setattr(SpeedTest, "__init__", note)
    monkeypatch.setattr(SpeedTest, "measure", measure)
    return seconds, measured


@pytest.fixture
def model():
    model = load(AS_IS)
    yield model
    close_model(model)


def choose(model: LlamaModel) -> tuple[str, str]:
    return Weighing(AS_IS, ENGINE, 8).choose(model, PROMPTS, [8] * len(PROMPTS), 48)


def test_auto_takes_a_wider_type_that_is_faster_and_says_what_it_saw(model, as_bf16):
    best, why = choose(model)
    assert best == "bf16"
    assert "mean KL from what its weights say" in why
    assert [s for s in as_bf16[1] if s < 2] == [1.0, 0.5, 1.0, 0.5], "in turn"
    assert as_bf16[1].count(2.0) == 2, "much slower: once each"
    found = Weighing(AS_IS, ENGINE, 8).remembered.choice()
    assert found is not None
    assert found[0] == "bf16"


def test_auto_takes_the_fastest_of_the_wider_types(model, as_bf16):
    as_bf16[0].update(f16=0.4, f32=0.9)
    best, why = choose(model)
    assert best == "f16", why
    assert "as bf16" in why


def test_auto_measures_only_the_likeliest_type_where_time_is_short(model, as_bf16, monkeypatch):
    monkeypatch.setattr(weighing, "ENOUGH_S", 0.0)
    monkeypatch.setattr(candidates, "WIDE", ("bf16", "f16"))
    first, second = candidates.candidates(AS_IS, ENGINE)
    best, why = choose(model)
    assert f"no time was left to measure {second}" in why
    assert best == ("bf16" if first == "bf16" else "as_is")
    assert as_bf16[1] == ([1.0, 0.5, 1.0, 0.5] if first == "bf16" else [1.0, 2.0])


@pytest.mark.parametrize("seconds", [0.96, 1.0, 2.0])
def test_auto_leaves_the_file_as_it_is_where_the_gain_is_not_clear(model, as_bf16, seconds):
    as_bf16[0]["bf16"] = seconds
    best, why = choose(model)
    assert best == "as_is"
    assert "no type that loses nothing is 5% faster" in why
    twice = [s for s in as_bf16[1] if s != 2.0]
    assert twice == ([1.0] if seconds == 2.0 else [1.0, seconds, 1.0, seconds]), "much slower: once"


def test_auto_refuses_what_predicts_otherwise(model, as_bf16, monkeypatch):
    compare = Predictions.compare

    def worse(self, other):
        found = compare(self, other)
        return replace(found, mean_kl=1.0) if other is not model else found

    monkeypatch.setattr(Predictions, "compare", worse)
    best, why = choose(model)
    assert best == "as_is"
    assert "1.0e+00 as bf16" in why


def test_what_was_measured_beside_other_work_is_not_kept(model, as_bf16, monkeypatch):
    monkeypatch.setattr(OtherWork, "share", lambda self: 0.5)
    assert choose(model)[0] == "bf16"
    assert Weighing(AS_IS, ENGINE, 8).remembered.choice() is None


def test_a_real_measurement_has_speeds(model):
    ticks = iter(range(10**6)).__next__
    first = SpeedTest(model, ENGINE, Lengths(40, 8), ticks)
    assert first.together == 1, "a call takes a whole second"
    test = SpeedTest(model, ENGINE, Lengths(40, 8), ticks, 4)
    speeds = [test.measure() for _ in range(2)]
    first.close()
    test.close()
    assert speeds == [Speed(1 / 160, 1 / 4)] * 2, "a call of four prompts, and a step of four rows"


def test_a_call_of_a_slow_model_has_fewer_prompts(model):
    for tick, calls in ((1e-3, 4), (0.3, 2), (10.0, 1)):
        clock = itertools.count(0.0, tick).__next__
        test = SpeedTest(model, ENGINE, Lengths(40, 8), clock)
        test.close()
        assert test.together == calls


def test_a_copy_whose_numbers_overflow_is_not_taken(model, as_bf16, monkeypatch):
    as_bf16[0].update(bf16=2.0, f16=0.5)
    compare = Predictions.compare
    monkeypatch.setattr(Predictions, "compare", lambda self, other: replace(compare(self, other), mean_kl=math.nan))
    best, why = choose(model)
    assert best == "as_is"
    assert "nan as f16" in why


def test_predictions_of_the_same_weights_are_the_same_and_wider_ones_lie_nearer_than_narrower_ones(model, tmp_path):
    kept = Predictions(model, sample_of(PROMPTS, 100), ENGINE, tmp_path)
    same = kept.compare(model)
    assert (same.mean_kl, same.same_top) == (0.0, 1.0)
    far = {}
    for name in ("bf16", "q4_0"):
        other = load(replace(AS_IS, weights=name))
        far[name] = kept.compare(other)
        close_model(other)
    kept.close()
    assert 0 < far["bf16"].mean_kl < far["q4_0"].mean_kl
    assert far["q4_0"].same_top < 1
    assert far["bf16"].perplexity == pytest.approx(same.perplexity, rel=0.02)
    assert list(tmp_path.iterdir()) == [], "the file has no name"


def test_the_sample_is_of_whole_prompts_up_to_its_size():
    assert sum(map(len, sample_of(PROMPTS, 100))) == 120
    assert len(sample_of([np.arange(9999, dtype=np.int32)], 100)[0]) == 256


def test_a_run_mentions_a_type_that_is_known_to_be_much_faster():
    remembered = Weighing(AS_IS, ENGINE, 8).remembered
    assert remembered.mention(None, [8]) is None
    remembered.keep_speed("as_is", Speed(1.4, 1.0))
    remembered.keep_speed("bf16", Speed(1.0, 1.0))
    assert "model.weights=bf16 was measured to be 1.4 times as fast" in str(remembered.mention(None, [8000]))
    assert remembered.mention("bf16", [8000]) is None
    assert remembered.mention(None, [8]) is None, "half of the tokens are as fast"
    assert remembered.mention(None, []) is None
    other = Weighing(AS_IS, replace(ENGINE, max_sequence_tokens=512), 99).remembered
    assert other.mention(None, [8000]) is not None, "speeds serve other jobs with the same slots"
    assert Weighing(AS_IS, replace(ENGINE, slots=8), 8).remembered.mention(None, [8000]) is None


def test_what_another_build_measured_is_not_taken(model, as_bf16, monkeypatch):
    choose(model)
    found = llama_model.build
    monkeypatch.setattr(llama_model, "build", lambda: f"{found()} | AMX = 1")
    assert Weighing(AS_IS, ENGINE, 8).remembered.choice() is None


def test_a_known_type_that_cannot_be_made_again_is_not_taken(model, as_bf16, cache, monkeypatch):
    """It has left the cache, and the disk is full; or other work takes the memory."""
    choose(model)
    remembered = Weighing(AS_IS, ENGINE, 8).remembered
    monkeypatch.setattr(candidates, "free_memory", lambda: 1000)
    assert remembered.choice() == ("as_is", f"an earlier run found bf16 to be faster, but {LITTLE}")
    monkeypatch.undo()
    monkeypatch.setenv(PLACE, str(cache))
    for file in (cache / "weights").glob("*-bf16-*"):
        file.unlink()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    found = remembered.choice()
    assert found is not None
    assert found[0] == "as_is"
    assert "no room for" in found[1]


def test_a_wide_file_is_judged_by_itself(tmp_path, monkeypatch):
    """A copy in F16 of a BF16 file may overflow."""
    wide = replace(AS_IS, path=str(converted(TINY, "bf16")))
    assert "f16" not in candidates.candidates(wide, ENGINE)
    assert "f32" in candidates.candidates(wide, ENGINE)
    plain = load(wide)
    with Weighing(wide, ENGINE, 8).exact(sample_of(PROMPTS, 100), plain) as exact:
        assert exact.compare(plain).mean_kl == 0.0
    close_model(plain)


def test_where_no_copy_can_be_made_the_file_judges_the_others(model, monkeypatch):
    def full(settings):
        raise ConfigError("no room for it")

    monkeypatch.setattr(weighing, "loader", lambda settings: full)
    with Weighing(AS_IS, ENGINE, 8).exact(sample_of(PROMPTS, 100), model) as exact:
        assert exact.compare(model).mean_kl == 0.0


def test_nothing_computes_on_the_main_thread_before_a_run(tmp_path, monkeypatch):
    """llama.cpp would keep a team of threads for it, and the teams of the engine would wait longer at each step."""
    threads: set[str] = set()
    decode = LlamaContext.decode

    def noted(self, *arguments):
        threads.add(threading.current_thread().name)
        return decode(self, *arguments)

    monkeypatch.setattr(LlamaContext, "decode", noted)
    assert main([*JOB, "model.weights=auto", f"output_dir={tmp_path / 'a'}"]) == ExitCode.DONE
    assert threads == {"engine-0"}


def test_a_run_keeps_what_its_first_attempt_took(tmp_path, cache, as_bf16, capsys):
    auto = [*JOB, "model.weights=auto", f"output_dir={tmp_path / 'auto'}"]
    assert main(auto) == ExitCode.DONE
    assert "model.weights=auto: bf16 (4 rows take" in capsys.readouterr().err
    assert main([*JOB, "model.weights=bf16", f"output_dir={tmp_path / 'named'}"]) == ExitCode.DONE
    tables = [pq.read_table(tmp_path / name / "data") for name in ("auto", "named")]
    assert tables[0] == tables[1]
    config = yaml.safe_load((tmp_path / "auto/config.yaml").read_text())
    assert (config["model"]["weights"], config["model"]["weights_chosen"]) == ("auto", "bf16")

    for file in cache.glob("weights-*.json"):
        file.unlink()
    as_bf16[0]["bf16"] = 2.0  # now it would choose otherwise
    as_bf16[1].clear()
    assert main(auto) == ExitCode.DONE
    assert "is finished already" in capsys.readouterr().out
    assert as_bf16[1] == []
    assert main([*auto, "overwrite=true"]) == ExitCode.DONE
    assert as_bf16[1], "a new run measures anew"
    assert yaml.safe_load((tmp_path / "auto/config.yaml").read_text())["model"]["weights_chosen"] == "as_is"


def test_the_next_run_takes_what_was_measured(tmp_path, as_bf16, capsys):
    for name in ("a", "b"):
        assert main([*JOB, "model.weights=auto", f"output_dir={tmp_path / name}"]) == ExitCode.DONE
        assert ("measured by an earlier run" in capsys.readouterr().err) == (name == "b")
    assert len([s for s in as_bf16[1] if s < 2]) == 4


def test_a_plan_measures_nothing(tmp_path, as_bf16, capsys):
    assert main([*JOB, "model.weights=auto", "dry_run=plan", f"output_dir={tmp_path / 'a'}"]) == ExitCode.DONE
    assert "model.weights=auto is chosen when the run begins" in capsys.readouterr().err
    assert as_bf16[1] == []


def test_auto_needs_a_node_that_generates(capsys):
    assert "this has none; name a type: model.weights=bf16" in refused(capsys, "job=embed", "model.weights=auto")


def test_the_command_compares_all_types(tmp_path, as_bf16, capsys):
    arguments = ["weights", "model=tiny", "data.limit=8", "sampling.max_tokens=4", "runtime.slots=4"]
    assert main([*arguments, "--save", str(tmp_path / "saved")]) == ExitCode.DONE
    said = capsys.readouterr()
    assert "bf16: MB " in said.err, "a line for each type as soon as it is measured"
    out = said.out.splitlines()
    assert out[1].split()[0] == "weights"
    made = ["as_is", "f32", "f16", "bf16", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
    assert [line.split()[0] for line in out[2:11]] == made
    assert "q4_k_m: model.weights=q4_k_m cannot work" in "\n".join(out)
    assert any(line.startswith("model.weights=bf16 # 2.00 times as fast; mean KL") for line in out)
    rows = {row["weights"]: row for row in pq.read_table(tmp_path / "saved/weights.parquet").to_pylist()}
    assert rows["bf16"]["mean_kl"] < MOST_KL < rows["as_is"]["mean_kl"] < rows["q4_0"]["mean_kl"]
    assert rows["q6_k"]["refused"]
    assert rows["bf16"]["size_bytes"] == next(p for p in weights_cache().files() if "-bf16-" in p.name).stat().st_size
    assert ElementTree.parse(tmp_path / "saved/weights.svg").getroot().tag.endswith("svg")
    assert not Path("outputs").exists() or not Path("outputs/generate").exists()


def test_the_command_compares_the_types_that_are_named(as_bf16, capsys):
    arguments = ["weights", "model=tiny", "data.limit=8", "sampling.max_tokens=4", "runtime.slots=4"]
    assert main([*arguments, "--types", "q4_1,iq4_nl"]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["as_is", "q4_1", "iq4_nl"]
    assert "--types='q9' cannot work: it is one of f32, f16," in refused(capsys, *arguments, "--types=q9")


def test_the_command_needs_a_model(capsys):
    assert "model.path" in refused(capsys, "weights")
