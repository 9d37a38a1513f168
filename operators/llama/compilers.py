"""Which C++ compiler builds llama.cpp on this machine: find them, try them, choose one.

Standard library only: this runs before anything is installed. `choose` is a pure function of what `find_candidates`
saw; every call of a compiler goes through a `Runner`, which tests replace.

**Why AMX is probed.** ggml's AMX kernels fill a 64-byte tile configuration on the stack and hand it to
`_tile_loadconfig`. The headers of some GCC releases (12.2, the default of Debian 12, is one) write that intrinsic as
inline assembly whose only input operand is the first 8 bytes, so the optimiser takes the stores to the other bytes for
dead and drops them. A quantised model then dies at its first batch, on every CPU that has AMX. No version number
decides this (distributions patch headers), and running the code needs such a CPU. So `_AMX_PROGRAM` is compiled to
assembly twice, differing only in the values that it stores behind byte 16. If both come out the same, the values are
gone and so is the configuration. A sound compiler must emit different code, whatever instructions it picks.

The defect sits in the code, not in the CPU, but ggml compiles its AMX kernels only if the building host has AMX
(`GGML_NATIVE`, `-march=native`), and a wheel is used where it is built. So a defective compiler simply always gets
`AMX_OFF`: on a host without AMX that changes nothing, and what is built does not hinge on one more condition.
"""

import enum
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

AMX_OFF = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
SLOWER_WITHOUT_AMX = "prompts 2.2 times, single rows 1.6 to 2 times as fast"  # measured, clang+AMX against GCC without
_GOOD_CLANG = "a recent clang with OpenMP (Debian 12: apt-get install clang-16 libomp-16-dev)"
_PROBE_TIMEOUT_S = 60

# command line, working directory -> (exit code, stdout); a command that cannot be started or hangs gives a code != 0
Runner = Callable[[Sequence[str], Path], tuple[int, str]]

_OPENMP_PROGRAM = """
#include <omp.h>
#include <vector>
int main() {
    std::vector<int> seen(omp_get_max_threads(), 0);
    #pragma omp parallel
    seen[omp_get_thread_num()] = 1;
    return seen[0] == 1 ? 0 : 1;
}
"""
_PLAIN_PROGRAM = "#include <vector>\nint main() { std::vector<int> one(1, 1); return one[0] - 1; }\n"
_AMX_PROGRAM = """
#include <immintrin.h>
#include <stdint.h>
struct tile_config { uint8_t palette_id, start_row, reserved[14]; uint16_t colsb[16]; uint8_t rows[16]; };
void configure() {
    alignas(64) tile_config config = {};
    config.palette_id = 1;
    for (int i = 0; i < 8; ++i) { config.colsb[i] = COLUMNS + i; config.rows[i] = ROWS + i; }
    _tile_loadconfig(&config);
}
"""


class Amx(enum.Enum):
    """What a compiler makes of AMX tile configurations."""

    SOUND = "sound"
    BROKEN = "broken"
    ABSENT = "absent"  # it knows no AMX, or the machine is no x86-64: there is nothing to get wrong


@dataclass(frozen=True)
class Host:
    """The machine that compiles and runs; `machine` as `platform.machine()`, `cpu_flags` in lower case."""

    system: str
    machine: str
    cpu_flags: frozenset[str]

    @property
    def is_x86(self) -> bool:
        """True for 64-bit x86, the only machines that may be given x86 flags."""
        return self.machine.lower() in ("x86_64", "amd64")

    @property
    def has_amx(self) -> bool:
        """True if the CPU has the AMX units that ggml's kernels use."""
        return self.is_x86 and {"amx_tile", "amx_int8"} <= self.cpu_flags


@dataclass(frozen=True)
class Candidate:
    """A pair of compilers that was tried and can build and run a C++ program."""

    cc: str
    cxx: str
    family: str  # "clang" or "gcc"
    version: str
    openmp: bool
    amx: Amx
    from_user: bool = False  # named by CC/CXX

    def __str__(self) -> str:
        return f"{self.family} {self.version}"


@dataclass(frozen=True)
class Choice:
    """The compiler to build with, the flags it needs, why it was taken, and what would be faster ('' if nothing)."""

    candidate: Candidate
    flags: tuple[str, ...]
    why: str
    faster: str

    def __str__(self) -> str:
        return f"compiler: {self.candidate}, {self.why}" + (f"; faster: {self.faster}" if self.faster else "")


