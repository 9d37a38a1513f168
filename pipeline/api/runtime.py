"""Runtime: the engine's services for an operator, and the resources that nodes and runs share."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.meter import TAKEN, CacheUse, Clock, StageMeter
from pipeline.api.numbers import Number, added
from pipeline.api.user_code import or_else

T = TypeVar("T")
Closer = Callable[[T], None]
_NAME = re.compile("[a-z][a-z0-9_]*")
log = logging.getLogger(__name__)


OF_WORKERS = "cluster/"
"""Begins the names of totals on workers."""
CHUNK = "chunk"
"""Column of metrics tables whose lines are about rows: the chunk of the row. With workers they come with the rows, each
once."""


class Table(Protocol):
    """A metrics table that grows while the job runs."""

    def append(self, *values: object) -> None:
        """Add one row, values in the order of the table's schema."""

    def extend(self, columns: Sequence[Sequence[object]]) -> None:
        """Add several rows at once, as columns of equal length; much cheaper per row than `append`."""


class Services(Protocol):
    """Calls from a worker of a cluster to objects that a run has once, on the driver's machine."""

    def call(self, key: object, factory: Callable[[], object], method: str, *args: object) -> Any:
        """Call `method` of the object under `key` and return its result; `factory` makes the object on first use.
        Everything that is passed is pickled."""


