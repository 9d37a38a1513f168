"""Memory does not grow with the number of rows, measured on a real run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.images.columns import IMAGE
from operators.sinks.write_rows import WriteRows
from pipeline import PROJECT
from pipeline.api.records import Batch, Output
from tests.operators.images.files import encoded, png

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


def seen_in(out: Path, *settings: str) -> list[tuple[int, int]]:
    """The samples of a run."""
    command = [sys.executable, "-m", "pipeline", *SETTINGS, f"output_dir={out}", *settings]
    environment = os.environ | FREED_IS_GIVEN_BACK
    with psutil.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL) as process:
        seen = list(samples(process, out / "data"))
    assert process.returncode == 0
    return seen


def growth_bytes(directory: Path, rows: int, *settings: str) -> int:
    """How much more a run holds at 100 % of its rows than at 20 %."""
    given, chunks = prompts(directory / "prompts.parquet", rows), -(-rows // CHUNK_ROWS)
    seen = seen_in(directory / "out", f"data.path={given}", f"chunk_rows={CHUNK_ROWS}", *settings)
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


def small_files(folder: Path) -> str:
    """10,000 files of 1 KB, of which each is 48 KB of pixels."""
    side, files = 128, folder / "files"
    files.mkdir()
    for i in range(10_000):
        rows = np.zeros((side, 1 + 3 * side), np.uint8)
        rows[0, 1:3] = divmod(i, 256)
        (files / f"{i:05d}.png").write_bytes(png(side, side, 8, 2, rows.tobytes()))
    return str(files)


def large_bytes(folder: Path) -> str:
    """1,000 rows with images of 200 KB."""
    schema = pa.schema([("image", IMAGE)])
    with pq.ParquetWriter(folder / "images.parquet", schema) as writer:
        for i in range(1000):
            noise = np.random.default_rng(i).integers(0, 256, (256, 256, 3), np.uint8)
            content = encoded(noise, "PNG", compress_level=0)
            writer.write_table(pa.Table.from_pylist([{"image": {"bytes": content, "path": None}}], schema))
    return str(folder / "images.parquet")


@pytest.mark.laws
@pytest.mark.parametrize(("images", "chunks"), [(small_files, 20), (large_bytes, 40)])
def test_memory_is_flat_over_all_images(tmp_path, images, chunks):
    """The most that is held after a tenth of the rows, and until then: at the end large rows have gone already."""
    rows = 10_000 if images is small_files else 1000
    eyes = ("model.mmproj=eyes", "data.image_column=image", "data.prompt_template=What?", "runtime.image_mb=16")
    few = ("runtime.slots=32", "runtime.lookahead_rows=32", f"chunk_rows={rows // chunks}")
    seen = seen_in(tmp_path / "out", f"data.path={images(tmp_path)}", *eyes, *few)
    early, late = (max(held for done, held in seen if (done > chunks / 10) == is_late) for is_late in (False, True))
    assert late - early < MARGIN_BYTES
