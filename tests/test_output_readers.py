"""What a run writes is read by Polars and by datasets, in each format, from data/ and by the card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants
import polars as pl
import pyarrow as pa
import pytest
import yaml

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import read_results
from pipeline.system.failpoints import VARIABLE, Failpoint
from pipeline.system.result_files import scan_folder
from tests.operators.formats.samples import read_back
from tests.pipeline.squares import files
from tests.sets import often

ROWS = 24
FORMATS = {
    "parquet": (),
    "jsonl": ("output=jsonl",),
    "jsonl.gz": ("output=jsonl", "output.compression=gzip"),
    "jsonl.zst": ("output=jsonl", "output.compression=zstd", "output.compression_level=9"),
    "arrow": ("output=arrow",),
    "csv": ("output=csv",),
    "defused.csv.gz": ("output=csv", "output.defuse=true", "output.compression=gzip", 'output.separator=";"'),
}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt": "" if i == ROWS else f"{'=' * (i % 2)}prompt {i} é", "meta": {"n": i, "tags": ["a", "b"][: i % 3]}}
        for i in range(ROWS + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(prompts: Path, out: Path, *settings: str) -> int:
    return main(arguments(prompts, out, *settings))


def arguments(prompts: Path, out: Path, *settings: str) -> list[str]:
    job = () if any(word.startswith("job=") for word in settings) else ("job=generate",)
    fixed = [*job, "model=fake", f"data.path={prompts}", f"output_dir={out}", "sampling.max_tokens=4"]
    fixed += ["chunk_rows=10", "progress=none", "runtime.threads=1", "output.card=true", "max_error_rate=0.1"]
    return [*fixed, *settings]


@pytest.fixture(scope="module")
def made(prompts, tmp_path_factory) -> dict[str, Path]:
    """A finished run in each format."""
    folder = tmp_path_factory.mktemp("made")
    for suffix, settings in FORMATS.items():
        assert run(prompts, folder / suffix, *settings) == ExitCode.DONE
    return {suffix: folder / suffix for suffix in FORMATS}


def columns(out: Path) -> dict[str, str]:
    """What the manifest says of data/; Parquet calls the items of a list elements."""
    found: dict[str, str] = json.loads((out / "manifest.json").read_text())["schema"]["data"]
    return {name: kind.replace("<element:", "<item:") for name, kind in found.items()}


def rows(frame: pl.LazyFrame) -> list[dict[str, Any]]:
    return frame.collect().to_dicts()


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_has_the_same_rows_and_the_state_knows_its_columns(made, suffix):
    out = made[suffix]
    assert sorted(p.name for p in (out / "data").iterdir()) == [f"part-{k:05d}.{suffix}" for k in range(3)]
    results, form = read_results(out), "csv" if "csv" in suffix else suffix
    found = rows(scan_folder(out / "data", results.manifest["schema"]["data"]))
    assert len(found) == ROWS
    read, rejects, those = results.rows("data"), results.rejects(), read_results(made["parquet"]).rejects()
    assert read is not None
    assert rejects is not None
    assert those is not None
    assert found == read_back(rows(scan_folder(made["parquet"] / "data")), form.partition(".")[0]) == rows(read)
    assert rows(rejects) == read_back(rows(those), form.partition(".")[0])
    assert [p.name for p in (out / "rejects").iterdir()] == [f"part-00002.{suffix if form == 'csv' else 'parquet'}"]
    assert columns(out) == columns(made["parquet"])


@pytest.mark.parametrize("suffix", often(["jsonl.gz", "arrow", "defused.csv.gz"], "jsonl.gz"))
def test_a_damaged_file_of_another_format_is_made_again_with_the_same_bytes(prompts, tmp_path, made, suffix):
    out = tmp_path / "out"
    assert run(prompts, out, *FORMATS[suffix]) == ExitCode.DONE
    shard = out / f"data/part-00001.{suffix}"
    before = shard.read_bytes()
    assert before == (made[suffix] / f"data/part-00001.{suffix}").read_bytes()
    shard.write_bytes(before[:-3])
    assert main(["verify", str(out)]) == ExitCode.FAILED
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert shard.read_bytes() == before


def test_polars_scans_the_folder_data(made):
    assert pl.scan_parquet(f"{made['parquet']}/data/").collect().height == ROWS
    assert pl.scan_ipc(f"{made['arrow']}/data/").collect().height == ROWS
    assert pl.scan_ndjson(made["jsonl"] / "data/*.jsonl").collect().height == ROWS


@pytest.fixture(scope="module")
def load_dataset():
    """Offline by what the packages read once; their variables would hold for every later test of the process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        yield datasets.load_dataset


