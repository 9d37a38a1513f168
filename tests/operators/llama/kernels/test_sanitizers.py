"""No size, number of threads or choice of experts makes the kernels read or write what is not theirs, do what C++ does
not define, or race: fuzz.cpp, compiled with the sanitizers."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.operators.llama.kernels.library import runnable
from tools.build import build, kernels
from tools.build.compilers import this_host

pytestmark = [pytest.mark.laws, pytest.mark.slow("compiles the kernels with sanitizers")]

FUZZED = ("pack", "product", "attention", "router", "adapted", "row_map", "ggml_access", "kernels_plain")
LANES = {"AVX2": "kernels_avx2", "AVX-VNNI": "kernels_avxvnni", "AVX-512 VNNI": "kernels_avx512vnni"}
FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-Wno-psabi", "-pthread")


@pytest.mark.parametrize(
    ("sanitizer", "rounds", "lanes"),
    [
        ("address,undefined", 100, [name for title, name in LANES.items() if title in runnable()]),
        ("thread", 40, []),  # what the threads do is the same for all instructions
    ],
)
def test_sanitizers_find_nothing(tmp_path, sanitizer, rounds, lanes):
    headers = build.headers_folder(build.locked_version(build.LOCK), build.WHEELS)
    if not headers.exists():
        pytest.skip("llama.cpp's headers are not kept here: `make`")
    sources = [kernels.SOURCES / f"{name}.cpp" for name in (*FUZZED, *lanes)]
    cxx = shlex.split(build.chosen_compiler(this_host(), os.environ).cxx)
    with_it = [*cxx, *kernels.FLAGS, *FLAGS, f"-fsanitize={sanitizer}", f"-I{kernels.SOURCES}"]
    with_it += [f"-isystem{headers / folder}" for folder in kernels.INCLUDES]
    (tmp_path / "empty.cpp").write_text("int main() {}\n")
    command = [*with_it, tmp_path / "empty.cpp", "-o", tmp_path / "empty"]
    probe = subprocess.run(command, capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{cxx[0]} has no -fsanitize={sanitizer}")
    made = []
    for source in (*sources, Path(__file__).with_name("fuzz.cpp")):
        made.append(tmp_path / f"{source.stem}.o")
        subprocess.run([*with_it, *kernels.cpu_flags(source), "-c", source, "-o", made[-1]], check=True)
    subprocess.run([*with_it, *made, "-ldl", "-o", tmp_path / "fuzz"], check=True)
    for seed in (1, 2):
        done = subprocess.run([tmp_path / "fuzz", str(seed), str(rounds)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(f"{rounds} rounds") == 1 + len(lanes)
