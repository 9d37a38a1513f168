"""The table of a sweep has the numbers of its runs, and shows what fits."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.compare import joined
from pipeline.results.figures import run_figures
from pipeline.results.reader import read_results
from pipeline.results.sweep_table import SweepTable, SweptRun, table_lines, table_of, write_table
from tests.pipeline.command_line import here
from tests.pipeline.results.test_compare import made, rows_of
from tests.pipeline.squares import job, run

__all__ = ["here"]


@pytest.mark.slow("runs the jobs of a sweep")
def test_its_numbers_are_those_of_each_run_and_a_job_that_fails_hides_none(here, capsys):
    sweep = ["job=squares.yaml", "-m", "sampling.stop_token_ids=[],[3]", "chunk_rows=10,0,20"]
    assert main(sweep) == ExitCode.CONFIG
    (path,) = Path("outputs").glob("sweep-squares-*.parquet")
    before, table = path.read_bytes(), pl.read_parquet(path)
    assert table["sampling.stop_token_ids"].to_list() == ["[]"] * 3 + ["[3]"] * 3
    assert table["chunk_rows"].to_list() == [10, 0, 20] * 2
    assert table["exit_code"].to_list() == [0, 2, 0, 3, 2, 3]
    ran = table.filter(pl.col("exit_code") != 2)
    assert ran["error"].is_null().all()
    refused = table.filter(pl.col("exit_code") == 2)
    assert refused["error"].str.starts_with("not run: its settings cannot work").all()
    assert refused.select("data_rows", "mean_x", "seconds", "directory").null_count().row(0) == (2, 2, 2, 2)
    for line in ran.iter_rows(named=True):
        results = read_results(Path(line["directory"]))
        assert line.items() >= {k: n for k, n in results.counts.items() if k in line}.items()
        figures = run_figures(results)
        assert line["seconds"] == figures["running time"].value
        assert (line["tokens_in"], line["tokens_out"]) == (
            figures["prompt tokens"].value,
            figures["completion tokens"].value,
        )
        paired = joined(results, results, "data")
        assert paired is not None
        assert {m.column: line[f"mean_{m.column}"] for m in paired.means} == {
            m.column: pytest.approx(m.mean_a) for m in paired.means
        }
    assert main(sweep) == ExitCode.CONFIG
    assert path.read_bytes() == before, "the same sweep, which finds its runs finished, has the same table"


def table(folder: Path) -> tuple[SweepTable, list[SweptRun]]:
    runs = [SweptRun({"seed": i, "model.system": "Be\nbrief."}, ExitCode.DONE, folder / f"x-{i}", True) for i in (0, 1)]
    for i in (0, 1):
        results = made(folder / f"x-{i}", [{**row, "tokens": 1 + i} for row in rows_of(i)])
        (folder / f"x-{i}/manifest.json").write_text(str(dict(results.manifest)).replace("'", '"'))
    return table_of(runs), runs


def test_means_are_over_rows_with_a_value_and_no_column_of_the_rows_is_in_the_way_of_a_setting(tmp_path):
    found, _ = table(tmp_path)
    assert found.frame["seed"].to_list() == [0, 1]
    assert found.frame["mean_correct"].to_list() == pytest.approx([4 / 5, 4 / 6])
    assert found.frame["mean_score"].to_list() == pytest.approx([7.5 / 4, (1.5 + 2 + 3 + 0.25) / 4])
    assert found.frame["mean_tokens"].to_list() == [1, 2]


def test_a_narrow_terminal_gets_the_settings_and_the_places(tmp_path):
    found, _ = table(tmp_path)
    wide = table_lines(found, None)
    assert wide[0].split() == ["exit", "seed", "model.system", "rows", "correct", "score", "tokens", "results"]
    assert wide[1].split()[:4] == ["0", "0", "Be\\nbrief.", "0"]
    assert table_lines(found, max(map(len, wide))) == wide
    less = table_lines(found, max(map(len, wide)) - 1)
    assert less[0].split() == ["exit", "seed", "model.system", "rows", "correct", "score", "results"]
    assert less[-1] == "not shown: tokens"
    least = table_lines(found, 20)
    assert least[0].split() == ["exit", "seed", "model.system", "rows", "results"]
    assert least[1].endswith("x-0")


def test_results_that_are_not_of_the_sweep_are_not_in_its_table(tmp_path):
    run(job(tmp_path / "out-00000000", rows=5))
    swept = SweptRun({"seed": 1}, ExitCode.CONFIG, tmp_path / "out-00000000", why="it holds a run with other settings")
    found = table_of([swept])
    assert found.frame["data_rows"].to_list() == [None]
    assert write_table(found, [swept]) is None
