"""Labels joined to the rows of a run: of each labelled row the verdict, its probability, and what the reviewers say.

Of all rows only keys, verdict and probability are read, and kept of labelled ones alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.labels.judged_rows import (
    ID,
    KEY,
    LENGTH,
    PROBABILITY,
    VERDICT,
    LabelPlaces,
    as_verdict,
    id_column,
)
from pipeline.labels.label_files import Label, latest, read_labels
from pipeline.results.reader import Results


@dataclass(frozen=True)
class LabelledRow:
    """A row of the run that a reviewer has seen.

    Args:
        row, lineage, id: of the row; None where rows have none.
        verdict: the judge's, as text.
        probability: of the verdict, by the judge; None where the run has none.
        length: characters of the text of `--text`; None without.
        said: the label of each reviewer who has seen it, skipped ones among them.
        label: of most of them; None if all skipped the row, or as many say one thing as another.
        stratum, stratum_rows: of the sample that the row is of; None: it is of none.
        of_this_run: whether the labels name the run they are joined to, so that its strata are this run's.
    """

    row: int | None
    lineage: tuple[int, ...] | None
    id: str | None
    verdict: str
    probability: float | None
    length: int | None
    said: Sequence[Label]
    label: str | None
    stratum: str | None
    stratum_rows: int | None
    of_this_run: bool

    @property
    def labels(self) -> dict[str, str | None]:
        """What each reviewer says; None: skipped."""
        return {label.reviewer: label.label for label in self.said}

    @property
    def key(self) -> str | None:
        """KEY of `judged_rows`; None where rows have none."""
        return None if self.row is None else f"{self.row} {'.'.join(map(str, self.lineage or ()))}"

    @property
    def tied(self) -> bool:
        """Whether reviewers have labelled the row, and none of the labels has most."""
        return self.label is None and any(label.label is not None for label in self.said)


@dataclass(frozen=True)
class JoinedLabels:
    """What was made of all labels that were given.

    Args:
        rows: the rows of the run that have labels, skipped ones among them.
        given: labels in the files.
        counts: how many of them were used, and of each reason how many were not; together `given`.
        notes: what a user has to know, a line each.
        verdicts: how many rows of the run have each verdict, the most frequent first.
    """

    rows: Sequence[LabelledRow]
    given: int
    counts: Mapping[str, int]
    notes: Sequence[str]
    verdicts: Mapping[str, int]

    @property
    def used(self) -> list[LabelledRow]:
        """The rows with a label that counts."""
        return [row for row in self.rows if row.label is not None]

    @property
    def reviewers(self) -> list[str]:
        """Who has labelled a row, in alphabetical order."""
        return sorted({label.reviewer for row in self.rows for label in row.said if label.label is not None})


def join_labels(
    results: Results, judged: pl.LazyFrame, files: Sequence[Path], verdict: str, folder: str
) -> JoinedLabels:
    """Join the labels of `files` to the rows of `folder`: by row and lineage if they are of this run, else by id. Of
    several labels of a reviewer for a row the last counts. `judged`: the rows (`judged_rows`), with or without scores.

    Raises:
        ConfigError: a file is none of labels, a key is of several rows, or no label fits a row.
    """
    kind = judged.collect_schema()[verdict]
    verdicts = judged.drop_nulls(VERDICT).group_by(VERDICT).len().sort("len", VERDICT, descending=[True, False])
    counted = dict(verdicts.collect(engine="streaming").iter_rows())
    labels, notes = _as_verdicts(read_labels(files, id_column(results)), kind, counted)
    here = [label for label in labels if label.folder in (None, folder)]
    if not here and labels:
        raise ConfigError(f"{labels[0].where}: the labels are of {labels[0].folder}; give --folder {labels[0].folder}")
    places = LabelPlaces(judged, results, here)
    found = [(places.of(label), label) for label in here]
    unknown = [label for place, label in found if place is None]
    if len(unknown) == len(found):
        raise ConfigError(_no_label_fits(results, files, folder, unknown))
    joined = [(place, label) for place, label in found if place is not None]
    mute = [(place, label) for place, label in joined if places.rows[place][VERDICT] is None]
    kept = latest((place, label) for place, label in joined if places.rows[place][VERDICT] is not None)
    _refuse_others(kept.values(), counted, verdict)
    by_row: dict[Hashable, list[Label]] = {}
    for (place, _), label in kept.items():
        by_row.setdefault(place, []).append(label)
    rows = [_labelled(places.rows[i], by_row[i], results.run_id) for i in range(len(places.rows)) if i in by_row]
    counts = {
        "used": sum(label is not None for row in rows if row.label is not None for label in row.labels.values()),
        "skipped": sum(label is None for row in rows for label in row.labels.values()),
        "of rows on which reviewers tie": sum(x is not None for row in rows if row.tied for x in row.labels.values()),
        "replaced by a later label of the same reviewer": len(joined) - len(mute) - len(kept),
        "of rows without a verdict": len(mute),
        "of rows that the run does not have": len(unknown),
        "of another folder": len(labels) - len(here),
    }
    notes += [f"{len(unknown):,} labels fit no row of the run, the first is {unknown[0].where}"] if unknown else []
    notes += strange_labels([row.label for row in rows], counted, verdict)
    return JoinedLabels(rows, len(labels), counts, notes, counted)


def _as_verdicts(
    labels: Iterable[Label], kind: pl.DataType, verdicts: Mapping[str, int]
) -> tuple[list[Label], list[str]]:
    """Return the labels as verdicts are written, those that are none in the first spelling of each, and a line on texts
    that were read as others."""
    made, spelled, read = list[Label](), dict[str, str](), Counter[str]()
    for each in labels:
        if each.label is None:
            made.append(each)
            continue
        said = as_verdict(each.label, kind, verdicts)
        said = said if said in verdicts else spelled.setdefault(said.casefold(), said)
        made.append(replace(each, label=said))
        if said != each.label and not kind.is_numeric() and (kind != pl.Boolean or said != each.label.lower()):
            read[f"'{each.label}' as '{said}'"] += 1
    texts = ", ".join(f"{text} ({n:,})" for text, n in read.most_common())
    return made, [f"labels are read by what they say: {texts}"] if read else []


def _refuse_others(labels: Iterable[Label], verdicts: Mapping[str, int], column: str) -> None:
    """Raise ConfigError if there are verdicts to choose from, and no label is one: they are of another column."""
    said = {label.label: label for label in labels if label.label is not None}
    if len(verdicts) > 1 and said and not said.keys() & verdicts.keys():
        name, first = next(iter(said.items()))
        hint = did_you_mean(name, verdicts) or f"; {column} has {', '.join(verdicts)}"
        raise ConfigError(
            f"{first.where}: no label is a verdict, and this is '{name}'{hint}; write labels as the verdicts are, or"
            " name the column that they are about (--verdict)"
        )


def _labelled(row: Mapping[str, Any], labels: Sequence[Label], run: str) -> LabelledRow:
    votes = Counter(label.label for label in labels if label.label is not None).most_common(2)
    is_tie = len(votes) == 2 and votes[0][1] == votes[1][1]
    drawn = next((label for label in labels if label.stratum is not None), labels[0])
    key, _, lineage = (row.get(KEY) or "").partition(" ")
    return LabelledRow(
        row=int(key) if key else None,
        lineage=tuple(map(int, lineage.split("."))) if lineage else None,
        id=row.get(ID),
        verdict=row[VERDICT],
        probability=row.get(PROBABILITY),
        length=row.get(LENGTH),
        said=labels,
        label=votes[0][0] if votes and not is_tie else None,
        stratum=drawn.stratum,
        stratum_rows=drawn.stratum_rows,
        of_this_run=drawn.run == run,
    )


def strange_labels(labels: Iterable[str | None], verdicts: Iterable[str], column: str) -> Iterator[str]:
    """Yield a line on labels that no verdict of the run has: a person may say what the judge never does, or mistype."""
    verdicts = list(verdicts)
    strange = Counter(label for label in labels if label is not None and label not in verdicts)
    if strange:
        said = ", ".join(f"'{value}' ({n:,})" for value, n in strange.most_common())
        has = ", ".join(verdicts) or "none"
        yield f"labels that no verdict has: {said}; {column} has {has}. They count as rows where the judge is wrong"


def _no_label_fits(results: Results, files: Sequence[Path], folder: str, labels: Sequence[Label]) -> str:
    names = ", ".join(map(str, files))
    if not labels:
        return f"{names}: there are no labels in it; save some in the page of `review`"
    first = labels[0]
    what = f"row {first.row}" if first.row is not None else f"id '{first.id}'"
    return (
        f"no label of {names} fits a row of {folder} in {results.directory}: {first.where} is of {what}, which is not"
        " there; give the run that was labelled, or --folder"
    )