class NoCompilerError(RuntimeError):
    """No usable compiler was found; the message says what to install."""


def this_host() -> Host:
    """The machine that this Python runs on."""
    return Host(platform.system(), platform.machine(), _cpu_flags())


def _cpu_flags() -> frozenset[str]:
    if platform.system() == "Darwin":
        _, text = run_quietly(["sysctl", "hw.optional", "machdep.cpu.brand_string"], Path("/"))
        return frozenset(line.strip().lower() for line in text.splitlines())
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).lower().split()) if found else frozenset()


def choose(host: Host, candidates: Sequence[Candidate]) -> Choice:
    """The best of `candidates` for `host`: clang with OpenMP, else a sound GCC, else any GCC with AMX switched off.

    A compiler that the user named comes first whatever it is. Of equals the first wins. Raises NoCompilerError if
    there is none.
    """
    if not candidates:
        raise NoCompilerError(_no_compiler(host))
    best = min(candidates, key=_rank)
    flags = AMX_OFF if host.is_x86 and host.system != "Darwin" and best.amx is Amx.BROKEN else ()
    return Choice(best, flags, _why(host, best, flags), _faster(host, best, candidates))


def _rank(candidate: Candidate) -> tuple[bool, bool, bool, bool]:
    """Sort key, smallest first: the user's own, OpenMP, sound AMX, clang."""
    no_amx = candidate.amx is not Amx.SOUND
    return (not candidate.from_user, not candidate.openmp, no_amx, candidate.family != "clang")


def _why(host: Host, best: Candidate, flags: Sequence[str]) -> str:
    reasons = ["named by CC/CXX"] if best.from_user else []
    if host.system == "Darwin":
        return "; ".join([*reasons, "with ggml's defaults for macOS (Metal, Accelerate)"])
    reasons.append("with OpenMP" if best.openmp else "without OpenMP")
    if host.is_x86 and best.amx is Amx.SOUND:
        reasons.append("compiles AMX correctly")
    if flags:
        reasons.append("AMX switched off as this compiler gets AMX tile configurations wrong")
    return ", ".join(reasons)


def _faster(host: Host, best: Candidate, candidates: Sequence[Candidate]) -> str:
    if host.system == "Darwin":
        return ""
    if host.has_amx and best.amx is not Amx.SOUND:
        return f"this CPU has AMX ({SLOWER_WITHOUT_AMX}): {_remedy(candidates)}, then `make llama`"
    if not best.openmp:
        return f"OpenMP: {_remedy(candidates)}, then `make llama`"
    return ""


def _remedy(candidates: Iterable[Candidate]) -> str:
    """What to install. A clang that lacks only OpenMP needs one package."""
    for candidate in candidates:
        if candidate.family == "clang" and not candidate.openmp and candidate.amx is not Amx.BROKEN:
            major = candidate.version.split(".")[0]
            return f"install OpenMP for {candidate} (Debian, Ubuntu: apt-get install libomp-{major}-dev)"
    return f"install {_GOOD_CLANG}"


def _no_compiler(host: Host) -> str:
    if host.system == "Darwin":
        return "no working C++ compiler found: run `xcode-select --install`"
    return (
        f"no working C++ compiler found: install {_GOOD_CLANG} together with g++ (for the C++ standard library), "
        "or name one with CC=... CXX=..."
    )


def find_candidates(host: Host, env: Mapping[str, str], run: Runner | None = None) -> list[Candidate]:
    """Try the compilers of this machine, the user's CC/CXX first; only those that work are returned.

    Raises NoCompilerError if CC/CXX name a compiler that does not work: to ignore a wish in silence helps nobody.
    """
    run = run or run_quietly
    if env.get("CC") or env.get("CXX"):
        cc, cxx = _users_pair(env)
        tried = probe(host, cc, cxx, run, from_user=True)
        if tried is None:
            raise NoCompilerError(f"CC={cc} CXX={cxx} cannot build and run a small C++ program: mend or unset them")
        return [tried]
    found: dict[tuple[str, str, str], Candidate] = {}
    for cc, cxx in _installed_pairs(host):
        tried = probe(host, cc, cxx, run)
        if tried is not None:
            found.setdefault((tried.family, tried.version, str(Path(cc).resolve())), tried)
    return list(found.values())


