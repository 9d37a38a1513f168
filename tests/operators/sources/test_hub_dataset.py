"""data.dataset: configurations and splits of a dataset, as files; here in a folder laid out like one of the Hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from operators.settings import DataSettings
from operators.sources.files import find_files
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, ExitCode, InputError, PipelineError
from pipeline.cli.main import main
from tests.operators.sources.reading import drain

CARD = """---
configs:
- config_name: english
  data_files:
  - {split: train, path: en/train-*.jsonl}
  - {split: test, path: en/test.jsonl}
- config_name: german
  data_files: [{split: train, path: de.csv}]
---
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three rows in two files of the training split, one of the test split, one in German."""
    root = tmp_path / "hub"
    (root / "en").mkdir(parents=True)
    (root / "README.md").write_text(CARD)
    for name, prompts in (("train-0", ["a", "b"]), ("train-1", ["c"]), ("test", ["t"])):
        (root / f"en/{name}.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    (root / "de.csv").write_text("prompt\nd\n")
    return root


def prompts(folder: Path, seek: int = 0, **data: Any) -> list[str]:
    op = ReadPrompts(DataSettings(dataset=str(folder), **data), 2)
    return [row["prompt"] for row in drain(op, 2, seek).values]


def test_a_split_of_a_configuration_is_read_and_resumed(folder) -> None:
    assert prompts(folder, config="english") == ["a", "b", "c"]
    assert prompts(folder, config="english", seek=1) == ["c"]
    assert prompts(folder, config="english", split="test") == ["t"]
    assert prompts(folder, config="german") == ["d"]


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"config": "english", "split": "dev"}, ConfigError, "data.split=dev is no split of .*; it has train, test"),
        ({"config": "french"}, ConfigError, "data.config=french: .*french.* not found. Available"),
        ({}, InputError, "[Cc]onfig name is missing"),
        ({"config": "german", "path": "x.csv"}, ConfigError, "both data.path and data.dataset are set; keep one"),
    ],
)
def test_what_is_not_there_is_told(folder, settings, error, says) -> None:
    with pytest.raises(error, match=says):
        find_files(DataSettings(dataset=str(folder), **settings))


def test_files_that_hold_no_rows_are_told_and_others_may_have_any_name(tmp_path) -> None:
    for folder, name in (("texts", "train.txt"), ("rows", "train.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text('{"prompt": "x"}\n')
    with pytest.raises(InputError, match="made of files of the kind 'text'; those read are parquet, json, csv"):
        find_files(DataSettings(dataset=str(tmp_path / "texts")))
    assert [file.format for file in find_files(DataSettings(dataset=str(tmp_path / "rows")))] == ["json"]


def test_a_folder_that_is_none_is_told(tmp_path) -> None:
    with pytest.raises(PipelineError, match=r"data.dataset=.*nowhere"):
        find_files(DataSettings(dataset=str(tmp_path / "nowhere")))


def test_without_the_package_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"needs datasets .*: run pip install -e '\.\[datasets\]'"):
        find_files(DataSettings(dataset="owner/name"))


def test_the_group_hf_runs_a_job(folder, tmp_path) -> None:
    given = ["data=hf", f"data.dataset={folder}", "data.config=german", f"output_dir={tmp_path / 'out'}"]
    assert main(["job=generate", "model=fake", *given, "sampling.max_tokens=1", "progress=none"]) == ExitCode.DONE
