"""A backend gives its flags to CMake; what it is built with is tried before anything is compiled, and all that is
missing is told at once, with the remedies. Programs of NVIDIA and AMD are scripts here that say what the real ones do.
"""

import argparse
import re
import shlex
import shutil
import sys

import pytest

from tools.build import build
from tools.build.backends import BACKENDS, OLDEST_VULKAN, definitions, examine, tool_version
from tools.build.build import CMAKE_ARGS
from tools.build.compilers import CompilerPair, NoCompilerError

GCC_13 = CompilerPair("gcc-13", "g++-13", "gcc", "13.1.0", openmp=True)
GPUS = {"cuda", "vulkan", "metal", "hip"}
WITH_TOOLS = sorted(name for name, backend in BACKENDS.items() if backend.tool)
NVCC = """
case "$*" in --version) echo release $release; exit ;; esac
code=0
for name in cublas cuda; do
    case "$* " in *"=-l$name "*)
        eval test \\$$name = there || { echo "/usr/bin/ld: cannot find -l$name: No such file or directory"; code=1; } ;;
    esac
done
test $code = 0 || exit $code
"""
NO_GPU = "nvcc warning : Cannot find valid GPU for '-arch=native', default arch is used"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Makes the tool of a backend, which exits with a code; the PATH has nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def there(name: str, code: int = 0, says: str = "release 12.4", body: str = "") -> None:
        path = tmp_path / BACKENDS[name].tool[0]
        path.write_text(f"#!/bin/sh\n{body}\necho {shlex.quote(says)}\nexit {code}\n")
        path.chmod(0o755)

    return there


def test_those_that_compute_on_a_gpu_are_proved_there():
    assert {name for name, backend in BACKENDS.items() if backend.is_gpu} == GPUS


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_tool_that_is_missing_or_broken_is_named_with_what_to_install(tools, name):
    with pytest.raises(NoCompilerError, match=f"backend={name} needs .*{BACKENDS[name].tool[0]} is not found"):
        tool_version(name)
    tools(name, code=1)
    with pytest.raises(NoCompilerError, match=f"backend={name} needs .*does not work"):
        tool_version(name)
    tools(name)
    assert tool_version(name) == "release 12.4"


@pytest.mark.parametrize("name", BACKENDS)
def test_the_flags_reach_cmake_and_each_version_has_a_wheel_of_its_own(tools, monkeypatch, tmp_path, name):
    built: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(build, "chosen_compiler", lambda host, env: GCC_13)
    monkeypatch.setattr(build, "examine", lambda *_: "")
    monkeypatch.setattr(build, "build_wheel", lambda locked, env, folder, title: built.update({folder.name: env}))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for says in ("release 12.4", "release 12.8"):
        if name in WITH_TOOLS:
            tools(name, says=says)
        with pytest.raises(IndexError):  # there is no wheel to install
            build.run(argparse.Namespace(rebuild=True, dry_run=False), {"CMAKE_ARGS": "-DMINE=1"}, name)
    flags = BACKENDS[name].flags.split()
    assert all(env["CMAKE_ARGS"].split() == [*CMAKE_ARGS, *flags, "-DMINE=1"] for env in built.values())
    assert len(built) == (2 if name in WITH_TOOLS else 1)


@pytest.fixture
def cuda(tools, tmp_path):
    """Examines CUDA where nvcc finds some libraries, and GPUs of some architectures."""

    def examined(cmake_args: str = "", gpus: str = "890", release: str = "12.4", **libraries: str) -> str:
        says = f"#$ gcc -D__CUDA_ARCH_LIST__={gpus} -E" if gpus else f"{NO_GPU}\n#$ gcc -D__CUDA_ARCH_LIST__=520 -E"
        found = {"cublas": "there", "cuda": "there", **libraries, "release": release}
        tools("cuda", says=says, body="\n".join(f"{name}={state}" for name, state in found.items()) + NVCC)
        return examine("cuda", f"release {release}, V{release}.1", {"CMAKE_ARGS": cmake_args}, "g++")

    return examined


@pytest.mark.parametrize(
    ("given", "missing", "remedies"),
    [
        ("", {"cublas": "no"}, ["-DCUDA_cublas_LIBRARY="]),
        ("", {"cuda": "no"}, ["-DGGML_CUDA_NO_VMM=ON"]),
        ("", {"gpus": ""}, ["-DCMAKE_CUDA_ARCHITECTURES=90"]),
        ("-DCMAKE_CUDA_ARCHITECTURES=native", {"gpus": ""}, ["-DCMAKE_CUDA_ARCHITECTURES=90"]),
        ("", {"cublas": "no", "cuda": "no", "gpus": ""}, ["cublas_LIBRARY=", "NO_VMM=ON", "ARCHITECTURES=90"]),
        ("-DGGML_CUDA_NO_VMM=OFF", {"cuda": "no"}, ["-DGGML_CUDA_NO_VMM=ON"]),
    ],
)
def test_all_that_cuda_lacks_is_told_at_once_with_its_remedy(cuda, given, missing, remedies):
    with pytest.raises(NoCompilerError, match=r"backend=cuda cannot be built here yet:\n- ") as told:
        cuda(given, **missing)
    lines = str(told.value).splitlines()[1:]
    assert len(lines) == len(remedies)
    assert all(remedy in line for remedy, line in zip(remedies, lines, strict=True))


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("-DGGML_CUDA_NO_VMM=ON", {"cuda": "no"}),
        ("-D GGML_CUDA_NO_VMM:BOOL=1", {"cuda": "no"}),
        ("-DCUDA_cublas_LIBRARY=/opt/lib/libcublas.so.13", {"cublas": "no"}),
        ("-DCMAKE_CUDA_ARCHITECTURES='80;90'", {"gpus": ""}),
        ("-DGGML_NATIVE=OFF", {"gpus": ""}),
        ("", {"gpus": "", "release": "11.5"}),  # llama.cpp itself names all architectures then
    ],
)
def test_each_remedy_of_cuda_helps(cuda, given, missing):
    assert cuda(given, **missing) == ("" if "gpus" in missing else "89")