@pytest.mark.parametrize("suffix", often(["parquet", "jsonl.gz", "arrow", "csv"], "jsonl.gz"))
def test_datasets_loads_the_folder_data_and_the_whole_by_its_card(made, suffix, load_dataset, tmp_path):
    """Of CSV an empty text is a null, as pandas has it."""
    wanted = read_back(rows(scan_folder(made["parquet"] / "data")), "csv" if suffix == "csv" else "parquet")
    if suffix == "csv":
        wanted = [{name: None if value == "" else value for name, value in row.items()} for row in wanted]
    for folder in (made[suffix], made[suffix] / "data"):
        loaded = load_dataset(str(folder), cache_dir=str(tmp_path / "cache"), split="train")
        assert loaded.to_list() == wanted


SINKS = """
defaults: [override /flow: generate]
nodes:
  second:
    inputs: render
    op: {_target_: operators.sinks.write_rows.WriteRows, output: {}, directory: second}
  lines:
    inputs: render
    op: {_target_: operators.sinks.write_rows.WriteRows, output: {format: jsonl}, directory: lines}
"""


def test_a_second_sink_is_a_part_of_the_dataset_of_its_own(prompts, load_dataset, tmp_path):
    job = tmp_path / "sinks.yaml"
    job.write_text(SINKS)
    assert run(prompts, tmp_path / "out", f"job={job}") == ExitCode.DONE
    for name, column in (("default", "completion"), ("second", "prompt")):
        loaded = load_dataset(str(tmp_path / "out"), name, cache_dir=str(tmp_path / "cache"), split="train")
        folder = tmp_path / "out/data" / ("" if name == "default" else name)
        assert loaded[column] == scan_folder(folder).collect()[column].to_list()
        assert len(loaded) == ROWS
    front = yaml.safe_load((tmp_path / "out/README.md").read_text().split("---\n")[1])
    assert [config["config_name"] for config in front["configs"]] == ["default", "second"]  # of one format


SPLITS = """
defaults: [override /flow: generate]
nodes:
  divide:
    inputs: generate
    op: {_target_: operators.assign.Assign, split: {train: 0.5, my_test: 0.3, test: 0.2}, group: prompt}
  write: {inputs: divide}
output: {split_by: split}
"""


@pytest.mark.parametrize("suffix", often(["parquet", "jsonl.gz", "arrow", "csv"], "jsonl.gz"))
def test_datasets_loads_splits_by_name(prompts, made, load_dataset, suffix, tmp_path):
    """They have the rows that one file a chunk has."""
    job = tmp_path / "splits.yaml"
    job.write_text(SPLITS)
    assert run(prompts, tmp_path / "out", f"job={job}", *FORMATS[suffix]) == ExitCode.DONE
    loaded = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"train", "my_test", "test"}
    found = [row for name, each in loaded.items() for row in each if row["split"] == name]
    frame = rows(scan_folder(made[suffix] / "data", read_results(made[suffix]).manifest["schema"]["data"]))
    assert sorted(row["row"] for row in found) == [row["row"] for row in frame]
    assert sum(len(each) for each in loaded.values()) == len(found)
    assert {row["row"]: row["completion"] or "" for row in found} == {row["row"]: row["completion"] for row in frame}
    card = (tmp_path / "out/README.md").read_text()
    assert all(f"| of these in the split `{name}` | {len(each)} |" in card for name, each in loaded.items())


@pytest.mark.laws
def test_a_run_that_is_killed_between_the_files_of_two_splits_goes_on_to_the_same_bytes(prompts, tmp_path):
    job = tmp_path / "splits.yaml"
    job.write_text(SPLITS)
    assert run(prompts, tmp_path / "whole", f"job={job}") == ExitCode.DONE
    command = [sys.executable, "-c", "import sys; from pipeline.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    command += arguments(prompts, tmp_path / "out", f"job={job}")
    at = [f"{Failpoint.SHARD_FSYNCED}:2", *(f"{Failpoint.SHARD_RENAMED}:{nth}" for nth in (1, 2, 4))]
    ended = [subprocess.run(command, env=os.environ | {VARIABLE: each}, check=False).returncode for each in at]
    assert ended == [-signal.SIGKILL] * 4
    assert run(prompts, tmp_path / "out", f"job={job}") == ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert (tmp_path / "out/README.md").read_bytes() == (tmp_path / "whole/README.md").read_bytes()


def test_an_arrow_file_can_be_memory_mapped(made):
    before = pa.total_allocated_bytes()
    with pa.memory_map(str(made["arrow"] / "data/part-00000.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
        assert table.num_rows == 10
        assert pa.total_allocated_bytes() == before
