"""Compile this project's matrix kernels, operators/llama/native, to one library beside llama.cpp's own.

Standard library only: this runs before anything is installed. The library holds kernels for every x86-64 CPU and
chooses at run time, so nothing is compiled for this machine's. It is not linked against llama.cpp, whose symbols it
looks up when it is loaded; it is made with the headers of the locked source package, which are kept with the wheels,
and knows the version and the commit of the libraries beside which it lies.
"""

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from tools.build.compilers import CompilerPair, Host, english

SOURCES = Path(__file__).resolve().parents[2] / "operators/llama/native"
LIBRARY = "libllama-batch-kernels.so"
FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"),
    *("-ffp-contract=off", "-fno-math-errno"),  # the same bits from every compiler: only std::fma fuses
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
CPU_FLAGS: Mapping[str, tuple[str, ...]] = {
    "avx512vnni": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni", *_AVX2),
    "avxvnni": ("-mavxvnni", *_AVX2),
    "avx2": _AVX2,
}
"""By the last word of a file's name, X_avx2.cpp: the instructions that it may use. Other files get none.

What such a file defines must be its own (an anonymous namespace): of a template or an inline function that several
files have the linker keeps one, and a CPU without the instructions would run it."""
INCLUDES = ("ggml/include", "ggml/src", "ggml/src/ggml-cpu")
_HEADER = re.compile(rf"[^/]+/vendor/llama\.cpp/((?:{'|'.join(INCLUDES)})/[^/]+\.h)")
_ASK = """import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in ("ggml_version", "ggml_commit"):
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    print(function().decode())
"""


class KernelsError(RuntimeError):
    """The kernels could not be compiled; the message says why."""


def are_for(host: Host) -> bool:
    """Return whether there are kernels for this kind of machine: Linux on x86-64."""
    return host.takes_x86_flags and host.system == "Linux"


def cpu_flags(source: Path) -> tuple[str, ...]:
    """Return the compiler's flags for the instructions that `source` may use."""
    return CPU_FLAGS.get(source.stem.rpartition("_")[2], ())


def version() -> str:
    """Return the identity of what is compiled, 16 hexadecimal digits: sources, and flags, which make bits too."""
    files = [path for path in sorted(SOURCES.glob("*")) if path.suffix in (".cpp", ".h")]
    parts = [repr((FLAGS, sorted(CPU_FLAGS.items()))).encode()]
    parts += [part for path in files for part in (path.name.encode(), path.read_bytes())]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def keep_headers(archive: Path, folder: Path) -> None:
    """Unpack ggml's headers from llama-cpp-python's source package into `folder`, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="headers-") as place, tarfile.open(archive) as packed:
        headers = Path(place) / "headers"
        headers.mkdir()
        for member in packed:
            if (match := _HEADER.fullmatch(member.name)) and (content := packed.extractfile(member)):
                (headers / match[1]).parent.mkdir(parents=True, exist_ok=True)
                (headers / match[1]).write_bytes(content.read())
        shutil.rmtree(folder, ignore_errors=True)
        headers.rename(folder)


def compile_into(place: Path, compiler: CompilerPair, headers: Path, more: Iterable[str] = ()) -> None:
    """Compile all sources at once and link them to LIBRARY in `place`, which has llama.cpp's libraries.

    Args:
        headers: a folder that `keep_headers` made.
        more: flags of the compiler and linker beside ours, such as a sanitizer's.

    Raises:
        KernelsError: a compiler failed, or llama.cpp does not say its version. What was in `place` is left.
    """
    cxx, sources = shlex.split(compiler.cxx), sorted(SOURCES.glob("*.cpp"))
    ggml = _output([sys.executable, "-I", "-c", _ASK, str(place / "libggml-base.so")]).split()
    names = ("GGML_VERSION", "GGML_COMMIT", "SOURCES")
    defines = [f'-DKERNELS_{name}="{value}"' for name, value in zip(names, [*ggml, version()], strict=True)]
    flags = [*FLAGS, *defines, *(f"-isystem{headers / folder}" for folder in INCLUDES), *more]
    with tempfile.TemporaryDirectory() as folder:
        objects = [f"{folder}/{source.stem}.o" for source in sources]
        calls = [
            [*cxx, *flags, *cpu_flags(source), "-c", str(source), "-o", target]
            for source, target in zip(sources, objects, strict=True)
        ]
        _run_at_once(calls)
        linked = place / f"{LIBRARY}.new"
        _output([*cxx, "-shared", "-pthread", *more, *objects, "-ldl", "-o", str(linked)])
        linked.replace(place / LIBRARY)  # whole or not at all, and whoever has loaded the former one keeps it


def _run_at_once(commands: list[list[str]]) -> None:
    """Run commands beside each other. Raises KernelsError as `_output` does, once all have ended."""
    with ExitStack() as opened:
        said = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        running = [
            subprocess.Popen(command, stdout=log, stderr=log, env=english())
            for command, log in zip(commands, said, strict=True)
        ]
        failed = [log for process, log in zip(running, said, strict=True) if process.wait()]
        for log in failed:
            log.seek(0)
            raise KernelsError(reason(log.read() or "a compiler failed"))


def _output(command: list[str]) -> str:
    """Return what a command prints. Raises KernelsError with the first line in which it speaks of an error."""
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=english())
    if process.returncode:
        raise KernelsError(reason(process.stderr or f"{command[0]} ended with {process.returncode}"))
    return process.stdout


def reason(text: str) -> str:
    """Return the first line of `text` that speaks of an error, else its last one."""
    lines = text.strip().splitlines()
    return next((line.strip() for line in lines if re.search("error: ", line, re.IGNORECASE)), lines[-1])
