"""Real compilers are judged by what they emit."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from operators.llama.build import ROOT
from operators.llama.compilers import Amx, Candidate, Host, NoCompilerError, find_candidates, probe, this_host

HOST = this_host()
on_linux_x86 = pytest.mark.skipif(not HOST.is_x86 or HOST.system != "Linux", reason="AMX is a matter of x86-64 Linux")

# What a sound header does, for a compiler whose own header is not: an operand that names all 64 bytes.
SOUND_INTRINSIC = """
#include <immintrin.h>
struct all_of_it { char bytes[64]; };
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" :: "m"(*(const all_of_it *)(config)))
"""


def tried(cc: str, cxx: str) -> Candidate:
    if not shutil.which(cc) or not shutil.which(cxx):
        pytest.skip(f"{cc} is not installed")
    found = probe(HOST, cc, cxx)
    if found is None:
        pytest.skip(f"{cc} does not work here")
    return found


@on_linux_x86
def test_gcc_12_2_is_broken():
    gcc = tried("gcc", "g++")
    if not gcc.version.startswith("12.2."):
        pytest.skip(f"gcc is {gcc.version}")
    assert gcc.amx is Amx.BROKEN


@on_linux_x86
def test_gcc_is_sound_with_a_sound_intrinsic(tmp_path):
    """The verdict follows the code, not the compiler's name."""
    if tried("gcc", "g++").amx is Amx.ABSENT:
        pytest.skip("this gcc knows no AMX")
    fix = tmp_path / "fix.h"
    fix.write_text(SOUND_INTRINSIC)
    mended = probe(HOST, "gcc", f"g++ -include {fix}")
    assert mended is not None
    assert mended.amx is Amx.SOUND


@on_linux_x86
def test_every_installed_clang_is_sound():
    clangs = [found for found in find_candidates(HOST, {}) if found.family == "clang"]
    if not clangs:
        pytest.skip("no clang is installed")
    assert [(found.version, found.amx) for found in clangs] == [(found.version, Amx.SOUND) for found in clangs]


def test_a_compiler_that_does_not_run_is_no_candidate(tmp_path):
    assert probe(HOST, str(tmp_path / "missing"), str(tmp_path / "missing++")) is None


def test_a_named_compiler_that_does_not_work_is_an_error():
    with pytest.raises(NoCompilerError, match="CC=nothing-such CXX=nothing-such"):
        find_candidates(HOST, {"CC": "nothing-such"})


@pytest.mark.parametrize(
    ("env", "pair"),
    [
        ({"CC": "gcc-13"}, ("gcc-13", "g++-13")),
        ({"CXX": "clang++-18"}, ("clang-18", "clang++-18")),
        ({"CC": "cc"}, ("cc", "c++")),
        ({"CC": "ccache clang", "CXX": "ccache clang++"}, ("ccache clang", "ccache clang++")),
    ],
)
def test_the_users_compiler_is_completed(env, pair):
    (found,) = find_candidates(Host("Linux", "aarch64", frozenset()), env, FakeGcc())
    assert (found.cc, found.cxx, found.from_user) == (*pair, True)


@pytest.mark.parametrize(("system", "machine"), [("Linux", "aarch64"), ("Darwin", "arm64"), ("Darwin", "x86_64")])
def test_amx_is_probed_on_x86_linux_only(system, machine):
    run = FakeGcc()
    found = probe(Host(system, machine, frozenset()), "gcc", "g++", run)
    assert found is not None
    assert found.amx is Amx.ABSENT
    assert not any("-mamx-tile" in command for command in run.commands)


class FakeGcc:
    """A GCC that succeeds at everything."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command, folder):
        self.commands.append(list(command))
        return 0, "#define __GNUC__ 13\n#define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 0\n"


def test_build_runs_before_anything_is_installed():
    """-I -S: no site-packages, no PYTHONPATH."""
    script = Path("operators") / "llama" / "build.py"
    done = subprocess.run([sys.executable, "-I", "-S", script, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--venv" in done.stdout
