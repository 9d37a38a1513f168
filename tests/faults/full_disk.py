"""Runs a job on a small file system with ever less room, and again with more. Started by test_disk_full.py, in mounts
of its own: `full_disk.py squares|generate FOLDER`. The last line printed is a JSON list, one object for each try."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from pipeline.api.errors import ExitCode, PipelineError
from pipeline.cli.main import main
from tests.pipeline.damage import files, run
from tests.pipeline.damage import job as job_of

ROOM_KIB = {
    "squares": (0, 4, 32, 80, 88, 96, 104, 112, 120, 128, 160, 200, 240, 280, 320, 360, 400, 440, 480, 640, 1024),
    "generate": (96, 144, 192, 256, 1024),
}
SIZE_KIB = 4096


def squares(directory: Path) -> int:
    settings = job_of(directory, report=False)
    settings.nodes["numbers"].op |= {"rows": 20000, "chunk_rows": 2000, "batch_rows": 500}
    try:
        return run(settings)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def generate(directory: Path) -> int:
    rows = directory.parents[1] / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i} " * 9}) + "\n" for i in range(100)))
    arguments = ["job=generate", "model=fake", f"data.path={rows}", "chunk_rows=20", "progress=none", "report=false"]
    return main([*arguments, "sampling.max_tokens=40", f"output_dir={directory}"])


def attempt(job: Callable[[Path], int], directory: Path) -> tuple[int | str, str]:
    """The exit code, or the exception that came out, and what was printed to stderr."""
    shown = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(shown):
        try:
            code: int | str = int(job(directory))
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    return code, shown.getvalue()


def mount(folder: Path, *options: str) -> None:
    subprocess.run(["mount", *options, str(folder)], check=True)


def tried(job: Callable[[Path], int], disk: Path, room_kib: int, whole: dict[str, bytes]) -> dict[str, Any]:
    mount(disk, "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "none")
    ballast = disk / "ballast"
    free = shutil.disk_usage(disk).free
    ballast.write_bytes(b"x" * (free - room_kib * 1024))
    code, shown = attempt(job, disk / "out")
    named = re.findall(r"([\w.-]+) cannot be written: ", shown)
    wrong = []
    if code not in (ExitCode.DONE, ExitCode.FAILED):
        wrong.append(f"ended with {code}")
    says = "make room and run the same command again" in shown and "bytes are free" in shown
    if code == ExitCode.FAILED and not says:
        wrong.append("does not say what to do")
    if "Traceback" in shown:
        wrong.append("shows a traceback")
    ballast.unlink()
    again, shown_again = attempt(job, disk / "out")
    if again != ExitCode.DONE or files(disk / "out") != whole:
        wrong.append(f"does not go on: {again}: {shown_again[-500:]}")
    leftovers = [p.name for p in (disk / "out").rglob("*.tmp")]
    if leftovers:
        wrong.append(f"leaves {leftovers}")
    subprocess.run(["umount", str(disk)], check=True)
    return {"room_kib": room_kib, "code": code, "named": named, "wrong": wrong, "shown": shown[-400:] if wrong else ""}


if __name__ == "__main__":
    job = {"squares": squares, "generate": generate}[sys.argv[1]]
    folder = Path(sys.argv[2])
    os.chdir(folder)
    whole_dir = folder / "whole" / "out"
    whole_dir.parent.mkdir()
    assert attempt(job, whole_dir)[0] == ExitCode.DONE
    found = [tried(job, folder / "disk", room, files(whole_dir)) for room in ROOM_KIB[sys.argv[1]]]
    print(json.dumps(found))
