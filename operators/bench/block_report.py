"""What the benchmark's report says of block diffusion beside the speeds: calls and what they cost, and what batching
gives."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from operators.bench.tables import Row, paired_ratio, spread, table


def blocks(rows: Sequence[Row], measured: Sequence[str]) -> Iterator[str]:
    """A table of the calls of each contender, where one makes blocks; the first does not, and is what the others are
    compared with. `rows`: of one scenario and number of slots."""
    if not any(row.get("calls_per_block") for row in rows):
        return
    yield ""
    first = measured[0]
    titles = [f"by {first}", "calls", "ms a call", "calls a block", "tokens a step of a block", "Python and sampling"]
    yield from table(["contender", "t/s", *titles], ([name, *_cells(rows, name, first)] for name in measured))


def _cells(rows: Sequence[Row], name: str, first: str) -> Iterator[str]:
    own = [row for row in rows if row["contender"] == name]

    def of(key: str, form: str) -> str:
        return spread([row[key] for row in own if row[key] is not None], form)

    ratio = paired_ratio(rows, name, first) if name != first else None
    yield of("tokens_per_s", ",.1f")
    yield "-" if ratio is None else f"{ratio:.2f}"
    yield of("steps", ",.0f")
    yield of("call_ms", ",.2f")
    yield of("calls_per_block", ".2f")
    yield of("tokens_per_pass", ".2f")
    yield of("own_share", ".1%")


def batching(rows: Sequence[Row]) -> Iterator[str]:
    """A table of what more slots give by what their calls allow, where blocks are made with several numbers of slots.

    A call of n rows may take longer than one of a row. What it allows is n times the tokens in that time; what is less
    than 1 of it was lost by calls that were not full, or outside of them. `rows`: of one scenario.
    """
    slots = sorted({row["slots"] for row in rows})
    if not any(row.get("calls_per_block") for row in rows):
        return
    for many in slots[1:]:
        yield from ("", f"{many} slots against {slots[0]}", "")
        names = dict.fromkeys(row["contender"] for row in rows)
        lines = [[name, *_gain([row for row in rows if row["contender"] == name], slots[0], many)] for name in names]
        titles = ["contender", "times the tokens", "calls allow", "of what they allow"]
        yield from table(titles, [line for line in lines if len(line) == len(titles)])


def _gain(rows: Sequence[Row], few: int, many: int) -> list[str]:
    """The cells of a contender; none if it was not measured with both numbers of slots."""
    speeds, calls = _medians(rows, "tokens_per_s"), _medians(rows, "call_ms")
    if not {few, many} <= speeds.keys() & calls.keys():
        return []
    made, allowed = speeds[many] / speeds[few], many / few * calls[few] / calls[many]
    return [f"{made:.2f}", f"{allowed:.2f}", f"{made / allowed:.2f}"]


def _medians(rows: Sequence[Row], key: str) -> dict[int, float]:
    """By the number of slots."""
    found = [row for row in rows if row[key] is not None]
    return {n: statistics.median(row[key] for row in found if row["slots"] == n) for n in {r["slots"] for r in found}}
