"""Runs each case in a process of its own that may die, forked from one that has imported everything.

`python -m tests.faults.forks` is that one: it reads a case a line, as JSON, and answers with how it ended.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from typing import Any

from pipeline import PROJECT
from pipeline.cli.main import main
from pipeline.config.build import load_object
from tests.composing import keep
from tests.reports import write_none

PRELOADED = ("pipeline.cli.main", "operators.generate", "operators.sinks.write_rows", "tests.faults.toy")
PRELOADED_TOO = (
    "operators.map",
    "operators.dedup",
    "operators.sources.read_prompts",
    "operators.render",
    "operators.batch_by_length",
    "tests.faults.hooks",
)
CRASHED = 99
LIMIT_S = 300
"""A case that hangs ends by SIGALRM, and is red."""


@dataclass(frozen=True)
class Ended:
    """How a process ended. `code`: its exit code, or minus the signal that killed it. `output`: stdout and stderr."""

    code: int
    output: str


class Forks:
    """The process that has imported everything; use as a context."""

    def __enter__(self) -> Forks:
        command = [sys.executable, "-m", __name__]
        self._server = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def run(self, function: str, *arguments: str, **environment: str) -> Ended:
        """Call `module:function` with `arguments`; what it returns is the exit code."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        case = {"function": function, "arguments": arguments, "environment": environment}
        self._server.stdin.write(json.dumps(case) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()))


def serve() -> None:
    for name in PRELOADED + PRELOADED_TOO:
        importlib.import_module(name)
    write_none()
    keep()
    with contextlib.redirect_stdout(io.StringIO()):  # what most cases compose: they have it at once
        main(["job=generate", "model=tiny", "--cfg", "job"])
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            pid = os.fork()
            if pid == 0:
                run_case(output.fileno(), **json.loads(line))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            print(json.dumps({"code": code, "output": output.read()}), flush=True)


def run_case(output: int, function: str, arguments: list[Any], environment: dict[str, str]) -> None:
    """Never returns."""
    code = CRASHED
    try:
        signal.alarm(LIMIT_S)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.environ.update(environment)
        code = int(load_object(function)(*arguments))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
