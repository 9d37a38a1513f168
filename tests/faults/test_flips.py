"""A bit that flips in any file of a finished run: `verify` finds it, or the file is one that the docs name."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.api.errors import ConfigError
from pipeline.cli.verify import main as verify
from pipeline.run_dir import metrics_files
from tests.faults import toy

pytestmark = pytest.mark.faults

NOT_LOOKED_AT = ("run.log", "report.html", "status.json", "README.md", "autotune.json", ".lock")
"""As in docs/reliability.md."""
FLIPS = 8
"""In each file."""


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "out"
    assert forks.run("tests.faults.toy:run", str(directory)).code == 0
    return directory


def content(path: Path) -> object:
    """What a reader has of a file of which not every byte is content."""
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as db:
            return list(db.iterdump())
    return [table.to_pylist() for table in metrics_files.read([path], metrics_files.union([path]))]


def test_it_is_found_or_changes_nothing(whole, tmp_path, matrix):
    rng = random.Random(1)
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    found = 0
    for name in sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file()):
        if name.name in NOT_LOOKED_AT:
            continue
        path, before = out / name, (whole / name).read_bytes()
        for bit in rng.sample(range(8 * len(before)), FLIPS):
            changed = bytearray(before)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            try:
                seen = verify([str(out)]) != 0
            except ConfigError:  # of another version, or no run
                seen = True
            found += seen
            may_differ = path.suffix == ".sqlite" or name.parts[0] == "metrics"
            assert seen or (may_differ and content(path) == content(whole / name)), (name, bit)
            for side in out.glob(f"{name.name}-*"):
                side.unlink()
        path.write_bytes(before)
    matrix.saw(flips_found=found, rows=toy.ROWS)
