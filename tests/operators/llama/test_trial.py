"""What is refused before a model is loaded: a llama.cpp that is broken, which is tried once where this project did not
build it, and settings that it would ignore or end the process for."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest

from operators.llama.model import LlamaModel
from operators.llama.probing import trial
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from tools.build.build import STAMP, record

SOUND = {"problems": [], "notes": ["this CPU has AVX2, which the build does not use"]}
BROKEN = {"problems": ["decoding a q8_0 model died by SIGILL (Illegal instruction)"], "notes": []}


@pytest.fixture
def prefix(tmp_path, monkeypatch) -> Path:
    """An environment that has no stamp, and a home of its own."""
    folder = tmp_path / "venv"
    folder.mkdir()
    monkeypatch.setattr(sys, "prefix", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def doctor(monkeypatch, prefix):
    """Sets what the doctor reports; counts how often it is asked."""
    asked: list[dict[str, object]] = []

    def says(report: dict[str, object]) -> list[dict[str, object]]:
        def examined() -> dict[str, object]:
            asked.append(report)
            return report

        monkeypatch.setattr(trial, "_examined", examined)
        return asked

    return says


def first_use() -> None:
    """A first use by another process."""
    trial.require_sound_build.cache_clear()
    trial.require_sound_build()


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    trial.require_sound_build.cache_clear()


def test_a_sound_build_is_tried_once_and_its_notes_are_warnings(doctor, caplog):
    asked = doctor(SOUND)
    with caplog.at_level(logging.WARNING):
        first_use()
        first_use()
    assert len(asked) == 1
    assert "this CPU has AVX2" in caplog.text


def test_a_broken_build_is_an_error_each_time(doctor):
    asked = doctor(BROKEN)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"(?s)broken: .*died by SIGILL.*`python -m pipeline build` builds"):
            first_use()
    assert len(asked) == 2


def test_another_build_is_tried_again(doctor, monkeypatch):
    asked = doctor(SOUND)
    first_use()
    monkeypatch.setattr(trial, "build_record", lambda: "another")
    first_use()
    assert len(asked) == 2


def test_an_environment_of_another_user_is_remembered_in_the_cache(doctor, prefix):
    asked = doctor(SOUND)
    shutil.rmtree(prefix)
    prefix.write_text("no folder, so that nothing can be written into it")
    first_use()
    first_use()
    assert len(asked) == 1


@pytest.mark.parametrize(("fits", "tries"), [(True, 0), (False, 1)])
def test_what_this_project_built_is_not_tried(doctor, prefix, fits, tries):
    asked = doctor(SOUND)
    (prefix / STAMP).write_text(json.dumps({"record": trial.build_record() if fits else "of what pip replaced"}))
    first_use()
    assert len(asked) == tries


def test_both_digests_of_an_environment_are_equal():
    assert record() in ("", trial.build_record())  # '': a test environment that takes the package from another


def test_a_doctor_that_gives_no_report_is_an_error(prefix, monkeypatch):
    monkeypatch.setattr(trial, "_DOCTOR", (sys.executable, "-c", "print('no JSON')"))
    with pytest.raises(ConfigError, match="gave no report"):
        first_use()


REFUSED = {
    "an option that the loader ignores": (
        ["+model.options.n_gpu=1"],
        ["model.options has 'n_gpu'", "operators.llama.model:load", "it knows none"],
    ),
    "an option that the fake ignores": (
        ["model=fake", "+model.options.x=1"],
        ["has 'x'", "operators.engine.backend.fake:load"],
    ),
    "layers on a GPU": (["model.gpu_layers=5"], ["model.gpu_layers=5", "python -m pipeline build backend=cuda"]),
    "a thousand threads": (
        ["runtime.threads=999"],
        ["runtime.threads=999", "this machine has", "runtime.threads=null"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_exit_2_with_the_key_and_the_remedy(tmp_path, name, monkeypatch, capsys):
    monkeypatch.setattr("llama_cpp.llama_supports_gpu_offload", lambda: False)
    monkeypatch.delattr(LlamaModel, "__init__")
    settings, parts = REFUSED[name]
    assert main(["job=quickstart", *settings, f"output_dir={tmp_path / 'out'}", "progress=none"]) == ExitCode.CONFIG
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error
