"""Writes a comparison of runs: figures side by side, then settings and rows of each against the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.api.records import LINEAGE
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
from pipeline.results.reader import Results
from pipeline.results.report.rows import shown

MOST_LINES = 40
LONGEST_VALUE = 200
LONGEST_SETTING = 160
SMALLEST_P = 0.0001
OVER_PROMPTS = "  p and std. error are over prompts: rows of one prompt depend on each other"
NO_KEY = (
    "neither an id column nor 'row' and 'lineage' tell the rows of both apart; of runs of which one has samples the"
    " other needs as many (sampling.n)"
)
CONTEXT = 20
"""Characters that are shown before the first difference of two texts."""


def sections(runs: Sequence[Results], names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the sections to print, each a list of lines. `names`: of the runs, two at least."""
    letters = letters_of(len(runs))
    several = len(runs) > 2
    if several:
        yield [f"{letter}  {name}" for letter, name in zip(letters, names, strict=True)]
    yield lines(figures(runs), letters if several else names)
    yield ["busy, and of its time", *_indented(lines(stages(runs), letters if several else ()))]
    if several and (rejected := _rejects(runs)):
        yield ["rejects that differ in number", *_indented([*_rejects_head(letters), *rejected])]
    first = runs[0]
    for other, letter, name in list(zip(runs, letters, names, strict=True))[1:]:
        if several:
            yield [f"{letter} against A: {name}"]
        yield _listed("settings", setting_differences(first, other))
        yield _listed("what else decides the rows (content of inputs and model)", content_differences(first, other))
        if not several and (rejected := _rejects(runs)):
            yield ["rejects that differ in number", *_indented(rejected)]
        for folder in [folder for folder in first.folders if folder in other.folders]:
            yield _rows(folder, joined(first, other, folder), letter)


def letters_of(runs: int) -> list[str]:
    """Return the names of columns of so many runs: A, B ... Z, A1, B1 ..."""
    return [f"{chr(ord('A') + i % 26)}{i // 26 or ''}" for i in range(runs)]


def _listed(title: str, differences: Sequence[str]) -> list[str]:
    if not differences:
        return [f"{title}: the same"]
    cut = [line if len(line) <= LONGEST_SETTING else f"{line[:LONGEST_SETTING]} ..." for line in differences]
    more = len(cut) - MOST_LINES
    return [f"{title}: {len(cut)} differ", *_indented(cut[:MOST_LINES]), *([f"  and {more} more"] if more > 0 else [])]


def _rejects(runs: Sequence[Results]) -> list[str]:
    sides = [
        {f"{r['kind']} at {r['node']}: {r['reason']}": r["rows"] for r in run.manifest.get("rejects", [])}
        for run in runs
    ]
    every = dict.fromkeys(key for side in sides for key in side)
    keys = [key for key in every if len({side.get(key) for side in sides}) > 1]
    return [
        f"{' '.join(f'{side.get(key, 0):9,}' for side in sides)}  {key[:LONGEST_SETTING]}" for key in keys[:MOST_LINES]
    ]


def _rejects_head(letters: Sequence[str]) -> list[str]:
    return [" ".join(f"{letter:>9}" for letter in letters)]


def _rows(folder: str, rows: Joined | None, letter: str) -> list[str]:
    if rows is None:
        return [f"rows of {folder}: not joined, {NO_KEY}"]
    by = ", ".join(rows.keys)
    alone = f"{rows.only_a:,} only in A, {rows.only_b:,} only in {letter}"
    head = [f"rows of {folder}, joined by {by}: {rows.both:,} in both, {alone}"]
    if not rows.both:
        return head
    listed = {column.column for column in rows.columns}
    return [
        *head,
        *(line for column in rows.columns for line in _column(column, rows.both, letter)),
        *_indented(_shares(rows.shares, letter)),
        *_indented(_means([m for m in rows.means if m.differ or m.column not in listed], letter)),
        *([OVER_PROMPTS] if LINEAGE.name in rows.keys and (rows.shares or rows.means) else []),
    ]


def _column(column: Agreement, both: int, letter: str) -> list[str]:
    lines = [f"  {column.column}: {share(column.equal, both)} the same ({column.equal:,} of {both:,})"]
    for difference in column.first:
        lines += [
            f"    {difference.key}",
            *(f"      {text}" for text in _from_difference(difference.a, difference.b, letter)),
        ]
    return lines


def _shares(shares: Sequence[PairedShare], letter: str) -> list[str]:
    rows = []
    for s in shares:
        p = f"{s.p:.2g}" if s.p >= SMALLEST_P else f"<{SMALLEST_P}"
        in_each = share(s.true_a, s.rows), share(s.true_b, s.rows)
        rows.append((s.column, f"{s.rows:,}", *in_each, f"{s.only_a:,}", f"{s.only_b:,}", p))
    return aligned(("true", "rows", "A", letter, "A only", f"{letter} only", "p"), rows)


def _means(means: Sequence[PairedMean], letter: str) -> list[str]:
    """Return the table of the columns in which rows differ, and a line with the names of the others."""
    rows = [
        (m.column, f"{m.rows:,}", *("" if value is None else number(value) for value in m[2:6]), f"{m.differ:,}")
        for m in means
        if m.differ
    ]
    equal = ", ".join(m.column for m in means if not m.differ)
    return [
        *aligned(("mean", "rows", "A", letter, f"{letter} - A", "std. error", "differ"), rows),
        *([one_line(f"equal in all rows: {equal}", LONGEST_SETTING)] if equal else []),
    ]


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
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


def _from_difference(a: object, b: object, letter: str) -> list[str]:
    """Return lines with both values, long texts from shortly before their first difference on."""
    if not isinstance(a, str) or not isinstance(b, str):
        return [f"A  {shown(a)}", f"{letter}  {shown(b)}"]
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    begin = max(0, same - CONTEXT)
    head = [f"the first {same:,} characters are the same"] if same else []
    return [*head, *(f"{side}  {_excerpt(text, begin)}" for side, text in (("A", a), (letter, b)))]


def _excerpt(text: str, begin: int) -> str:
    end = begin + LONGEST_VALUE
    return printable(f"{'...' if begin else ''}{text[begin:end]}{'...' if len(text) > end else ''}")


def _indented(rows: Sequence[str]) -> list[str]:
    return [f"  {row}" for row in rows]
