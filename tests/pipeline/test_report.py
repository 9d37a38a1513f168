"""report.html: one page that is inert, readable without drawings, and says what the files of the run say."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.__main__ import main
from pipeline.errors import ConfigError, ExitCode
from pipeline.history import attempts, on_one_axis
from pipeline.measured import lengths, slots_used, stage_times
from pipeline.metrics import STAGES_SCHEMA, MetricsTable
from pipeline.report.charts import Bars, Histogram, OverTime
from pipeline.report.outcome import texts
from pipeline.report.over_time import over_time
from pipeline.report.page import page
from pipeline.report.rejects import rejects
from pipeline.report.samples import samples, shown
from pipeline.report.work import reuse
from pipeline.report.written import VARIABLE, write_report
from pipeline.results import Results, read_results
from tests.pipeline.test_run import job, run

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"> & \x07'
ALONE = {"meta", "img", "br", "path", "use", "rect", "line"}
"""Elements that the parser opens and that close themselves."""


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ALONE:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in ALONE:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


def headings(text: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", text)


def generated(directory: Path, rows: list[dict[str, Any]], *overrides: str) -> Path:
    """A run of job=generate on a model without weights."""
    prompts = directory / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = directory / "out"
    given = (f"data.path={prompts}", f"output_dir={out}", "progress=none", "sampling.max_tokens=12", "chunk_rows=16")
    assert main(["job=generate", "model=fake", *given, *overrides]) == ExitCode.DONE
    return out


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """120 rows from two contexts, some of which no one could read."""
    rows: list[dict[str, Any]] = [{"id": i, "prompt": f"{HOSTILE} {i}" + " word" * (i % 9)} for i in range(120)]
    rows[7] = {"id": 7, "prompt": None}
    rows[100:] = [{**row, "prompt": "the same"} for row in rows[100:]]
    return generated(tmp_path_factory.mktemp("many"), rows, "runtime.contexts=2", "runtime.slots=8", "max_error_rate=1")


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without drawings, which are most of the time that a page takes."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture(scope="module")
def many_text(many) -> str:
    return page(read_results(many))


def test_whatever_stands_in_a_row_nothing_on_the_page_acts_or_is_fetched(many_text):
    found = Page(many_text)
    assert not {"script", "img", "iframe", "object", "embed", "link", "base", "form"} & set(found.tags)
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert not [value for value in found.values("src") + found.values("href") if not value.startswith("#")]
    assert not re.search(r"@import|url\((?!#)", many_text)
    assert "default-src 'none'" in found.values("content")[-1]
    assert any("<script>alert(1)</script>" in data for data in found.text)  # as text
    assert "\x07" not in many_text


def test_every_drawing_has_a_title_a_description_and_a_table_and_names_are_given_once(many_text):
    found = Page(many_text)
    names = found.values("id")
    assert len(names) == len(set(names))
    described = [name for value in found.values("aria-labelledby") for name in value.split()]
    assert found.tags.count("svg") == found.tags.count("figure") == len(described) // 2 > 5
    assert set(described) <= set(names)
    assert {value.removeprefix("#") for value in found.values("href")} <= set(names)
    assert found.tags.count("table") > found.tags.count("figure")


def test_every_colour_is_the_pages_so_that_dark_is_dark(many_text):
    drawings = re.findall(r"<svg.*?</svg>", many_text, re.S)
    assert drawings
    for drawing in drawings:
        assert "var(--muted)" in drawing
        assert not re.findall(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b|black|white", drawing)


def test_a_generation_has_every_panel_and_no_panel_is_empty(many_text):
    assert headings(many_text) == [
        *("Over time", "Where the time went", "Lengths and finish reasons", "Rejects"),
        *("What did not have to be computed", "Sample rows", "Made with"),
    ]
    for section in many_text.split("<section>")[1:]:
        assert re.search(r"<svg|<td|<dd|<pre", section)


def test_the_same_results_give_the_same_page(many, many_text):
    assert page(read_results(many)) == many_text


def test_without_matplotlib_the_tables_are_open_and_the_extra_is_named(many, many_text, undrawn):
    text = page(read_results(many))
    assert "<svg" not in text
    assert "pip install &#39;llama-batch-pipeline[report]&#39;" in text
    assert text.count("<details open>") == many_text.count("<svg")
    assert headings(text) == headings(many_text)


def test_the_figures_are_those_of_the_files(many):
    results = read_results(many)
    data = pl.read_parquet(many / "data/*.parquet")
    (panel,) = texts(results)
    *histograms, reasons = panel.charts
    for chart in histograms:
        assert isinstance(chart, Histogram)
        column = data[chart.title]
        assert sum(chart.counts) == len(data)
        assert dict(chart.marks)["median"] == column.quantile(0.5, "lower")
        low, high = chart.edges[0], chart.edges[-1]
        assert all(low <= value < high for value in column)
    assert isinstance(reasons, Bars)
    assert reasons.series[0].values == data["finish_reason"].value_counts(sort=True)["count"].to_list()
    totals = json.loads(pl.read_parquet(many / "metrics/run.parquet")["totals"][0])
    assert slots_used(results) == pytest.approx(totals["slot_steps_used"] / totals["slot_steps"])
    stages = pl.read_parquet(many / "metrics/stages.parquet")
    for stage in stage_times(results):
        own = stages.filter(pl.col("node") == stage["node"])
        assert stage["rows_in"] == own["rows_in"].sum()
        assert stage["busy_s"] == pytest.approx(own["busy_s"].sum())


def test_what_was_computed_and_what_was_not_add_up(many):
    (panel,) = reuse(read_results(many))
    pieces = {chart.title: [s.values[0] for s in chart.series] for chart in panel.charts if isinstance(chart, Bars)}
    steps, rows = (pl.read_parquet(many / f"metrics/{name}.parquet") for name in ("steps", "rows"))
    prompts = steps["prefill_tokens"].sum() + steps["shared_tokens"].sum()
    whole = {"Completions": len(rows), "Tokens of the prompts": prompts}
    assert {title: sum(values) for title, values in pieces.items()} == {title: whole[title] for title in pieces}
    assert all(value > 0 for values in pieces.values() for value in values)  # nothing is named that there was none of


def test_the_bands_of_the_slots_fill_them(many):
    (panel,) = over_time(read_results(many))
    chart = panel.charts[1]
    assert isinstance(chart, OverTime)
    for values in zip(*(series.values for series in chart.series), strict=True):
        assert None in values or sum(values) == pytest.approx(100)


@pytest.mark.parametrize(("values", "share"), [([5], 0.5), ([1, 2, 3, 4], 0.5), ([7, 1, 1, 9, 30, 2], 0.95)])
def test_a_quantile_is_the_smallest_value_that_this_share_does_not_exceed(values, share):
    found = lengths(pl.LazyFrame({"n": values}), "n").quantile(share)
    assert found == next(v for v in sorted(values) if sum(w <= v for w in values) >= share * len(values))


def test_each_reason_has_the_first_row_that_it_took(tmp_path):
    run(job(tmp_path / "out", square={"bad": [4, 31, 44]}, max_error_rate=1.0))
    (panel,) = rejects(read_results(tmp_path / "out"))
    assert panel.tables[0].rows == [["3", "unlucky number", "error", "square", "6.7 %"]]
    assert [card.title for card in panel.cards] == ["error at square: row 4"]
    assert '"x"' in dict(panel.cards[0].fields)["the row"]


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_a_run_of_few_rows_shows_what_it_has(tmp_path, rows):
    run(job(tmp_path / "out", rows=rows))
    text = page(read_results(tmp_path / "out"))
    Page(text)
    assert ("Sample rows" in headings(text)) == (rows > 0)
    assert not {"Over time", "Lengths and finish reasons", "Rejects"} & set(headings(text))


@pytest.mark.usefixtures("undrawn")
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


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "arrow"])
def test_rows_in_another_format_are_read_too(tmp_path, ending):
    out = tmp_path / "out"
    run(job(out, rows=5))
    (out / "state.sqlite").unlink()  # only the results were copied, and made into another format
    table = pl.read_parquet(out / "data/part-00000.parquet")
    content = io.BytesIO()
    (table.write_ipc if ending == "arrow" else table.write_ndjson)(content)
    written = gzip.compress(content.getvalue()) if ending.endswith("gz") else content.getvalue()
    (out / f"data/part-00000.{ending}").write_bytes(written)
    manifest = (out / "manifest.json").read_text().replace("part-00000.parquet", f"part-00000.{ending}")
    (out / "manifest.json").write_text(manifest)
    (panel,) = samples(read_results(out))
    assert [dict(card.fields)["y"] for card in panel.cards] == ["0", "1", "4", "9", "16"]


def failed_then_resumed(out: Path) -> None:
    broken = out.with_name("broken")
    square = {"fail_at": 27, "broken": str(broken)}
    broken.touch()
    assert run(job(out, square=square, max_open_chunks=1)) is ExitCode.FAILED
    broken.unlink()
    assert run(job(out, square=square, max_open_chunks=1)) is ExitCode.DONE


@pytest.mark.usefixtures("undrawn")
def test_the_time_axis_counts_running_time_only(tmp_path):
    failed_then_resumed(tmp_path / "out")
    first, second = attempts(read_results(tmp_path / "out"))
    assert (first.state, second.state) == ("failed", "done")
    assert (first.begins_s, second.begins_s) == (0.0, first.wall_s)
    table = pl.LazyFrame({"attempt": [1, 2], "t_s": [0.5, 0.5]}, schema_overrides={"attempt": pl.Int32})
    assert on_one_axis(table, [first, second]).collect()["t_s"].to_list() == [0.5, 0.5 + first.wall_s]
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


def test_parts_that_were_merged_and_not_removed_count_once(tmp_path):
    table = MetricsTable(tmp_path / "metrics", "stages", STAGES_SCHEMA, 1)
    table.append(3.5, 3.5, "square", 10, 10, 0, 0, 1, 100, 40, 0, 3.0, 0.5, 0.0, 3.5)
    table.flush()
    (part,) = (tmp_path / "metrics/stages").iterdir()
    content = part.read_bytes()
    table.merge()
    part.parent.mkdir()
    part.write_bytes(content)
    (tmp_path / "manifest.json").write_text('{"job": "x"}')
    assert [stage["rows_in"] for stage in stage_times(read_results(tmp_path))] == [10]


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_file_costs_its_panels_and_the_page_says_so(tmp_path):
    out = tmp_path / "out"
    run(job(out))
    (out / "data/part-00004.parquet").write_bytes(b"PAR1 and nothing else")
    text = page(read_results(out))
    assert "A part of this page (samples) could not be made" in text
    assert "Where the time went" in headings(text)


@pytest.mark.usefixtures("undrawn")
def test_a_file_that_is_gone_is_counted_and_the_others_are_read(tmp_path):
    out = tmp_path / "out"
    run(job(out))
    (out / "data/part-00004.parquet").unlink()
    text = page(read_results(out))
    assert "1 committed files are missing: python -m pipeline verify" in text
    assert "Row 39" in text


@pytest.fixture
def by_itself(monkeypatch):
    """Runs write their reports."""
    monkeypatch.delenv(VARIABLE)


@pytest.mark.usefixtures("by_itself", "undrawn")
def test_every_attempt_writes_a_report_however_it_ends(tmp_path, capsys):
    failed_then_resumed(tmp_path / "out")
    assert capsys.readouterr().out.count(f"report      {tmp_path}/out/report.html") == 2
    assert '<span class="status">done</span>' in (tmp_path / "out/report.html").read_text()


@pytest.mark.usefixtures("by_itself")
def test_a_report_that_cannot_be_written_changes_nothing_but_the_log(tmp_path, caplog):
    (tmp_path / "out/report.html").mkdir(parents=True)
    settings = job(tmp_path / "out")
    settings.output_dir = str(tmp_path / "out")
    (tmp_path / "out/state.sqlite").touch()
    assert run(settings) is ExitCode.DONE
    assert "report.html cannot be written" in caplog.text


@pytest.mark.usefixtures("by_itself")
def test_report_false_writes_none(tmp_path):
    run(job(tmp_path / "out", report=False))
    assert not (tmp_path / "out/report.html").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_command_draws_a_report_again_and_refuses_what_is_no_run(tmp_path, capsys):
    run(job(tmp_path / "out"))
    capsys.readouterr()
    assert main(["report", str(tmp_path / "out")]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{tmp_path}/out/report.html\n"
    assert (tmp_path / "out/report.html").read_text() == page(read_results(tmp_path / "out"))
    assert main(["report", str(tmp_path)]) == ExitCode.CONFIG
    assert "is no run's directory" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no run's directory"):
        write_report(tmp_path)


def test_two_generates_have_lengths_and_reasons_of_their_own(tmp_path):
    job_file = tmp_path / "twice.yaml"
    job_file.write_text(
        """
# Two generations of each prompt.
defaults:
  - override /flow: generate
  - override /model: fake
nodes:
  judge:
    inputs: generate
    op:
      _target_: operators.generate.Generate
      model: ${model}
      sampling: ${sampling}
      decode: ${decode}
      runtime: ${runtime}
      store: ${store}
      as: judge
  write:
    inputs: judge
"""
    )
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "word {i}"}}\n' for i in range(6)))
    given = (f"data.path={tmp_path}/prompts.jsonl", f"output_dir={tmp_path}/out", "progress=none")
    assert main([f"job={job_file}", *given, "sampling.max_tokens=4"]) == ExitCode.DONE
    results = read_results(tmp_path / "out")
    (panel,) = texts(results)
    assert [chart.title for chart in panel.charts] == [
        *("prompt_token_count", "completion_token_count", "judge_prompt_token_count", "judge_completion_token_count"),
        *("finish_reason", "judge_finish_reason"),
    ]
