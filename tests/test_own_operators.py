"""docs/own_operators.md and docs/python.md do what they say: a user's file beside the job is found from any directory
and noticed when it changes; the blocks run one after the other."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline import PROJECT as ROOT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.pipeline.command_line import ended

pytestmark = pytest.mark.slow("runs what the pages show")

FILE = re.compile(r"`(\w+\.(?:py|yaml))`[^\n]*:\n\n```\w+\n(.*?)```", re.S)
TEXTS = ["one", "an elephant went by", "of a to", "the quick fox", None]


def documented() -> dict[str, str]:
    text = (ROOT / "docs/own_operators.md").read_text(encoding="utf-8")
    return {
        name: re.sub(r"(?m)^  - override /flow: null\n|^defaults:\n", "", body) for name, body in FILE.findall(text)
    }


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """The files of the document in a directory, and another one to work in."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for name, text in documented().items():
        (mine / name).write_text(text)
    (mine / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield mine
    for name in ("my_operators", "my_functions"):
        sys.modules.pop(name, None)


def run(folder: Path, *arguments: str) -> int:
    # A process of its own would import the files anew.
    for name in ("my_operators", "my_functions"):
        sys.modules.pop(name, None)
    job, data = folder / "my_job.yaml", folder / "texts.jsonl"
    return main([f"job={job}", f"data.path={data}", f"output_dir={folder.parent}/out", "progress=none", *arguments])


def test_the_documented_job_runs_and_changed_code_is_another_job(folder, capsys):
    assert set(documented()) == {"my_functions.py", "my_operators.py", "my_job.yaml"}
    assert run(folder) == ExitCode.DONE
    rows = pq.read_table(folder.parent / "out/data").to_pylist()
    assert [(r["row"], r["words"], r["longest"]) for r in rows] == [(1, 4, "elephant"), (3, 3, "quick")]
    rejects = pq.read_table(folder.parent / "out/rejects").to_pylist()
    assert [(r["row"], r["node"], r["kind"], r["reason"]) for r in rejects] == [
        (0, "count", "filtered", "fewer than 2 words"),
        (2, "longest", "filtered", "longest_word returned nothing"),
        (4, "count", "filtered", "fewer than 2 words"),
    ]
    for name in ("my_operators", "my_functions"):
        with (folder / f"{name}.py").open("a") as file:
            file.write("# changed\n")
    assert run(folder) == ExitCode.CONFIG
    message = capsys.readouterr().err
    assert "my_operators.py, code of the node 'count', has changed" in message
    assert "my_functions.py, code of the node 'longest', has changed" in message


def test_a_file_whose_name_is_taken_is_found_out(folder, capsys):
    """`code` is a module of Python's own, which comes first."""
    (folder / "code.py").write_text((folder / "my_operators.py").read_text())
    assert run(folder, "nodes.count.op._target_=code.WordCount") == ExitCode.CONFIG
    message = capsys.readouterr().err
    assert re.search(r"module 'code' \(\S+code.py\) has no 'WordCount'; a file beside the job comes after", message)


def test_the_blocks_of_the_page_run_in_their_order(tmp_path):
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 7
    checks = [
        "assert result.counts['data_rows'] == 4",
        "assert result.rows().collect()['prompt'].to_list()[1] == 'What is 2 + 3?'",
        "assert table.num_rows == dataset.num_rows == len(answered) == 1",
        "assert len(swept.results) == 4 and best in str(swept) and compared.paired['run'].n_unique() == 3",
        "assert result.rows().collect()['verdict'].item() in ('yes', 'no')",
        "assert (row := result.rows().collect().row(0, named=True))['loud'] == row['reply'].upper()",
        "assert result.counts['data_rows'] == 16 and started.done()",
    ]
    parts = ["from tests.reports import write_none; write_none()"]
    parts += [part for pair in zip(blocks, checks, strict=True) for part in pair]
    ran = ended(tmp_path, sys.executable, "-c", "\n".join(parts))
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "outputs/mine/input.parquet").is_file()
    assert (tmp_path / "pairs.yaml").is_file()
    assert "the results go to" in ran.stderr
