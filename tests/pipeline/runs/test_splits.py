"""Runs with quotas and splits: what breaks a run off, repairs or publishes it does not show."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from operators.settings import OutputSettings
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.config.build import build_graph
from pipeline.python.result import load
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.squares import breaks, files, job, run

QUOTA = 4
SHARES = {"train": 0.6, "test": 0.4}


def divided(directory: Path, square: dict[str, Any] | None = None, **output: Any) -> JobSettings:
    settings = OutputSettings(**{"split_by": "split", **output})
    write = {"_target_": "operators.sinks.write_rows.WriteRows", "output": settings}
    made = job(directory, square=square, write=write, output=settings, max_error_rate=1.0)
    nodes, last = {name: made.nodes[name] for name in ("numbers", "square")}, "square"
    middle: dict[str, dict[str, Any]] = {
        "kinds": {"_target_": "operators.map.Map", "columns": {"kind": "x % 7"}},
        "quota": {"_target_": "operators.sample_rows.Sample", "per": "kind", "rows": QUOTA},
        "divide": {"_target_": "operators.assign.Assign", "split": SHARES, "group": "kind"},
    }
    for name, op in middle.items():
        nodes[name], last = NodeSettings(op, last), name
    made.nodes = {**nodes, "write": NodeSettings(write, last)}
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("splits") / "out"
    assert run(divided(directory)) is ExitCode.DONE
    return directory


def test_rows_are_those_of_a_count_in_plain_python_in_the_files_of_their_splits(whole):
    found = load(whole).rows().collect()
    seen, wanted = Counter[int](), {}
    for x in range(45):
        kind = x % 7
        seen[kind] += 1
        digest = hashlib.blake2b(f"0|{json.dumps([kind])}".encode(), digest_size=8).digest()
        if seen[kind] <= QUOTA:
            wanted[x] = "train" if int.from_bytes(digest, "big") / 2**64 < SHARES["train"] else "test"
    assert dict(found.sort("x").select("x", "split").iter_rows()) == wanted
    for split in SHARES:
        parts = pl.read_parquet(whole / f"data/*-{split}.parquet")
        assert set(parts["split"]) == {split}
        assert parts.equals(found.filter(pl.col("split") == split))


def test_a_run_that_was_broken_off_ends_with_the_files_of_one_that_was_not(whole, tmp_path):
    settings = divided(tmp_path / "out", square=breaks(tmp_path))
    settings.max_open_chunks = 1
    assert run(settings) is ExitCode.FAILED
    assert (tmp_path / "out/data/part-00001-train.parquet").exists()
    (tmp_path / "broken").unlink()
    for name in ("part-00009-train.parquet", "part-00009-test.parquet.tmp"):
        (tmp_path / "out/data" / name).write_bytes(b"of a chunk that was not committed")
    assert run(settings) is ExitCode.DONE
    assert files(tmp_path / "out") == files(whole)


def test_a_file_of_a_split_is_made_again_and_published(whole, tmp_path):
    there = tmp_path / "there"
    assert run(divided(tmp_path / "out", publish=there.as_uri())) is ExitCode.DONE
    assert {k: v for k, v in files(there).items() if k.startswith("data/")} == {
        k: v for k, v in files(whole).items() if k.startswith("data/")
    }
    assert "path: data/*-train.parquet" in (there / "README.md").read_text()
    (lost, *_) = sorted((tmp_path / "out/data").glob("*-train.parquet"))
    lost.unlink()
    assert main(["verify", str(tmp_path / "out")]) == ExitCode.FAILED
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == files(whole)


def test_other_splits_are_another_run_and_a_sink_without_the_column_is_named(whole, tmp_path):
    settings = divided(whole)
    settings.nodes["divide"].op["split"] = dict(reversed(SHARES.items()))
    with pytest.raises(ConfigError, match=r'nodes\.divide\.order: "train, test" -> "test, train"'):
        run(settings)
    settings = divided(tmp_path / "out")
    settings.nodes["write"].inputs = ["quota"]
    del settings.nodes["divide"]
    with pytest.raises(ConfigError, match=r"write.*needs a column 'split'"):
        build_graph(settings)
