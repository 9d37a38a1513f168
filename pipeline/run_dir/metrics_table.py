"""Metrics tables: a stream for each attempt while it runs, one Parquet file of all attempts at its end.

The life of the table NAME:

1. `flush` appends new rows, as a record batch, to the Arrow IPC stream metrics/NAME/part-ATTEMPT-ID.arrows. That of a
   killed process ends there, perhaps within a batch.
2. `merge`, at the end of an attempt, writes metrics/NAME.parquet anew: the rows of the older Parquet file and those of
   all streams, also of killed attempts, each up to its last whole batch. Only when the new file is durable under its
   name are the streams removed.
3. A process that dies in between leaves streams whose rows are in the Parquet file. Its metadata names them, so they
   are neither merged again nor read.
4. `metrics_files.scan` reads the Parquet file and the streams that it does not name, at any time.

Earlier versions wrote small Parquet files (part-ATTEMPT-NUMBER.parquet) instead of streams: they are taken as such.
"""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.api.meter import CLOCKS, COUNTS, StageMeter
from pipeline.run_dir import metrics_files
from pipeline.run_dir.names import METRICS, set_aside
from pipeline.system.atomic_files import make_directory, replacing, sync_directory
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached

log = logging.getLogger(__name__)
ATTEMPT = pa.field("attempt", pa.int32())
WORKER = pa.field("worker", pa.string())
"""The worker of a cluster that the row is about; null for the driver and in runs without one."""

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
    | dict.fromkeys((*COUNTS, "queue_rows"), pa.int64())
    | dict.fromkeys((*CLOCKS, "wall_s"), pa.float64())
)
_MEASURED = STAGES_SCHEMA.names[3:]


