"""Runtime: the side of the engine that an operator sees; and the resources that nodes and runs share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.meter import Clock, StageMeter

T = TypeVar("T")
Closer = Callable[[T], None]
log = logging.getLogger(__name__)


class Table(Protocol):
    """A metrics table that grows while the job runs."""

    def append(self, *values: object) -> None:
        """Add one row, values in the order of the table's schema."""

    def extend(self, columns: Sequence[Sequence[object]]) -> None:
        """Add several rows at once, as columns of equal length; much cheaper a row."""


class Resources:
    """Things that are made once by whoever asks first, and closed in reverse order."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: dict[object, tuple[Any, Closer[Any] | None]] = {}

    def get(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """Return the value under `key`, made by `factory` if it is not there yet."""
        with self._lock:
            if key not in self._made:
                self._made[key] = (factory(), close)
            value: T = self._made[key][0]
            return value

    def close(self) -> None:
        """Close everything, last made first. A failure to close is logged and does not keep the others open."""
        with self._lock:
            while self._made:
                key, (value, close) = self._made.popitem()
                if close is not None:
                    try:
                        close(value)
                    except Exception as error:
                        log.exception("closing %s failed: %s", key, error)


@dataclass
class RunContext:
    """The things that all nodes of one run share.

    Args:
        output_dir: of the run.
        process: what the runs of this process share.
        table: returns the metrics table of a name and schema.
        attempt: its number, 1 for the first.
        run_id: names the run; all its attempts have the same.
        enough, round_rows: set by the executor; see Runtime.enough and Runtime.round_of.
    """

    output_dir: Path
    process: Resources
    table: Callable[[str, pa.Schema], Table]
    attempt: int = 1
    run_id: str = ""
    clock: Clock = time.perf_counter
    resources: Resources = field(default_factory=Resources)
    cancelled: threading.Event = field(default_factory=threading.Event)
    parts: list[StageMeter] = field(default_factory=list)
    totals: list[Callable[[], dict[str, float]]] = field(default_factory=list)
    statuses: list[Callable[[], str]] = field(default_factory=list)
    when_stuck: list[Callable[[], None]] = field(default_factory=list)
    enough: Callable[[int], None] = lambda chunk: None
    round_rows: Callable[[], int | None] = lambda: None


@dataclass
class Runtime:
    """The engine, as a node sees it while it runs.

    Args:
        context: what it shares with the others.
        node: its name.
        depth: longest distance from the source, in edges: who is larger is served first where nodes share something.
        meter: the node's own; the executor counts rows, the operator may count tokens.
    """

    context: RunContext
    node: str
    depth: int
    meter: StageMeter

    def __post_init__(self) -> None:
        self.output_dir = self.context.output_dir
        self.run_id = self.context.run_id
        """Names the run. A resumed run has the same, one that began anew in the same directory another."""
        self.log = logging.getLogger(f"pipeline.node.{self.node}")

    @property
    def cancelled(self) -> bool:
        """True once the run is being cancelled: finish the step and leave."""
        return self.context.cancelled.is_set()

    def resource(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """Return a thing that nodes of this run share: made by the first who asks, closed when the run ends."""
        return self.context.resources.get(key, factory, close)

    def shared(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """Return a thing that runs of this process share (models, contexts): closed when the process ends."""
        return self.context.process.get(key, factory, close)

    def part(self, name: str) -> StageMeter:
        """Return a meter that shows as the line `node/name` in the stage metrics."""
        meter = StageMeter(f"{self.node}/{name}", self.context.clock)
        self.context.parts.append(meter)
        return meter

    def table(self, name: str, schema: pa.Schema) -> Table:
        """Return the metrics table metrics/<name>.parquet, shared by all nodes that ask for it."""
        return self.context.table(name, schema)

    def totals(self, values: Callable[[], dict[str, float]]) -> None:
        """Have `values()` added to the run's totals at its end (counts, seconds)."""
        self.context.totals.append(values)

    def status(self, text: Callable[[], str]) -> None:
        """Have `text()` shown in the progress line (for example the active slots)."""
        self.context.statuses.append(text)

    def when_stuck(self, cut_off: Callable[[], None]) -> None:
        """Have `cut_off()` called, by any thread, when the run was told to stop and computes on: it ends long calls."""
        self.context.when_stuck.append(cut_off)

    def enough(self, chunk: int) -> None:
        """End the run once `chunk` is committed: no chunk after it is needed (-1: none that this attempt has begun),
        and what is done for later ones is abandoned. To be called while no later chunk can be committed: before the end
        of `chunk` is sent, or at the end of the input."""
        self.context.enough(chunk)

    def round_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the round over the source of each of `rows` (column `row`); 0 where there is only one, and for all
        rows until it is known how many the first round has."""
        per_round = self.context.round_rows()
        return rows // per_round if per_round else np.zeros_like(rows)
