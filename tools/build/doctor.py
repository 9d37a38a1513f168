"""`python -m pipeline doctor`: shows the installed versions and their builds, and tests that llama.cpp works.

A wrongly compiled llama.cpp does not raise, it dies by a signal at the first batch of a quantised model. So everything
that touches llama.cpp happens in child processes (`tools.build.doctor_child`), and a death is reported by name with
the remedy. This module never imports llama_cpp.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.system.file_cache import weights_cache
from pipeline.system.machine import machine, versions
from tools.build.backends import BACKENDS
from tools.build.build import ROOT, STAMP, read_stamp, record
from tools.build.compilers import BUILD, GOOD_CLANG, WITH_AMX, Host, this_host

PROVED_TYPES = ("q8_0", "q4_0")  # both have AMX kernels, and kernels of their own for batches
CHILD = (sys.executable, "-m", "tools.build.doctor_child")
REMEDY = (
    "build it anew: `python -m pipeline build rebuild=true` (in a checkout also `make rebuild`); if that does not help,"
    " with another compiler, named in the environment: CC=... CXX=..."
)
_CHILD_TIMEOUT_S = 180
# our name -> (the kernel's names for it, what llama.cpp's system info calls it)
_X86_FEATURES = {
    "AVX2": ({"avx2"}, "AVX2"),
    "AVX512": ({"avx512f"}, "AVX512"),
    "AVX512-VNNI": ({"avx512_vnni"}, "AVX512_VNNI"),
    "AVX512-BF16": ({"avx512_bf16"}, "AVX512_BF16"),
    "AMX": ({"amx_tile", "amx_int8"}, "AMX_INT8"),
}
_UNUSED = "NOT USED by this build"


class ChildError(Exception):
    """A child process gave no answer; the message says why."""


def ask(command: Sequence[str], timeout_s: float = _CHILD_TIMEOUT_S) -> dict[str, Any]:
    """Return the JSON object that a child prints. Raises ChildError if it crashes, hangs or fails."""
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"gave no answer within {timeout_s:g} s") from error
    if process.returncode < 0:
        number = signal.Signals(-process.returncode)
        raise ChildError(f"died by {number.name} ({signal.strsignal(number)})")
    if process.returncode:
        tail = "\n".join(process.stderr.strip().splitlines()[-5:])
        raise ChildError(f"failed with exit code {process.returncode}:\n{tail}")
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answer


def features(host: Host, system_info: str) -> dict[str, str]:
    """Return for each CPU feature that matters for speed if the CPU has it, and if the build uses it."""
    if host.machine.lower() in ("aarch64", "arm64"):
        return {"NEON": "used" if " NEON = 1 " in system_info else _UNUSED}
    states = {}
    for name, (names, built) in _X86_FEATURES.items() if host.takes_x86_flags else ():
        if f" {built} = 1 " in system_info:
            states[name] = "used" if names <= host.cpu_flags else "compiled in, but this CPU HAS NONE"
        else:
            states[name] = _UNUSED if names <= host.cpu_flags else "not on this CPU"
    return states


def examine(child: Sequence[str], host: Host) -> dict[str, Any]:
    """Ask children, started with `child`, and collect the findings: `notes` are losses of speed, `problems` faults."""
    llama: dict[str, Any] = {}
    problems, proofs = [], {}
    try:
        llama = ask([*child, "info"])
    except ChildError as error:
        problems.append(f"llama-cpp-python cannot be loaded: it {error}\n  {REMEDY}")
    for file_type in PROVED_TYPES if not problems else ():
        try:
            with TemporaryDirectory() as folder:
                ask([*child, "decode", file_type, folder])
            proofs[file_type] = "decodes"
        except ChildError as error:
            proofs[file_type] = str(error)
            problems.append(f"decoding a {file_type} model {error}\n  this llama.cpp is broken, {REMEDY}")
    build = read_stamp(Path(sys.prefix) / STAMP)
    backend = BACKENDS.get(build.get("backend", "cpu"), BACKENDS["cpu"])
    gpus = ", ".join(llama.get("devices", []))
    if (backend.is_gpu or gpus) and not problems:
        try:
            with TemporaryDirectory() as folder:
                ask([*child, "decode", "q8_0", folder, "gpu"])
            proofs["q8_0 on the GPU"] = "decodes"
        except ChildError as error:
            where = gpus or f"no GPU, and a build for backend={build['backend']}"
            problems.append(f"llama.cpp finds {where}: decoding on it {error}")
    cache = weights_cache()
    cpu_features = features(host, str(llama.get("system_info", "")))
    return {
        "versions": {name: version or "missing" for name, version in versions().items()},
        "machine": machine(),
        "llama": llama,
        "build": build,
        "features": cpu_features,
        "weights": {
            "place": str(cache.folder),
            "files": len(cache.files()),
            "bytes": cache.size_bytes,
            "most_bytes": cache.most_bytes,
        },
        "proofs": proofs,
        "notes": _notes(build, cpu_features),
        "problems": problems,
    }


def _notes(build: dict[str, Any], cpu_features: dict[str, str]) -> list[str]:
    notes = []
    if not build:
        notes.append(f"not built by this project: {BUILD} builds for this CPU with a compiler that was tried")
    elif build.get("record") != record():
        notes.append(f"the installed llama-cpp-python is not the one that this project built: {BUILD} puts it back")
    if unused := [name for name, state in cpu_features.items() if state == _UNUSED and name != "AMX"]:
        notes.append(f"this CPU has {', '.join(unused)}, which the build does not use: {BUILD} does")
    if cpu_features.get("AMX") == _UNUSED:
        notes.append(f"AMX is not used: {WITH_AMX} with it; install {GOOD_CLANG}, then {BUILD}")
    return notes


def _text(report: dict[str, Any]) -> str:
    build = report["build"]
    facts = report["versions"] | report["machine"] | report["llama"]
    if "devices" in facts:
        nothing = facts.pop("no devices")
        facts["devices"] = "; ".join(facts["devices"]) or nothing
    if build:
        facts["built with"] = f"{build.get('compiler')}, {build.get('why')}"
        facts |= {name: build[name] for name in ("CMAKE_ARGS", "CFLAGS") if build.get(name)}
    kept = report["weights"]
    room = f"{kept['bytes']:,} of {kept['most_bytes']:,} bytes"
    facts["converted weights"] = f"{kept['files']} in {kept['place']}, {room}"
    facts |= report["features"] | {f"proof {name}": state for name, state in report["proofs"].items()}
    lines = [f"{name:18} {value}" for name, value in facts.items()]
    lines += [f"note: {note}" for note in report["notes"]]
    lines += [f"PROBLEM: {problem}" for problem in report["problems"]] or ["All good."]
    return "\n".join(lines)


def main(argv: list[str], child: Sequence[str] = CHILD) -> int:
    """Print the report. Returns 0 if llama.cpp works, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m pipeline doctor", description="prove that this set-up works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    report = examine(child, this_host())
    print(json.dumps(report, indent=1) if arguments.json else _text(report))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
