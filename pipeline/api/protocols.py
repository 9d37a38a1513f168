"""The contract of operators: `Operator`, and roles for what not every operator does. `Inbox` and `Runtime` are what the
engine passes to them. Operators are built from the job file by `_target_`, so the engine imports none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import pyarrow as pa

from pipeline.api.by_batch import OnError, run_by_batch
from pipeline.api.forecast import Forecast, Task
from pipeline.api.identity import DeviceMemory, Gpu, Identity
from pipeline.api.records import Batch, Item, Output, RejectFiles, Shard
from pipeline.api.runtime import Runtime as Runtime
from pipeline.api.runtime import Table as Table


class Inbox(Protocol):
    """The aligned inputs of a node: batches and chunk ends (the reject writer's holds rejects instead of batches).

    Iterating waits; `poll` does not.
    """

    def __iter__(self) -> Iterator[Item]: ...

    def poll(self) -> Item | None:
        """Return the next item; None if none is waiting."""

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        """Wait until an item arrives, the inputs end, or `wake` is called.

        Args:
            idle: count the time as starved; False counts it as busy, for an operator with rows in the decode engine.
            for_items: False waits for `wake` alone, for an operator that cannot take more items.
            timeout_s: longest wait.
        """

    def wake(self) -> None:
        """End the current or the next `wait`; may be called from any thread."""

    @property
    def exhausted(self) -> bool:
        """True when every input has ended and all items are taken."""


class ListInbox:
    """Inbox over a list, to run an operator outside a graph. It reads one item ahead, so that `exhausted` is known."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items = iter(items)
        self._next = next(self._items, None)

    def __iter__(self) -> Iterator[Item]:
        while (item := self.poll()) is not None:
            yield item

    def poll(self) -> Item | None:
        item, self._next = self._next, next(self._items, None)
        return item

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        pass

    def wake(self) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self._next is None


class Scope(StrEnum):
    """What the output of an operator depends on; so where it may run in a job with a `cluster`."""

    ROW = "row"
    """Each row's output depends on that row alone: it may run in a worker, beside a node with a model."""
    MODEL = "model"
    """The same, and it computes with a model: it is what workers are for."""
    RUN = "run"
    """On other rows or earlier chunks, or it reads or writes files: it runs in the driver."""


@dataclass(frozen=True)
class MemoryNeed:
    """Memory that a node allocates in `open`.

    Args:
        key: nodes that return the same key share the memory.
        what: its purpose, with the settings that decide its size.
        size_bytes: lower bound.
        shared: pages of a file, which all workers of a machine (`cluster`) have once.
        at_most: it is an upper bound instead, as of a cache that few rows never fill.
        device: whose memory it is; None: the machine's.
    """

    key: Hashable
    what: str
    size_bytes: int
    shared: bool = False
    at_most: bool = False
    device: DeviceMemory | None = None


class Operator:
    """What the engine runs. An author writes `plan`, and `process` or `run`; all else has a default.

    `process` is called for each batch and `finish` at the end of each chunk. An operator that does more than map batch
    to batches overrides `run` instead. A sink is one whose `plan` returns None; a source that cannot be resumed is one
    whose `plan` takes no input. Whatever else the engine can ask for is a role, a class below: it asks only operators
    that inherit the role, and refuses one that has a hook without it (`hook_without_role`).

    `run`, and so `process` and `finish`, and `state` are called in the node's own thread; `close`, `conclude` and
    `report` in a thread of their own, which is left behind if they do not return; the others in the main thread,
    `total_rows` and `fraction_read` also while a source runs.
    """

    plan: Callable[..., pa.Schema | None]
    """`plan(*inputs)` is called while the graph is built, with the schema of each input, and returns the schema of the
    output, or None for a sink. It raises SchemaError for columns that do not fit and must not load anything large."""

    scope = Scope.RUN
    """Set it to Scope.ROW in an operator of your own whose rows do not depend on each other."""

    on_error = OnError.FAIL
    """The effect of an exception in `process`; set by the job (`nodes.NODE.on_error`)."""

    keeps_rows: bool | None = None
    """True if a row for which it fails can stay (`on_error: keep`); None: where `scope` says that rows do not depend on
    each other."""

    told_by_fingerprint: Collection[str] = ()
    """Arguments of which `fingerprint` returns what counts; the others count as they are."""

    twice = True
    """False where to `process` a row again costs money or does something in the world: then a batch that fails is not
    searched for the row at fault. An operator that goes row by row says which it is with `by_batch.name_row`."""

    @property
    def title(self) -> str:
        """Name of the operator in a drawn graph."""
        return type(self).__name__

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what the output depends on besides the arguments, for example hashes of files, as flat keys and plain
        values. Called after `plan` and before `open`."""
        return {}

    def open(self, runtime: Runtime) -> None:
        """Get ready: open files, load models. Called once, before the first row."""

    def process(self, batch: Batch) -> Iterable[Output]:
        """Yield batches, rejects and, in a sink, shards for the rows of `batch`."""
        raise NotImplementedError

    def finish(self, chunk: int) -> Iterable[Output]:
        """Yield the rows of `chunk` that were held back; no more of its rows will come. Chunks end strictly in order,
        but a batch of chunk k+1 may come before the end of chunk k."""
        return ()

    def run(self, inbox: Inbox) -> Iterator[Item | Shard]:
        """Yield batches, rejects, shards and every ChunkEnd, in order. An operator that returns early gets no more
        rows, and the nodes upstream of it stop."""
        return run_by_batch(self.process, self.finish, inbox, self.on_error, twice=self.twice)

    def close(self) -> None:
        """Release what `open` acquired. Called once, however the run ends."""


BaseOperator = Operator
"""What Operator was called when it had all hooks; operators of a job's own may inherit it by this name."""


class Source(Operator, ABC):
    """A source that a run can resume, a target read again and a dry run read in places: `plan` takes no input, and
    `run` yields all batches and ends of chunks."""

    @abstractmethod
    def seek(self, chunk: int) -> None:
        """Start at `chunk`, as if all earlier ones had been sent. Called before `run` on a resume. A target calls
        `seek(0)` and `run` again for every round."""

    def total_rows(self) -> int | None:
        """Return the number of rows, unreadable ones included; None while it is unknown."""
        return None

    def fraction_read(self) -> float | None:
        """Return the share of its input that was read, 0 to 1, by rows if their number is known, else by bytes."""
        return None


class Sink(Operator):
    """A sink whose files a dry run can forecast: `plan` returns None, and `process` or `finish` yields shards."""

    reject_files: RejectFiles | None = None
    """How the rejects of the job are written, if this is its first sink; None: as Parquet."""

    def encoded_bytes(self, batches: Sequence[Batch]) -> int | None:
        """Return the bytes that these rows take in files; None: unknown. Called without `open`; writes nothing."""
        return None


class Stateful(ABC):
    """Role of an operator whose output depends on rows of earlier chunks. Its state is committed with each chunk in one
    transaction."""

    append = False
    """True if `state` returns only what a chunk adds; the additions of all chunks are kept."""

    keeps_state = True
    """False in an object that, as its arguments are, remembers nothing: it counts as one without this role."""

    @abstractmethod
    def state(self, chunk: int) -> bytes:
        """Return the state after `chunk`; with `append`, only what `chunk` adds to it.

        Called once for each ChunkEnd, just before it is sent. At the end of chunk k the operator may have seen rows of
        k+1, which must not be part of `state(k)`. Batches of a chunk arrive in any order: an operator that decides by
        the order of rows does so in `finish`.
        """

    @abstractmethod
    def restore(self, states: Iterable[bytes]) -> None:
        """Continue from the state of the last committed chunk; with `append`, from those of all chunks in order. Called
        before `open`, and only on a resume."""


def remembers(operator: Operator) -> TypeGuard[Stateful]:
    """Return True if the state of `operator` is to be kept."""
    return isinstance(operator, Stateful) and operator.keeps_state


class UsesModel:
    """Role of an operator that loads a model, or something as large."""

    parts: Sequence[str] = ()
    """Names of the parts with their own meters (`Runtime.part`); `show=graph` draws them."""

    def memory_needs(self) -> Iterable[MemoryNeed]:
        """Return the large allocations of `open` whose size is known. Called after `plan`; loads no model."""
        return ()

    def devices(self) -> Iterable[str]:
        """Return the names of the devices beside the CPU that `open` computes on, as far as is known. Called after
        `plan`; loads no model."""
        return ()

    def gpus(self, environment: Mapping[str, str]) -> Iterable[Gpu] | None:
        """Return the GPUs that a process with `environment` finds; None: it cannot tell. Takes no memory of any. Called
        after `plan`."""
        return None

    def identity(self) -> Identity | None:
        """Return what must be the same on every machine for equal rows to get equal bytes; None where nothing must.
        Called after `open`, before `run`."""
        return None


class Forecasts(ABC):
    """Role of an operator that a dry run does not run on the sample, as the others: one with a model needs it."""

    @abstractmethod
    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """Return a forecast of `task` for a dry run, measured on the sample `batches`. Called instead of `open` and all
        other hooks."""


class MakesPrompts(ABC):
    """Role of an operator that makes the tokens of prompts."""

    @abstractmethod
    def prompt_lines(self, row: pa.RecordBatch) -> Iterable[str]:
        """Return lines that show the prompt of one row, which `process` has passed on, for `python -m pipeline
        prompt`."""


class Concludes:
    """Role of an operator that adds files or lines at the end of a run."""

    concluded: Sequence[str] = ()
    """Names of the files that `conclude` writes into the output directory. They exist only when the run is done."""

    def conclude(self, directory: Path) -> None:
        """Write the files named in `concluded` from data/ and rejects/ in `directory`.

        Called when all chunks are committed and before the run counts as done. Called again if the run was killed
        meanwhile, or if one of the files is missing from a finished run.
        """

    def report(self, directory: Path, node: str) -> Iterable[str]:
        """Return lines for the summary of a finished run, from the results in `directory`, so of all attempts. `node`:
        its own name. Called in the driver, where it was not opened if it ran in workers."""
        return ()
