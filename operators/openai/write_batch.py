"""WriteBatch: the sink of a batch file. One Parquet file a chunk, and at the end output.jsonl and errors.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from operators.openai.error_lines import error_lines
from operators.settings import OutputSettings
from operators.settings.checks import check
from operators.sinks.write_rows import WriteRows
from pipeline.api.records import require_column
from pipeline.system.atomic_files import part_name, write_atomically

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"


class WriteBatch(WriteRows):
    """Writes what Respond makes: the responses by chunk, as WriteRows does, and when all chunks are committed two
    files in the output directory, in the order of the input: `output.jsonl` has the responses, `errors.jsonl` a line
    for each request that was rejected. They are made from data/ and rejects/ chunk by chunk, so memory does not grow.

    Args:
        output: what the Parquet files hold, and what is shown of them.

    Raises:
        ConfigError: the files are to be of another format.
    """

    concluded = (OUTPUT, ERRORS)

    def __init__(self, output: OutputSettings) -> None:
        check(output.format == "parquet", "output.format", output.format, "output.jsonl is made of Parquet files")
        super().__init__(output)

    def plan(self, schema: pa.Schema) -> None:
        """A sink.

        Raises:
            SchemaError: the column `output` is not there.
        """
        require_column(schema, "output", [pa.string()])
        super().plan(schema)

    def conclude(self, directory: Path) -> None:
        """Write both files."""
        data, rejects = directory / "data", directory / "rejects"
        outputs = (line for part in _parts(data) for line in _outputs(part))
        errors = (line for part in _parts(data) for line in _errors(rejects / part.name))
        write_atomically(directory / OUTPUT, (f"{line}\n" for line in outputs))
        write_atomically(directory / ERRORS, (f"{line}\n" for line in errors))

    def report(self, directory: Path) -> Iterable[str]:
        """Where the two files are, if the run is done."""
        yield from super().report(directory)
        for name in (name for name in self.concluded if (directory / name).exists()):
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
