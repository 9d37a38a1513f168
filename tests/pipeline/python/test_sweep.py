"""Sweeps from Python: those of the command line, in its directories, with one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import Job, Progress, compare, load, sweep
from pipeline.api.errors import ConfigError, ExitCode, NodeFailed
from pipeline.cli.main import main
from pipeline.config.sweeps import key_and_value, typed
from tests.pipeline.command_line import OPS, here, write_job
from tests.pipeline.python.test_run import QUIET

pytestmark = pytest.mark.slow("runs whole jobs from Python")
__all__ = ["here"]  # the fixture: a directory with a job file of squares

VALUES: dict[str, list[Any]] = {"seed": [2, 1], "sampling.temperature": [0, 1.5], "sampling.stop_token_ids": [[], [3]]}
TYPED = ["seed=2,1", "sampling.temperature=0,1.5", "sampling.stop_token_ids=[],[3]"]


def places() -> list[str]:
    return sorted(path.name for path in Path("outputs").iterdir() if path.name != ".hydra")


def test_it_is_the_sweep_of_the_command_line(here):
    settings = {"sampling": "creative", "max_error_rate": 0.5}
    assert main(["job=squares.yaml", "sampling=creative", "max_error_rate=0.5", "-m", *TYPED]) == ExitCode.DONE
    typed_there, (path,) = places(), Path("outputs").glob("*.parquet")
    table = pl.read_parquet(path)
    found = sweep("squares.yaml", VALUES, settings, progress="none")
    assert places() == typed_there, "the same directories, in which all is done, and the same table"
    assert found.table().equals(table)
    assert found.path == path
    assert [run.metrics("run").collect().height for run in found.results if run is not None] == [1] * 8
    assert [load(Path(place)).counts["data_rows"] for place in found.table()["directory"]] == [25, 24] * 4
    assert found.table()["sampling.stop_token_ids"].to_list() == ["[]", "[3]"] * 4
    assert (found.outcome, found.errors) == (ExitCode.DONE, [None] * 8)
    assert str(path) in str(found).splitlines()[0]


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]))
PLAIN = TEXT | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)


@given(PLAIN | st.lists(PLAIN, max_size=3))
@example("0.5")
@example(["null", "a,b", "", "it's"])
def test_every_value_can_be_typed(value):
    assert key_and_value(typed("sampling.stop", value)) == ("sampling.stop", value)


def test_a_job_that_fails_hides_none_and_its_row_says_why(here, capsys):
    nodes = {
        "numbers": {"op": {"_target_": f"{OPS}.Numbers", "rows": 25}},
        "square": {"inputs": "numbers", "op": {"_target_": f"{OPS}.Square", "fail_at": 12, "broken": "broken"}},
        "write": {"inputs": "square", "op": {"_target_": f"{OPS}.Parquet"}},
    }
    write_job("fails", yaml.safe_dump({"nodes": nodes}))
    (here / "broken").touch()
    found = sweep("fails.yaml", {"nodes.square.op.fail_at": [99, 12], "chunk_rows": [5, 0]}, **QUIET)
    assert found.outcome is ExitCode.FAILED
    whole, refused, failed, refused_too = found.errors
    assert whole is None
    assert isinstance(refused, ConfigError)
    assert isinstance(failed, NodeFailed)
    assert isinstance(refused_too, ConfigError)
    assert found.results[1] is None
    assert found.results[3] is None
    assert found.results[2] is not None
    assert found.results[2].outcome is ExitCode.FAILED
    table = found.table()
    assert table["exit_code"].to_list() == [0, 2, 1, 2]
    assert table["data_rows"].to_list() == [25, None, found.results[2].counts["data_rows"], None]
    assert table["error"].to_list() == [None if error is None else str(error) for error in found.errors]
    (here / "broken").unlink()
    again = sweep("fails.yaml", {"nodes.square.op.fail_at": [99, 12], "chunk_rows": [5]}, **QUIET)
    assert again.table()["directory"].to_list() == table["directory"].gather([0, 2]).to_list()
    assert again.table()["data_rows"].to_list() == [25, 25]
    assert str(refused) in capsys.readouterr().err


def test_rows_and_a_job_built_in_python_are_swept(tmp_path):
    job = Job("asks", model="fake").step("answer", prompt="{{ n }}")
    told: list[Progress] = []
    rows = [{"n": n, "right": n > 0} for n in range(4)]
    values: dict[str, list[Any]] = {
        "sampling.max_tokens": [1, 3],
        "steps.answer.prompt": ["{{ n }}?", "Be exact, please: 'yes' or \"no\": {{ n }}"],
    }
    found = sweep(job, values, rows=rows, directory=tmp_path / "a/few", on_progress=told.append, **QUIET)
    assert found.outcome is ExitCode.DONE
    assert {Path(place).parent for place in found.table()["directory"]} == {tmp_path / "a"}
    assert found.table()["steps.answer.prompt"].to_list() == values["steps.answer.prompt"] * 2
    assert found.table()["mean_right"].to_list() == [0.75] * 4
    assert found.table()["mean_n"].to_list() == [1.5] * 4
    assert len({progress.directory for progress in told}) == 4
    compared = compare(*(run for run in found.results if run is not None))
    assert compared.paired["run"].unique(maintain_order=True).to_list() == ["B", "C", "D"]
    right = compared.paired.filter(pl.col("column") == "right").select("first", "other", "only_other", "p")
    assert right.rows() == [(0.75, 0.75, 0, 1.0)] * 3
    assert compared.figures.row(0) == ("rows done", 4.0, 4.0, 4.0, 4.0)


def test_what_on_progress_raises_ends_the_sweep(tmp_path):
    stopped = ValueError("enough")

    def stop(progress: Progress) -> None:
        raise stopped

    with pytest.raises(ValueError, match="enough") as caught:
        sweep("quickstart", {"seed": [1, 2]}, {"data.limit": 2}, directory=tmp_path / "out", on_progress=stop, **QUIET)
    assert caught.value is stopped
    assert len(list(tmp_path.glob("out-*"))) == 1


@pytest.mark.parametrize(
    ("values", "rows", "says"),
    [
        ({}, None, 'nothing is swept; give the values of a key, as {"seed": \\[1, 2\\]}'),
        ({"seed": 1}, None, "seed is swept over 1; give a list of values"),
        ({"model": "tiny"}, None, "model is swept over 'tiny'; give a list"),
        ({"seed": []}, None, "give a list of values"),
        ({"output_dir": ["a", "b"]}, None, "output_dir cannot be swept"),
        ({"seed": [1, 2]}, iter([]), "which only the first job could read; give a list"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(tmp_path, values, rows, says):
    with pytest.raises(ConfigError, match=says):
        sweep("quickstart", values, rows=rows, directory=tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
