"""What an operator is to the engine, and what the engine is to an operator.

An Operator maps batches to batches and is called by the executor. A StreamOperator is given its inbox and decides
itself when to wait and when to work. Both are built from the job file by `_target_`, so the engine imports none.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.forecast import Forecast, Task
from pipeline.api.meter import StageMeter
from pipeline.api.records import Batch, Item, Output, Shard

T = TypeVar("T")
Closer = Callable[[T], None]


class Table(Protocol):
    """A metrics table that grows while the job runs."""

    def append(self, *values: object) -> None:
        """Add one row, values in the order of the table's schema."""

    def extend(self, columns: Sequence[Sequence[object]]) -> None:
        """Add several rows at once, as columns of equal length; much cheaper a row."""


class Runtime(Protocol):
    """What a node can reach while it runs."""

    node: str
    depth: int
    """Longest distance from the source, in edges: who is larger is served first where nodes share something."""
    output_dir: Path
    log: logging.Logger
    meter: StageMeter
    """The node's own meter; the executor counts rows, the operator may count tokens."""

    @property
    def run_id(self) -> str:
        """Names the run. A resumed run has the same, one that began anew in the same directory another."""

    @property
    def cancelled(self) -> bool:
        """True once the run is being cancelled: finish the step and leave."""

    def resource(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """What nodes of this run share: made by the first who asks, closed when the run ends."""

    def shared(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """What runs of this process share (models, contexts): closed when the process ends."""

    def part(self, name: str) -> StageMeter:
        """A meter that shows as the line `node/name` in the stage metrics."""

    def table(self, name: str, schema: pa.Schema) -> Table:
        """The metrics table metrics/<name>.parquet, shared by all nodes that ask for it."""

    def totals(self, values: Callable[[], dict[str, float]]) -> None:
        """Have `values()` added to the run's totals at its end (counts, seconds)."""

    def status(self, text: Callable[[], str]) -> None:
        """Have `text()` shown in the progress line (for example the active slots)."""

    def when_stuck(self, cut_off: Callable[[], None]) -> None:
        """Have `cut_off()` called, by any thread, when the run was told to stop and computes on: it ends long calls."""

    def enough(self, chunk: int) -> None:
        """No chunk after `chunk` is needed (-1: none that this attempt has begun): once it is committed the run ends,
        and what it does for later chunks is abandoned. To be called while no later chunk can be committed: before the
        end of `chunk` is sent, or at the end of the input."""

    def round_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """To which round over the source each of `rows` (column `row`) belongs; 0 where there is only one."""


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


@runtime_checkable
class Operator(Protocol):
    """Maps batches to batches; the executor calls it from one thread.

    `plan` is called while the graph is built, with the schema of each input, and returns the schema of the output, or
    None for a sink. It raises SchemaError for columns that do not fit and must not load anything large.
    `process` and `finish` yield batches, rejects and (sinks) shards. `finish(chunk)` is called when no more rows of
    that chunk will come; chunks end strictly in order, but a batch of chunk k+1 may come before the end of chunk k.
    """

    def plan(self, *inputs: pa.Schema) -> pa.Schema | None: ...
    def open(self, runtime: Runtime) -> None: ...
    def process(self, batch: Batch) -> Iterable[Output]: ...
    def finish(self, chunk: int) -> Iterable[Output]: ...
    def close(self) -> None: ...


@runtime_checkable
class StreamOperator(Protocol):
    """An operator that interleaves waiting and work. A source is one whose `plan` takes no input.

    `run` yields batches, rejects and every ChunkEnd, in order. To return early is to leave: the writers are released.
    """

    def plan(self, *inputs: pa.Schema) -> pa.Schema | None: ...
    def open(self, runtime: Runtime) -> None: ...
    def run(self, inbox: Inbox) -> Iterator[Item | Shard]: ...
    def close(self) -> None: ...


class Source(StreamOperator, Protocol):
    """A StreamOperator without inputs. `seek` is called before `run` when a run is resumed.

    Under a target the source is gone through again and again: `seek(0)` and `run` come once more for every round.
    """

    def seek(self, chunk: int) -> None:
        """Begin at `chunk`, as if the ones before it had been sent."""

    def fraction_read(self) -> float | None:
        """How much of the input has been read, 0 to 1, by rows where they are known, else by bytes."""


@runtime_checkable
class Reporter(Protocol):
    """An operator that has something to say at the end of a finished run."""

    def report(self, directory: Path) -> Iterable[str]:
        """Lines for the summary, read from the results in `directory`: so they speak of all attempts of the run."""


@runtime_checkable
class Concluder(Protocol):
    """An operator that makes files of all results of a run, beside them, when everything is committed."""

    concluded: Sequence[str]
    """Names of these files, in the output directory. They are there only when the run is done."""

    def conclude(self, directory: Path) -> None:
        """Make them from data/ and rejects/ in `directory`. Called when all chunks are committed and before the run
        counts as done, so a run that is killed meanwhile calls it again, and so does a finished run that has lost one.

        Raises:
            StorageError: one cannot be written.
        """


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


@runtime_checkable
class Sized(Protocol):
    """An operator that can tell before it is opened that it takes much memory."""

    def memory_needs(self) -> Iterable[MemoryNeed]:
        """What it takes, as far as that is known. Called after `plan`; nothing is loaded for it."""


@runtime_checkable
class Forecaster(Protocol):
    """An operator that can say what its rows will cost, for a dry run; most of all one that computes with a model.

    Of other operators a dry run finds out by running them on a sample of the input.
    """

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """What `task` will take, found out on some of its rows. Called instead of `open`; nothing else is called."""


@runtime_checkable
class Weighed(Protocol):
    """A sink that can say how large its files become, for a dry run."""

    def encoded_bytes(self, batches: Sequence[Batch]) -> int:
        """Bytes that these rows take in its files. Called without `open`; nothing is written."""


class BaseOperator:
    """Empty `open`, `finish` and `close`, for operators that need none of them."""

    append = False
    """Whether `state` gives what a chunk adds, and not all that is to be remembered."""

    def open(self, runtime: Runtime) -> None:
        """Nothing to open."""

    def finish(self, chunk: int) -> Iterable[Output]:
        """Nothing is held back."""
        return ()

    def close(self) -> None:
        """Nothing to close."""

    def state(self, chunk: int) -> bytes:
        """Return what to remember when all chunks up to and with `chunk` are committed; with `append`, what `chunk`
        adds to what was remembered before.

        For an operator whose output depends on rows of earlier chunks. It is committed with the chunk, in one
        transaction, and given back on a resume, which begins at the first chunk that is not committed. Called in the
        node's own thread, once for each of its ChunkEnds, just before that is sent. Chunks end in order, but an
        operator may be ahead: at the end of chunk k it may have seen rows of k+1, which must not show in `state(k)`.
        To decide by the order of rows and not of arrival, decide in `finish`.
        """
        raise NotImplementedError

    def restore(self, states: Iterable[bytes]) -> None:
        """Go on from the committed state; with `append`, from those of all committed chunks in order, else from the
        last one alone. Called before `open`, and only on a resume."""
        raise NotImplementedError


def keeps_state(operator: object) -> bool:
    """Return whether `operator` has a `state` of its own."""
    return isinstance(operator, BaseOperator) and type(operator).state is not BaseOperator.state


def inputs_fit(operator: Any, inputs: Sequence[pa.Schema]) -> bool:
    """Whether `operator.plan` takes that many inputs."""
    try:
        inspect.signature(operator.plan).bind(*inputs)
    except TypeError:
        return False
    return True
