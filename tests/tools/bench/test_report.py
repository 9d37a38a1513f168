"""The arithmetic of the report, on made-up measurements."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from tools.bench.cases import CASE_SCHEMA
from tools.bench.figures import COLUMNS
from tools.bench.report import paired_ratio, report, spread

SCHEMA = pa.schema([*CASE_SCHEMA, *COLUMNS])


def measured(scenario: str, contender: str, repeat: int, speed: float | None, **more: object) -> dict[str, object]:
    case = {"scenario": scenario, "contender": contender, "slots": 16, "repeat": repeat, "rows": 64}
    work = {"tokens_per_s": speed, "work_s": None if speed is None else 1000 / speed, "busy_before": 0.01}
    return case | work | more


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    (folder / "data").mkdir()
    numbered = [{"row": i, **row} for i, row in enumerate(rows)]
    table = pa.Table.from_pylist([{name: row.get(name) for name in SCHEMA.names} for row in numbered], SCHEMA)
    pl.DataFrame(pl.from_arrow(table)).write_parquet(folder / "data/part-00000.parquet")
    return folder


def cells(text: str, contender: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {contender} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_spread():
    def of(*values: float) -> str:
        return spread([{"work_s": value} for value in (*values, None)], "work_s")

    assert [of(), of(1234.56), of(3.0, 1.0, 2.0)] == ["-", "1,234.6", "2.0 (1.0-3.0)"]


def test_a_ratio_is_taken_within_each_repeat():
    rows = [
        measured("peers", name, repeat, speed)
        for repeat, (ours, theirs) in enumerate([(100.0, 50.0), (10.0, 8.0), (40.0, 10.0)])
        for name, speed in (("job", ours), ("llama-server", theirs))
    ]
    assert paired_ratio(rows, "job", "llama-server") == 2.0  # of 2, 1.25 and 4; the medians' would be 4
    assert paired_ratio(rows, "job", "nobody") is None


@pytest.mark.parametrize(
    ("scenario", "title", "speeds", "ratios"),
    [
        ("peers", "by job", {"job": 100.0, "llama-server": 80.0, "create_completion": 20.0}, ["-", "0.800", "0.200"]),
        (
            "diffusion_contexts",
            "by the reused one",
            {"reused, 512": 100.0, "fresh, 512": 80.0, "reused, 4,096": 90.0, "fresh, 4,096": 45.0},
            ["-", "0.800", "-", "0.500"],
        ),
        (
            "toggle_compaction",
            "by with compaction",
            {"with compaction": 110.0, "without compaction": 99.0},
            ["-", "0.900"],
        ),
    ],
)
def test_a_speed_is_divided_by_that_of_the_first_or_of_another(tmp_path, scenario, title, speeds, ratios):
    text = report(write(tmp_path, [measured(scenario, name, 0, speed) for name, speed in speeds.items()]))
    assert f"| contender | t/s | {title} |" in text
    assert [cells(text, name)[1:3] for name in speeds] == [
        [f"{speeds[n]:.1f}", r] for n, r in zip(speeds, ratios, strict=True)
    ]


def test_block_diffusion_has_its_calls_and_what_batching_gives(tmp_path):
    """8 slots make 4.5 times the tokens of one, in calls that take 1.6 times as long: these allow 5 times as many."""
    blocks = {"calls_per_block": 4.0, "tokens_per_pass": 1.25, "steps": 160, "own_share": 0.031}
    rows = [
        measured("diffusion", "job", 0, 50.0, slots=1, call_ms=5.0, own_share=0.02, steps=128),
        measured("diffusion", "4/4", 0, 20.0, slots=1, call_ms=10.0, **blocks),
        measured("diffusion", "4/4", 0, 90.0, slots=8, call_ms=16.0, **blocks),
    ]
    text = report(write(tmp_path, rows))
    assert "| contender | t/s | by job |" in text
    assert "| by 1 slot | calls allow by 1 slot |" in text
    one, eight = (line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| 4/4 |"))
    assert one[2] == "0.400"
    assert one[-5:] == ["160", "10.00", "4.00", "1.25", "3.1% "]
    assert eight[-2:] == ["4.50", "5.00 "]
    assert [cell.strip() for cell in cells(text, "job")[-5:]] == ["128", "5.00", "-", "-", "2.0%"]


@pytest.mark.parametrize(("texts", "said"), [("aa", "the same with and without"), ("ab", "NOT the same")])
def test_a_toggle_says_whether_the_texts_are_the_same(tmp_path, texts, said):
    names = ("with compaction", "without compaction")
    rows = [measured("toggle_compaction", n, 0, 1.0, texts=text) for n, text in zip(names, texts, strict=True)]
    assert f"- texts: {said}" in report(write(tmp_path, rows))


def test_what_was_skipped_is_named_with_the_reason(tmp_path):
    rows = [
        measured("peers", "job", 0, 10.0),
        measured("peers", "llama-server", 0, None, skipped_reason="there is no llama-server"),
    ]
    text = report(write(tmp_path, rows))
    assert "- llama-server: skipped, there is no llama-server" in text
    assert "| llama-server |" not in text


def test_what_failed_is_named_with_the_reason(tmp_path):
    write(tmp_path, [measured("peers", "job", 0, 10.0)])
    (tmp_path / "rejects").mkdir()
    case = {"scenario": "peers", "contender": "llama-server", "slots": 16, "repeat": 1}
    failed = pl.DataFrame({"reason": ["it crashed"], "record": [json.dumps(case)]})
    failed.write_parquet(tmp_path / "rejects/part-00000.parquet")
    assert "- llama-server of peers, 16 slots, repeat 1: it crashed" in report(tmp_path)
