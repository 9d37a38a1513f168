"""The backends that llama.cpp can compute on: CMake's flags for each, the tools that building it needs, and what else
is tried before anything is compiled: libraries, headers, and the GPUs that the code is made for.

Standard library only: this runs before anything is installed.
"""

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tools.build.compilers import NoCompilerError, english

_TIMEOUT_S = 60
_OFF = ("", "0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND")  # what CMake takes for false
OLDEST_VULKAN = 272  # VK_HEADER_VERSION of 1.3.272, the first with VK_EXT_layer_settings, which ggml-vulkan.cpp names
NATIVE_CUDA = (11, 6)  # from here on llama.cpp compiles for the GPUs of this machine, unless others are named


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


class Asked(NamedTuple):
    """What a build is asked for: the environment, the -D of its CMAKE_ARGS, the C++ compiler, what the tool says."""

    env: Mapping[str, str]
    given: Mapping[str, str]
    cxx: str
    tool: str

    def on(self, name: str, default: bool) -> bool:
        """Return whether an option of CMake is on."""
        return self.given[name].upper() not in _OFF if name in self.given else default


class Found(NamedTuple):
    """What is missing, with the remedies, and the architectures of the GPUs here, where the code is made for them."""

    missing: list[str]
    architectures: str = ""


def examine(name: str, tool: str, env: Mapping[str, str], cxx: str) -> str:
    """Try what the backend `name` is built with, in seconds.

    Args:
        tool: what `tool_version` returned.
        env: of the build; its CMAKE_ARGS may name libraries, headers and architectures.
        cxx: the C++ compiler of the build.

    Returns:
        The architectures of this machine's GPUs where the code is made for them, else ''. They belong to the key of a
        cached wheel: on other GPUs it is of no use.

    Raises:
        NoCompilerError: something is missing. The message has all of it, with the remedies.
    """
    if not (check := CHECKS.get(name)):
        return ""
    found = check(Asked(env, definitions(env.get("CMAKE_ARGS", "")), cxx, tool))
    if found.missing:
        raise NoCompilerError("\n- ".join([f"backend={name} cannot be built here yet:", *found.missing]))
    if found.architectures:
        print(f"for the GPUs of this machine: {found.architectures}", flush=True)
    return found.architectures


def definitions(cmake_args: str) -> dict[str, str]:
    """Return the values that `-DNAME=VALUE`, `-DNAME:TYPE=VALUE` and `-D NAME=VALUE` give, the last of each name.
    Raises NoCompilerError for quotation marks without an end."""
    try:
        words = shlex.split(re.sub(r"(^|\s)-D\s+", r"\1-D", cmake_args))
    except ValueError as error:
        raise NoCompilerError(f"CMAKE_ARGS={cmake_args} cannot be read: {error}") from error
    pairs = (word[2:].partition("=") for word in words if word.startswith("-D"))
    return {name.partition(":")[0]: value for name, _, value in pairs}


