"""Runs a command as a process of its own and says what it cost: wall time, CPU time and peak memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.02
_GRACE_S = 10.0
_KIB = 1024


class ChildFailed(Exception):
    """A child that ended with an exit code other than 0, took too long or was cancelled; the message says which."""


class Child:
    """A running process.

    Args:
        command: the program and its arguments; it finds our modules wherever it runs.
        folder: where its output is kept.
        session: give it a session of its own, so that Ctrl-C reaches us alone and we end it with all its children. A
            child of a child has none, and ends with those.
    """

    def __init__(self, command: Sequence[str], folder: Path, *, session: bool = True) -> None:
        self._command = command
        self._session = session
        self._out, self._err = folder / "stdout", folder / "stderr"
        self._began = time.perf_counter()
        ours = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_ROOT))))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**os.environ, "PYTHONPATH": ours},
                    start_new_session=session,
                )
            except OSError as error:
                raise ChildFailed(f"{command[0]} cannot be started: {error.strerror}") from error
        self._peak_kib = 0
        self.cpu_s = 0.0
        """User and system seconds; 0 until it has ended."""
        self.wall_s = 0.0
        self.output = ""

    @property
    def peak_rss_mb(self) -> float:
        """Most memory that it held so far, in MiB; exact once it has ended."""
        return self._peak_kib / 1024

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        process = self._process
        if process.returncode is None:
            self._peak_kib = max(self._peak_kib, high_water_kib(process.pid))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = usage.ru_utime + usage.ru_stime
                # The kernel's figure is at least what the parent held when it started the child: second choice.
                self._peak_kib = self._peak_kib or usage.ru_maxrss // (_KIB if sys.platform == "darwin" else 1)
        return process.returncode

    def finish(self, timeout_s: float, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Wait for its end.

        Raises:
            ChildFailed: it failed, took longer than `timeout_s`, or `cancelled` came true.
        """
        while (code := self.poll()) is None:
            if cancelled():
                self.end()
                raise ChildFailed("it was cancelled")
            if time.perf_counter() - self._began > timeout_s:
                self.end()
                raise ChildFailed(f"it took longer than bench.timeout_s={timeout_s:g}")
            time.sleep(_POLL_S)
        self.wall_s = time.perf_counter() - self._began
        if code:
            raise ChildFailed(f"{' '.join(self._command[:4])} ... ended with {code}: {self.last_words()}")
        self.output = self._out.read_text(errors="replace")

    def end(self) -> None:
        """Ask it to end, and kill it if it does not; returns when it is gone."""
        for kind, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if self._session else os.kill)(self._process.pid, kind)
            deadline = time.monotonic() + patience_s
            while self.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if self.poll() is not None:
                return

    def last_words(self, lines: int = 5) -> str:
        """The last lines of its stderr, or of its stdout where that is empty."""
        texts = (path.read_text(errors="replace").strip() for path in (self._err, self._out))
        return " | ".join(next((t for t in texts if t), "it said nothing").splitlines()[-lines:])


def run_child(command: Sequence[str], timeout_s: float, cancelled: Callable[[], bool] = lambda: False) -> Child:
    """Run `command` to its end; see Child.finish."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        child = Child(command, Path(folder))
        child.finish(timeout_s, cancelled)
        return child


def high_water_kib(pid: int) -> int:
    """Most memory that a process held, in KiB; 0 where the kernel does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "")
    return int(line.split()[1]) if line else 0
