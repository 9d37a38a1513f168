"""WriteParquet: one Parquet file a chunk, sorted by (row, lineage)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from operators.settings import OutputSettings
from pipeline.errors import ConfigError
from pipeline.protocols import BaseOperator, Runtime
from pipeline.records import ROW, Batch, Output, require_column
from pipeline.shards import part_name, sorted_by_identity, write_parquet_shard

PREVIEW_WIDTH = 300
"""Characters of a value that a preview shows."""


class WriteParquet(BaseOperator):
    """Writes data/part-NNNNN.parquet, an empty chunk too. Equal rows give equal bytes, in whatever order and batches
    they come.

    Columns that only serve other nodes are left out: `prompt_ids`, and, unless `output` asks for them, `prompt_text`
    and `completion_ids`.

    Args:
        output: what the files hold.
        directory: a folder in data/, for a job with a second sink.

    Example:
        write:
          inputs: generate
          op:
            _target_: operators.sinks.write_parquet.WriteParquet
            output: ${output}
    """

    def __init__(self, output: OutputSettings, directory: str = "") -> None:
        path = PurePath(directory)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"directory={directory!r} cannot work: it is a folder in data/, for example 'rejected'")
        self._output = output
        self._directory = directory
        self._chunks: dict[int, list[pa.RecordBatch]] = {}

    def plan(self, schema: pa.Schema) -> None:
        """A sink.

        Raises:
            SchemaError: there is no `row`.
        """
        require_column(schema, ROW.name, [ROW.type])
        helpers = {
            "prompt_ids": False,
            "prompt_text": self._output.prompt_text,
            "completion_ids": self._output.completion_ids,
        }
        fields = [pa.field(f.name, f.type, f.nullable) for f in schema if helpers.get(f.name, True)]
        self._schema = pa.schema(fields)
        for name in self._output.preview_columns:
            require_column(self._schema, name)

    def open(self, runtime: Runtime) -> None:
        """The files go under `runtime.output_dir`."""
        self._path = runtime.output_dir / "data" / self._directory

    def process(self, batch: Batch) -> Iterable[Output]:
        """Keep the rows until their chunk ends."""
        rows = pa.record_batch([batch.data.column(n) for n in self._schema.names], schema=self._schema)
        self._chunks.setdefault(batch.chunk, []).append(rows)
        return ()

    def finish(self, chunk: int) -> Iterable[Output]:
        """Write the chunk under a temporary name; the commit renames it."""
        table = pa.Table.from_batches(self._chunks.pop(chunk, []), self._schema)
        # One piece: the boundaries of Parquet pages follow the pieces that a table consists of.
        ordered = sorted_by_identity(table).combine_chunks()
        yield write_parquet_shard(ordered, self._path / part_name(chunk), chunk, self._output.compression)

    def encoded_bytes(self, batches: Sequence[Batch]) -> int:
        """Bytes of a file with these rows."""
        rows = [batch.data.select(self._schema.names).cast(self._schema) for batch in batches]
        file = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches(rows, self._schema), file, compression=self._output.compression)
        return int(file.getvalue().size)

    def report(self, directory: Path) -> Iterable[str]:
        """The first rows, as far as `output.preview` asks for them."""
        if not self._output.preview:
            return
        names = self._output.preview_columns or self._schema.names
        width = max(map(len, names))
        found = pl.scan_parquet(directory / "data" / self._directory / "*.parquet")
        for row in found.select(names).head(self._output.preview).collect().iter_rows():
            for name, value in zip(names, row, strict=True):
                yield f"{name:{width}}  {textwrap.shorten(str(value), PREVIEW_WIDTH)}"
            yield ""
