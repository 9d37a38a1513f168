"""Metrics tables: small part files while a job runs, merged into one Parquet file at its end.

A Parquet file has no footer before it is closed, so an open one would be lost with the process. The next attempt merges
the parts of a killed one; the column `attempt` tells them apart.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.api.meter import CLOCKS, StageMeter
from pipeline.run_dir.names import METRICS
from pipeline.system.atomic_files import TEMPORARY_SUFFIX, removed_on_failure
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached

log = logging.getLogger(__name__)
ATTEMPT = pa.field("attempt", pa.int32(), nullable=False)
WORKER = pa.field("worker", pa.string())
"""The worker of a cluster that the row is about; null for the driver and in runs without one."""
MERGED_PARTS = b"merged_parts"
"""Metadata key of a merged file: JSON list of the part files of its last merge."""

_COUNTS = ("rows_in", "rows_out", "expanded", "rejected", "batches", "tokens_in", "tokens_out", "queue_rows")
HISTOGRAMS_SCHEMA = pa.schema(
    [
        ("t_s", pa.float64()),
        ("node", pa.string()),
        ("what", pa.string()),
        ("up_to_s", pa.float64()),
        ("count", pa.int64()),
        ("sum_s", pa.float64()),
    ]
)
STAGES_SCHEMA = pa.schema(
    {"t_s": pa.float64(), "interval_s": pa.float64(), "node": pa.string()}
    | dict.fromkeys(_COUNTS, pa.int64())
    | dict.fromkeys((*CLOCKS, "wall_s"), pa.float64())
)
_MEASURED = STAGES_SCHEMA.names[3:]


class MetricsTable:
    """One metrics table of one attempt. `append` may be called from any thread and costs about a microsecond.

    Args:
        directory: the metrics directory of the run.
        name: of the table; parts go to <directory>/<name>/, the merged file to <directory>/<name>.parquet.
        schema: without `attempt` and `worker`, which are put first.
        attempt: number of this attempt, from 1.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema, attempt: int) -> None:
        self.name = name
        self._parts = directory / name
        self._merged = directory / f"{name}.parquet"
        self._own = schema
        self._schema = pa.schema([ATTEMPT, WORKER, *schema])
        self._attempt = attempt
        self._lock = threading.Lock()
        self._rows: list[tuple[object, ...]] = []
        self._batches: list[tuple[Sequence[str | None], pa.RecordBatch]] = []
        self._written = 0

    def append(self, *values: object) -> None:
        """Add one row, values in the order of the schema."""
        self.append_of(None, values)

    def append_of(self, worker: str | None, values: Sequence[object]) -> None:
        """Add one row of `worker`."""
        with self._lock:
            self._rows.append((worker, *values))

    def extend(self, columns: Sequence[Sequence[object]]) -> None:
        """Add several rows at once, as columns of equal length in the order of the schema."""
        self.add(None, self._batch(columns))

    def add(self, worker: str | None, rows: pa.RecordBatch) -> None:
        """Add rows of `worker`, under the table's own schema."""
        with self._lock:
            self._batches.append(([worker] * len(rows), rows))

    def flush(self) -> None:
        """Write the rows since the last flush as a part file.

        Raises:
            StorageError: the file cannot be written; these rows are lost.
        """
        with self._lock:
            rows, self._rows = self._rows, []
            batches, self._batches = self._batches, []
        if rows:
            workers, *columns = zip(*rows, strict=True)
            batches.append((workers, self._batch(columns)))
        if not batches:
            return
        table = pa.Table.from_batches([batch for _, batch in batches])
        each = pa.array([worker for workers, _ in batches for worker in workers], WORKER.type)
        attempt = pa.repeat(pa.scalar(self._attempt, ATTEMPT.type), len(table))
        table = table.add_column(0, WORKER, each).add_column(0, ATTEMPT, attempt)
        path = self._parts / f"part-{self._attempt:04d}-{self._written:06d}.parquet"
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        with writing(path), removed_on_failure(temporary):
            self._parts.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:  # given a path, Arrow keeps the file, and its space, open after an error
                pq.write_table(table, file)
            reached(Failpoint.METRICS_PART_WRITTEN)
            temporary.replace(path)
        reached(Failpoint.METRICS_PART_RENAMED)
        self._written += 1

    def merge(self) -> None:
        """Flush, then merge the parts of this and of earlier attempts into one file, streaming.

        A file that cannot be read, for example after a power failure, is left out with a warning.

        Raises:
            StorageError: the disk is full; the parts stay for the next attempt.
        """
        self.flush()
        parts = sorted(self._parts.glob("*.parquet"))
        temporary = self._merged.with_name(self._merged.name + TEMPORARY_SUFFIX)
        with writing(self._merged), removed_on_failure(temporary):
            if parts:
                self._write_merged(parts, temporary)
                reached(Failpoint.METRICS_MERGED)
                temporary.replace(self._merged)
                reached(Failpoint.METRICS_MERGE_RENAMED)
            for part in parts:
                part.unlink()
                reached(Failpoint.METRICS_PART_REMOVED)
            for leftover in self._parts.glob(f"*{TEMPORARY_SUFFIX}"):
                leftover.unlink()
            with suppress(OSError):  # it was never made, or something else lies there
                self._parts.rmdir()

    def _write_merged(self, parts: Sequence[Path], to: Path) -> None:
        # A process that dies between the rename and the removal of the parts leaves both: the file names its parts.
        merged = self._last_merged()
        schema = self._schema.with_metadata({MERGED_PARTS: json.dumps([part.name for part in parts])})
        with to.open("wb") as file, pq.ParquetWriter(file, schema) as writer:
            if self._merged.exists():
                for batch in self._read(self._merged):
                    writer.write_batch(batch)
            for part in (part for part in parts if part.name not in merged):
                try:
                    table = pa.Table.from_batches(self._read(part), self._schema)
                except (pa.ArrowException, OSError) as error:
                    log.warning("%s cannot be read (%s): its rows are missing from the metrics", part, error)
                else:
                    writer.write_table(table)

    def _last_merged(self) -> frozenset[str]:
        """Return the parts that the merged file contains. A damaged file is moved aside."""
        try:
            return merged_parts(self._merged)
        except FileNotFoundError:
            return frozenset()
        except (pa.ArrowException, OSError) as error:
            log.warning("%s cannot be read (%s): it is begun anew", self._merged, error)
            self._merged.replace(self._merged.with_name(f"{self._merged.name}.damaged"))
            return frozenset()

    def _read(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches of a file; columns that it does not have are null."""
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                there = {name: batch.column(name) for name in batch.schema.names}
                columns = [
                    there[f.name].cast(f.type) if f.name in there else pa.nulls(len(batch), f.type)
                    for f in self._schema
                ]
                yield pa.record_batch(columns, schema=self._schema)

    def _batch(self, columns: Sequence[Sequence[object]]) -> pa.RecordBatch:
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, self._own, strict=True)]
        return pa.record_batch(arrays, schema=self._own)


class MetricsTables:
    """The metrics tables of one attempt, created on first use."""

    def __init__(self, output_dir: Path, attempt: int = 1) -> None:
        self._directory = output_dir / METRICS
        self._attempt = attempt
        self._made: dict[str, MetricsTable] = {}

    def get(self, name: str, schema: pa.Schema) -> MetricsTable:
        if name not in self._made:
            self._made[name] = MetricsTable(self._directory, name, schema, self._attempt)
        return self._made[name]

    def __iter__(self) -> Iterator[MetricsTable]:
        return iter(list(self._made.values()))


def merged_parts(merged: Path) -> frozenset[str]:
    """Return the names of the parts that a merged file contains: a run killed during a merge leaves them beside it.

    Raises:
        ArrowException, OSError: the file cannot be read.
    """
    metadata = pq.read_schema(merged).metadata or {}
    return frozenset(json.loads(metadata.get(MERGED_PARTS, b"[]")))


class HistogramRecorder:
    """Turns the cumulative histograms of the meters into one row per bucket that grew."""

    def __init__(self, tables: MetricsTables) -> None:
        self._tables = tables
        self._last: dict[tuple[str, str, float], tuple[int, float]] = {}

    def record(self, now_s: float, meters: list[StageMeter]) -> None:
        """Append the increase of each bucket since the last call. `now_s`: seconds since the attempt began."""
        for meter in meters:
            for what, histogram in list(meter.times.items()):
                # Also without a new duration: parts that a killed attempt left are merged with the tables of this one.
                table = self._tables.get("histograms", HISTOGRAMS_SCHEMA)
                for bound, (count, sum_s) in histogram.buckets().items():
                    key = (meter.name, what, bound)
                    count_before, sum_before = self._last.get(key, (0, 0.0))
                    if (count, sum_s) != (count_before, sum_before):
                        table.append(now_s, *key, count - count_before, sum_s - sum_before)
                        self._last[key] = (count, sum_s)


class StageRecorder:
    """Turns the cumulative counters of the meters into one row per stage and interval."""

    def __init__(self, table: MetricsTable) -> None:
        self._table = table
        self._last: dict[tuple[str, str | None], tuple[float, Mapping[str, float]]] = {}

    def record(self, now_s: float, meters: list[StageMeter]) -> None:
        """Append the increase of each meter since the last call, of each worker if it is one of a cluster; a worker
        that has not sent news since gets no row. `now_s`: seconds since the attempt began."""
        for meter in meters:
            for worker, total in meter.by_worker():
                before_s, before = self._last.get((meter.name, worker), (0.0, {}))
                if total == before:
                    continue
                gained = (total[key] - (0 if key == "queue_rows" else before.get(key, 0)) for key in _MEASURED)
                self._table.append_of(worker, (now_s, now_s - before_s, meter.name, *gained))
                self._last[meter.name, worker] = now_s, total
