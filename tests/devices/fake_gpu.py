"""Devices of `fake_gpu.cpp`, for processes that a test starts: which devices there are is settled once in a process,
and some calls end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import PROJECT

_CALL = """import importlib, json, sys
from pipeline.api.errors import PipelineError
module, name, arguments = json.loads(sys.stdin.read())
try:
    answer = getattr(importlib.import_module(module), name)(*arguments)
except PipelineError as error:
    answer = {"refused": str(error), "code": error.exit_code}
print("\\n" + json.dumps(answer))
"""


@dataclass(frozen=True)
class Counts:
    """What a device of a process did: graphs and their operations, bytes copied to it and from it, bytes that it holds
    and held at most. In the order of Counts in fake_gpu.cpp."""

    graphs: int
    nodes: int
    up: int
    down: int
    used: int
    most: int


@dataclass(frozen=True)
class FakeGpus:
    """Starts processes that have fake devices.

    Args:
        library: the compiled backend.
        folder: where counts are kept.
        settings: of the devices; `fake_gpu.cpp` lists them (count=2 is FAKE_GPU_COUNT=2).
    """

    library: Path
    folder: Path
    settings: dict[str, object] = field(default_factory=dict)

    def having(self, **settings: object) -> FakeGpus:
        """Return starters of processes with other devices."""
        return FakeGpus(self.library, self.folder, {**self.settings, **settings})

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that has the devices. With a backtrace ggml would start a debugger."""
        own = {f"FAKE_GPU_{name.upper()}": str(value) for name, value in self.settings.items()}
        own |= {"FAKE_GPU_LOG": str(self.folder / "counts"), "GGML_BACKEND_PATH": str(self.library)}
        return {**os.environ, "PYTHONPATH": str(PROJECT), "GGML_NO_BACKTRACE": "1", **own}

    def run(self, *words: str, cwd: Path | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of Python, its arguments first, to its end."""
        command = [sys.executable, *words]
        env = self.environment
        return subprocess.run(command, cwd=cwd, env=env, input=given, capture_output=True, text=True, check=False)

    def pipeline(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `python -m pipeline`."""
        return self.run("-m", "pipeline", *words, cwd=cwd)

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return what a function of a module gives in a process of its own, by JSON; a refusal as {"refused": message,
        "code": exit code}."""
        done = self.run("-c", _CALL, given=json.dumps([function.__module__, function.__name__, arguments]))
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def counts(self) -> list[list[Counts]]:
        """Return what the devices did in each process until now, and forget it."""
        found = []
        for file in sorted(self.folder.glob("counts.*")):
            numbers = np.fromfile(file, np.int64).reshape(-1, len(fields(Counts)))
            found.append([Counts(*row) for row in numbers.tolist()])
            file.unlink()
        return found


def own_counts() -> list[dict[str, int]]:
    """Return what the devices of this process did until now."""
    numbers = np.fromfile(f"{os.environ['FAKE_GPU_LOG']}.{os.getpid()}", np.int64).reshape(-1, len(fields(Counts)))
    names = [each.name for each in fields(Counts)]
    return [dict(zip(names, row, strict=True)) for row in numbers.tolist()]
