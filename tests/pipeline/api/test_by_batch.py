"""Whose fault an exception is: the machine's ends the run, a row's costs the row; and no row is paid for twice."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest

from operators.call import Call
from operators.engine.backend.batch import DecodeFailed
from operators.map import Map
from operators.prompts.template import Template
from operators.render import in_turns
from operators.say import Say
from pipeline.api import by_batch
from pipeline.api.by_batch import OnError
from pipeline.api.errors import DamagedError, InputError, SourceError, StorageError
from pipeline.api.machine_errors import of_machine
from pipeline.api.protocols import Operator
from pipeline.api.records import Batch, ChunkEnd, Output
from tests.pipeline.ops import NUMBERS, Passes


def _chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def _of_sqlite(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    return error


class OutOfMemoryError(RuntimeError):
    """As torch has it."""


NUMBERS_OF_OS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ESTALE")
OF_MACHINE: list[BaseException] = [
    MemoryError(),
    pa.ArrowMemoryError("malloc of size 64 failed"),
    StorageError("full", Path("x")),
    SourceError("the server is gone"),
    DamagedError("the state is damaged"),
    _of_sqlite(sqlite3.SQLITE_FULL),
    _of_sqlite(sqlite3.SQLITE_IOERR),
    _of_sqlite(sqlite3.SQLITE_IOERR | 10 << 8),
    polars.exceptions.ComputeError("No space left on device (os error 28)"),
    OutOfMemoryError("CUDA out of memory"),
    RuntimeError("can't start new thread"),
    _chained(ValueError("no parse"), OSError(errno.EMFILE, "Too many open files")),
    ExceptionGroup("two", [ValueError("x"), MemoryError()]),
    *(OSError(getattr(errno, name), name) for name in NUMBERS_OF_OS),
]
OF_A_ROW: list[BaseException] = [
    ValueError("out of memory (os error 28)"),
    RuntimeError("unlucky"),
    FileNotFoundError(errno.ENOENT, "no such file", "of-the-row.png"),
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    DecodeFailed(1, "llama_decode failed"),
    InputError("the picture cannot be read"),
    polars.exceptions.ComputeError("could not parse"),
    _of_sqlite(sqlite3.SQLITE_CONSTRAINT),
]
ROWS = 5


class Raises(Passes):
    """Raises at x = 3, and counts how often it has seen each x."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.seen: list[int] = []

    def process(self, batch: Batch) -> Iterable[Output]:
        for x in batch.data.column("x").to_pylist():
            self.seen.append(x)
            if x == 3:
                raise self.error
        yield batch


def _of_call(error: BaseException) -> Operator:
    def function(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] == 3:
            raise error
        return row

    return Call(function)


def _of_say(error: BaseException) -> Operator:
    def tool(name: str, arguments: dict[str, Any], row: dict[str, Any]) -> str:
        if row["x"] == 3:
            raise error
        return "fine"

    return Say("tool", function=tool)


MAKES = {"own": Raises, "call": _of_call, "say": _of_say}
CALLS = '[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}]'


def run(operator: Operator, on_error: OnError) -> list[Any]:
    operator.on_error = on_error
    x = list(range(ROWS))
    schema = NUMBERS.append(pa.field("messages", pa.string()))
    operator.plan(schema)
    batch = Batch(0, pa.record_batch([x, x, [CALLS] * ROWS], schema=schema))
    return list(operator.run(iter([batch, ChunkEnd(0, ROWS)])))  # type: ignore[arg-type]


@pytest.mark.parametrize("on_error", list(OnError))
@pytest.mark.parametrize("operator", MAKES)
@pytest.mark.parametrize("error", OF_MACHINE, ids=lambda error: f"{type(error).__name__}-{error}"[:40])
def test_an_error_of_the_machine_is_no_rows(error, operator, on_error):
    assert of_machine(error)
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - of any class
        run(MAKES[operator](error), on_error)
    assert raised.value is error or raised.value.__cause__ is error


@pytest.mark.parametrize("operator", MAKES)
@pytest.mark.parametrize("error", OF_A_ROW, ids=lambda error: f"{type(error).__name__}-{error}"[:40])
def test_an_error_of_a_row_costs_that_row(error, operator):
    items = run(MAKES[operator](error), OnError.REJECT)
    assert sum(item.num_rows for item in items if isinstance(item, Batch)) == ROWS - 1
    (rejects,) = [item for item in items if hasattr(item, "rows") and not isinstance(item, ChunkEnd)]
    assert [reject.row for reject in rejects.rows] == [3]


def test_a_template_or_a_prompt_that_finds_no_memory_makes_no_reject(monkeypatch):
    def no_memory(template: object, row: object) -> str:
        raise MemoryError

    mapped = Map(templates={"text": "{{ x }}"})
    mapped.plan(NUMBERS)
    monkeypatch.setattr(Template, "render", no_memory)
    with pytest.raises(MemoryError):
        list(mapped.process(Batch(0, pa.record_batch([[1], [1]], schema=NUMBERS))))

    def prompt() -> Any:
        yield from ()
        raise MemoryError

    with pytest.raises(MemoryError):
        in_turns([prompt()], None)


@pytest.mark.parametrize(("limit", "value"), [("LOOK_ROWS", 2), ("LOOK_S", 0.0)])
def test_the_search_for_the_row_at_fault_is_bounded(monkeypatch, limit, value):
    monkeypatch.setattr(by_batch, limit, value)
    operator = Raises(RuntimeError("unlucky"))
    with pytest.raises(RuntimeError) as raised:
        run(operator, OnError.FAIL)
    assert raised.value.__notes__ == ["one of the rows 0 to 4"]
    assert len(operator.seen) <= 4 + 2


@pytest.mark.parametrize("on_error", list(OnError))
def test_what_costs_is_asked_once(on_error):
    seen: list[int] = []

    def paid(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row["x"])
        if row["x"] == 3:
            raise RuntimeError("unlucky")
        return {**row, "x": "no number" if row["x"] == 1 and not on_error.ends_run else row["x"]}

    if not on_error.ends_run:
        assert sum(item.num_rows for item in run(Call(paid), on_error) if isinstance(item, Batch)) == ROWS - 2
    else:
        with pytest.raises(RuntimeError) as raised:
            run(Call(paid), on_error)
        assert raised.value.__notes__ == ["row 3"]
    assert len(seen) == len(set(seen))
    operator = Raises(RuntimeError("unlucky"))
    operator.twice = False
    with pytest.raises(RuntimeError) as raised:
        run(operator, OnError.FAIL)
    assert (raised.value.__notes__, operator.seen) == (["one of the rows 0 to 4"], [0, 1, 2, 3])
