"""Runs an Operator as a StreamOperator: its batches one by one, and its rows one by one when a batch fails."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator

from pipeline import OURS, PROJECT
from pipeline.api.errors import Cancelled, PipelineError, Released
from pipeline.api.protocols import Operator
from pipeline.api.records import Batch, ChunkEnd, Item, Output, Shard
from pipeline.settings import OnError


def run_operator(operator: Operator, items: Iterable[Item], on_error: OnError) -> Iterator[Item | Shard]:
    """What `operator` makes of `items` (its inbox), chunk ends in their place."""
    guarded = _row_named_on_error if on_error is OnError.FAIL else _row_by_row_on_error
    process = guarded(operator.process)
    for item in items:
        if isinstance(item, ChunkEnd):
            yield from operator.finish(item.chunk)
            yield item
        elif isinstance(item, Batch):
            yield from process(item)


def _row_by_row_on_error(process: Callable[[Batch], Iterable[Output]]) -> Callable[[Batch], Iterable[Output]]:
    def guarded(batch: Batch) -> Iterable[Output]:
        try:
            return list(process(batch))
        except Cancelled:
            raise
        except Exception:  # any failure of a user's operator may be one row's fault: the retry finds which
            return [out for i in range(batch.num_rows) for out in _one_row(process, batch, i)]

    return guarded


def _row_named_on_error(process: Callable[[Batch], Iterable[Output]]) -> Callable[[Batch], Iterable[Output]]:
    def guarded(batch: Batch) -> Iterable[Output]:
        try:
            yield from process(batch)
        except (Cancelled, Released, PipelineError):
            raise
        except Exception as error:
            if (row := _first_that_fails(process, batch, type(error))) is not None:
                error.add_note(row)
            raise

    return guarded


def _first_that_fails(process: Callable[[Batch], Iterable[Output]], batch: Batch, kind: type[Exception]) -> str | None:
    """Which row of `batch` has `process` raise such an exception; None where none does so alone."""
    for i in range(batch.num_rows):
        row = batch.data.slice(i, 1)
        try:
            list(process(batch.with_data(row)))
        except kind:
            values = {name: row[name][0].as_py() for name in ("row", "id") if name in row.schema.names}
            return ", ".join(f"{name} {value!r}" for name, value in values.items())
        except (Cancelled, Released):
            return None
        except Exception:  # of another cause: not what is looked for
            continue
    return None


def _one_row(process: Callable[[Batch], Iterable[Output]], batch: Batch, index: int) -> Iterable[Output]:
    try:
        return list(process(batch.with_data(batch.data.slice(index, 1))))
    except Cancelled:
        raise
    except Exception as error:  # becomes the row's reject, with the exception as its reason
        return [batch.reject([index], f"{type(error).__name__}: {error}")]


def line_of(error: BaseException) -> str | None:
    """Where in a user's own code `error` comes from, as `file:line`; None where it does not come through any."""
    not_theirs = [str(PROJECT / name) for name in OURS]
    not_theirs += [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib")]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if f.filename.endswith(".py") and not f.filename.startswith(tuple(not_theirs))]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else None