class Resources:
    """Shared objects by key: created on first use, closed in reverse order of creation."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[object, tuple[Any, Closer[Any] | None]] = {}
        self._used: set[object] = set()
        self._left: list[object] = []

    def get(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """Return the object under `key`; `factory` creates it on first use."""
        with self._lock:
            self._used.add(key)
            if key not in self._objects:
                self._objects[key] = (factory(), close)
            value: T = self._objects[key][0]
            return value

    def close(self) -> None:
        """Close all objects, the last one first. An exception is logged, and the others are closed all the same."""
        with self._lock:
            self._used.clear()
            self.close_unused()

    def leave_open(self) -> None:
        """Give all objects to nobody any more and close none: a thread that was left behind may use them, and hold the
        lock."""
        self._left.append(self._objects)
        self._objects, self._lock = {}, threading.RLock()

    def make_room(self, wanted: Collection[object]) -> None:
        """Close the objects that are not among the keys `wanted`, if one of those is still to be made: two models need
        not be in memory where a job uses one."""
        with self._lock:
            if not self._objects.keys() >= set(wanted):
                self._used = set(wanted)
                self.close_unused()

    def close_unused(self) -> None:
        """Close the objects that nobody asked for since the last call, as `close` does."""
        with self._lock:
            for key in [key for key in reversed(self._objects) if key not in self._used]:
                value, close = self._objects.pop(key)
                if close is not None:
                    named = " ".join(map(str, key)) if isinstance(key, tuple) else key
                    or_else(f"closing the {named} failed", partial(close, value), None)
            self._used.clear()


@dataclass
class RunContext:
    """Objects that all nodes of one run share.

    Args:
        process: resources shared by all runs of this process.
        table: returns the metrics table of a name and schema.
        run_id: identifies the run; the same for all its attempts.
        services: in a worker of a cluster, the way to objects of the driver; else None.
        estimates: the rows are a dry run's sample, of which it estimates the run.
        totals: functions that return what was counted in this attempt, by name, with `NODE/` in front if of a node.
        numbers: what these are, and histograms and caches, by name.
        stop_after_chunk, round_rows: set by the executor; see Runtime.stop_after_chunk and Runtime.round_of.
    """

    output_dir: Path
    process: Resources
    table: Callable[[str, pa.Schema], Table]
    attempt: int = 1
    run_id: str = ""
    services: Services | None = None
    estimates: bool = False
    clock: Clock = time.perf_counter
    resources: Resources = field(default_factory=Resources)
    cancelled: threading.Event = field(default_factory=threading.Event)
    parts: list[StageMeter] = field(default_factory=list)
    totals: list[Callable[[], dict[str, float]]] = field(default_factory=list)
    numbers: dict[str, Number] = field(default_factory=dict)
    statuses: list[Callable[[], str]] = field(default_factory=list)
    when_stuck: list[Callable[[], None]] = field(default_factory=list)
    patience_s: float = 0.0
    stop_after_chunk: Callable[[int], None] = lambda chunk: None
    round_rows: Callable[[], int | None] = lambda: None

    def counted(self) -> dict[str, float]:
        """Return the sums of all totals; one that raises counts nothing."""
        nothing: dict[str, float] = {}
        counts = "totals of an operator are not counted"
        return added(*[or_else(counts, values, nothing) for values in list(self.totals)])


@dataclass
class Runtime:
    """The engine's services for a running node.

    Args:
        depth: edges on the longest path from the source. Of nodes that share a model the deepest is served first.
        meter: of the node; the executor counts rows, the operator may count tokens.
    """

    context: RunContext
    node: str
    depth: int
    meter: StageMeter

    def __post_init__(self) -> None:
        self.output_dir = self.context.output_dir
        self.run_id = self.context.run_id
        """Identifies the run. Resuming keeps it; overwriting the results makes a new one."""
        self.services = self.context.services
        """In a worker of a cluster the way to objects that the run has once; a worker writes no files. Else None."""
        self.estimates = self.context.estimates
        """True in a dry run that estimates: how much there is to do counts, and no result is kept."""
        self.log = logging.getLogger(f"pipeline.node.{self.node}")
        self.meter.declared = self.context.numbers

    @property
    def cancelled(self) -> bool:
        """True once the run is cancelled: finish the current step and return."""
        return self.context.cancelled.is_set()

    def resource(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """Return an object shared by the nodes of this run; created on first use, closed when the run ends."""
        return self.context.resources.get(key, factory, close)

    def shared(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """Return an object shared by the runs of this process (models, contexts); closed when the process ends."""
        return self.context.process.get(key, factory, close)

    def part(self, name: str) -> StageMeter:
        """Return a meter that appears as stage `node/name` in the metrics."""
        meter = StageMeter(f"{self.node}/{name}", self.context.clock)
        meter.declared = self.context.numbers
        self.context.parts.append(meter)
        return meter

    def table(self, name: str, schema: pa.Schema) -> Table:
        """Return the metrics table metrics/<name>.parquet, shared by all nodes that ask for it."""
        return self.context.table(name, schema)

    def number(self, name: str, number: Number, value: Callable[[], float], *, of_run: bool = False) -> None:
        """Register a number, and `value`, which returns it: a count or seconds of this attempt, so far. It appears in
        status.json and metrics/run.parquet as `NODE/NAME`, for Prometheus as NAME_total, and in the report.

        Args:
            name: lower-case letters, digits and underscores. With `peak_` in front it is no count, but the most that
                something came to (for Prometheus a gauge NAME): of workers and attempts the largest counts.
            of_run: it is not the node's alone: it is called `NAME` then, and all of that name are added up.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"a number's name has a to z, 0 to 9 and _ alone, and begins with a letter: {name!r}")
        if name in TAKEN:
            raise ValueError(
                f"{name} is a number of every run for Prometheus, where this would be lost; name it otherwise"
            )
        key = name if of_run else f"{self.node}/{name}"
        self.context.numbers[name] = number
        self.context.totals.append(lambda: {key: float(value())})

    def numbers(self, counts: Any, group: str = Number.group, *, of_run: bool = False) -> None:
        """Register the fields of `counts`, a dataclass, that are `counted`, each as `number` does."""
        for one in fields(counts):
            if one.metadata:
                number, value = Number(group=group, **one.metadata), partial(getattr, counts, one.name)
                self.number(one.name, number, value, of_run=of_run)

    def cache(self, name: str, about: str, unit: str) -> CacheUse:
        """Return the count of this node's lookups in the cache `name`. It appears in `status`, the report, for
        Prometheus, and as `NODE/NAME_queries` and `NODE/NAME_hits` in the run's totals."""
        use = self.meter.caches[name] = CacheUse()
        self.context.numbers[name] = Number(about, unit)
        for key in ("queries", "hits"):
            self.number(f"{name}_{key}", Number(""), partial(getattr, use, key))
        return use

    def status(self, text: Callable[[], str]) -> None:
        """Register `text`, which is shown in the progress line (for example the active slots)."""
        self.context.statuses.append(text)

    def when_stuck(self, cut_off: Callable[[], None], patience_s: float = 0.0) -> None:
        """Register `cut_off`, which aborts long calls. Any thread may call it when a stopped run does not end soon.
        `patience_s`: how long a call may wait before a run in which nothing moves is stopped."""
        self.context.when_stuck.append(cut_off)
        self.context.patience_s = max(self.context.patience_s, patience_s)

    def stop_after_chunk(self, chunk: int) -> None:
        """End the run once `chunk` is committed (-1: without another commit) and discard work on later chunks. To be
        called while no later chunk can be committed: before the end of `chunk` is sent, or at the end of the input."""
        self.context.stop_after_chunk(chunk)

    def round_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the round, from 0, that each of `rows` (column `row`) belongs to. All are 0 in a job without a target,
        and until the first round has ended and its number of rows is known."""
        per_round = self.context.round_rows()
        return rows // per_round if per_round else np.zeros_like(rows)
