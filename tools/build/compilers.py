"""Choose the C++ compiler that builds llama.cpp on this machine: clang if there is one, else GCC.

Standard library only: this runs before anything is installed.

GCC below 13 gets AMX wrong: its headers write `_tile_loadconfig` as inline assembly that names 8 of the 64 bytes of a
tile configuration, so the stores to the others are dropped, and a quantised model dies at its first batch on every CPU
that has AMX. Such a compiler always gets AMX_OFF; on a CPU without AMX that changes nothing. Newer GCC uses a builtin.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

AMX_OFF = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
BUILD = "`python -m pipeline build`"
SOUND_GCC = 13
WITH_AMX = "prompts 2.2 times, single rows 1.6 to 2 times as fast"  # measured, clang+AMX against GCC without
GOOD_CLANG = "a recent clang with OpenMP (Debian 12: apt-get install clang-16 libomp-16-dev)"
_TIMEOUT_S = 60
_PROGRAM = "#include <vector>\nint main() { std::vector<int> one(1, 1); return one[0] - 1; }\n"


class NoCompilerError(RuntimeError):
    """There is no usable compiler; the message says what to install."""


@dataclass(frozen=True)
class Host:
    """The machine that compiles and runs: `machine` as by `platform.machine()`, `cpu_flags` in lower case."""

    system: str
    machine: str
    cpu_flags: frozenset[str]

    @property
    def takes_x86_flags(self) -> bool:
        """True for 64-bit x86, except Macs."""
        return self.machine.lower() in ("x86_64", "amd64") and self.system != "Darwin"


@dataclass(frozen=True)
class CompilerPair:
    """A working pair of C and C++ compilers, with or without OpenMP; `family`: clang or gcc."""

    cc: str
    cxx: str
    family: str
    version: str
    openmp: bool

    def __str__(self) -> str:
        return f"{self.family} {self.version}"

    def flags(self, host: Host) -> tuple[str, ...]:
        """Return the flags without which the compiled code crashes."""
        old = self.family == "gcc" and int(self.version.split(".")[0]) < SOUND_GCC
        return AMX_OFF if old and host.takes_x86_flags else ()

    def why(self, host: Host) -> str:
        """Describe the resulting build, and say what to install for a faster one."""
        said = f"{'with' if self.openmp else 'without'} OpenMP"
        if self.flags(host):
            said += f", AMX switched off as GCC below {SOUND_GCC} gets it wrong"
        without_amx = self.flags(host) and {"amx_tile", "amx_int8"} <= host.cpu_flags
        if without_amx or (host.system != "Darwin" and not self.openmp):
            gain = f"with AMX {WITH_AMX}" if without_amx else "faster"
            said += f"; {gain}: install {GOOD_CLANG}, then `make llama` or {BUILD}"
        return said


def this_host() -> Host:
    """Return the machine that this Python runs on."""
    if platform.system() == "Darwin":
        flags = _output(["sysctl", "hw.optional", "machdep.cpu.brand_string"]).lower().splitlines()
    else:
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        flags = match.group(1).lower().split() if match else []
    return Host(platform.system(), platform.machine(), frozenset(flags))


def find_compiler(host: Host, env: Mapping[str, str]) -> CompilerPair:
    """Return the user's CC and CXX, else the first installed compiler that works with OpenMP, else the first that
    works. Raises NoCompilerError if there is none, or the user named one that does not work."""
    cc, cxx = env.get("CC", ""), env.get("CXX", "")
    if bool(cc) != bool(cxx):
        raise NoCompilerError(f"CC={cc} CXX={cxx}: name both compilers, such as CC=gcc-13 CXX=g++-13, or neither")
    pairs = [(cc, cxx)] if cc else list(_installed_pairs(host))
    tried = (try_compiler(*pair, openmp) for openmp in (True, False) for pair in pairs)
    if compiler := next(filter(None, tried), None):
        return compiler
    if cc:
        raise NoCompilerError(f"CC={cc} CXX={cxx} cannot build and run a small C++ program: mend or unset them")
    if host.system == "Darwin":
        raise NoCompilerError("no working C++ compiler found: run `xcode-select --install`")
    raise NoCompilerError(
        f"no working C++ compiler found: install {GOOD_CLANG} together with g++ (for the C++ standard library), "
        "or name one with CC=... CXX=..."
    )


def _installed_pairs(host: Host) -> Iterator[tuple[str, str]]:
    clang = [(f"clang{suffix}", f"clang++{suffix}") for suffix in ("", *(f"-{n}" for n in range(22, 15, -1)))]
    gcc = [(f"gcc{suffix}", f"g++{suffix}") for suffix in ("", *(f"-{n}" for n in range(16, 10, -1)))]
    for names in [("cc", "c++")] if host.system == "Darwin" else [*clang, *gcc]:
        cc, cxx = map(shutil.which, names)
        if cc and cxx:
            yield cc, cxx


def try_compiler(cc: str, cxx: str, openmp: bool) -> CompilerPair | None:
    """Return the pair if it builds a C++ program that runs, with the family and version that the program prints."""
    said = _output([*shlex.split(cc), "--version"]).partition("\n")[0]
    clang = re.search(r"clang version (\d[\d.]*)", said)
    version = clang[1] if clang else next(reversed(re.findall(r"\d+(?:\.\d+)+", said)), "")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "try.cpp", Path(folder) / "try"
        source.write_text(("#include <omp.h>\n" if openmp else "") + _PROGRAM)
        _output([*shlex.split(cxx), "-std=c++17", *["-fopenmp"][: int(openmp)], str(source), "-o", str(program)])
        works = version and _output([str(program)], failed="failed") == ""
    return CompilerPair(cc, cxx, "clang" if clang else "gcc", version, openmp) if works else None


def english() -> dict[str, str]:
    """Return the environment in which programs speak English."""
    return {**os.environ, "LC_ALL": "C"}


def _output(command: Sequence[str], failed: str = "") -> str:
    """Return the output of a short command; `failed` if it cannot be started, hangs or fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True, env=english())
        return process.stdout
    except (OSError, subprocess.SubprocessError):
        return failed
