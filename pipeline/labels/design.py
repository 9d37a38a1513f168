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
from pipeline.labels.judged_rows import ID, KEY, VERDICT
from pipeline.labels.label_files import Label
from pipeline.labels.rates import Floats, Sampled, pooled
from pipeline.labels.sample import SHOWN, members


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
    _refuse_several(joined.rows)
    if all(row.stratum is None for row in joined.rows):
        note = f"the labels name no strata: they are taken as a simple random sample of {total:,} rows"
        every = Sampled(np.zeros(len(used), np.int64), np.array([total]))
        return Design(used, every, [pl.lit(True)], [note])
    return _stratified(judged, joined, total)


def _refuse_several(rows: Sequence[LabelledRow]) -> None:
    """Raise ConfigError if the labels are of several samples, in which a row would stand for others more than once."""
    drawn = [label for row in rows for label in row.said if label.stratum is not None]
    if drawn and (without := next((row for row in rows if row.stratum is None), None)):
        raise ConfigError(
            f"{without.said[0].where}: the row is of no stratum, and that of {drawn[0].where} is of one: what a label"
            " stands for cannot be told; leave out rows that are not of the sample, or give a file of the page in which"
            " they have their 'stratum' and 'stratum_rows' (a skipped row has them, too)"
        )
    named = {label.stratum for label in drawn if label.sample}
    of_sample: dict[str | None, Label] = {
        label.sample: label for label in drawn if label.sample or label.stratum not in named
    }
    of_strata: list[dict[str | None, Label]] = [
        {label.stratum: label for label in row.said if label.stratum is not None} for row in rows
    ]
    if several := next((labels for labels in (of_sample, *of_strata) if len(labels) > 1), None):
        one, other, *_ = several.values()
        raise ConfigError(
            f"{one.where} and {other.where} are of samples with other strata, by --by or --rows of `review` or of a run"
            " that has grown between them: rows would count twice; give labels of one sample, or have pages with the"
            " same --by and --rows (and another --seed) labelled"
        )


def _stratified(judged: pl.LazyFrame, joined: JoinedLabels, total: int) -> Design:
    seen: dict[str, list[LabelledRow]] = {}
    for row in joined.rows:
        seen.setdefault(row.stratum or "", []).append(row)
    said = {name: _rows(name, rows) for name, rows in seen.items()}
    names = sorted(seen, key=lambda name: (_verdict(seen[name]), _mean_probability(seen[name]), name))
    conditions = _conditions(judged, {name: seen[name] for name in names})
    sizes, notes, conditions = _counted(judged, seen, conditions, said)
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


def _conditions(judged: pl.LazyFrame, seen: Mapping[str, Sequence[LabelledRow]]) -> Mapping[str, pl.Expr] | None:
    """Return the condition of the rows of each stratum; None if this run cannot tell which they are."""
    types, found = judged.collect_schema(), dict[str, pl.Expr]()
    for name, rows in seen.items():
        try:
            condition = members(name, types)
        except ConfigError as error:
            if not rows[0].of_this_run:
                return None
            raise ConfigError(f"{rows[0].said[0].where}: {error}; give 'stratum' as the page saves it") from error
        if condition is None:
            return None
        found[name] = condition
    return found


def _counted(
    judged: pl.LazyFrame,
    seen: Mapping[str, Sequence[LabelledRow]],
    conditions: Mapping[str, pl.Expr] | None,
    sizes: Mapping[str, int],
) -> tuple[Mapping[str, int], list[str], Mapping[str, pl.Expr] | None]:
    """Return how many rows with a verdict each stratum has, a line if these are not the rows that it was drawn from,
    and `conditions` where they are. Raises ConfigError if the strata have more rows than there are."""
    rows = {name: [row.key or row.id for row in seen[name]] for name in seen}
    key = pl.col(KEY if KEY in judged.collect_schema() else ID)
    aggregates = [pl.len(), pl.sum_horizontal(pl.lit(0), *(conditions or {}).values()).max()]
    for name, condition in (conditions or {}).items():
        has_verdict, labelled = pl.col(VERDICT).is_not_null(), key.is_in(rows[name])
        aggregates += [condition.sum(), (condition & has_verdict).sum(), (condition & labelled).sum()]
    named = [aggregate.alias(str(i)) for i, aggregate in enumerate(aggregates)]
    every, most, *found = judged.select(named).collect(engine="streaming").row(0)
    all_rows, with_verdict, again = (dict(zip(conditions or (), found[i::3], strict=True)) for i in range(3))
    if conditions is not None and any(again[name] != len(rows[name]) for name in conditions):
        conditions = None  # of another run, in which these rows are in other strata
    if most > 1 if conditions is not None else sum(sizes.values()) > every:
        where = next(iter(seen.values()))[0].said[0].where
        raise ConfigError(
            f"{where} and others: the strata of the labels have {sum(sizes.values()):,} rows (stratum_rows) of"
            f" {every:,}: rows would count twice, or the labels are of other rows; give labels of one sample of these"
        )
    if conditions is None:
        return sizes, [], None
    changed = [name for name in conditions if all_rows[name] != sizes[name]]
    if not changed:
        return with_verdict, [], conditions
    name = changed[0]
    had = f"stratum {name[:SHOWN]} had {sizes[name]:,} rows and has {all_rows[name]:,}"
    if not any(all_rows[name] > sizes[name] for name in changed):
        return (
            with_verdict,
            [f"the rows are a part of those that were sampled ({had}): the figures are of this part"],
            conditions,
        )
    note = (
        f"the run has changed since its rows were sampled ({had}): the figures are of the rows of then; sample and"
        " label again with `review`"
    )
    return {n: sizes[n] if all_rows[n] > sizes[n] else with_verdict[n] for n in conditions}, [note], None


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
