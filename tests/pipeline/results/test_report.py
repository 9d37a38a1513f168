"""The report of a generation: one page that is inert, readable without drawings, and says what the files say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.results.figures import frequencies, quantile, slots_used, stage_times
from pipeline.results.reader import read_results
from pipeline.results.report.over_time import over_time
from pipeline.results.report.page import page
from pipeline.results.report.rows import _rejected_row, texts
from tests.pipeline.pages import Page, headings

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"> & \x07'


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
    """120 rows, some of which no one could read."""
    rows: list[dict[str, Any]] = [{"id": i, "prompt": f"{HOSTILE} {i}" + " word" * (i % 9)} for i in range(120)]
    rows[7] = {"id": 7, "prompt": "half a character, which no UTF-8 has: \ud83d"}
    rows[100:] = [{**row, "prompt": "the same"} for row in rows[100:]]
    return generated(tmp_path_factory.mktemp("many"), rows, "runtime.slots=8", "max_error_rate=1")


@pytest.fixture(scope="module")
def many_text(many) -> str:
    return page(read_results(many))


def test_whatever_stands_in_a_row_nothing_on_the_page_acts_or_is_fetched(many_text):
    assert many_text.encode()
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
    assert found.tags.count("svg") == found.tags.count("figure") == len(described) // 2 > 3
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
        *("Sample rows", "Rejects", "Over time", "Where the time went", "Lengths and finish reasons"),
        *("What did not have to be computed", "What was counted", "Made with"),
    ]
    for section in many_text.split("<section>")[1:]:
        assert re.search(r"<svg|<td|<dd|<pre", section)


def test_the_same_results_give_the_same_page(many, many_text):
    assert page(read_results(many)) == many_text


def test_the_figures_are_those_of_the_files(many):
    results = read_results(many)
    data = pl.read_parquet(many / "data/*.parquet")
    (panel,) = texts(results)
    for chart in panel.charts:
        column = data[chart.title]
        (series,) = chart.series
        assert sum(value or 0 for value in series.values) == len(data)
        assert chart.marks[0] == column.quantile(0.5, "lower")
        low, high = chart.edges[0], chart.edges[-1]
        assert all(low <= value < high for value in column)
    (reasons,) = panel.tables
    assert reasons.series[0].values == data["finish_reason"].value_counts(sort=True)["count"].to_list()
    steps = pl.read_parquet(many / "metrics/steps.parquet").filter(pl.col("decode_tokens") > 0)
    empty = steps.select(pl.sum_horizontal(pl.col("^unfilled_.*$").sum())).item()
    assert slots_used(results) == pytest.approx(steps["rows"].sum() / (steps["rows"].sum() + empty))
    stages = pl.read_parquet(many / "metrics/stages.parquet")
    for stage in stage_times(results):
        own = stages.filter(pl.col("node") == stage["node"])
        assert stage["rows_in"] == own["rows_in"].sum()
        assert stage["busy_s"] == pytest.approx(own["busy_s"].sum())


def test_the_bands_of_the_slots_fill_them(many):
    (panel,) = over_time(read_results(many))
    chart = panel.charts[1]
    for values in zip(*(series.values for series in chart.series), strict=True):
        known = [value for value in values if value is not None]
        assert not known or sum(known) == pytest.approx(100)


@pytest.mark.parametrize(("values", "share"), [([5], 0.5), ([1, 2, 3, 4], 0.5), ([7, 1, 1, 9, 30, 2], 0.95)])
def test_a_quantile_is_the_smallest_value_that_this_share_does_not_exceed(values, share):
    found = quantile(frequencies(pl.LazyFrame({"n": values}), "n"), "n", share)
    assert found == next(v for v in sorted(values) if sum(w <= v for w in values) >= share * len(values))


def test_lengths_that_data_does_not_have_come_from_the_metrics(many):
    results = read_results(many)
    (panel,) = texts(replace(results, manifest={**results.manifest, "shards": []}))
    assert [chart.title for chart in panel.charts] == ["prompt_tokens at generate", "completion_tokens at generate"]


def test_a_reject_of_thousands_of_brackets_is_shown_as_text():
    ((name, text),) = _rejected_row("[" * 100_000)
    assert name == "the row"
    assert text.startswith("[[[")
