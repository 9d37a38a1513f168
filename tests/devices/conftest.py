"""GPUs of which every machine has some: a backend of ggml that computes with the CPU."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import llama_cpp
import pytest

from tests.devices.fake_gpu import FakeGpus
from tools.build import build

# A wheel has no links: its names without .0 are other copies, with devices of their own.
LIBRARIES = ("-l:libggml-base.so.0", "-l:libggml.so.0", "-l:libggml-cpu.so.0")


@pytest.fixture(scope="session")
def fake_gpu_library(tmp_path_factory) -> Path:
    """The backend, compiled once a session for the llama.cpp that is installed."""
    headers = build.headers_folder(build.locked_version(build.LOCK), build.WHEELS) / "ggml"
    if not headers.exists():
        pytest.skip("llama.cpp's headers are not kept here: `make`")
    cxx = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("clang++") or ""]
    if shutil.which(cxx[0]) is None:
        pytest.skip("no C++ compiler: neither g++ nor clang++ is here, nor what CXX names")
    library = tmp_path_factory.mktemp("fake_gpu") / "fake_gpu.so"
    includes = [f"-isystem{headers / folder}" for folder in ("include", "src")]
    place = Path(llama_cpp.__file__).parent / "lib"
    source = Path(__file__).with_name("fake_gpu.cpp")
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command = [*cxx, *flags, *includes, str(source), "-o", str(library), f"-L{place}", *LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture
def gpus(fake_gpu_library, tmp_path) -> FakeGpus:
    """Two devices of 1 GiB each, for processes that the test starts."""
    folder = tmp_path / "counts"
    folder.mkdir()
    return FakeGpus(fake_gpu_library, folder)
