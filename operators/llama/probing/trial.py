"""The first use of a llama.cpp that this project did not build: `doctor` tries it, in processes that may die.

pip compiles llama-cpp-python in its own way. With GCC below 13 the result dies by a signal at the first batch of a
quantised model, on every CPU that has AMX; a build that was made elsewhere may lack this CPU's features.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from operators.llama.library import log
from pipeline import PACKAGES
from pipeline.api.errors import ConfigError
from pipeline.system.machine import machine

STAMP = "llama-build.json"  # written by tools/build/build.py
REMEDY = "`python -m pipeline build` builds a sound one for this machine, in some minutes"
_DOCTOR = (sys.executable, "-m", "tools.build.doctor", "--json")
_TIMEOUT_S = 600


@functools.cache
def require_sound_build() -> None:
    """Try the installed llama-cpp-python, once for each build and CPU; what this project built is not tried. Raises
    ConfigError if it crashes or computes wrong values; the message names the command that builds a sound one."""
    record = build_record()
    if _built_by_us(record):
        return
    build = hashlib.sha256(f"{record} {machine()['cpu']}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    notes = [folder / f"llama-tried-{build}" for folder in (Path(sys.prefix), cache / "llama-batch-pipeline")]
    if any(note.exists() for note in notes):
        return
    report = _examined()
    if report["problems"]:
        raise ConfigError(f"the installed llama-cpp-python is broken: {report['problems'][0]}\n{REMEDY}")
    for said in report["notes"]:
        log.warning("llama-cpp-python: %s", said)
    for note in notes:
        with suppress(OSError):  # a folder of another user
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
            return


def build_record() -> str:
    """Return a digest of the package's list of files and hashes, the same as tools.build.build.record."""
    package = metadata.distribution("llama-cpp-python")
    listed = Path(str(package.locate_file(f"llama_cpp_python-{package.version}.dist-info/RECORD")))
    return hashlib.sha256(listed.read_bytes()).hexdigest()


def _built_by_us(record: str) -> bool:
    try:
        return bool(json.loads((Path(sys.prefix) / STAMP).read_text(encoding="utf-8"))["record"] == record)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _examined() -> dict[str, Any]:
    """Return the doctor's report; if it gives none, what went wrong as its only problem."""
    try:
        doctor = subprocess.run(_DOCTOR, cwd=PACKAGES, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        report: dict[str, Any] = json.loads(doctor.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"problems": [f"`python -m pipeline doctor` gave no report ({error})"], "notes": []}
    return report
