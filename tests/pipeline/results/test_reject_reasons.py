"""A reason that is counted for many rows has what all of them have in common, and placeholders for the rest alone."""

from __future__ import annotations

import random
import re

import polars as pl
import pytest

from pipeline.api.records import Reject, RejectKind, Rejects
from pipeline.dataflow.reject_writer import RejectTally
from pipeline.results.reject_reasons import of_all_rows

PIECES = (
    "7",
    "8",
    "1,234",
    "1.5",
    "'a'",
    "'b 3'",
    "row 3",
    "row 4, lineage [0, 2],",
    "0.9 like row 5",
    "N",
    "None",
    "x1",
)
WORDS = ("is", "says", "says 400:", "the server http://h1:80", "UTF-8", "UTF-16", ",", "it's", "(", "row")


def told(reasons: list[str], kind: RejectKind = RejectKind.ERROR) -> dict[str, str]:
    """Return what is told of rejects with `reasons`, by what they are counted as."""
    tally = RejectTally()
    tally.add(Rejects(0, tuple(Reject(i, why, kind=kind) for i, why in enumerate(reasons)), "read"))
    rejects = pl.LazyFrame({"node": "read", "kind": kind.value, "reason": reasons})
    whole = of_all_rows(rejects, tally.by_reason)
    return {key[2]: whole.get(key, key[2]) for key in tally.by_reason}


@pytest.mark.parametrize(
    ("reasons", "shown"),
    [
        (["column 'a' has 3 fields of 7", "column 'a' has 12 fields of 7"], "column 'a' has N fields of 7"),
        (["column 'a' has 3 fields", "column 'b' has 3 fields"], "column '…' has 3 fields"),
        (["a 5xx of tier 1, 9 in 3 tries", "a 5xx of tier 1, 10 in 3 tries"], "a 5xx of tier 1, N in 3 tries"),
        (["row 3 and row 4", "row 3 and row 5"], "row 3 and row N"),
    ],
)
def test_what_all_rows_share_is_told_as_it_is(reasons, shown):
    assert list(told(reasons).values()) == [shown]


def test_whatever_the_reasons_are():
    rng = random.Random(0)
    for _ in range(10):
        shape = [rng.choice((PIECES, WORDS)) for _ in range(rng.randrange(1, 7))]
        fixed = [rng.choice(pieces) for pieces in shape]
        drawn = [[rng.choice(s) if s is PIECES else f for s, f in zip(shape, fixed, strict=True)] for _ in range(3)]
        reasons = [" ".join(pieces) for pieces in (fixed, *drawn)]
        for kind in RejectKind:
            found = told(reasons, kind)
            for counted, shown in found.items():
                assert list(told([shown], kind)) == [counted]
                like = re.sub("N|'…'", ".+", re.escape(shown))
                assert len(found) > 1 or all(re.fullmatch(like, reason) for reason in reasons)
            assert set(told([reasons[0]] * 2, kind).values()) == {reasons[0]}
