"""Run an operator batch by batch, and row by row where a batch fails."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from pipeline import OURS, PACKAGES, PROJECT
from pipeline.api.errors import Cancelled, PipelineError, Released
from pipeline.api.records import Batch, ChunkEnd, Item, Output, Shard, python_values

Process = Callable[[Batch], Iterable[Output]]


class OnError(StrEnum):
    """The effect of an exception in `process`: `fail` ends the run, `reject` takes out the rows that cause it."""

    FAIL = "fail"
    REJECT = "reject"


def run_by_batch(
    process: Process, finish: Callable[[int], Iterable[Output]], items: Iterable[Item], on_error: OnError
) -> Iterator[Item | Shard]:
    """Yield what `process` returns for each batch and what `finish` returns at each chunk's end, then the ChunkEnd.
    FAIL raises the first exception, with a note that names the row; REJECT rejects the rows that fail."""
    for item in items:
        if isinstance(item, ChunkEnd):
            yield from finish(item.chunk)
            yield item
        elif isinstance(item, Batch) and on_error is OnError.REJECT:
            yield from _without_rows_that_fail(process, item)
        elif isinstance(item, Batch):
            try:
                yield from process(item)
            except (Cancelled, Released, PipelineError):
                raise
            except Exception as error:
                if (row := _first_that_fails(process, item, type(error))) is not None:
                    error.add_note(row)
                raise


def _without_rows_that_fail(process: Process, batch: Batch) -> Iterable[Output]:
    try:
        return list(process(batch))
    except Cancelled:
        raise
    except Exception:  # any failure of a user's operator may be one row's fault: the retry finds which
        return [out for i in range(batch.num_rows) for out in _one_row(process, batch, i)]


def _one_row(process: Process, batch: Batch, index: int) -> Iterable[Output]:
    try:
        return list(process(batch.with_data(batch.data.slice(index, 1))))
    except Cancelled:
        raise
    except Exception as error:  # becomes the row's reject, with the exception as its reason
        return [batch.reject([index], f"{type(error).__name__}: {error}")]


def _first_that_fails(process: Process, batch: Batch, kind: type[Exception]) -> str | None:
    """Return `row` and `id` of the first row that makes `process` raise `kind` when it is processed alone."""
    for i in range(batch.num_rows):
        row = batch.data.slice(i, 1)
        try:
            list(process(batch.with_data(row)))
        except kind:
            values = {name: python_values(row[name])[0] for name in ("row", "id") if name in row.schema.names}
            return ", ".join(f"{name} {value!r}" for name, value in values.items())
        except (Cancelled, Released):
            return None
        except Exception:  # another kind of error: not the one to explain
            continue
    return None


def line_of(error: BaseException) -> str | None:
    """Return the innermost line of the user's code in the traceback as `file:line`; None if there is none."""
    not_theirs = [str(folder / name) for folder in (PACKAGES, PROJECT) for name in OURS]
    not_theirs += [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if f.filename.endswith(".py") and not f.filename.startswith(tuple(not_theirs))]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else None
