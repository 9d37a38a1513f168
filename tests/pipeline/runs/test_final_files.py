"""Files at the end of a run: there when it is done, gone while it is not, made again when one is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.protocols import Concludes
from pipeline.api.runtime import Resources
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.job_ops import Parquet

OPS = "tests.pipeline.job_ops"
TOTAL = "total.txt"


class Totalling(Parquet, Concludes):
    """Says how many files there are, unless the file `broken` is there."""

    concluded = (TOTAL, "second.txt")
    broken: Path | None = None

    def conclude(self, directory: Path) -> None:
        if self.broken is not None and self.broken.exists():
            (directory / TOTAL).write_text("half")
            raise RuntimeError("as the test wants it")
        for name in self.concluded:
            (directory / name).write_text(str(len(list((directory / "data").iterdir()))))


def run(directory: Path, rows: int = 45, *, overwrite: bool = False) -> ExitCode:
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": rows}),
        "write": NodeSettings({"_target_": f"{__name__}.Totalling"}, "numbers"),
    }
    settings = JobSettings(name="totals", nodes=nodes, output_dir=str(directory), progress="none", overwrite=overwrite)
    return run_job(settings, Resources())


@pytest.fixture
def broken(tmp_path, monkeypatch) -> Iterator[Path]:
    path = tmp_path / "broken"
    path.touch()
    monkeypatch.setattr("tests.pipeline.runs.test_final_files.Totalling.broken", path)
    return path


def test_they_are_made_when_everything_is_committed(tmp_path):
    assert run(tmp_path / "out") is ExitCode.DONE
    assert (tmp_path / "out" / TOTAL).read_text() == "5"


def test_a_run_that_fails_while_it_makes_them_is_not_done_and_the_next_one_makes_them(tmp_path, broken):
    out = tmp_path / "out"
    assert run(out) is ExitCode.FAILED
    broken.unlink()
    assert run(out) is ExitCode.DONE
    assert (out / TOTAL).read_text() == "5"


def test_those_of_another_run_are_gone_before_the_first_row(tmp_path, broken):
    out = tmp_path / "out"
    broken.rename(tmp_path / "later")
    assert run(out) is ExitCode.DONE
    (tmp_path / "later").rename(broken)
    assert run(out, rows=25, overwrite=True) is ExitCode.FAILED
    assert not (out / "second.txt").exists()


def test_a_finished_run_makes_one_again_that_is_lost_and_says_so(tmp_path, capsys):
    out = tmp_path / "out"
    run(out)
    (out / TOTAL).unlink()
    assert run(out) is ExitCode.DONE
    assert (out / TOTAL).read_text() == "5"
    assert "total.txt had gone" in capsys.readouterr().out
    run(out)
    assert "had gone" not in capsys.readouterr().out
