"""WriteBatch: the sink of a batch file. One Parquet file per chunk, and at the end output.jsonl and errors.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from operators.formats.lines import LINE, TEXT
from operators.openai.bodies import line_of
from operators.openai.values import Code, parse_reason
from operators.settings import OutputSettings
from operators.settings.checks import check
from operators.sinks.write_rows import WriteRows
from pipeline.api.records import require_column
from pipeline.system.atomic_files import part_name, write_atomically

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
Reject = Mapping[str, Any]
"""A row of rejects/."""


class WriteBatch(WriteRows):
    """Writes what Respond makes: the responses by chunk, as WriteRows does, and when all chunks are committed two
    files in the output directory, in the order of the input: `output.jsonl` has the responses, `errors.jsonl` a line
    for each request that was rejected. They are made from data/ and rejects/ chunk by chunk, so memory does not grow.

    Args:
        output: what the Parquet files hold, and what is shown of them.

    Raises:
        ConfigError: the files have another format, or are divided into splits.
    """

    concluded = (OUTPUT, ERRORS)

    def __init__(self, output: OutputSettings) -> None:
        check(output.format == "parquet", "output.format", output.format, "output.jsonl is made of Parquet files")
        check(output.split_by is None, "output.split_by", output.split_by, "output.jsonl has all lines")
        super().__init__(output)

    def plan(self, schema: pa.Schema) -> None:
        require_column(schema, "output", [pa.string()])
        super().plan(schema)

    def conclude(self, directory: Path) -> None:
        data, rejects = directory / "data", directory / "rejects"
        write_atomically(directory / OUTPUT, _output_lines(data))
        write_atomically(directory / ERRORS, _error_lines(data, rejects))

    def report(self, directory: Path, node: str) -> Iterable[str]:
        """Name the two files, if the run is done."""
        yield from super().report(directory, node)
        for name in (name for name in self.concluded if (directory / name).exists()):
            with (directory / name).open("rb") as file:
                yield f"{name:13} {sum(1 for _ in file):9,} lines  {directory / name}"


def _parts(data: Path) -> Iterator[Path]:
    """Yield the files of all chunks in order; an empty chunk has one, too."""
    chunk = 0
    while (path := data / part_name(chunk)).exists():
        yield path
        chunk += 1


def _output_lines(data: Path) -> Iterator[str]:
    for part in _parts(data):
        for line in pq.read_table(part, columns=["output"])["output"].to_pylist():
            yield f"{line}\n"


def _error_lines(data: Path, rejects: Path) -> Iterator[str]:
    """Yield a line for each request with rejects. Those of a chunk are sorted by (row, lineage)."""
    for part in _parts(data):
        path = rejects / part.name
        by_row: dict[int, list[Reject]] = {}
        for reject in pq.read_table(path).to_pylist() if path.exists() else ():
            by_row.setdefault(reject["row"], []).append(reject)
        for row, group in by_row.items():
            # The other choices of the request were rejected for the one that failed, so its reason is the cause.
            cause = next((r for r in group if parse_reason(r["reason"])[0] is not Code.INCOMPLETE), group[0])
            yield f"{json.dumps(_error_line(row, cause), ensure_ascii=False)}\n"


def _error_line(row: int, reject: Reject) -> dict[str, Any]:
    code, message = parse_reason(reject["reason"])
    if reject["file"] is not None:  # only unreadable lines come with their file
        code = Code.INVALID_LINE
    record = _object(reject["record"])
    value = record.get("custom_id", _object(record.get(TEXT.name)).get("custom_id"))
    custom_id = value if isinstance(value, str) and value else None
    number = reject["line"] if reject["line"] is not None else record.get(LINE.name)
    where = "" if number is None else f"line {number}: "
    return line_of(row, custom_id, error={"code": code.value, "message": where + message})


def _object(text: object) -> Mapping[str, Any]:
    """Return the JSON object in `text`; an empty one if there is none, or it has half a character."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
