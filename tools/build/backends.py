"""The backends that llama.cpp can compute on: CMake's flags for each backend, and the tool that building it needs.

Standard library only: this runs before anything is installed.
"""

import shutil
import subprocess
from typing import NamedTuple

from tools.build.compilers import NoCompilerError

_TIMEOUT_S = 60


class Backend(NamedTuple):
    """CMake's flags, a command that works only where the tools for it are installed, and what to install else."""

    flags: str = ""
    tool: tuple[str, ...] = ()
    install: str = ""
    is_gpu: bool = False


BACKENDS = {
    "cpu": Backend(),
    "any_cpu": Backend(
        # The kernels come to where operators.llama.library looks for them, not to a folder bin/ of the environment.
        "-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DCMAKE_INSTALL_BINDIR=llama_cpp/lib"
    ),
    "cuda": Backend("-DGGML_CUDA=ON", ("nvcc", "--version"), "NVIDIA's CUDA toolkit, with its bin/ on the PATH", True),
    "vulkan": Backend(
        "-DGGML_VULKAN=ON",
        ("glslc", "--version"),
        "the Vulkan SDK (Debian, Ubuntu: apt-get install glslc libvulkan-dev spirv-headers)",
        True,
    ),
    "metal": Backend(
        "-DGGML_METAL=ON", ("xcrun", "--version"), "a Mac with Xcode's tools: xcode-select --install", True
    ),
    "hip": Backend("-DGGML_HIP=ON", ("hipcc", "--version"), "AMD's ROCm, with its bin/ on the PATH", True),
    "openblas": Backend(
        "-DGGML_BLAS=ON -DGGML_BLAS_VENDOR=OpenBLAS",
        ("pkg-config", "--modversion", "openblas"),
        "OpenBLAS (Debian, Ubuntu: apt-get install libopenblas-dev pkg-config)",
    ),
}
"""By name. `cpu` gives no flags: on a Mac llama.cpp then takes Metal too. `any_cpu` has kernels for every CPU of this
machine's kind, one of which is chosen at run time."""


def tool_version(name: str) -> str:
    """Return what the tool of the backend `name` says of its version; '' for a backend that needs none.

    Raises:
        NoCompilerError: there is no such backend, or its tool is missing or does not run; the message says what to do.
    """
    if name not in BACKENDS:
        raise NoCompilerError(f"backend={name}: there is none of this name; there are {', '.join(BACKENDS)}")
    backend = BACKENDS[name]
    if not backend.tool:
        return ""
    need = f"backend={name} needs {backend.install}"
    if not shutil.which(backend.tool[0]):
        raise NoCompilerError(f"{need}; {backend.tool[0]} is not found")
    try:
        process = subprocess.run(backend.tool, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCompilerError(f"{need}; `{' '.join(backend.tool)}` does not work: {error}") from error
    return process.stdout.strip()