def test_an_nvcc_that_compiles_nothing_is_told_in_its_words(tools):
    tools("cuda", code=1, says="nvcc fatal error: unsupported GNU version")
    with pytest.raises(NoCompilerError, match=r"nvcc does not compile an empty file: .*unsupported GNU version"):
        examine("cuda", "release 12.4", {"CMAKE_ARGS": "-DGGML_NATIVE=OFF"}, "g++")


@pytest.mark.parametrize(("gpus", "architectures"), [("890", "89"), ("1200,900", "90 120")])
def test_a_wheel_for_the_gpus_of_this_machine_is_not_taken_on_others(cuda, monkeypatch, capsys, gpus, architectures):
    monkeypatch.setattr(build, "chosen_compiler", lambda host, env: GCC_13)

    def key() -> str:
        build.run(argparse.Namespace(rebuild=False, dry_run=True), {}, "cuda")
        return str(capsys.readouterr().out.partition("wheel: ")[2])

    assert cuda(gpus=gpus) == architectures
    one = key()
    cuda(gpus="750")
    assert one != key()


def test_hip_is_built_for_the_gpus_here_or_for_named_ones(tools, tmp_path, monkeypatch):
    with pytest.raises(NoCompilerError, match="-DGPU_TARGETS="):
        examine("hip", "HIP 6.2", {}, "g++")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/rocm_agent_enumerator"
    script.write_text("#!/bin/sh\necho gfx000\necho gfx1100\necho gfx90a:sramecc+\n")
    script.chmod(0o755)
    assert examine("hip", "HIP 6.2", {"ROCM_PATH": str(tmp_path)}, "g++") == "gfx1100 gfx90a"
    assert examine("hip", "HIP 6.2", {"CMAKE_ARGS": "-DGPU_TARGETS=gfx942"}, "g++") == ""


@pytest.fixture
def vulkan(tmp_path):
    """Examines Vulkan where the headers have a version, by the compiler of this machine; None: there are none."""
    if not (cxx := shutil.which("g++")):
        pytest.skip("no g++ is installed here")

    def examined(version: int | None, spirv: bool = True, loader: bool = True) -> str:
        if version is not None:
            (tmp_path / "include/vulkan").mkdir(parents=True, exist_ok=True)
            (tmp_path / "include/vulkan/vulkan.hpp").touch()
            (tmp_path / "include/vulkan/vulkan_core.h").write_text(f"#define VK_HEADER_VERSION {version}\n")
        if spirv:
            (tmp_path / "include/spirv/unified1").mkdir(parents=True, exist_ok=True)
            (tmp_path / "include/spirv/unified1/spirv.hpp").touch()
        library = tmp_path / "libvulkan.a"
        if loader:
            library.write_text("!<arch>\n")  # an archive without members
        given = f"-DVulkan_INCLUDE_DIR={tmp_path}/include -DVulkan_LIBRARY={library}"
        return examine("vulkan", "shaderc", {"CMAKE_ARGS": given}, f"{cxx} -nostdinc")

    return examined


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((None, True, True), ["headers .* are not found; .*-DVulkan_INCLUDE_DIR="]),
        ((239, True, True), [f"VK_HEADER_VERSION is 239 .*needs {OLDEST_VULKAN} or.*-DVulkan_INCLUDE_DIR="]),
        ((309, False, True), ["apt-get install spirv-headers"]),
        ((309, True, False), ["apt-get install libvulkan-dev"]),
        ((OLDEST_VULKAN - 1, False, False), ["too old", "spirv-headers", "libvulkan-dev"]),
    ],
)
def test_all_that_vulkan_lacks_is_told_at_once_with_its_remedy(vulkan, there, said):
    with pytest.raises(NoCompilerError) as told:
        vulkan(*there)
    lines = str(told.value).splitlines()[1:]
    assert len(lines) == len(said)
    assert all(re.search(one, line) for one, line in zip(said, lines, strict=True))


@pytest.mark.parametrize("version", [OLDEST_VULKAN, 309])
def test_vulkan_is_built_for_any_gpu(vulkan, version):
    assert vulkan(version) == ""


@pytest.mark.parametrize("name", sorted(BACKENDS.keys() - {"cuda", "vulkan", "hip"}))
def test_the_others_need_no_more_than_their_tool(name):
    assert examine(name, "", {}, "nothing") == ""


def test_definitions_are_read_as_cmake_reads_them():
    given = "-DA=1 -D B:STRING='x y' -DC -DA=2 -G Ninja"
    assert definitions(given) == {"A": "2", "B": "x y", "C": ""}
    with pytest.raises(NoCompilerError, match="CMAKE_ARGS=-DA='1 cannot be read: No closing quotation"):
        definitions("-DA='1")
