"""The design of a sample of labels: its strata, the rows of the run that each label stands for, and scores of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import polars as pl

from pipeline.api.errors import ConfigError
from pipeline.labels.joined_labels import JoinedLabels, LabelledRow
from pipeline.labels.judged_rows import VERDICT
from pipeline.labels.rates import Floats, Sampled, pooled
from pipeline.labels.sample import members

SHOWN = 60
"""Characters of a stratum's name in a line."""


@dataclass(frozen=True, eq=False)
class Design:
    """The labels that count, and what they stand for.

    Args:
        rows: the n labelled rows.
        sample: their strata, and the rows of the run in each.
        conditions: of each stratum [H] the condition of its rows; None if it cannot be told which they are.
        notes: what a user has to know, a line each.
    """

    rows: Sequence[LabelledRow]
    sample: Sampled
    conditions: Sequence[pl.Expr] | None
    notes: Sequence[str]

    def mean_score(self, judged: pl.LazyFrame, score: pl.Expr) -> Floats | None:
        """Return the mean of `score` over all rows of each stratum [H]; None if their rows cannot be told."""
        if self.conditions is None:
            return None
        means = [score.filter(condition).mean().alias(str(i)) for i, condition in enumerate(self.conditions)]
        found = judged.filter(pl.col(VERDICT).is_not_null()).select(means).collect(engine="streaming").row(0)
        return None if None in found else np.array(found, dtype=np.float64)


def design_of(judged: pl.LazyFrame, joined: JoinedLabels) -> Design:
    """Return the design of the labels that count.

    Raises:
        ConfigError: none counts, or the labels are of several samples.
    """
    used, total = joined.used, sum(joined.verdicts.values())
    if not used:
        raise ConfigError(
            f"none of {joined.given:,} labels counts ({_reasons(joined.counts)}); label some rows, or give other files"
        )
    drawn = {row.stratum is not None for row in joined.rows}
    if drawn == {True, False}:
        raise ConfigError(
            "some labels are of a sample with strata, others of none: what a label stands for cannot be told; give"
            " files of one kind"
        )
    if drawn == {False}:
        note = f"the labels name no strata: they are taken as a simple random sample of {total:,} rows"
        every = Sampled(np.zeros(len(used), np.int64), np.array([total]))
        return Design(used, every, [pl.lit(True)], [note])
    return _stratified(judged, joined, total)


def _stratified(judged: pl.LazyFrame, joined: JoinedLabels, total: int) -> Design:
    seen: dict[str, list[LabelledRow]] = {}
    for row in joined.rows:
        seen.setdefault(row.stratum or "", []).append(row)
    sizes = {name: _rows(name, rows) for name, rows in seen.items()}
    names = sorted(seen, key=lambda name: (_verdict(seen[name]), _mean_probability(seen[name]), name))
    conditions, notes = None, []
    if all(row.of_this_run for row in joined.rows):
        conditions = {name: members(name) for name in names}
        sizes, grown = _counted(judged, conditions, sizes)
        notes += grown
    labelled = {name for name in names if any(row.label is not None for row in seen[name])}
    heard = {_verdict(seen[name]) for name in labelled}
    mute = [name for name in names if _verdict(seen[name]) not in heard]
    if mute:
        many = sum(sizes[name] for name in mute)
        unheard = ", ".join(sorted({f"'{_verdict(seen[name])}'" for name in mute}))
        notes.append(f"no row with the verdict {unheard} has a label: the figures leave its {many:,} rows out")
    names = [name for name in names if name not in mute]
    number, verdicts = {name: i for i, name in enumerate(names)}, sorted({_verdict(seen[name]) for name in names})
    used = [row for row in joined.used if row.stratum in number]
    stratum, rows = np.array([number[row.stratum or ""] for row in used]), np.array([sizes[name] for name in names])
    into = pooled(stratum, rows, np.array([verdicts.index(_verdict(seen[name])) for name in names]))
    for at in np.flatnonzero(into != np.arange(len(names))).tolist():
        where, other = names[at][:SHOWN], names[into[at]][:SHOWN]
        few = "only one label" if at in stratum else "no label"
        notes.append(f"{few} of stratum {where} counts: those of {other} stand for its {rows[at]:,} rows, too")
    kept = np.unique(into)
    sample = Sampled(np.searchsorted(kept, into[stratum]), np.bincount(into, rows).astype(np.int64)[kept])
    notes += _thinned(joined, len(used))
    if (stands := int(sample.rows.sum())) != total and not mute:
        notes.append(f"the labels stand for {stands:,} of {total:,} rows with a verdict: others are in no stratum seen")
    every = None
    if conditions is not None:
        every = [pl.any_horizontal(conditions[names[i]] for i in np.flatnonzero(into == h).tolist()) for h in kept]
    return Design(used, sample, every, notes)


def _rows(name: str, rows: Sequence[LabelledRow]) -> int:
    """Return how many rows of the run a stratum has, as its labels say."""
    said = {row.stratum_rows for row in rows}
    if len(said) > 1 or None in said:
        shown = " and ".join(str(n) for n in sorted(said, key=str))
        raise ConfigError(
            f"stratum {name[:SHOWN]} has {shown} rows by its labels (stratum_rows): they are of samples drawn at"
            " different times; give labels of one sample"
        )
    return next(n for n in said if n is not None)


def _counted(
    judged: pl.LazyFrame, conditions: Mapping[str, pl.Expr], sizes: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Return how many rows with a verdict each stratum has, and a line if the run has changed since it was drawn: its
    rows are those of then."""
    judges = pl.col(VERDICT).is_not_null()
    wanted = [c.sum().alias(f"a{i}") for i, c in enumerate(conditions.values())]
    wanted += [(c & judges).sum().alias(f"b{i}") for i, c in enumerate(conditions.values())]
    found = judged.select(wanted).collect(engine="streaming").row(0)
    all_rows, with_verdict = found[: len(conditions)], found[len(conditions) :]
    changed = [(name, sizes[name], now) for name, now in zip(conditions, all_rows, strict=True) if now != sizes[name]]
    if not changed:
        return dict(zip(conditions, with_verdict, strict=True)), []
    name, then, now = changed[0]
    note = (
        f"the run has changed since its rows were sampled (stratum {name[:SHOWN]} had {then:,} rows and has {now:,}):"
        " the figures are of the rows of then; sample and label again with `review`"
    )
    return dict(sizes), [note]


def _thinned(joined: JoinedLabels, used: int) -> Iterator[str]:
    if (left_out := len(joined.rows) - used) > 0:
        yield (
            f"{left_out:,} of {len(joined.rows):,} rows were skipped or tie: the labelled rows of their strata stand"
            " for them"
        )


def _verdict(rows: Sequence[LabelledRow]) -> str:
    """Return the verdict of most rows of a stratum."""
    return Counter(row.verdict for row in rows).most_common(1)[0][0]


def _mean_probability(rows: Sequence[LabelledRow]) -> float:
    return fmean(row.probability or 0.0 for row in rows)


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {reason}" for reason, n in counts.items() if n and reason != "used")
