"""Run a command in a child process, and measure its wall time, CPU time and peak memory."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.02
_GRACE_S = 10.0
RSS_UNITS_IN_MIB = 1 << (20 if sys.platform == "darwin" else 10)
"""Units of `ru_maxrss` per MiB."""


class ChildFailed(Exception):
    """A child cannot be started, failed, took too long or was cancelled; the message says which."""


class ChildResult(NamedTuple):
    """Output and cost of a process: `cpu_s` is user and system time, `peak_rss_mb` its peak memory in MiB."""

    output: str
    wall_s: float
    cpu_s: float
    peak_rss_mb: float


def run_child(command: Sequence[str], timeout_s: float, cancelled: Callable[[], bool] = lambda: False) -> ChildResult:
    """Run `command` to its end, or until `timeout_s` are over or `cancelled` comes true, which is a failure."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out, err = Path(folder) / "stdout", Path(folder) / "stderr"
        began, peak = time.perf_counter(), 0.0
        process = start(command, out, err, start_new_session=True)  # Ctrl-C reaches us alone, and we end its children
        try:
            while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
                peak = max(peak, peak_rss_mb(process.pid))
                late = time.perf_counter() - began > timeout_s
                if late or cancelled():
                    raise ChildFailed(f"took longer than bench.timeout_s={timeout_s:g}" if late else "was cancelled")
                time.sleep(_POLL_S)
        except BaseException:
            _end_group(process)
            raise
        wall_s, (_, status, usage) = time.perf_counter() - began, ended
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            words = last_words(err) or last_words(out) or "it said nothing"
            raise ChildFailed(f"{' '.join(command[:4])} ... ended with {process.returncode}: {words}")
        # Second choice: the kernel's figure is at least the memory of this process when it started the child.
        peak = peak or usage.ru_maxrss / RSS_UNITS_IN_MIB
        return ChildResult(out.read_text(errors="replace"), wall_s, usage.ru_utime + usage.ru_stime, peak)


def start(command: Sequence[str], out: Path, err: Path, *, start_new_session: bool = False) -> subprocess.Popen[bytes]:
    """Start a process that can import our modules, with its output in files."""
    ours = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_ROOT))))
    with out.open("wb") as stdout, err.open("wb") as stderr:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": ours},
                start_new_session=start_new_session,
            )
        except OSError as error:
            raise ChildFailed(f"{command[0]} cannot be started: {error.strerror}") from error


def last_words(path: Path, lines: int = 5) -> str:
    """Return the last lines of a file, joined into one."""
    return " | ".join(path.read_text(errors="replace").strip().splitlines()[-lines:])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process and its children; kill them if they do not end."""
    for kind, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return


def peak_rss_mb(pid: int) -> float:
    """Return the peak memory of a process in MiB; 0 if the kernel does not tell."""
    try:
        match = re.search(r"^VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) / 1024 if match else 0
