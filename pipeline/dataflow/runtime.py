"""What a run gives its operators, and the resources that nodes and runs share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.api.meter import Clock, StageMeter
from pipeline.api.protocols import Closer
from pipeline.run_dir.metrics_table import MetricsTable

T = TypeVar("T")
log = logging.getLogger(__name__)


class Resources:
    """Things that are made once by whoever asks first, and closed in reverse order."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: dict[object, tuple[Any, Closer[Any] | None]] = {}

    def get(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """The value under `key`, made by `factory` if it is not there yet."""
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
    """What all nodes of one run share."""

    output_dir: Path
    resources: Resources
    process: Resources
    attempt: int = 1
    run_id: str = ""
    clock: Clock = time.perf_counter
    cancelled: threading.Event = field(default_factory=threading.Event)
    parts: list[StageMeter] = field(default_factory=list)
    tables: dict[str, MetricsTable] = field(default_factory=dict)
    totals: list[Callable[[], dict[str, float]]] = field(default_factory=list)
    statuses: list[Callable[[], str]] = field(default_factory=list)
    when_stuck: list[Callable[[], None]] = field(default_factory=list)
    enough: Callable[[int], None] = lambda chunk: None
    """Set by the executor: ends the run when a chunk is committed."""
    round_rows: Callable[[], int | None] = lambda: None
    """Source rows of a round, as soon as they are known and there is more than one round."""

    def table(self, name: str, schema: pa.Schema) -> MetricsTable:
        """The metrics table `name`, made on first use."""
        if name not in self.tables:
            self.tables[name] = MetricsTable(self.output_dir / "metrics", name, schema, self.attempt)
        return self.tables[name]


@dataclass
class NodeRuntime:
    """The Runtime of one node (see pipeline.api.protocols.Runtime)."""

    context: RunContext
    node: str
    depth: int
    meter: StageMeter

    def __post_init__(self) -> None:
        self.output_dir = self.context.output_dir
        self.log = logging.getLogger(f"pipeline.node.{self.node}")

    @property
    def run_id(self) -> str:
        """Names the run; all its attempts have the same."""
        return self.context.run_id

    @property
    def cancelled(self) -> bool:
        """True once the run is being cancelled."""
        return self.context.cancelled.is_set()

    def resource(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """What nodes of this run share."""
        return self.context.resources.get(key, factory, close)

    def shared(self, key: object, factory: Callable[[], T], close: Closer[T] | None = None) -> T:
        """What runs of this process share."""
        return self.context.process.get(key, factory, close)

    def part(self, name: str) -> StageMeter:
        """A meter shown as `node/name`."""
        meter = StageMeter(f"{self.node}/{name}", self.context.clock)
        self.context.parts.append(meter)
        return meter

    def table(self, name: str, schema: pa.Schema) -> MetricsTable:
        """The metrics table `name`."""
        return self.context.table(name, schema)

    def totals(self, values: Callable[[], dict[str, float]]) -> None:
        """Have `values()` added to the run's totals."""
        self.context.totals.append(values)

    def status(self, text: Callable[[], str]) -> None:
        """Have `text()` shown in the progress line."""
        self.context.statuses.append(text)

    def when_stuck(self, cut_off: Callable[[], None]) -> None:
        """Have `cut_off()` called when the run does not stop in time."""
        self.context.when_stuck.append(cut_off)

    def enough(self, chunk: int) -> None:
        """No chunk after `chunk` is needed, or none at all (-1)."""
        self.context.enough(chunk)

    def round_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The round of each row: all rows are of the first one until it is known how many rows that has."""
        per_round = self.context.round_rows()
        return rows // per_round if per_round else np.zeros_like(rows)
