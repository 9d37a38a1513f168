"""What a calibration chose is kept: for a resumed run, and for the next one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from operators.engine.backend.fake import FakeModel
from operators.settings.runtime import OPEN, EngineSettings, OptimiseSettings
from operators.tuning.calibration import Calibration, Choice
from operators.tuning.choices import CHOICE_FILE, Tuning
from pipeline.api.errors import ConfigError
from pipeline.run_dir.names import CHOICES, wipe
from pipeline.system.file_cache import PLACE
from tests.operators.test_generate import flow, generate, prompts

AUTO = EngineSettings(**OPEN, max_sequence_tokens=256)
LOG = logging.getLogger("test")


def choose(settings: EngineSettings, prompt_tokens: list[int], folder: Path) -> EngineSettings:
    return Tuning(settings, FakeModel(), prompt_tokens, 20, folder).choose(LOG)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def calibrations(monkeypatch):
    made: list[int] = []
    choose = Calibration.choose

    def count(self: Calibration) -> Choice:
        made.append(1)
        return choose(self)

    monkeypatch.setattr(Calibration, "choose", count)
    return made


def test_a_resumed_run_does_what_its_first_attempt_did(tmp_path, cache, calibrations):
    first = choose(AUTO, [60], tmp_path)
    for file in cache.iterdir():
        file.unlink()
    pinned = json.loads((tmp_path / CHOICE_FILE).read_text())
    pinned["values"]["slots"] = 3
    (tmp_path / CHOICE_FILE).write_text(json.dumps(pinned))
    assert choose(AUTO, [900], tmp_path).slots == 3
    assert len(calibrations) == 1
    assert not first.open_keys()


def test_a_run_of_the_version_before_goes_on_with_what_it_chose(tmp_path, calibrations):
    """It chose sizes of calls, too, which change no bit of a row."""
    values = {"kv": "per_sequence", "threads": 1, "flash_attention": False, "n_ubatch": 128, "slots": 5, "n_batch": 128}
    (tmp_path / CHOICE_FILE).write_text(json.dumps({"values": values, "reasons": ["n_ubatch=128: fast"]}))
    found = choose(AUTO, [60], tmp_path)
    assert (found.slots, found.flash_attention, found.threads, found.kv) == (5, False, 1, "per_sequence")
    assert (found.n_batch, found.n_ubatch) == (EngineSettings.n_batch, EngineSettings.n_ubatch)
    assert json.loads((tmp_path / CHOICE_FILE).read_text()) == {"values": values, "reasons": ["n_ubatch=128: fast"]}
    assert not calibrations


def test_threads_of_a_larger_machine_are_refused_on_a_resume(tmp_path):
    choose(AUTO, [60], tmp_path)
    pinned = json.loads((tmp_path / CHOICE_FILE).read_text())
    pinned["values"]["threads"] = 999
    (tmp_path / CHOICE_FILE).write_text(json.dumps(pinned))
    with pytest.raises(ConfigError, match=r"runtime\.threads=999 .* runtime\.threads=null"):
        choose(AUTO, [60], tmp_path)
    given = replace(AUTO, threads=None)
    assert choose(given, [60], tmp_path).threads is None


def test_the_next_run_with_like_prompts_needs_no_calibration(tmp_path, calibrations):
    first = choose(AUTO, [60], tmp_path / "a")
    assert choose(AUTO, [63], tmp_path / "b") == first
    assert len(calibrations) == 1
    choose(AUTO, [600], tmp_path / "c")
    assert len(calibrations) == 2


def test_a_damaged_file_is_no_choice(tmp_path, cache, calibrations):
    choose(AUTO, [60], tmp_path / "a")
    for file in cache.iterdir():
        file.write_text('{"values": {"slots": 16')
    choose(AUTO, [60], tmp_path / "b")
    assert len(calibrations) == 2


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(PLACE, str(tmp_path / "file" / "cache"))
    assert not choose(AUTO, [60], tmp_path).open_keys()
    assert "cannot be written" in caplog.text


def test_nothing_is_done_where_nothing_is_open(tmp_path, calibrations):
    settings = EngineSettings()
    assert choose(settings, [60], tmp_path) is settings
    assert not calibrations


def test_a_job_that_leaves_all_open_gives_the_same_rows(tmp_path):
    expected = [row["completion"] for row in flow(tmp_path / "a", prompts(30), generate()).run()]
    op = generate(runtime=dict(OPEN))
    assert [row["completion"] for row in flow(tmp_path / "b", prompts(30), op).run()] == expected
    assert not op._engine_settings.open_keys()
    assert (tmp_path / "b" / CHOICE_FILE).exists()


@pytest.mark.parametrize(("rows", "samples", "most"), [(3, 1, 3), (5, 2, 10), (40, 1, 40)])
def test_no_job_gets_more_slots_than_it_has_rows(tmp_path, rows, samples, most):
    op = generate(runtime=dict(OPEN), sampling={"n": samples, "temperature": 1.0})
    assert len(flow(tmp_path, prompts(rows), op).run()) == rows * samples
    assert 1 <= op._engine_settings.slots <= most
    reasons = json.loads((tmp_path / CHOICE_FILE).read_text())["reasons"]
    assert any(f"there are {rows * samples} rows" in reason for reason in reasons)


def test_many_rows_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("operators.generate.FEW_ROWS", 40)
    op = generate(runtime=dict(OPEN))
    assert len(flow(tmp_path, prompts(41), op).run()) == 41
    assert "there are" not in (tmp_path / CHOICE_FILE).read_text()


def test_an_input_without_rows_is_no_problem(tmp_path):
    assert flow(tmp_path, [], generate(runtime=dict(OPEN) | {"optimise": OptimiseSettings()})).run() == []


def test_a_run_that_begins_anew_chooses_anew(tmp_path):
    """The engine, which wipes a directory, and the operator agree on the file's name."""
    assert CHOICE_FILE == CHOICES
    (tmp_path / CHOICES).write_text("{}")
    wipe(tmp_path)
    assert not (tmp_path / CHOICES).exists()
