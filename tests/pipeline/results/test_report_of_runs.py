"""Reports of runs of every kind: few rows, none, all rejected, resumed, killed, damaged; and when they are written."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.results.figures import attempts, on_one_axis, stage_times
from pipeline.results.reader import Results, read_results
from pipeline.results.report import write_report
from pipeline.results.report.page import page
from pipeline.results.report.rows import rejects, samples, shown, texts
from pipeline.run_dir.metrics_table import STAGES_SCHEMA, MetricsTable
from pipeline.settings import NodeSettings
from tests.pipeline.pages import Page, headings
from tests.pipeline.squares import job, run
from tests.sets import often


def test_each_reason_has_the_first_row_that_it_took(tmp_path):
    run(job(tmp_path / "out", square={"bad": [4, 31, 44]}, max_error_rate=1.0))
    (panel,) = rejects(read_results(tmp_path / "out"))
    assert panel.tables[0].rows == [["3", "unlucky number", "error", "square", "6.7 %"]]
    assert [card.title for card in panel.cards] == ["error at square: row 4"]
    assert dict(panel.cards[0].fields)["x"] == "4"


def test_rejects_that_name_another_row_are_one_reason_with_an_example(tmp_path):
    settings = job(tmp_path / "out")
    key = {"_target_": "operators.map.Map", "columns": {"key": "x % 20"}}
    distinct = {"_target_": "operators.dedup.Dedup", "columns": ["key"]}
    settings.nodes |= {"key": NodeSettings(key, "numbers"), "distinct": NodeSettings(distinct, "key")}
    settings.nodes["square"].inputs = ["distinct"]
    run(settings)
    (panel,) = rejects(read_results(tmp_path / "out"))
    assert panel.tables[0].rows == [["25", "equal to row N in key", "filtered", "distinct", "55.6 %"]]
    assert [(card.title, dict(card.fields)["reason"]) for card in panel.cards] == [
        ("filtered at distinct: row 20", "equal to row 0 in key")
    ]


def test_where_rows_are_merged_rejects_are_a_share_of_those_that_came(tmp_path):
    """Four samples of each row, of which those of rows 0 to 8 differ in a column that is not gathered."""
    settings = job(tmp_path / "out", max_error_rate=1.0)
    apart = {"_target_": "operators.call.Call", "function": "tests.pipeline.job_ops.four_samples", "many": True}
    apart |= {"columns": {"sample": "int64", "tag": "int64"}, "arguments": {"differ": 9}}
    settings.nodes |= {
        "apart": NodeSettings(apart, "numbers"),
        "whole": NodeSettings({"_target_": "operators.gather.Gather", "columns": ["sample"]}, "apart"),
    }
    settings.nodes["square"].inputs = ["whole"]
    run(settings)
    (panel,) = rejects(read_results(tmp_path / "out"))
    assert panel.tables[0].rows[0][0] == "36"
    assert panel.tables[0].rows[0][-1] == "20.0 %"


@pytest.mark.parametrize("rows", often([0, 1, 9], 0))
def test_a_run_of_few_rows_shows_what_it_has(tmp_path, rows):
    run(job(tmp_path / "out", rows=rows))
    text = page(read_results(tmp_path / "out"))
    Page(text)
    assert ("Sample rows" in headings(text)) == (rows > 0)
    assert not {"Over time", "Lengths and finish reasons", "Rejects"} & set(headings(text))


def test_a_run_whose_rows_were_all_rejected_shows_why(tmp_path):
    run(job(tmp_path / "out", rows=9, square={"bad": list(range(9))}))
    text = page(read_results(tmp_path / "out"))
    assert "100.0 %" in text
    assert "Sample rows" not in headings(text)


def test_sample_rows_reach_from_the_first_to_the_last(tmp_path):
    run(job(tmp_path / "out", rows=45))
    (panel,) = samples(read_results(tmp_path / "out"))
    assert [card.title for card in panel.cards] == [f"Row {n}" for n in (0, 11, 22, 33, 44)]
    assert dict(panel.cards[-1].fields)["y"] == str(44 * 44)


def test_long_values_are_cut_and_say_so():
    assert shown("x" * 700) == f"{'x' * 600} [... 100 more characters]"
    assert shown([0.5] * 384) == f"[{', '.join(['0.5'] * 8)}, ... 384 values]"
    assert len(shown([{"role": "user", "content": "x" * 9000}])) < 700


def test_of_very_many_columns_the_first_are_shown(tmp_path):
    (tmp_path / "data").mkdir()
    pl.DataFrame({f"c{i}": [i] for i in range(500)}).write_parquet(tmp_path / "data/part-00000.parquet")
    shard = {"path": "data/part-00000.parquet", "chunk": 0, "rows": 1}
    (panel,) = samples(Results(tmp_path, {"shards": [shard]}, {}))
    assert panel.cards[0].fields[-2:] == [("c59", "59"), ("", "and 440 more columns")]


def test_the_rows_of_two_sinks_are_kept_apart(tmp_path):
    shards = []
    for folder, count in (("data", 3), ("data/long", 2)):
        (tmp_path / folder).mkdir()
        more = {"judge_token_count": range(count), "finish_reason": "stop", "judge_finish_reason": "length"}
        table = pl.DataFrame({"row": range(count), "token_count": range(count), **more})
        table.write_parquet(tmp_path / folder / "part-00000.parquet")
        shards.append({"path": f"{folder}/part-00000.parquet", "chunk": 0, "rows": count})
    results = Results(tmp_path, {"shards": shards}, {})
    assert [(p.title, len(p.cards)) for p in samples(results)] == [
        ("Sample rows of data", 3),
        ("Sample rows of data/long", 2),
    ]
    (panel,) = texts(results)
    found = [(chart.title, sum(value or 0 for value in chart.series[0].values)) for chart in panel.charts]
    names = ("token_count", "judge_token_count")
    assert found == [(f"{name} in {at}", n) for at, n in (("data", 3), ("data/long", 2)) for name in names]
    assert [table.columns[0] for table in panel.tables] == [
        f"{name} in {at}" for at in ("data", "data/long") for name in ("finish_reason", "judge_finish_reason")
    ]


def failed_then_resumed(out: Path) -> None:
    broken = out.with_name("broken")
    square = {"fail_at": 27, "broken": str(broken)}
    broken.touch()
    assert run(job(out, square=square, max_open_chunks=1)) is ExitCode.FAILED
    broken.unlink()
    assert run(job(out, square=square, max_open_chunks=1)) is ExitCode.DONE


def test_the_time_axis_counts_running_time_only(tmp_path):
    failed_then_resumed(tmp_path / "out")
    first, second = attempts(read_results(tmp_path / "out"))
    assert (first.state, second.state) == ("failed", "done")
    assert (first.begins_s, second.begins_s) == (0.0, first.wall_s)
    table = pl.LazyFrame({"attempt": [1, 2], "t_s": [0.5, 0.5]}, schema_overrides={"attempt": pl.Int32})
    assert on_one_axis(table, [first, second]).sort("attempt").collect()["t_s"].to_list() == [0.5, 0.5 + first.wall_s]
    assert "Attempts" in headings(page(read_results(tmp_path / "out")))


def test_an_attempt_that_was_killed_is_shown_by_what_it_left(tmp_path):
    out = tmp_path / "out"
    run(job(out))
    killed = MetricsTable(out / "metrics", "stages", STAGES_SCHEMA, 2)
    killed.append(3.5, 3.5, "square", 10, 10, 0, 0, 1, 100, 40, 0, 3.0, 0.5, 0.0, 3.5)
    killed.flush()
    _, second = attempts(read_results(out))
    assert (second.state, second.wall_s, second.tokens_out, second.rows) == ("killed", 3.5, 40, None)
    assert sum(stage["rows_in"] for stage in stage_times(read_results(out)) if stage["node"] == "square") == 45 + 10


def test_a_damaged_file_costs_its_panels_and_the_page_says_so(tmp_path):
    out = tmp_path / "out"
    run(job(out))
    (out / "data/part-00004.parquet").write_bytes(b"PAR1 and nothing else")
    text = page(read_results(out))
    assert "A part of this page (samples) could not be made" in text
    assert "Where the time went" in headings(text)


def test_a_file_that_is_gone_is_counted_and_the_others_are_read(tmp_path):
    out = tmp_path / "out"
    run(job(out))
    (out / "data/part-00004.parquet").unlink()
    text = page(read_results(out))
    assert "1 committed files are missing: python -m pipeline verify" in text
    assert "Row 39" in text


@pytest.mark.usefixtures("reports")
def test_every_attempt_writes_a_report_however_it_ends(tmp_path, capsys):
    failed_then_resumed(tmp_path / "out")
    assert capsys.readouterr().out.count(f"report      {tmp_path}/out/report.html") == 2
    assert '<span class="status">done, exit code 0</span>' in (tmp_path / "out/report.html").read_text()


@pytest.mark.usefixtures("reports")
def test_a_report_that_cannot_be_written_changes_nothing_but_the_log(tmp_path, caplog):
    (tmp_path / "out/report.html").mkdir(parents=True)
    settings = job(tmp_path / "out")
    settings.output_dir = str(tmp_path / "out")
    (tmp_path / "out/state.sqlite").touch()
    assert run(settings) is ExitCode.DONE
    assert "report.html cannot be written" in caplog.text


@pytest.mark.usefixtures("reports")
def test_report_false_writes_none(tmp_path):
    run(job(tmp_path / "out", report=False))
    assert not (tmp_path / "out/report.html").exists()


def test_the_command_draws_a_report_again_and_refuses_what_is_no_run(tmp_path, capsys):
    run(job(tmp_path / "out"))
    capsys.readouterr()
    assert main(["report", str(tmp_path / "out")]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{tmp_path}/out/report.html\n"
    assert (tmp_path / "out/report.html").read_text() == page(read_results(tmp_path / "out"))
    assert main(["report", str(tmp_path)]) == ExitCode.CONFIG
    assert "is not a run directory" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="not a run directory"):
        write_report(tmp_path)
