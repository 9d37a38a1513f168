"""Operators of which one hook misbehaves, as the variable MISBEHAVE says: HOOK:HOW."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.api.numbers import Number
from pipeline.api.protocols import Concludes, MemoryNeed, Runtime, Stateful, UsesModel
from pipeline.api.records import Batch, Output
from tests.pipeline.job_ops import Numbers, Square

VARIABLE = "MISBEHAVE"
HANGS = "MISBEHAVE_HANGS"
"""Name of a file that is made before a hook hangs."""
JOB = """
name: misbehaves
chunk_rows: 10
max_open_chunks: 1
progress: none
report: false
nodes:
  numbers: {op: {_target_: tests.pipeline.misbehaving.Source, rows: 25, chunk_rows: "${chunk_rows}"}}
  square: {inputs: numbers, op: {_target_: tests.pipeline.misbehaving.Step}}
  write: {inputs: square, op: {_target_: tests.pipeline.job_ops.Parquet}}
"""


def _sleep() -> None:
    if there := os.environ.get(HANGS):
        Path(there).touch()
    threading.Event().wait()


def _fork() -> None:
    if os.fork() == 0:
        os.closerange(1, 3)  # else whoever reads these waits for the child
        threading.Event().wait(60)
        os._exit(0)


def _pool() -> None:
    global kept
    kept = get_context("fork").Pool(1)
    kept.apply(abs, (-1,))


kept: Any = None
RAISES: Mapping[str, Callable[[], BaseException]] = {
    "exit 0": lambda: SystemExit(0),
    "exit 7": lambda: SystemExit(7),
    "exit": SystemExit,
    "base": lambda: BaseException("of its own"),
    "keyboard": KeyboardInterrupt,
    "generator": GeneratorExit,
    "error": lambda: RuntimeError("of its own"),
}
STAYS: Mapping[str, Callable[[], object]] = {
    "sleeps": _sleep,
    "forks": _fork,
    "pool": _pool,
    "thread": lambda: threading.Thread(target=threading.Event().wait, args=(60,)).start(),
}


def at(hook: str) -> None:
    """Misbehave, if it is the turn of `hook`."""
    wanted, _, how = os.environ.get(VARIABLE, "").partition(":")
    if wanted == hook:
        if how in STAYS:
            STAYS[how]()
        else:
            raise RAISES[how]()


class Source(Numbers):
    """Numbers in chunks of ten."""

    def seek(self, chunk: int) -> None:
        at("seek")
        super().seek(chunk)

    def total_rows(self) -> int | None:
        at("total_rows")
        return None

    def fraction_read(self) -> float | None:
        at("fraction_read")
        return None


class Step(Square, Stateful, UsesModel, Concludes):
    """Square, with a state. With MISBEHAVE=fail it fails in the third chunk."""

    concluded = ("final.txt",)

    def __init__(self) -> None:
        at("constructor")
        super().__init__()

    def plan(self, schema: pa.Schema) -> pa.Schema:
        at("plan")
        return super().plan(schema)

    def fingerprint(self) -> Mapping[str, Any]:
        at("fingerprint")
        return {}

    def memory_needs(self) -> Iterable[MemoryNeed]:
        at("memory_needs")
        return ()

    def restore(self, states: Iterable[bytes]) -> None:
        at("restore")

    def state(self, chunk: int) -> bytes:
        at("state")
        return b""

    def open(self, runtime: Runtime) -> None:
        at("open")
        runtime.status(self.text)
        runtime.number("counted", Number("what was counted"), self.count)

    def text(self) -> str:
        at("status")
        return ""

    def count(self) -> float:
        at("totals")
        return 0.0

    def identity(self) -> None:
        at("identity")

    def process(self, batch: Batch) -> Iterable[Output]:
        at("process")
        if os.environ.get(VARIABLE) == "fail" and batch.chunk == 2:
            raise RuntimeError("it was to fail")
        return super().process(batch)

    def finish(self, chunk: int) -> Iterable[Output]:
        at("finish")
        return ()

    def close(self) -> None:
        at("close")

    def conclude(self, directory: Path) -> None:
        at("conclude")
        (directory / "final.txt").write_text("all of it", encoding="utf-8")

    def report(self, directory: Path, node: str) -> Iterable[str]:
        at("report")
        return ["reported"]


def main() -> None:
    """Run the command line in a process whose limits are short: python -c 'from tests... import main; main()' ARGS."""
    from pipeline.system import deadlines

    end = deadlines.last_exit()
    deadlines.LEAST_S = deadlines.GRACE_S = deadlines.EXIT_S = 1.0
    from pipeline.cli.main import main as command_line
    from pipeline.runs import watchdog
    from tests.pipeline.faulty import Faulty, register

    watchdog.LEAVE_S = 1.0
    register()
    Faulty.before = staticmethod(lambda path: at("publish") if path.startswith("data/") else None)
    end(command_line(sys.argv[1:]))
