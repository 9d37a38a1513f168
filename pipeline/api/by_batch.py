"""Run an operator batch by batch, and row by row where a batch fails."""

from __future__ import annotations

import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from pipeline import OURS, PACKAGES, PROJECT
from pipeline.api.errors import Cancelled, PipelineError, Released
from pipeline.api.machine_errors import of_machine
from pipeline.api.records import Batch, ChunkEnd, Item, Output, Shard, python_values

Process = Callable[[Batch], Iterable[Output]]
LOOK_ROWS, LOOK_S = 64, 2.0
"""Rows and seconds for which FAIL looks for the row at fault."""
_ROW = "row "


class OnError(StrEnum):
    """The effect of an exception in `process`: `fail` ends the run, `reject` takes out the rows that cause it. With
    `keep` they stay, as all rows with an error do."""

    FAIL = "fail"
    REJECT = "reject"
    KEEP = "keep"

    @property
    def ends_run(self) -> bool:
        """True if an exception ends the run; otherwise it is the row's."""
        return self is OnError.FAIL


def run_by_batch(
    process: Process,
    finish: Callable[[int], Iterable[Output]],
    items: Iterable[Item],
    on_error: OnError,
    *,
    twice: bool = True,
) -> Iterator[Item | Shard]:
    """Yield what `process` returns for each batch and what `finish` returns at each chunk's end, then the ChunkEnd.
    FAIL raises the first exception, with a note that names the row; else the rows that fail are rejected, but never for
    an error of the machine (`of_machine`). `twice`: rows may be processed again just to find the one that FAIL
    names."""
    for item in items:
        if isinstance(item, ChunkEnd):
            yield from finish(item.chunk)
            yield item
        elif isinstance(item, Batch) and not on_error.ends_run:
            yield from _without_rows_that_fail(process, item)
        elif isinstance(item, Batch):
            try:
                yield from process(item)
            except (Cancelled, Released, PipelineError):
                raise
            except Exception as error:
                if not any(note.startswith(_ROW) for note in getattr(error, "__notes__", ())):
                    look = twice and not of_machine(error)
                    if row := (look and _first_that_fails(process, item, type(error))) or _rows_of(item):
                        error.add_note(row)
                raise


def name_row(error: BaseException, batch: Batch, index: int) -> None:
    """Add a note with `row` and `id` of the row that `error` is about, for an operator that goes row by row."""
    row = batch.data.slice(index, 1)
    values = {name: python_values(row[name])[0] for name in ("row", "id") if name in row.schema.names}
    error.add_note(", ".join(f"{name} {value!r}" for name, value in values.items()))


def why_rejected(error: Exception) -> str:
    """Return the reason of the reject that an exception makes of a row."""
    return f"{type(error).__name__}: {error}"


def _without_rows_that_fail(process: Process, batch: Batch) -> Iterable[Output]:
    try:
        made = list(process(batch))
    except (Cancelled, Released):
        raise
    except Exception as error:  # any failure of a user's operator may be one row's fault: the retry finds which
        if of_machine(error):
            raise
    else:
        yield from made
        return
    for i in range(batch.num_rows):  # a run that is cancelled ends at the next row
        yield from _one_row(process, batch, i)


def _one_row(process: Process, batch: Batch, index: int) -> Iterable[Output]:
    try:
        return list(process(batch.with_data(batch.data.slice(index, 1))))
    except (Cancelled, Released):
        raise
    except Exception as error:  # becomes the row's reject, with the exception as its reason
        if of_machine(error):
            raise
        return [batch.reject([index], why_rejected(error))]


def _first_that_fails(process: Process, batch: Batch, kind: type[Exception]) -> str | None:
    """Return `row` and `id` of the first row that makes `process` raise `kind` when it is processed alone. The search
    ends after LOOK_ROWS rows or LOOK_S seconds: the error waits for it."""
    until = time.monotonic() + LOOK_S
    for i in range(min(batch.num_rows, LOOK_ROWS) if batch.num_rows > 1 else 0):
        if time.monotonic() >= until:
            return None
        try:
            list(process(batch.with_data(batch.data.slice(i, 1))))
        except kind as error:
            error.__notes__ = []
            name_row(error, batch, i)
            return error.__notes__[-1]
        except (Cancelled, Released):
            return None
        except Exception:  # another kind of error: not the one to explain
            continue
    return None


def _rows_of(batch: Batch) -> str:
    """Return the first and the last row of a batch."""
    rows = python_values(batch.data["row"]) if "row" in batch.data.schema.names else []
    return "" if not rows else f"row {rows[0]}" if len(rows) == 1 else f"one of the rows {min(rows)} to {max(rows)}"


def line_of(error: BaseException) -> str | None:
    """Return the innermost line of the user's code in the traceback as `file:line`; None if there is none."""
    not_theirs = [str(folder / name) for folder in (PACKAGES, PROJECT) for name in OURS]
    not_theirs += [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if f.filename.endswith(".py") and not f.filename.startswith(tuple(not_theirs))]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else None
