"""The table of a sweep: a line for each job, with what was swept, and what `compare` and the summary say of its run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from pipeline.api.errors import ExitCode
from pipeline.api.user_code import or_else
from pipeline.monitor.wording import number, one_line, printable, seconds, share
from pipeline.results.figures import attempts, running_s
from pipeline.results.paired import means
from pipeline.results.reader import Results, read_results
from pipeline.system.atomic_files import replacing
from pipeline.system.known_secrets import hidden

COUNTS = {"data_rows": "rows", "error_rejects": "errors", "filtered_rejects": "filtered", "kept_with_error": "kept"}
"""Heads on a terminal, by column."""
SPENT = {"tokens_in": "tokens in", "tokens_out": "tokens out", "seconds": "time"}
MEAN = "mean_"
"""Begins the names of columns with the mean of a column of the rows; of booleans it is the share of true."""
WIDEST = 40
"""Characters of a setting on a terminal."""


class SweptRun(NamedTuple):
    """A job of a sweep: its swept settings; its exit code, None if it was not begun; its directory, None if that is not
    known; whether it ran, so that the results there are its own; what went wrong."""

    settings: Mapping[str, Any]
    code: ExitCode | None
    directory: Path | None = None
    ran: bool = False
    why: str = ""


@dataclass(frozen=True)
class SweepTable:
    """The table. `shares`: columns of `frame` that are shares, not means of numbers. `swept`: the settings."""

    frame: pl.DataFrame
    swept: Sequence[str]
    shares: frozenset[str]


def table_of(runs: Sequence[SweptRun]) -> SweepTable:
    """Return the table of a sweep."""
    swept = list(dict.fromkeys(key for run in runs for key in run.settings))
    shares: set[str] = set()
    lines = []
    for run in runs:
        unread = f"the results in {run.directory} are not in the table of the sweep"
        figures: dict[str, Any] = {}
        if run.ran and run.directory is not None:
            figures = or_else(unread, partial(_figures, run.directory, shares), figures)
        lines.append(figures | {"exit_code": run.code and int(run.code), "error": hidden(run.why) or None})
    columns: dict[str, pl.Series] = {key: _column(key, [run.settings.get(key) for run in runs]) for key in swept}
    whole = {"exit_code", *COUNTS, "tokens_in", "tokens_out"}
    found = dict.fromkeys(name for line in lines for name in line if name.startswith(MEAN))
    for name in ("exit_code", *COUNTS, *sorted(shares), *(n for n in found if n not in shares), *SPENT):
        kind = pl.Int64 if name in whole else pl.Float64
        columns[name] = pl.Series(name, [line.get(name) for line in lines], kind)
    columns["error"] = pl.Series("error", [line["error"] for line in lines], pl.String)
    places = [None if run.directory is None else str(run.directory) for run in runs]
    columns["directory"] = pl.Series("directory", places, pl.String)
    return SweepTable(pl.DataFrame(list(columns.values())), swept, frozenset(shares))


def keep_table(table: SweepTable, runs: Sequence[SweptRun]) -> Path | None:
    """Write the table, or log why it cannot be: no run is the worse for it. Returns its path, if there is one."""
    return or_else("the table of the sweep is not kept", partial(write_table, table, runs), None)


def sweep_lines(table: SweepTable, path: Path | None, width: int | None) -> list[str]:
    """Return what a sweep prints at its end. `path`: of the table as Parquet; `width`: as of `table_lines`."""
    head = f"sweep: {table.frame.height} jobs"
    return [f"{head}; all columns are in {path}" if path else head, *table_lines(table, width)]


def write_table(table: SweepTable, runs: Sequence[SweptRun]) -> Path | None:
    """Write the table as Parquet beside the results, and return its path; None if no job has run. The table of the same
    jobs is replaced, that of others is another file. Raises StorageError."""
    ran = [run.directory for run in runs if run.directory is not None and run.ran]
    if not ran:
        return None
    named = json.dumps(
        [["" if r.directory is None else r.directory.name, list(map(str, r.settings.items()))] for r in runs]
    )
    job = re.sub("-[0-9a-f]{8}$", "", ran[0].name)
    path = ran[0].with_name(f"sweep-{job}-{hashlib.sha256(named.encode()).hexdigest()[:8]}.parquet")
    with replacing(path) as file:
        table.frame.write_parquet(file)
    return path


def table_lines(table: SweepTable, width: int | None) -> list[str]:
    """Return the table for a terminal of `width` characters, None for a file: without columns that are equal in all
    jobs and say nothing, and without those that do not fit, which are named."""
    columns = _shown(table)
    left_out: list[str] = []
    for name in _expendable(table):
        if width is None or sum(map(_width, columns.values())) + 2 * (len(columns) - 1) <= width:
            break
        if name in columns:
            left_out.append(columns.pop(name)[0])
    widths = {name: _width(cells) for name, cells in columns.items()}
    left = {*table.swept, "directory"}
    rows = [
        "  ".join(
            cells[i].ljust(widths[name]) if name in left else cells[i].rjust(widths[name])
            for name, cells in columns.items()
        ).rstrip()
        for i in range(table.frame.height + 1)
    ]
    return [*rows, *([one_line(f"not shown: {', '.join(left_out)}", width or 0)] if left_out else [])]


def _figures(directory: Path, shares: set[str]) -> dict[str, Any]:
    """Return the figures of a run by column, and note in `shares` which of them are shares."""
    results = read_results(directory)
    ended = attempts(results)
    found: dict[str, Any] = {
        **{name: results.counts.get(name, 0) for name in COUNTS},
        "tokens_in": sum(a.tokens_in for a in ended),
        "tokens_out": sum(a.tokens_out for a in ended),
        "seconds": running_s(ended),
    }
    for rows, where in results.tables():
        booleans, numbers = means(rows, _keys(results))
        shares |= {f"{MEAN}{name}{where}" for name in booleans}
        found |= {f"{MEAN}{name}{where}": value for name, value in {**booleans, **numbers}.items()}
    return found


def _keys(results: Results) -> list[str]:
    key = (results.config.get("data") or {}).get("id_column")
    return [] if key is None else [key]


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    """Return the values of a setting as a column: of their type if they have one that a column can have, else as
    texts."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) == 1 and kinds <= {bool, int, float}:
        return pl.Series(name, values)
    if kinds == {int, float}:
        return pl.Series(name, values, pl.Float64)
    return pl.Series(name, [None if value is None else setting_text(value) for value in values], pl.String)


