"""WriteBatch: the sink of a batch file. One Parquet file a chunk, and at the end output.jsonl and errors.jsonl."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from operators.openai.error_lines import error_lines
from operators.sinks.write_parquet import WriteParquet
from pipeline.failpoints import Failpoint, reached
from pipeline.records import require_column
from pipeline.shards import TEMPORARY_SUFFIX, part_name, removed_on_failure
from pipeline.storage import writing

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"


class WriteBatch(WriteParquet):
    """Writes what Respond makes: the responses by chunk, as WriteParquet does, and when all chunks are committed two
    files in the output directory, in the order of the input: `output.jsonl` has the responses, `errors.jsonl` a line
    for each request that was rejected. They are made from data/ and rejects/ chunk by chunk, so memory does not grow.
    """

    concluded = (OUTPUT, ERRORS)

    def plan(self, schema: pa.Schema) -> None:
        """A sink.

        Raises:
            SchemaError: the column `output` is not there.
        """
        require_column(schema, "output", [pa.string()])
        super().plan(schema)

    def conclude(self, directory: Path) -> None:
        """See Concluder.conclude."""
        data = directory / "data"
        write_lines(directory / OUTPUT, (line for part in _parts(data) for line in _outputs(part)))
        rejects = directory / "rejects"
        write_lines(directory / ERRORS, (line for part in _parts(data) for line in _errors(rejects / part.name)))

    def report(self, directory: Path) -> Iterable[str]:
        """Where the two files are."""
        yield from super().report(directory)
        for name in self.concluded:
            with (directory / name).open("rb") as file:
                yield f"{name:13} {sum(1 for _ in file):9,} lines  {directory / name}"


def _parts(data: Path) -> Iterator[Path]:
    """The files of all chunks in order: each has one, also an empty one."""
    chunk = 0
    while (path := data / part_name(chunk)).exists():
        yield path
        chunk += 1


def _outputs(path: Path) -> Iterator[str]:
    yield from pq.read_table(path, columns=["output"])["output"].to_pylist()


def _errors(path: Path) -> Iterator[str]:
    if path.exists():
        yield from error_lines(pq.read_table(path).to_pylist())


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replace `path` by `lines` in one step.

    Raises:
        StorageError: it cannot be written; `path` is as it was.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with writing(path), removed_on_failure(temporary):
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        reached(Failpoint.FILE_WRITTEN)
        temporary.replace(path)
