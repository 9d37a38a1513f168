"""`python -m pipeline doctor`: what is installed, what it was built with, and the proof that it works.

A wrongly compiled llama.cpp does not raise, it dies by a signal at the first batch of a quantised model. So everything
that touches llama.cpp happens in child processes (`tools.build.doctor_child`), and a death is reported by name with
the remedy. This module never imports llama_cpp.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.build.build import ROOT, STAMP, read_stamp, record
from tools.build.compilers import SLOWER_WITHOUT_AMX, Host, this_host

PROVED_TYPES = ("q8_0", "q4_0")  # both have AMX kernels, and kernels of their own for batches
CHILD = (sys.executable, "-m", "tools.build.doctor_child")
PACKAGES = ("llama-cpp-python", "pyarrow", "polars", "numpy", "hydra-core", "omegaconf", "gguf")
REMEDY = "build it anew: `make rebuild`; if that does not help, with another compiler: `make rebuild CC=... CXX=...`"
_CHILD_TIMEOUT_S = 180
# our name -> (the kernel's names for it, what llama.cpp's system info calls it)
_X86_FEATURES = {
    "AVX2": ({"avx2"}, "AVX2"),
    "AVX512": ({"avx512f"}, "AVX512"),
    "AVX512-VNNI": ({"avx512_vnni"}, "AVX512_VNNI"),
    "AVX512-BF16": ({"avx512_bf16"}, "AVX512_BF16"),
    "AMX": ({"amx_tile", "amx_int8"}, "AMX_INT8"),
}


@dataclass(frozen=True)
class Answer:
    """What came of one child process: its JSON answer, or in `problem` why there is none."""

    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Report:
    """Everything the doctor found; healthy if `problems` is empty. `notes` are losses of speed, not faults."""

    versions: dict[str, str]
    llama: dict[str, Any]
    build: dict[str, Any]
    features: dict[str, str]
    proofs: dict[str, str]
    notes: list[str]
    problems: list[str]


def ask(command: Sequence[str], timeout_s: float = _CHILD_TIMEOUT_S) -> Answer:
    """Run a child that prints one JSON object; a crash, a hang or an error becomes a `problem`."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Answer(problem=f"gave no answer within {timeout_s:g} s")
    if done.returncode < 0:
        number = signal.Signals(-done.returncode)
        return Answer(problem=f"died by {number.name} ({signal.strsignal(number)})")
    try:
        return Answer(dict(json.loads(done.stdout.strip().splitlines()[-1])))
    except (ValueError, IndexError, TypeError):
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        return Answer(problem=f"failed with exit code {done.returncode}:\n{tail}")


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that matter; 'missing' for one that is not installed."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def features(host: Host, system_info: str) -> dict[str, str]:
    """For each CPU feature that decides the speed: is it there, and does the build use it."""
    wanted: dict[str, tuple[bool, str]] = {}
    if host.machine.lower() in ("aarch64", "arm64"):
        wanted = {"NEON": (True, "NEON")}
    elif host.takes_x86_flags:
        wanted = {name: (there <= host.cpu_flags, built) for name, (there, built) in _X86_FEATURES.items()}
    return {name: _used(there, f" {built} = 1 " in system_info) for name, (there, built) in wanted.items()}


def _used(there: bool, compiled: bool) -> str:
    if there:
        return "used" if compiled else "NOT USED by this build"
    return "compiled in, but this CPU HAS NONE" if compiled else "not on this CPU"


def examine(child: Sequence[str], host: Host) -> Report:
    """Ask the children and put the findings together. `child` is the command that `CHILD` is by default."""
    info = ask([*child, "info"])
    problems, proofs = [], {}
    if info.problem:
        problems.append(f"llama-cpp-python cannot be loaded: it {info.problem}\n  {REMEDY}")
    for file_type in PROVED_TYPES if not problems else ():
        with TemporaryDirectory() as folder:
            problem = ask([*child, "decode", file_type, folder]).problem
        proofs[file_type] = problem or "decodes"
        if problem:
            problems.append(f"decoding a {file_type} model {problem}\n  this llama.cpp is broken, {REMEDY}")
    build = read_stamp(Path(sys.prefix) / STAMP)
    found = features(host, str(info.values.get("system_info", "")))
    return Report(versions(), info.values, build, found, proofs, _notes(build, found), problems)


def _notes(build: dict[str, Any], found: dict[str, str]) -> list[str]:
    notes = []
    if not build:
        notes.append("not built by this project: `make llama` builds for this CPU with a compiler that was tried")
    elif build.get("record") != record(Path(sys.prefix)):
        notes.append("the installed llama-cpp-python is not the one that this project built: `make llama` puts it back")
    if found.get("AMX") == _used(True, False):
        how = build.get("faster") or f"{SLOWER_WITHOUT_AMX} with it; install clang, then `make llama`"
        notes.append(f"AMX is not used: {how}")
    return notes


def _lines(report: Report) -> list[str]:
    """The report for people."""
    lines = [f"{name:18} {version}" for name, version in report.versions.items()]
    lines += [f"{name:18} {value}" for name, value in report.llama.items()]
    if report.build:
        lines.append(f"{'built with':18} {report.build.get('compiler')}, {report.build.get('why')}")
        lines += [f"{name:18} {report.build[name]}" for name in ("CMAKE_ARGS", "CFLAGS") if report.build.get(name)]
    lines += [f"{name:18} {state}" for name, state in report.features.items()]
    lines += [f"{'proof ' + name:18} {state}" for name, state in report.proofs.items()]
    lines += [f"note: {note}" for note in report.notes]
    lines += [f"PROBLEM: {problem}" for problem in report.problems]
    return [*lines, "" if report.problems else "All good."]


def main(argv: list[str], child: Sequence[str] = CHILD) -> int:
    """Print the report; 0 if llama.cpp is proved to work, 1 if not. `child` is replaced in tests."""
    parser = argparse.ArgumentParser(prog="python -m pipeline doctor", description="prove that this set-up works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    report = examine(child, this_host())
    text = json.dumps(asdict(report), indent=1) if arguments.json else os.linesep.join(_lines(report)).rstrip()
    print(text)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