def setting_text(value: Any) -> str:
    """Return the value of a setting as text, without secrets."""
    return hidden(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _shown(table: SweepTable) -> dict[str, list[str]]:
    """Return head and cells of the columns to show, by column."""
    columns = {"exit_code": ["exit", *(_text(v, "-") for v in table.frame["exit_code"])]}
    for name in table.frame.columns:
        values = table.frame[name].to_list()
        says = len({value for value in values if value is not None}) > 1
        if name in table.swept:
            cells = ["null" if v is None else one_line(printable(setting_text(v)), WIDEST) for v in values]
            columns[name] = [name, *cells]
        elif name in COUNTS and (says or any(values) or (name == "data_rows" and values.count(None) < len(values))):
            columns[name] = [COUNTS[name], *(_text(v) for v in values)]
        elif name in table.shares:
            columns[name] = [name.removeprefix(MEAN), *("" if v is None else share(v, 1) for v in values)]
        elif name.startswith(MEAN) and says:
            columns[name] = [name.removeprefix(MEAN), *(_text(v) for v in values)]
        elif name in SPENT and any(values):
            columns[name] = [
                SPENT[name],
                *("" if v is None else seconds(v) if name == "seconds" else number(v) for v in values),
            ]
    places = zip(table.frame["directory"], table.frame["error"], table.frame["exit_code"], strict=True)
    columns["directory"] = ["results", *(_place(*each) for each in places)]
    return columns


def _place(directory: str | None, why: str | None, code: int | None) -> str:
    why = one_line(printable(why), 100) if why else ""
    return f"{directory} ({why})" if directory and why else directory or why


def _text(value: float | None, missing: str = "") -> str:
    return missing if value is None else number(value)


def _width(cells: Sequence[str]) -> int:
    return max(map(len, cells))


def _expendable(table: SweepTable) -> list[str]:
    """Return the columns to leave out on a narrow terminal, the first one first."""
    others = [name for name in table.frame.columns if name.startswith(MEAN) and name not in table.shares]
    return [*reversed(others), "tokens_in", "tokens_out", "filtered_rejects", "seconds", *sorted(table.shares)[::-1]]
