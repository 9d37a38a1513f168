"""`python -m pipeline compare A B`: compare settings, rows, speed, texts, booleans and numbers of two runs.
`report DIR ...`: write report.html again, also of a run that is running or was killed.

The exit code is 0 also if the two differ, and 2 if a directory is not a run directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.api.errors import ExitCode
from pipeline.cli.commands import parser_of
from pipeline.monitor.wording import number, one_line, printable, share
from pipeline.results.compare import (
    Agreement,
    Joined,
    content_differences,
    figures,
    joined,
    lines,
    setting_differences,
    stages,
)
from pipeline.results.paired import PairedMean, PairedShare
from pipeline.results.reader import Results, read_results
from pipeline.results.report import write_report
from pipeline.results.report.rows import shown
from pipeline.system.terminal import say

MOST_LINES = 40
LONGEST_VALUE = 200
LONGEST_SETTING = 160
SMALLEST_P = 0.0001
CONTEXT = 20
"""Characters that are shown before the first difference of two texts."""


def report(arguments: Sequence[str]) -> ExitCode:
    """Write the reports."""
    parser = parser_of("report")
    parser.add_argument("directories", nargs="+", type=Path, metavar="outputs/NAME", help="directories of runs")
    for directory in parser.parse_args(arguments).directories:
        say([str(write_report(directory))])
    return ExitCode.DONE


def compare(arguments: Sequence[str]) -> ExitCode:
    """Print the comparison."""
    parser = parser_of("compare")
    parser.add_argument("a", metavar="outputs/A", help="directory of a run")
    parser.add_argument("b", metavar="outputs/B", help="directory of another run")
    options = parser.parse_args(arguments)
    a, b = read_results(Path(options.a)), read_results(Path(options.b))
    for section in _sections(a, b, (options.a, options.b)):
        say([*section, ""])
    return ExitCode.DONE


def _sections(a: Results, b: Results, names: tuple[str, str]) -> Iterator[list[str]]:
    """Yield the sections to print, each a list of lines."""
    yield lines(figures(a, b), names)
    yield ["busy, and of its time", *_indented(lines(stages(a, b)))]
    yield _listed("settings", setting_differences(a, b))
    yield _listed("what else decides the rows (content of inputs and model)", content_differences(a, b))
    if rejected := _rejects(a, b):
        yield ["rejects that differ in number", *_indented(rejected)]
    for folder in [folder for folder in a.folders if folder in b.folders]:
        yield _rows(folder, joined(a, b, folder))


def _listed(title: str, differences: Sequence[str]) -> list[str]:
    if not differences:
        return [f"{title}: the same"]
    cut = [line if len(line) <= LONGEST_SETTING else f"{line[:LONGEST_SETTING]} ..." for line in differences]
    more = len(cut) - MOST_LINES
    return [f"{title}: {len(cut)} differ", *_indented(cut[:MOST_LINES]), *([f"  and {more} more"] if more > 0 else [])]


def _rejects(a: Results, b: Results) -> list[str]:
    in_a, in_b = (
        {f"{r['kind']} at {r['node']}: {r['reason']}": r["rows"] for r in run.manifest.get("rejects", [])}
        for run in (a, b)
    )
    keys = [key for key in in_a | in_b if in_a.get(key) != in_b.get(key)]
    return [f"{in_a.get(key, 0):9,} {in_b.get(key, 0):9,}  {key[:LONGEST_SETTING]}" for key in keys[:MOST_LINES]]


def _rows(folder: str, rows: Joined | None) -> list[str]:
    if rows is None:
        return [f"rows of {folder}: cannot be joined, there is neither an id column nor a column 'row' in both"]
    by = ", ".join(rows.keys)
    alone = f"{rows.only_a:,} only in A, {rows.only_b:,} only in B"
    head = [f"rows of {folder}, joined by {by}: {rows.both:,} in both, {alone}"]
    if not rows.both:
        return head
    listed = {column.column for column in rows.columns}
    return [
        *head,
        *(line for column in rows.columns for line in _column(column, rows.both)),
        *_indented(_shares(rows.shares)),
        *_indented(_means([m for m in rows.means if m.differ or m.column not in listed])),
    ]


def _column(column: Agreement, both: int) -> list[str]:
    lines = [f"  {column.column}: {share(column.equal, both)} the same ({column.equal:,} of {both:,})"]
    for difference in column.first:
        lines += [f"    {difference.key}", *(f"      {text}" for text in _from_difference(difference.a, difference.b))]
    return lines


def _shares(shares: Sequence[PairedShare]) -> list[str]:
    rows = []
    for s in shares:
        p = f"{s.p:.2g}" if s.p >= SMALLEST_P else f"<{SMALLEST_P}"
        in_each = share(s.true_a, s.rows), share(s.true_b, s.rows)
        rows.append((s.column, f"{s.rows:,}", *in_each, f"{s.only_a:,}", f"{s.only_b:,}", p))
    return _table(("true", "rows", "A", "B", "A only", "B only", "p"), rows)


def _means(means: Sequence[PairedMean]) -> list[str]:
    """Return the table of the columns in which rows differ, and a line with the names of the others."""
    rows = [
        (m.column, f"{m.rows:,}", *("" if value is None else number(value) for value in m[2:6]), f"{m.differ:,}")
        for m in means
        if m.differ
    ]
    equal = ", ".join(m.column for m in means if not m.differ)
    return [
        *_table(("mean", "rows", "A", "B", "B - A", "std. error", "differ"), rows),
        *([one_line(f"equal in all rows: {equal}", LONGEST_SETTING)] if equal else []),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return `head` and at most MOST_LINES rows as lines in aligned columns; nothing if there are no rows."""
    if not rows:
        return []
    cells = [head, *((printable(row[0]), *row[1:]) for row in rows[:MOST_LINES])]
    first, *others = [max(map(len, column)) for column in zip(*cells, strict=True)]
    more = [f"and {len(rows) - MOST_LINES} more"] if len(rows) > MOST_LINES else []
    return [
        *("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in cells),
        *more,
    ]


def _from_difference(a: object, b: object) -> list[str]:
    """Return lines with both values, long texts from shortly before their first difference on."""
    if not isinstance(a, str) or not isinstance(b, str):
        return [f"A  {shown(a)}", f"B  {shown(b)}"]
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    begin = max(0, same - CONTEXT)
    head = [f"the first {same:,} characters are the same"] if same else []
    return [*head, *(f"{side}  {_excerpt(text, begin)}" for side, text in (("A", a), ("B", b)))]


def _excerpt(text: str, begin: int) -> str:
    end = begin + LONGEST_VALUE
    return printable(f"{'...' if begin else ''}{text[begin:end]}{'...' if len(text) > end else ''}")


def _indented(rows: Sequence[str]) -> list[str]:
    return [f"  {row}" for row in rows]