def _users_pair(env: Mapping[str, str]) -> tuple[str, str]:
    """CC and CXX; if only one is set the other is the same compiler's, by name (gcc-13 -> g++-13)."""
    cc, cxx = env.get("CC", ""), env.get("CXX", "")
    if not cxx:
        cxx = re.sub(r"clang(?!\+)", "clang++", cc) if "clang" in cc else re.sub(r"gcc", "g++", cc)
        cxx = "c++" if cxx == "cc" else cxx
    if not cc:
        cc = cxx.replace("clang++", "clang").replace("g++", "gcc")
        cc = "cc" if cc == "c++" else cc
    return cc, cxx


def _installed_pairs(host: Host) -> Iterator[tuple[str, str]]:
    for cc, cxx in _names(host):
        found = shutil.which(cc), shutil.which(cxx)
        if found[0] and found[1]:
            yield found[0], found[1]


def _names(host: Host) -> list[tuple[str, str]]:
    if host.system == "Darwin":
        return [("cc", "c++")]
    clang = ["", *(f"-{major}" for major in range(22, 15, -1))]
    gcc = ["", *(f"-{major}" for major in range(16, 10, -1))]
    return [(f"clang{end}", f"clang++{end}") for end in clang] + [(f"gcc{end}", f"g++{end}") for end in gcc]


def probe(host: Host, cc: str, cxx: str, run: Runner | None = None, *, from_user: bool = False) -> Candidate | None:
    """Try one pair of compilers; None if it cannot build and run a C++ program."""
    run = run or run_quietly
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        identity = _identify(shlex.split(cc), run, at)
        if identity is None:
            return None
        openmp = _runs(shlex.split(cxx), _OPENMP_PROGRAM, ["-fopenmp"], run, at)
        if not openmp and not _runs(shlex.split(cxx), _PLAIN_PROGRAM, [], run, at):
            return None
        amx = _probe_amx(shlex.split(cxx), run, at) if host.is_x86 and host.system != "Darwin" else Amx.ABSENT
        return Candidate(cc, cxx, *identity, openmp=openmp, amx=amx, from_user=from_user)


def _identify(cc: Sequence[str], run: Runner, at: Path) -> tuple[str, str] | None:
    """Family and version from the compiler's own macros, which hold behind any name or wrapper."""
    code, text = run([*cc, "-dM", "-E", "-x", "c", os.devnull], at)
    macros = dict(re.findall(r"^#define (__\w+) (\S+)", text, re.MULTILINE))
    for family, names in (
        ("clang", ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")),
        ("gcc", ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")),
    ):
        if code == 0 and names[0] in macros:
            return family, ".".join(macros.get(name, "0") for name in names)
    return None


def _runs(cxx: Sequence[str], program: str, flags: Sequence[str], run: Runner, at: Path) -> bool:
    (at / "probe.cpp").write_text(program)
    code, _ = run([*cxx, "-std=c++17", *flags, "probe.cpp", "-o", "probe"], at)
    return code == 0 and run([str(at / "probe")], at)[0] == 0


def _probe_amx(cxx: Sequence[str], run: Runner, at: Path) -> Amx:
    """Compile `_AMX_PROGRAM` with two sets of values, as ggml's release build does (-O3); equal code is broken code."""
    (at / "amx.cpp").write_text(_AMX_PROGRAM)
    emitted = []
    for rows, columns in ((17, 1000), (33, 2000)):
        values = [f"-DROWS={rows}", f"-DCOLUMNS={columns}"]
        code, text = run([*cxx, "-std=c++17", "-O3", "-mamx-tile", *values, "-S", "-o", "-", "amx.cpp"], at)
        if code != 0 or "ldtilecfg" not in text:
            return Amx.ABSENT
        emitted.append(text)
    return Amx.BROKEN if emitted[0] == emitted[1] else Amx.SOUND


def run_quietly(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a short command in `folder`; its exit code and stdout (127 and '' if it cannot be started or hangs)."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 127, ""
    return done.returncode, done.stdout
