"""The contract of operators: `BaseOperator` lists all that the engine asks of one; `Inbox` and `Runtime` are its side.

Operators are built from the job file by `_target_`, so the engine imports none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from pipeline.api.by_batch import OnError, run_by_batch
from pipeline.api.forecast import Forecast, Task
from pipeline.api.records import Batch, Item, Output, Shard
from pipeline.api.runtime import Runtime as Runtime
from pipeline.api.runtime import Table as Table


class Inbox(Protocol):
    """The aligned inputs of a node: batches and chunk ends (the reject writer's holds rejects instead of batches).

    Iterating waits; `poll` does not.
    """

    def __iter__(self) -> Iterator[Item]: ...

    def poll(self) -> Item | None:
        """The next item if one is there."""

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        """Wait until an item is there, the inputs have ended, or `wake` is called.

        Args:
            idle: count the time as starved; an operator with work elsewhere (in the engine) is busy instead.
            for_items: False waits for `wake` alone, for an operator that has no room for more items.
            timeout_s: wait no longer than this.
        """

    def wake(self) -> None:
        """End the present or the next `wait`; may be called from any thread."""

    @property
    def exhausted(self) -> bool:
        """True when every input has ended and all items are taken."""


@dataclass(frozen=True)
class MemoryNeed:
    """Memory that a node takes when it is opened.

    Args:
        key: nodes that give the same key share it.
        what: what it is for, with the settings that decide how much it is.
        size_bytes: how much, at least.
    """

    key: Hashable
    what: str
    size_bytes: int


class BaseOperator:
    """An operator, and all that the engine may ask of one. `plan` is required, and `process` or `run`.

    It maps batches to batches: `process` is called for each batch and `finish` at the end of each chunk. One that must
    wait and work at the same time has a `run` of its own. All is called from one thread. A source is an operator whose
    `plan` takes no input, a sink one whose `plan` returns None.
    """

    plan: Callable[..., pa.Schema | None]
    """`plan(*inputs)` is called while the graph is built, with the schema of each input, and returns the schema of the
    output, or None for a sink. It raises SchemaError for columns that do not fit and must not load anything large."""

    parts: Sequence[str] = ()
    """Names of the parts that have meters of their own (`Runtime.part`), as `show=graph` draws them."""

    on_error = OnError.FAIL
    """The effect of an exception in `process`; set by the job (`nodes.NODE.on_error`)."""

    append = False
    """True if `state` returns only the addition of a chunk to what is remembered."""

    concluded: Sequence[str] = ()
    """Names of the files in the output directory that `conclude` makes. They are there only when the run is done."""

    @property
    def title(self) -> str:
        """The operator's name where the graph is shown."""
        return type(self).__name__

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what the output depends on besides the arguments, the content of files for example: flat keys and
        plain values. Called after `plan` and before `open`."""
        return {}

    def memory_needs(self) -> Iterable[MemoryNeed]:
        """Return the memory that the operator takes when it is opened, if it is much and known. Called after `plan`;
        nothing is loaded for it."""
        return ()

    def open(self, runtime: Runtime) -> None:
        """Get ready: open files, load models. Called once, before the first row."""

    def process(self, batch: Batch) -> Iterable[Output]:
        """Yield what becomes of the rows: batches, rejects and (sinks) shards."""
        raise NotImplementedError

    def finish(self, chunk: int) -> Iterable[Output]:
        """Yield what was held back of `chunk`, of which no more rows will come. Chunks end strictly in order, but a
        batch of chunk k+1 may come before the end of chunk k."""
        return ()

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        """Yield batches, rejects, shards and every ChunkEnd, in order. To return early is to leave: the writers are
        released."""
        return run_by_batch(self.process, self.finish, inbox, self.on_error)

    def close(self) -> None:
        """Close what `open` opened. Called once, however the run ends."""

    def state(self, chunk: int) -> bytes:
        """Return what to remember when all chunks up to and with `chunk` are committed; with `append`, what `chunk`
        adds to that.

        For an operator whose output depends on rows of earlier chunks. It is committed with the chunk, in one
        transaction, and given back on a resume, which begins at the first chunk that is not committed. Called once for
        each ChunkEnd, just before that is sent. An operator may be ahead: at the end of chunk k it may have seen rows
        of k+1, which must not show in `state(k)`. To decide by the order of rows and not of arrival, decide in
        `finish`.
        """
        raise NotImplementedError

    def restore(self, states: Iterable[bytes]) -> None:
        """Go on from the state of the last committed chunk; with `append`, from those of all chunks in order. Called
        before `open`, and only on a resume."""
        raise NotImplementedError

    def conclude(self, directory: Path) -> None:
        """Make the files named in `concluded` from data/ and rejects/ in `directory`. Called when all chunks are
        committed and before the run counts as done, so a run that is killed meanwhile calls it again, and so does a
        finished run that has lost one.

        Raises:
            StorageError: one cannot be written.
        """

    def report(self, directory: Path) -> Iterable[str]:
        """Return lines for the summary of a finished run, read from the results in `directory`: so they speak of all
        attempts."""
        return ()

    def seek(self, chunk: int) -> None:
        """Begin at `chunk`, as if the ones before it had been sent. Of a source; called before `run` when a run is
        resumed. Under a target, `seek(0)` and `run` come once more for every round."""
        raise NotImplementedError

    def total_rows(self) -> int | None:
        """Return how many rows a source has, bad ones included; None while that is unknown."""
        return None

    def fraction_read(self) -> float | None:
        """Return how much of its input a source has read, 0 to 1, by rows where they are known, else by bytes."""
        return None

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """Return what `task` will take, for a dry run, found out on some of its rows. Called instead of `open`;
        nothing else is called. An operator without it, which computes with no model, is run on a sample instead."""
        raise NotImplementedError

    def encoded_bytes(self, batches: Sequence[Batch]) -> int | None:
        """Return the bytes that these rows take in the files of a sink; None where it cannot say. Called without
        `open`; nothing is written."""
        return None


def overrides(operator: BaseOperator, hook: str) -> bool:
    """Return whether `operator` has a `hook` of its own: whether it can seek, keeps a state, makes a forecast."""
    return getattr(type(operator), hook) is not getattr(BaseOperator, hook)


def inputs_fit(operator: BaseOperator, inputs: Sequence[pa.Schema]) -> bool:
    """Return whether `operator.plan` takes that many inputs."""
    try:
        inspect.signature(operator.plan).bind(*inputs)
    except TypeError:
        return False
    return True
