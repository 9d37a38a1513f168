"""WriteRows: one file per chunk, sorted by (row, lineage), in the format that `output.format` names."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from operators.formats.registry import WRITTEN
from operators.formats.result_csv import DEFUSED
from operators.formats.unpack import CODECS
from operators.images.columns import IMAGE_MARK, PROMPT_IMAGES, SHOWN_IMAGE, has_prompt_images, is_of_prompts
from operators.images.forms import paths_of, type_of_paths
from operators.rows.splits import NAMES, alike, is_split_name
from operators.rows.times import rows_beyond
from operators.rows.token_lists import PROMPT_IDS, PROMPT_LITERALS, PROMPT_TEXT
from operators.settings import OutputSettings
from pipeline.api import ROW, Batch, Concludes, ConfigError, Output, Runtime, SchemaError, Sink, require_column
from pipeline.api.records import SUPERSEDES, record_json, value_as_text
from pipeline.system.atomic_files import part_name, repeated_row, sorted_by_identity, write_table_shard
from pipeline.system.result_files import names_of, scan_folder, shown_rows

MOST_SPLITS = 100
"""Splits in a chunk."""
PREVIEW_WIDTH = 300
"""Characters of a value to show in a preview."""


class WriteRows(Sink, Concludes):
    """Writes data/part-NNNNN.parquet (or .jsonl, .csv ...), an empty chunk too. Equal rows give equal bytes, in
    whatever order and batches they come. With `output.split_by` the rows of a chunk are a file for each value of that
    column, data/part-NNNNN-train.parquet; a row whose value is no name of a split is a reject.

    Columns that only serve other nodes are left out: `prompt_ids`, `prompt_literals`, `prompt_images`, and, unless
    `output` asks for them, `prompt_text` and `completion_ids`. In `prompt_text` an image is `<image>`. A column of
    images {bytes, path} is its paths where files hold no bytes (jsonl, csv, xlsx).

    Args:
        output: what the files hold.
        directory: a folder in data/, for a job with a second sink.

    Example:
        write:
          inputs: generate
          op:
            _target_: operators.sinks.write_rows.WriteRows
            output: ${output}
    """

    def __init__(self, output: OutputSettings, directory: str = "") -> None:
        path = PurePath(directory)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"directory={directory!r} cannot work: it is a folder in data/, for example 'rejected'")
        self._output = output
        self._format = WRITTEN[output.format]
        packed = {codec: ending for ending, codec in CODECS.items()} if self._format.packed else {}
        self._keys = {key: getattr(output, key) for key in self._format.keys}
        marks = DEFUSED[1:] + "." if self._keys.get("defuse") else ""
        self._suffix = marks + output.format + packed.get(output.compression, "")
        self.reject_files = (self._suffix, self._write) if self._format.rejects else None
        if (final := self._format.final) is not None:
            final.require()
            name = "-".join(("results", *path.parts))
            self.concluded, self._suffix = (f"{name}.{self._suffix}",), final.parts
        self._directory = directory
        self._chunks: dict[int, list[pa.RecordBatch]] = {}

    def plan(self, schema: pa.Schema) -> None:
        """Raise SchemaError if there is no `row`, or a column that the format cannot hold."""
        require_column(schema, ROW.name, [ROW.type])
        helpers = {
            PROMPT_IDS.name: False,
            PROMPT_TEXT.name: self._output.prompt_text,
            "completion_ids": self._output.completion_ids,
        }
        others = [f.name for f in schema if f.name.endswith(PROMPT_LITERALS.name) or is_of_prompts(f)]
        chosen = [f for f in schema if helpers.get(f.name, f.name not in others)]
        as_paths = {} if self._format.bytes else {f.name: kind for f in chosen if (kind := type_of_paths(f.type))}
        self._as_paths = list(as_paths)
        self._schema = pa.schema([pa.field(f.name, as_paths.get(f.name, f.type), f.nullable) for f in chosen])
        self._with_images = [
            f.name
            for f in self._schema
            if f.name.endswith(PROMPT_TEXT.name)
            and has_prompt_images(schema, f.name.removesuffix(PROMPT_TEXT.name) + PROMPT_IMAGES.name)
        ]
        at = schema.get_field_index(SUPERSEDES.name)
        self._has_older = at >= 0 and schema.field(at).equals(SUPERSEDES, check_metadata=True)
        for field in self._schema:
            self._format.check(field)
        most = None if self._format.final is None else self._format.final.most_columns
        if most is not None and len(self._schema) > most:
            raise SchemaError(
                f"the results have {len(self._schema):,} columns, and output={self._output.format} holds {most:,};"
                " write output=csv, or take some out"
            )
        for name in self._output.preview_columns:
            require_column(self._schema, name)
        if self._output.split_by is not None:
            require_column(self._schema, self._output.split_by, [pa.string()])

    def open(self, runtime: Runtime) -> None:
        """Set the output folder, under `runtime.output_dir`."""
        self._path = runtime.output_dir / "data" / self._directory
        if self._as_paths:
            runtime.log.info("output=%s holds no bytes: of %s the path", self._output.format, ", ".join(self._as_paths))

    def process(self, batch: Batch) -> Iterable[Output]:
        """Hold the rows. Yield rejects for those with a time that the format cannot hold."""
        bad = self._not_held(batch.data)
        if bad:
            yield batch.reject(list(bad), list(bad.values()))
        self._chunks.setdefault(batch.chunk, []).append(self._own(batch.data, bad))

    def finish(self, chunk: int) -> Iterable[Output]:
        """Write the chunk under a temporary name; the commit renames it."""
        # Combined before and after: the bytes under a null, and the boundaries of Parquet pages, depend on the chunks
        # of a table.
        try:
            table = pa.Table.from_batches(self._chunks.pop(chunk, []), self._schema).combine_chunks()
            ordered = sorted_by_identity(table).combine_chunks()
        except pa.ArrowInvalid as error:  # Arrow's places of bytes have 31 bits
            raise ValueError(
                "the rows of a chunk have more than 2 GiB in one column; make chunks smaller (chunk_rows=), or take out"
                f" what results do not need, as images (operators.columns.Select): {error}"
            ) from error
        if (twice := repeated_row(ordered)) is not None:
            raise ValueError(
                f"two rows are row {twice}, with the same lineage; these identify a row everywhere: an operator before"
                " this one must keep `row` as it is, and say `expanded` where it makes more rows of one"
            )
        for split, rows in self._splits(ordered):
            path = self._path / part_name(chunk, self._suffix, split)
            yield write_table_shard(rows, path, chunk, self._write)

    def _splits(self, rows: pa.Table) -> Iterable[tuple[str, pa.Table]]:
        """Yield the rows of each file with the name of its split; an empty name where there are no splits."""
        by = self._output.split_by
        if by is None or not rows.num_rows:
            yield "", rows
            return
        column = rows.column(by)
        names = sorted(column.unique().to_pylist())
        if len(names) > MOST_SPLITS:
            raise ValueError(
                f"output.split_by={by}: the column has {len(names):,} values in one chunk, and each is a file of its"
                f" own; {MOST_SPLITS} at most"
            )
        if (pair := alike(names)) is not None:
            raise ValueError(f"output.split_by={by}: '{pair[0]}' and '{pair[1]}' would be one file on some disks")
        for name in names:
            yield name, rows.filter(pc.equal(column, name)).combine_chunks()

    def encoded_bytes(self, batches: Sequence[Batch]) -> int:
        """Return the size in bytes of a file with these rows."""
        rows = [self._own(batch.data, self._not_held(batch.data)) for batch in batches]
        file = io.BytesIO()
        self._write(pa.Table.from_batches(rows, self._schema), file)
        return file.tell()

    def _own(self, data: pa.RecordBatch, without: Collection[int]) -> pa.RecordBatch:
        """Return the columns of the file, of all rows but some."""
        if without:
            data = data.take(pa.array([i for i in range(data.num_rows) if i not in without], pa.int64()))
        return pa.record_batch([self._column(data.column(n), n) for n in self._schema.names], schema=self._schema)

    def _column(self, column: pa.Array, name: str) -> pa.Array:
        if name in self._as_paths:
            return paths_of(column)
        return pc.replace_substring(column, IMAGE_MARK, SHOWN_IMAGE) if name in self._with_images else column

    def _write(self, table: pa.Table, file: BinaryIO) -> None:
        self._format.write(table, file, self._output.compression, self._output.compression_level, **self._keys)

    def _not_held(self, data: pa.RecordBatch) -> dict[int, str]:
        """Return why a row cannot be written, by its index."""
        bad = self._without_split(data)
        if (times := self._format.times) is None:
            return bad
        why = f"has a time that is too far for output={self._output.format}; write output=arrow, or take the column out"
        names = self._schema.names
        return bad | {i: f"column '{n}' {why}" for n in names for i in rows_beyond(data.column(n), times)}

    def _without_split(self, data: pa.RecordBatch) -> dict[int, str]:
        if (by := self._output.split_by) is None:
            return {}
        values = data.column(by)
        why = {
            value: f"output.split_by={by}: {'null' if value is None else repr(value)} is no name of a split: {NAMES}"
            for value in values.unique().to_pylist()
            if value is None or not is_split_name(value)
        }
        return {i: why[value] for i, value in enumerate(values.to_pylist()) if value in why} if why else {}

    def conclude(self, directory: Path) -> None:
        """Write the final file, of a format that has one."""
        if (final := self._format.final) is not None:
            folders = (directory / "data" / self._directory, directory / "rejects")
            data, rejects = (sorted(each.glob("part-*"), key=lambda p: (len(p.name), p.name)) for each in folders)
            final.write(directory / self.concluded[0], data, rejects, newest=self._has_older, **self._keys)

    def report(self, directory: Path, node: str) -> Iterable[str]:
        """Name the final file, and return the first rows, if `output.preview` asks for them."""
        if self._format.final is not None and (path := directory / self.concluded[0]).exists():
            yield f"spreadsheet {path}"
        if not self._output.preview:
            return
        names = list(dict.fromkeys(self._output.preview_columns)) or self._schema.names
        width = max(map(len, names))
        rows = scan_folder(directory / "data" / self._directory, names_of(self._schema))
        found = rows.head(self._output.preview).collect()
        for row in shown_rows(found):
            for name in names:
                yield f"{name:{width}}  {textwrap.shorten(_shown(row[name]), PREVIEW_WIDTH)}"
            yield ""


def _shown(value: object) -> str:
    """Format a value for a preview: a number rounded, a list or struct as JSON."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return record_json(value) if isinstance(value, list | dict) else value_as_text(value)