class MetricsTable:
    """One metrics table of one attempt. `append` may be called from any thread and costs about a microsecond.

    Args:
        directory: the metrics directory of the run.
        name: of the table.
        schema: without `attempt` and `worker`, which are put first.
        attempt: number of this attempt, from 1.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema, attempt: int) -> None:
        self.name = name
        self._directory = directory
        self._schema = pa.schema([ATTEMPT, WORKER, *schema])
        pq.ParquetWriter(io.BytesIO(), self._schema).close()  # refuses a type that the Parquet file could not have
        self._attempt = attempt
        self._lock = threading.Lock()
        self._rows: list[tuple[object, ...]] = []
        self._batches: list[pa.RecordBatch] = []
        self._begin_stream()

    def _begin_stream(self) -> None:
        # A name that no other has: where state.sqlite was lost attempts count from 1 again.
        self._stream = self._directory / self.name / f"part-{self._attempt:04d}-{secrets.token_hex(4)}.arrows"
        self._written = 0
        self._unwritten = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._encoder = pa.ipc.new_stream(self._unwritten, self._schema, options=options)

    def append(self, *values: object, worker: str | None = None) -> None:
        """Add one row, values in the order of the schema."""
        with self._lock:
            self._rows.append((worker, *values))

    def extend(self, columns: Sequence[Sequence[object] | pa.Array], worker: str | None = None) -> None:
        """Add several rows at once, as columns of equal length in the order of the schema."""
        batch = self._batch([[worker] * len(columns[0]), *columns])
        with self._lock:
            self._batches.append(batch)

    def _batch(self, columns: Sequence[Sequence[object] | pa.Array]) -> pa.RecordBatch:
        """Return a batch of all columns but the first, `attempt`."""
        pairs = zip(([self._attempt] * len(columns[0]), *columns), self._schema, strict=True)
        arrays = [column if isinstance(column, pa.Array) else pa.array(column, field.type) for column, field in pairs]
        return pa.record_batch(arrays, schema=self._schema)

    def flush(self) -> None:
        """Append the rows since the last flush to the stream. Raises StorageError if the stream cannot be written; the
        next flush tries again."""
        with self._lock:
            rows, self._rows = self._rows, []
            batches, self._batches = self._batches, []
        if rows:
            batches.append(self._batch(list(zip(*rows, strict=True))))
        if batches:
            for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
                self._encoder.write_batch(batch, {metrics_files.DIGEST: metrics_files.digest(batch)})
        if content := self._unwritten.getvalue():
            with writing(self._stream):
                self._write(content)
            self._unwritten.seek(0)
            self._unwritten.truncate()

    def _write(self, content: bytes) -> None:
        make_directory(self._stream.parent)
        try:
            with self._stream.open("ab") as file:
                file.truncate(self._written)
                file.write(content)
        except OSError:
            with suppress(OSError):  # a full disk gets its space back
                os.truncate(self._stream, self._written)
            raise
        self._written += len(content)

    def merge(self) -> None:
        """Flush, then make one Parquet file of the streams and the older one, streaming.

        What cannot be read, for example after a power failure, is left out with a warning. Raises StorageError if the
        disk is full; the streams stay for the next attempt.
        """
        self.flush()
        streams = metrics_files.streams(self._directory, self.name)
        files = metrics_files.without_repeats(self._directory, self.name)
        merged = self._directory / f"{self.name}.parquet"
        with writing(merged):
            if set(streams) & set(files):
                schema = metrics_files.union(files, self._schema)
                names = json.dumps([stream.name for stream in streams])
                metadata = {metrics_files.MERGED: names, metrics_files.COLUMNS: metrics_files.columns_of(schema)}
                schema = schema.with_metadata(metadata)
                with replacing(merged) as file, pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:
                    for table in metrics_files.read(files, schema, self._warn):
                        writer.write_table(table)
                sync_directory(self._directory)
                reached(Failpoint.METRICS_MERGE_RENAMED)
            for leftover in merged.with_suffix("").glob("part-*"):
                leftover.unlink()
            with suppress(OSError):  # it was never made, or something else lies there
                merged.with_suffix("").rmdir()
        self._begin_stream()

    def _warn(self, file: Path, error: Exception) -> None:
        """Say that a file ends early. A damaged Parquet file is moved aside."""
        if isinstance(error, OSError) and error.errno:  # the disk's: the next attempt may be able to read it
            raise error
        log.warning("%s is cut or damaged (%s): what follows is missing from the metrics", file, error)
        if file.parent == self._directory:
            set_aside(file)


class MetricsTables:
    """The metrics tables of one attempt, created on first use."""

    def __init__(self, output_dir: Path, attempt: int = 1) -> None:
        self._directory = output_dir / METRICS
        self._attempt = attempt
        self._tables: dict[str, MetricsTable] = {}

    def get(self, name: str, schema: pa.Schema) -> MetricsTable:
        if name not in self._tables:
            self._tables[name] = MetricsTable(self._directory, name, schema, self._attempt)
        return self._tables[name]

    def __iter__(self) -> Iterator[MetricsTable]:
        return iter(list(self._tables.values()))

    def to_merge(self) -> Iterator[MetricsTable]:
        """Iterate over the tables, and over those of which only killed attempts have left streams."""
        yield from self
        for name in sorted({path.name for path in self._directory.glob("*") if path.is_dir()} - self._tables.keys()):
            yield MetricsTable(self._directory, name, pa.schema([]), self._attempt)


class MeterRecorder:
    """Turns the cumulative counters and histograms of the meters into rows of what they have gained."""

    def __init__(self, tables: MetricsTables) -> None:
        self._tables = tables
        self._last: dict[tuple[str | None, ...], tuple[float, Mapping[str, float]]] = {}

    def stages(self, now_s: float, meters: list[StageMeter]) -> None:
        """Append a row per stage to metrics/stages.parquet, of each worker if it is one of a cluster; a worker that has
        not reported since gets no row. `now_s`: seconds since the attempt began."""
        table = self._tables.get("stages", STAGES_SCHEMA)
        for meter in meters:
            for worker, total in meter.by_worker():
                if (gain := self._gained(now_s, total, meter.name, worker)) is not None:
                    gained, since_s = gain
                    gained["queue_rows"] = total["queue_rows"]
                    values = (gained[key] for key in _MEASURED)
                    table.append(now_s, now_s - since_s, meter.name, *values, worker=worker)

    def histograms(self, now_s: float, meters: list[StageMeter]) -> None:
        """Append a row to metrics/histograms.parquet per bucket that grew."""
        for meter in meters:
            for what, times in meter.read()["histograms"].items():
                for bound, count in times["buckets"].items():
                    total = {"count": count, "sum_s": times["sums_s"][bound]}
                    if (grown := self._gained(now_s, total, meter.name, what, bound)) is not None:
                        row = (now_s, meter.name, what, float(bound), *grown[0].values())
                        self._tables.get("histograms", HISTOGRAMS_SCHEMA).append(*row)

    def _gained(
        self, now_s: float, total: Mapping[str, float], *key: str | None
    ) -> tuple[dict[str, float], float] | None:
        """Return what `key` has gained since it was asked for last, and when that was; None if that is nothing."""
        before_s, last = self._last.get(key, (0.0, {}))
        if total == last:
            return None
        self._last[key] = now_s, total
        return {name: value - last.get(name, 0) for name, value in total.items()}, before_s