def _cuda(asked: Asked) -> Found:
    """Link an empty library as CMake would link llama.cpp's, and ask nvcc for the architectures of the GPUs here."""
    given, env = asked.given, asked.env
    host = given.get("CMAKE_CUDA_HOST_COMPILER") or env.get("CUDAHOSTCXX")
    root = given.get("CUDAToolkit_ROOT") or env.get("CUDAToolkit_ROOT")
    nvcc = [given.get("CMAKE_CUDA_COMPILER") or env.get("CUDACXX") or "nvcc", *(["-ccbin", host] if host else [])]
    flags = shlex.split(given.get("CMAKE_CUDA_FLAGS", ""))
    flags += [f"-L{root}/lib64", f"-I{root}/include"] if root else []
    libraries = [given.get("CUDA_cublas_LIBRARY", "-lcublas")]
    if not asked.on("GGML_CUDA_NO_VMM", default=False):
        libraries.append(given.get("CUDA_cuda_driver_LIBRARY", "-lcuda"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.cu"
        source.write_text("#if !__has_include(<cublas_v2.h>)\n#warning no cublas_v2.h\n#endif\n")
        target = ["-shared", "-Xcompiler", "-fPIC", "-o", f"{folder}/try.so"]
        failed, said = _told([*nvcc, *flags, *target, str(source), *(f"-Xlinker={word}" for word in libraries)])
        _, dry = _told([*nvcc, "-arch=native", "-dryrun", str(source)])
    absent = set(re.findall(r"(?:cannot find|unable to find|not found).*(?:-l|: )(cublas|cuda)\b", said))
    missing = []
    if "cublas" in absent or "no cublas_v2.h" in said:
        missing.append(_CUBLAS)
    if "cuda" in absent:
        missing.append(_LIBCUDA)
    if failed and not missing:
        missing.append(f"nvcc does not compile an empty file: {_reason(said)}")
    if given.get("CMAKE_CUDA_ARCHITECTURES", "native") != "native" or not _native_cuda(asked):
        return Found(missing)
    listed = set() if "-arch=native'" in dry else set(re.findall(r"__CUDA_ARCH_LIST__=([\d,]+)", dry))
    missing += [] if listed else [_NO_CUDA_GPU]
    architectures = {number[:-1] for numbers in listed for number in numbers.split(",")}  # 900 is 9.0
    return Found(missing, " ".join(sorted(architectures, key=int)))


def _native_cuda(asked: Asked) -> bool:
    release = re.search(r"release (\d+)\.(\d+)", asked.tool)
    return asked.on("GGML_NATIVE", default=True) and (not release or (int(release[1]), int(release[2])) >= NATIVE_CUDA)


def _vulkan(asked: Asked) -> Found:
    """Ask the compiler for the headers, with the folders in which CMake looks, and link against the loader."""
    given, sdk = asked.given, asked.env.get("VULKAN_SDK")
    beside = Path(shutil.which("glslc") or "").parents[1:2]  # CMake looks beside programs of the PATH, too
    named = (given.get("Vulkan_INCLUDE_DIR"), sdk and f"{sdk}/include", *(f"{prefix}/include" for prefix in beside))
    folders = [f"-I{folder}" for folder in named if folder]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.cpp"
        source.write_text(_VULKAN_HEADERS)
        failed, said = _told([*shlex.split(asked.cxx), "-std=c++17", "-E", "-P", *folders, str(source)])
        source.write_text("")
        libraries = [f"-L{sdk}/lib"] if sdk else []
        libraries += [*(f"-L{prefix}/lib" for prefix in beside), given.get("Vulkan_LIBRARY", "-lvulkan")]
        target = ["-shared", "-fPIC", "-o", f"{folder}/try.so"]
        no_loader, _ = _told([*shlex.split(asked.cxx), *target, str(source), *libraries])
    if failed:
        return Found([f"{asked.cxx} does not read an empty file: {_reason(said)}"])
    missing, version = [], re.search(r"^version (\d+)", said, re.MULTILINE)
    if not version:
        missing.append(f"Vulkan's headers (vulkan/vulkan.hpp) are not found; {_VULKAN_REMEDY}")
    elif int(version[1]) < OLDEST_VULKAN:
        old = f"Vulkan's headers are too old: VK_HEADER_VERSION is {version[1]} (as in Debian 12: 239)"
        missing.append(f"{old}, llama.cpp needs {OLDEST_VULKAN} or later; {_VULKAN_REMEDY}")
    if not re.search("^spirv$", said, re.MULTILINE) and not {"SPIRV-Headers_DIR", "CMAKE_PREFIX_PATH"} & given.keys():
        missing.append("SPIR-V's headers are not found; Debian, Ubuntu: apt-get install spirv-headers")
    if no_loader:
        missing.append("Vulkan's loader (libvulkan.so) is not found; Debian, Ubuntu: apt-get install libvulkan-dev")
    return Found(missing)


def _hip(asked: Asked) -> Found:
    """Ask ROCm for the architectures of the GPUs here, as CMake does where none is named."""
    if {"CMAKE_HIP_ARCHITECTURES", "GPU_TARGETS", "AMDGPU_TARGETS"} & asked.given.keys():
        return Found([])
    place = shutil.which("rocm_agent_enumerator", path=f"{asked.env.get('ROCM_PATH', '/opt/rocm')}/bin")
    _, said = _told([place or "rocm_agent_enumerator", "-t", "GPU"])
    listed = sorted({word for word in re.findall(r"\bgfx\w+", said) if word != "gfx000"})
    return Found([] if listed else [_NO_HIP_GPU], " ".join(listed))


def _told(command: list[str]) -> tuple[bool, str]:
    """Return whether a short command failed, and what it said."""
    try:
        process = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            env=english(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return True, str(error)
    return process.returncode != 0, process.stdout


def _reason(said: str) -> str:
    """Return the first line that speaks of an error, else the last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)), lines[-1])


_CUBLAS = (
    "cuBLAS with its headers is not found; it is in NVIDIA's whole toolkit, and in its package libcublas-dev-VERSION."
    " With PyPI's nvidia-cublas: CMAKE_ARGS='-DCUDA_cublas_LIBRARY=FOLDER/lib/libcublas.so.13"
    " -DCUDA_cublasLt_LIBRARY=FOLDER/lib/libcublasLt.so.13 -DCMAKE_CUDA_FLAGS=-IFOLDER/include'"
)
_LIBCUDA = (
    "libcuda.so is not found, neither the driver's nor the toolkit's stub (NVIDIA's package cuda-driver-dev-VERSION);"
    " to do without: CMAKE_ARGS=-DGGML_CUDA_NO_VMM=ON"
)
_NO_CUDA_GPU = (
    "no GPU is seen on this machine (as in `docker build`), so the architecture is not known; name the compute"
    " capability of the GPU that will run it, 90 for 9.0: CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES=90 (several: '80;90';"
    " 75 is Turing, 80 A100, 86 RTX 30, 89 RTX 40, 90 H100 and H200, 120 RTX 50)"
)
_NO_HIP_GPU = (
    "no GPU is seen on this machine (rocm_agent_enumerator names none), so the architecture is not known; name that of"
    " the GPU that will run it: CMAKE_ARGS=-DGPU_TARGETS=gfx1100"
)
_VULKAN_REMEDY = (
    "install newer ones (libvulkan-dev of Debian 13, the Vulkan SDK), or unpack them somewhere and name"
    " them: CMAKE_ARGS=-DVulkan_INCLUDE_DIR=FOLDER/include"
)
_VULKAN_HEADERS = """#if __has_include(<vulkan/vulkan.hpp>)
#include <vulkan/vulkan_core.h>
version VK_HEADER_VERSION
#endif
#if __has_include(<spirv/unified1/spirv.hpp>) || __has_include(<spirv-headers/spirv.hpp>) || __has_include(<spirv.hpp>)
spirv
#endif
"""
CHECKS: Mapping[str, Callable[[Asked], Found]] = {"cuda": _cuda, "vulkan": _vulkan, "hip": _hip}
