"""What docs/data.md tells people to type works, and it names every key and every extension."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import polars as pl
import pytest

from operators.formats.input_file import CODECS
from operators.formats.registry import ENDINGS
from operators.rows.arrow_types import SCALARS
from operators.settings import DataSettings
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from tests.test_readme import run

pytestmark = pytest.mark.slow("runs the commands of the page")

PAGE = (PROJECT / "docs/data.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
NEEDS = {"outputs/quickstart": "job=quickstart"}
"""What a command reads that another one of the page makes."""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A directory with the files that the page takes for granted."""
    monkeypatch.chdir(tmp_path)
    prompts = pl.DataFrame({"id": ["a", "b"], "prompt": ["What is 2 plus 3?", "Reverse this list: fox, hen"]})
    prompts.rename({"prompt": "question"}).write_csv("prompts.csv")
    prompts.write_ndjson("prompts.jsonl")
    prompts.write_ndjson("more.jsonl.gz", compression="gzip")
    Path("parts").mkdir()
    Path("folder").mkdir()
    prompts.write_parquet("parts/one.parquet")
    prompts.write_parquet("folder/train.parquet")
    plain = [[{"role": "user", "content": text}] for text in prompts["prompt"]]
    parts = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in prompts["prompt"]]
    for name, conversations in (("chats", plain), ("mixed", plain + parts)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in conversations))
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    Path("tools.json").write_text(json.dumps([tool]))
    return tmp_path


def test_there_is_something_to_run():
    assert len(COMMANDS) > 8


@pytest.mark.parametrize("command", [c for c in COMMANDS if "job=quickstart" not in c])
def test_a_command_of_the_page_works(here, command):
    for path, job in NEEDS.items():
        if path in command:
            assert run(next(c for c in COMMANDS if job in c)) == ExitCode.DONE
    assert run(command) == ExitCode.DONE


def test_it_names_every_extension_and_type():
    known = [*ENDINGS, *CODECS, *SCALARS]
    assert [name for name in known if f"`{name}`" not in PAGE] == []


def test_it_names_every_key():
    keys = {f"data.{f.name}" for f in fields(DataSettings)} - {"data.id_column"}  # of seeds, not of files
    assert [key for key in sorted(keys) if f"`{key}" not in PAGE and f"{key}=" not in PAGE] == []
