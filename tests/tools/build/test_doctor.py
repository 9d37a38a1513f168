"""The doctor names a broken build instead of dying of it."""

import json
import signal
import sys

import pytest

from pipeline.system.file_cache import PLACE
from tools.build import doctor
from tools.build.compilers import Host

X86 = Host("Linux", "x86_64", frozenset({"avx2", "amx_tile", "amx_int8"}))


def child(on_decode: str) -> list[str]:
    """A child that answers `info` and does `on_decode` (Python code) when it is to decode."""
    code = (
        "import sys, os, signal, json\n"
        "if sys.argv[1] == 'info': print(json.dumps({'system_info': 'CPU : AVX2 = 1 | '}))\n"
        f"else: {on_decode}"
    )
    return [sys.executable, "-c", code]


def test_this_build_is_healthy(capsys):
    assert doctor.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["proofs"] == {"q8_0": "decodes", "q4_0": "decodes"}
    assert report["problems"] == []
    assert report["llama"]["images"].startswith("libmtmd computes them, pillow ")


def test_the_cache_of_converted_weights_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(PLACE, str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "m-bf16-0.gguf").write_bytes(b"1234")
    doctor.main([], child("print('{}')"))
    assert f"1 in {tmp_path / 'weights'}, 4 of 107,374,182,400 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGABRT"])
def test_a_death_is_reported_by_name_with_the_remedy(name, capsys):
    # The default action is restored, or a fault handler in the child could take the signal.
    kill = f"signal.signal(signal.{name}, signal.SIG_DFL); os.kill(os.getpid(), signal.{name})"
    assert doctor.main([], child(kill)) == 1
    said = capsys.readouterr().out
    assert f"decoding a q8_0 model died by {name} ({signal.strsignal(signal.Signals[name])})" in said
    assert "python -m pipeline build rebuild=true" in said
    assert "All good" not in said


def test_an_error_in_the_child_is_shown(capsys):
    assert doctor.main([], child("sys.exit('no such tensor')")) == 1
    assert "failed with exit code 1:\nno such tensor" in capsys.readouterr().out


def test_a_library_that_cannot_be_loaded_is_a_problem(capsys):
    assert doctor.main([], [sys.executable, "-c", "import a_module_that_is_not_there"]) == 1
    said = capsys.readouterr().out
    assert "llama-cpp-python cannot be loaded" in said
    assert "a_module_that_is_not_there" in said


def test_a_child_that_hangs_is_a_problem():
    with pytest.raises(doctor.ChildError, match=r"gave no answer within 0.2 s"):
        doctor.ask([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)


def test_a_healthy_child_is_all_good(capsys):
    assert doctor.main([], child("print(json.dumps({}))")) == 0
    assert capsys.readouterr().out.endswith("All good.\n")


def test_features_say_what_the_build_leaves_unused():
    found = doctor.features(X86, "CPU : AVX2 = 1 | AVX512 = 1 | REPACK = 1 |")
    assert found["AVX2"] == "used"
    assert found["AMX"] == "NOT USED by this build"
    assert found["AVX512"] == "compiled in, but this CPU HAS NONE"
    assert found["AVX512-VNNI"] == "not on this CPU"


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_arm_has_neon_and_no_x86_features(machine):
    assert doctor.features(Host("Linux", machine, frozenset()), "CPU : NEON = 1 | ") == {"NEON": "used"}


def test_unused_amx_is_a_note_with_what_to_install(capsys):
    report = doctor.examine(child("print(json.dumps({}))"), X86)
    assert report["problems"] == []
    assert any("AMX is not used" in note and "python -m pipeline build" in note for note in report["notes"])


def test_it_says_that_no_images_are_read_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("MTMD_CPP_LIB", str(tmp_path))
    said = doctor.ask([*doctor.CHILD, "info"])["images"]
    assert said.startswith("NOT READ: ")
    assert "has no libmtmd" in said
    assert "`python -m pipeline build`" in said
