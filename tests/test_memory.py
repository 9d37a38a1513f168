"""Memory does not grow with the number of rows, measured on a real run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.sinks.write_rows import WriteRows
from pipeline import PROJECT
from pipeline.api.records import Batch, Output

pytestmark = pytest.mark.slow("runs long jobs and measures their memory")

CHUNK_ROWS = 4096
MARGIN_BYTES = 48 << 20
NOTES = 160_000_000
"""Characters of a column that is carried along: to keep 80 % of the rows would cost twice the margin. The prompts stay
short."""
SETTINGS = (
    "job=generate",
    "model=fake",
    "sampling.max_tokens=2",
    "runtime.slots=255",
    "runtime.n_ubatch=2048",
    "runtime.lookahead_rows=1024",
    "store.enabled=false",
    f"chunk_rows={CHUNK_ROWS}",
    "progress=none",
    "report=false",
)
FREED_IS_GIVEN_BACK = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "1000000",
}
"""RSS is then what is in use, without what allocators keep for later (glibc; elsewhere the margin must do)."""


class Hoarder(WriteRows):
    """A sink that forgets to forget."""

    kept: list[Batch] = []  # noqa: RUF012 - shared on purpose: nothing lets go of it

    def process(self, batch: Batch) -> Iterable[Output]:
        self.kept.append(batch)
        return super().process(batch)


def prompts(path: Path, count: int) -> Path:
    schema = pa.schema([("prompt", pa.string()), ("note", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, count, 10_000):
            rows = range(first, first + 10_000)
            notes = [f"{row:0{NOTES // count}}" for row in rows]
            writer.write_table(pa.table([[f"row {row}" for row in rows], notes], schema=schema))
    return path


def samples(process: psutil.Popen, data: Path) -> Iterator[tuple[int, int]]:
    """(committed chunks, bytes in use) as often as it pays, until the process ends.

    Chunks are counted by their files: status.json says the rows too, but only once a second.
    """
    while process.poll() is None:
        chunks = len(list(data.glob("part-*.parquet")))
        try:
            in_use = process.memory_info().rss
        except psutil.Error:
            return
        if in_use:  # nothing: it has ended and is not waited for yet
            yield chunks, in_use
        time.sleep(0.01)


def growth_bytes(directory: Path, rows: int, *settings: str) -> int:
    """How much more a run holds at 100 % of its rows than at 20 %."""
    given, out, chunks = prompts(directory / "prompts.parquet", rows), directory / "out", -(-rows // CHUNK_ROWS)
    command = [sys.executable, "-m", "pipeline", *SETTINGS, f"data.path={given}", f"output_dir={out}", *settings]
    environment = os.environ | FREED_IS_GIVEN_BACK
    with psutil.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL) as process:
        seen = list(samples(process, out / "data"))
    assert process.returncode == 0
    early = next(in_use for done, in_use in seen if done >= chunks // 5)
    late = next(in_use for done, in_use in seen if done == chunks)
    return late - early


@pytest.mark.parametrize("rows", [40_000, pytest.param(100_000, marks=pytest.mark.laws)])
def test_memory_is_flat_over_all_rows(tmp_path, rows):
    assert growth_bytes(tmp_path, rows) < MARGIN_BYTES


@pytest.mark.laws  # of the test above
@pytest.mark.parametrize("rows", [40_000, 100_000])
def test_a_sink_that_keeps_its_rows_would_be_noticed(tmp_path, rows):
    keeps = f"nodes.write.op._target_={__name__}.Hoarder"
    assert growth_bytes(tmp_path, rows, keeps) > MARGIN_BYTES
