"""Accuracy: counts the right answers in the results of a run, by group, with intervals."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pipeline.api.intervals import Interval, wilson
from pipeline.api.records import LINEAGE, ROW, SUPERSEDES
from pipeline.system.result_files import newest, scan_folder

SHOWN = 20
"""Most groups of a table, the largest."""
WIDEST = 40
"""Most characters of a value in a table."""
Group = tuple[str | None, ...]
"""Values of the columns by which rows are grouped."""


class Sums(NamedTuple):
    """What the mean of a column and its interval follow from. Rows of one `row` of the input are a prompt, i of which
    has m_i rows with the sum s_i: the numbers of rows and prompts, and the sums of s_i, s_i s_i, s_i m_i, m_i m_i."""

    rows: int
    prompts: int
    total: float
    ss: float
    sm: float
    mm: float

    def interval(self, *, boolean: bool) -> Interval:
        """Return the mean with its interval of 95 %: Wilson's, of as many independent rows as have its variance.

        Rows of one prompt depend on each other, so the variance is that of a ratio of sums over prompts (Miller 2024,
        Adding Error Bars to Evals). With a row a prompt, booleans have plainly Wilson's. Where all prompts have the
        same mean that variance is 0 and says nothing: then each counts as one row. With 60 prompts of 4 samples it
        covers 94 to 95 % of draws, with 30 and a share of 0.1 92 %; Wilson's of all rows would cover 80 %.
        """
        mean = self.total / self.rows
        variance = (self.ss - 2 * mean * self.sm + mean**2 * self.mm) / self.rows**2
        binomial = mean * (1 - mean)
        effective = binomial / variance if variance > binomial * 1e-12 else self.prompts
        effective = min(effective, self.rows) if boolean else effective
        return wilson(mean * effective, effective)


def accuracy_lines(directory: Path, by: Sequence[str], correct: str, score: str | None = None) -> Iterator[str]:
    """Yield a table of the accuracy in a finished run, with a line for each group and one for all rows, and lines that
    say which rows are not counted.

    Args:
        directory: of the run.
        by: columns; rows with the same values are a group.
        correct: a column of booleans; a row where it is null has no grade.
        score: a column of numbers from 0 to 1 whose mean is told, too.
    """
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    folder, measured = directory / "data", [correct, *([score] if score else [])]
    if not any(folder.glob("part-*")):
        return
    rows = scan_folder(folder, manifest["schema"]["data"])
    names = rows.collect_schema().names()
    if gone := [name for name in (*by, *measured) if name not in names]:
        yield f"no accuracy is told: data/ has no column '{gone[0]}'"
        return
    rows = newest(rows) if SUPERSEDES.name in names else rows
    lines = [[*by, "right", "rows", "accuracy", "95 % interval", *(["F1", "95 % interval"] if score else [])]]
    lines[0][:0] = [] if by else [""]
    groups = counted(rows, by, measured)
    in_order = sorted(groups, key=lambda key: [(value is not None, value or "") for value in key])
    largest = set(sorted(in_order, key=lambda key: -groups[key][0].rows)[:SHOWN]) if by else set()
    shown = [key for key in in_order if key in largest]
    titles = [_titles(dict.fromkeys(key[i] for key in shown)) for i in range(len(by))]
    whole = counted(rows, [], measured)[()]
    if whole[0].rows:
        for key in shown:
            lines.append([*(title[value] for title, value in zip(titles, key, strict=True)), *_cells(groups[key])])
        lines.append(["all", *[""] * (len(by) - 1), *_cells(whole)])
        yield from _aligned(lines, max(len(by), 1))
    if whole[0].prompts < whole[0].rows:
        said = "rows of one prompt depend on each other, and the intervals are over prompts"
        yield f"they are of {whole[0].prompts:,} prompts; {said}"
    if by and len(groups) > SHOWN:
        yield f"and {len(groups) - SHOWN:,} groups with fewer rows"
    nulls = rows.select(pl.col(correct).is_null().sum()).collect().item()
    yield from _not_counted(nulls + manifest["counts"]["error_rejects"], whole[0])
    if filtered := manifest["counts"]["filtered_rejects"]:
        yield f"{filtered:,} rows were filtered out and are not counted"


def counted(rows: pl.LazyFrame, by: Sequence[str], measured: Sequence[str]) -> dict[Group, list[Sums]]:
    """Return the sums of the columns `measured` (booleans, numbers) by group. They are read batch by batch; in memory
    are the groups and, where rows have a lineage, a few numbers for each row of the input."""
    keys = {f"by {i}": pl.col(name).cast(pl.String) for i, name in enumerate(by)}
    values = {f"s {i}": pl.col(name).cast(pl.Float64) for i, name in enumerate(measured)}
    clusters = rows.filter(pl.col(measured[0]).is_not_null())
    if LINEAGE.name in rows.collect_schema():
        each = {name: value.sum() for name, value in values.items()}
        clusters = clusters.with_columns(**keys).group_by([*keys, ROW.name]).agg(m=pl.len().cast(pl.Float64), **each)
    else:
        clusters = clusters.select(**keys, m=pl.lit(1.0), **values)
    m, wanted = pl.col("m"), {"rows": pl.col("m").sum(), "prompts": pl.len()}
    for name in values:
        s = pl.col(name)
        wanted |= {f"{name} {i}": e.sum() for i, e in enumerate((s, s * s, s * m))}
    wanted["mm"] = (m * m).sum()
    summed = clusters.group_by(list(keys)).agg(**wanted) if keys else clusters.select(**wanted)
    found = {}
    for row in summed.collect(engine="streaming").iter_rows(named=True):
        each_sums = [[row[f"{name} {i}"] for i in range(3)] for name in values]
        found[tuple(row[key] for key in keys)] = [
            Sums(int(row["rows"]), row["prompts"], total, ss, sm, row["mm"]) for total, ss, sm in each_sums
        ]
    return found


def _cells(sums: Sequence[Sums]) -> list[str]:
    right, *others = sums
    cells = [f"{right.total:,.0f}", f"{right.rows:,}", *_percent(right.interval(boolean=True))]
    return cells + [cell for each in others for cell in _percent(each.interval(boolean=False))]


def _percent(interval: Interval) -> tuple[str, str]:
    return f"{interval.estimate:.1%}", f"{100 * interval.low:.1f} to {interval.high:.1%}"


def _titles(values: Iterable[str | None]) -> dict[str | None, str]:
    """Return how a table names each of the values of a column: shortened, null as (null), and no two the same."""
    titles = dict[str | None, str]()
    for value in values:
        short = "(null)" if value is None else textwrap.shorten(value, WIDEST, placeholder="...") or repr(value)
        numbered = (f"{short} ({number})" for number in count(2))
        titles[value] = next(title for title in chain([short], numbered) if title not in titles.values())
    return titles


def _aligned(lines: Sequence[Sequence[str]], texts: int) -> Iterator[str]:
    """Yield lines of a table, whose first `texts` columns are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        yield "  ".join(f"{c:{w}}" if i < texts else f"{c:>{w}}" for i, (c, w) in enumerate(cells)).rstrip()


def _not_counted(rows: int, whole: Sums) -> Iterator[str]:
    if rows:
        wrong = f"; as wrong ones they would make it {whole.total / (whole.rows + rows):.1%}" if whole.rows else ""
        yield f"{rows:,} rows have no grade (errors) and are not counted{wrong}"
