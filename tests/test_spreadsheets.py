"""A run whose results are results.xlsx, as its user meets it: rows and rejects in it, what verify, a second command,
overwriting and a text that is too long do to it; and LibreOffice opens it, and CSV, with the same cells."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from openpyxl.utils.escape import unescape

from pipeline import load
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.system.failpoints import VARIABLE, Failpoint

PROMPTS = ["=1+1", "plain", "-5 degrees", "'quoted'", 'two\r\nlines, "and" more;', "", "é😀 007", "0042", " a ", "@x"]


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": text, "tags": [text, "b"], "n": i + 0.5 if i % 2 else None} for i, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(prompts: Path, out: Path, *settings: str) -> list[str]:
    fixed = ["job=generate", "model=fake", f"data.path={prompts}", f"output_dir={out}", "sampling.max_tokens=4"]
    fixed += ["chunk_rows=3", "progress=none", "runtime.threads=1", "max_error_rate=0.2"]
    return [*fixed, 'sampling.structured.regex="[ -~]{4}"', *settings]  # the fake model makes control characters


def run(prompts: Path, out: Path, *settings: str) -> int:
    return main(arguments(prompts, out, *settings))


def cells(path: Path, sheet: str = "results") -> list[dict[str, Any]]:
    """The rows of a sheet; None where it has no cell."""
    rows = [[_plain(cell.value) for cell in row] for row in openpyxl.load_workbook(path)[sheet].iter_rows()]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def test_a_run_leaves_results_xlsx_which_verify_and_the_same_command_leave_alone_or_make_again(
    prompts, tmp_path, capsys
) -> None:
    out, book = tmp_path / "out", tmp_path / "out/results.xlsx"
    assert run(prompts, out, "output=xlsx") == ExitCode.DONE
    assert f"spreadsheet {book}" in capsys.readouterr().out
    results = load(out)
    rows = results.rows().collect().to_dicts()
    wanted = [row | {"tags": json.dumps(row["tags"], ensure_ascii=False)} for row in rows]
    assert cells(book) == [
        {key: str(v) if type(v) is int and v > 1 << 53 else v for key, v in row.items()} for row in wanted
    ]
    (reject,) = cells(book, "rejects")
    assert (reject["row"], reject["kind"], reject["node"]) == (5, "error", "render")
    made = book.read_bytes()
    assert main(["verify", str(out)]) == ExitCode.DONE
    assert run(prompts, out, "output=xlsx") == ExitCode.DONE
    assert book.read_bytes() == made
    book.write_bytes(b"edited in Excel")
    assert main(["verify", str(out)]) == ExitCode.DONE
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert run(prompts, out, "output=xlsx") == ExitCode.DONE
    assert book.read_bytes() == b"edited in Excel"
    book.unlink()
    assert run(prompts, out, "output=xlsx") == ExitCode.DONE
    assert book.read_bytes() == made
    assert run(prompts, out, "output=csv", "output.defuse=true", "overwrite=true") == ExitCode.DONE
    assert not book.exists()
    assert load(out).rows().collect()["prompt"].to_list() == [row["prompt"] for row in rows]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 40_000, "is 40,000 long (in UTF-16), and a cell holds 32,767"),
        ("red \x1b[31m", "has the character U+001B (number 5), which no Excel file can hold"),
    ],
)
def test_a_text_that_no_cell_holds_loses_no_row_and_csv_takes_them_from_the_store(tmp_path, capsys, text, why) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps({"prompt": "a", "odd": value}) + "\n" for value in ("b", text)))
    for _ in range(2):
        assert run(path, out, "output=xlsx") == ExitCode.FAILED
        assert f"in row 1 the text of column 'odd' {why}" in " ".join(capsys.readouterr().err.split())
        assert load(out).rows().collect()["odd"].to_list() == ["b", text]
        assert not list(out.glob("*.xlsx*"))
    assert run(path, out, "output=csv", "overwrite=true") == ExitCode.DONE
    assert load(out).rows().collect()["odd"].to_list() == ["b", text]


@pytest.mark.laws
@pytest.mark.parametrize("form", ["csv", "xlsx"])
def test_a_run_that_is_killed_between_any_two_files_goes_on_to_the_same_bytes(prompts, tmp_path, form) -> None:
    settings = (f"output={form}", "output.defuse=true", "report=false")
    assert run(prompts, tmp_path / "whole", *settings) == ExitCode.DONE
    command = [sys.executable, "-c", "import sys; from pipeline.cli.main import main; sys.exit(main(sys.argv[1:]))"]
    command += arguments(prompts, tmp_path / "out", *settings)
    at = [f"{Failpoint.SHARD_RENAMED}:3", *(f"{Failpoint.FILE_WRITTEN}:{nth}" for nth in (3, 4, 5))]
    killed = [subprocess.run(command, env=os.environ | {VARIABLE: each}, check=False).returncode < 0 for each in at]
    assert sum(killed) > 3
    assert run(prompts, tmp_path / "out", *settings) == ExitCode.DONE
    assert results_of(tmp_path / "out") == results_of(tmp_path / "whole")


def results_of(out: Path) -> dict[str, bytes]:
    found = {path for pattern in ("data/*", "rejects/*", "results*", ".results*") for path in out.glob(pattern)}
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in found}


@pytest.mark.laws
@pytest.mark.skipif(shutil.which("soffice") is None, reason="LibreOffice (soffice) is not installed")
@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        (("output=xlsx",), False),
        (("output=csv", "output.bom=true"), True),
        (("output=csv", "output.defuse=true"), False),
    ],
)
def test_libreoffice_opens_the_results_with_the_same_cells(prompts, tmp_path, settings, texts) -> None:
    """`texts`: all columns of CSV are opened as texts. Else LibreOffice says which texts are numbers (0042 and long
    whole numbers); it would run =1+1, but for the marks."""
    out = tmp_path / "out"
    assert run(prompts, out, *settings) == ExitCode.DONE
    rows = load(out).rows().collect().to_dicts()
    columns = "/".join(f"{i + 1}/{2 if texts else 1}" for i in range(len(rows[0])))
    files = [out / "results.xlsx"] if "output=xlsx" in settings else sorted((out / "data").iterdir())
    found = [row for file in files for row in opened(file, columns, tmp_path)]
    defused = "output.defuse=true" in settings
    for row, kept in zip(found, rows, strict=True):
        for name, value in kept.items():
            wanted = _shown(value, marks=defused)
            assert row[name] == wanted or (defused and math.isclose(float(row[name]), float(wanted), rel_tol=1e-14))


def opened(file: Path, columns: str, folder: Path) -> list[dict[str, str]]:
    """The rows of a file as LibreOffice has them: comma, quote, UTF-8, from line 1."""
    home, plain = f"-env:UserInstallation=file://{folder}/home", "44,34,76,1"
    read_as = [] if file.suffix == ".xlsx" else [f"--infilter=CSV:{plain},{columns}"]
    command = ["soffice", home, "--headless", *read_as, "--convert-to", f"csv:Text - txt - csv (StarCalc):{plain}"]
    subprocess.run([*command, "--outdir", folder / "made", file], check=True, capture_output=True, timeout=240)
    with (folder / "made" / f"{file.stem}.csv").open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def _shown(value: Any, *, marks: bool) -> str:
    """A value as LibreOffice writes its cell, where line breaks are LF."""
    if isinstance(value, str) and marks and value.startswith(("=", "-", "@", "'")):
        value = f"'{value}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else "" if value is None else str(value)
    return text.replace("\r\n", "\n")


def _plain(value: Any) -> Any:
    """A value as Excel has it: a carriage return is spelt out in the file."""
    return unescape(value) if isinstance(value, str) else value
