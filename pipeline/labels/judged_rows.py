"""The rows of a run with keys and verdicts as text, and where among them labels belong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.api.records import LINEAGE, ROW
from pipeline.labels.label_files import Label, text_of
from pipeline.labels.sample import MOST_VALUES
from pipeline.results.batches import no_rows
from pipeline.results.reader import Results

KEY, ID, VERDICT, PROBABILITY, LENGTH = " row", " id", " verdict", " probability", " length"
"""Columns of `judged_rows`, beside those of the run, which have other names."""
WORDS = ({"true": "yes", "false": "no"}, {"yes": "true", "no": "false"})
"""Words of two verdicts, and what people may write for each."""


def judged_rows(results: Results, folder: str, verdict: str) -> pl.LazyFrame:
    """Return the rows of a folder with their keys (those that the run has) and VERDICT as text.

    Raises:
        ConfigError: there are no rows, no such column, or it has too many values for a verdict.
    """
    rows = results.rows(folder)
    if rows is None:
        raise no_rows(results, folder)
    return keyed(results, rows).with_columns(verdict_text(rows, verdict).alias(VERDICT))


def with_scores(judged: pl.LazyFrame, probability: str | None = None, text: str | None = None) -> pl.LazyFrame:
    """Return rows of `judged_rows` with PROBABILITY (null without a column) and LENGTH of the text in characters."""
    sure, length = pl.lit(None, pl.Float64), pl.lit(None, pl.UInt32)
    if probability is not None:
        sure = pl.col(probability).cast(pl.Float64).fill_nan(None)
    if text is not None:
        length = pl.col(text).cast(pl.String).str.len_chars()
    return judged.with_columns(sure.alias(PROBABILITY), length.alias(LENGTH))


def keyed(results: Results, rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return `rows` with KEY (row and lineage as `5 0.1`) and ID as text, where the run has them."""
    there, name = rows.collect_schema().names(), id_column(results)
    keys = []
    if ROW.name in there:
        row = pl.col(ROW.name).cast(pl.String)
        lineage = pl.col(LINEAGE.name).cast(pl.List(pl.String)).list.join(".") if LINEAGE.name in there else pl.lit("")
        keys.append(pl.concat_str(row, pl.lit(" "), lineage.fill_null("")).alias(KEY))
    if name in there:
        keys.append(pl.col(name).cast(pl.String).alias(ID))
    return rows.with_columns(keys)


def id_column(results: Results) -> str | None:
    """Return `data.id_column` of the run."""
    name = (results.config.get("data") or {}).get("id_column")
    return None if name is None else str(name)


def require_columns(rows: pl.LazyFrame, **columns: str | None) -> None:
    """Raise ConfigError if the rows lack a column that an option names, or that of `text` has no texts."""
    types = rows.collect_schema()
    there = types.names()
    for option, name in columns.items():
        if name is not None and name not in there:
            hint = did_you_mean(name, there) or f"; there are {', '.join(there)}"
            raise ConfigError(f"--{option}: the rows have no column '{name}'{hint}")
        if name is not None and option == "text" and (types[name].is_nested() or types[name] == pl.Binary):
            raise ConfigError(
                f"--text: column '{name}' is a {types[name]}; name one of texts, or make one of it with"
                " operators.map.Map"
            )


def verdict_text(rows: pl.LazyFrame, column: str) -> pl.Expr:
    """Return `column` as text, as labels have it (`text_of`). Raises ConfigError if it is no verdict."""
    require_columns(rows, verdict=column)
    many = int(rows.select(pl.col(column).hash().n_unique()).collect(engine="streaming").item())
    if many > MOST_VALUES + 1:
        raise ConfigError(
            f"--verdict: column '{column}' has {many:,} different values, so it is no verdict (at most {MOST_VALUES});"
            " name the column of the judge's answers, or make one of few values with operators.map.Map"
        )
    kind = rows.collect_schema()[column]
    if not (kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Enum, pl.Categorical)):
        raise ConfigError(f"--verdict: column '{column}' is a {kind}; a verdict is a text, a boolean or a number")
    if not kind.is_float():
        text = pl.col(column).cast(pl.String)
        return pl.when(text != "").then(text)  # `replace` would have all columns in memory
    values = rows.select(pl.col(column).unique()).collect(engine="streaming")[column].drop_nulls().to_list()
    return pl.coalesce(
        pl.lit(None, pl.String), *(pl.when(pl.col(column) == value).then(pl.lit(text_of(value))) for value in values)
    )


def as_verdict(label: str, kind: pl.DataType, verdicts: Iterable[str] = ()) -> str:
    """Return a label as verdicts of a column of `kind` are written: `4` of people is 4.0 of a judge. Of texts `Yes ` is
    yes if that is the one of the `verdicts` which it can be, and true is yes where no others than yes and no are."""
    if kind.is_numeric():
        try:
            number = float(label)
        except ValueError:
            return label
        return text_of(int(number) if kind.is_integer() and number.is_integer() else number) or label
    plain, there = label.strip().casefold(), {each: each.strip().casefold() for each in verdicts}
    if label in there:
        return label
    words = next((words for words in WORDS if kind == pl.Boolean or (there and {*there.values()} <= {*words})), {})
    plain = next((word for word, other in words.items() if other == plain), plain)
    near = [each for each, word in there.items() if word == plain]
    return near[0] if len(near) == 1 else plain if plain in words else label.strip()


class LabelPlaces:
    """The rows that labels are of. `rows`: their columns by number."""

    def __init__(self, judged: pl.LazyFrame, results: Results, labels: Sequence[Label]) -> None:
        there = judged.collect_schema().names()
        self._run, self._id_column = results.run_id, id_column(results)
        rows = {label.row for label in labels if self._joins_by_row(label)}
        ids = {label.id for label in labels if not self._joins_by_row(label)}
        if rows and KEY not in there:
            raise ConfigError(f"{labels[0].where}: the run has no column '{ROW.name}' to join labels by; give ids")
        if ids and ID not in there:
            raise ConfigError(f"{labels[0].where}: rows have no column '{id_column(results)}' to join labels by")
        wanted = pl.lit(False)
        if rows:
            wanted |= pl.col(ROW.name).is_in(sorted(row for row in rows if row is not None))
        if ids:
            wanted |= pl.col(ID).is_in(sorted(name for name in ids if name is not None))
        columns = [name for name in (KEY, ID, VERDICT, PROBABILITY, LENGTH) if name in there]
        self.rows = judged.filter(wanted).select(columns).collect(engine="streaming").to_dicts()
        self._at: dict[tuple[str, Any], list[int]] = {}
        for i, row in enumerate(self.rows):
            if KEY in row:
                number, _, lineage = row[KEY].partition(" ")
                self._at.setdefault((ROW.name, (int(number), lineage)), []).append(i)
                self._at.setdefault((ROW.name, int(number)), []).append(i)
            self._at.setdefault((ID, row.get(ID)), []).append(i)

    def of(self, label: Label) -> int | None:
        """Return the number of the row of a label; None if there is none. Raises ConfigError if there are several."""
        lineage = "" if label.lineage is None else ".".join(map(str, label.lineage))
        by_row = self._joins_by_row(label)
        if by_row:
            key: tuple[str, Any] = (ROW.name, (label.row, lineage) if lineage else label.row)
            named = f"row {label.row}{lineage and ' ' + lineage}"
        else:
            key, named = (ID, label.id), f"id '{label.id}'"
        found = self._at.get(key, [])
        if len(found) > 1 and lineage:
            found = [i for i in found if self.rows[i].get(KEY, "").partition(" ")[2] == lineage]
        if len(found) > 1:
            raise ConfigError(
                f"{label.where}: {len(found):,} rows of the run have {named}; give labels with 'row' and 'lineage'"
            )
        if found and by_row and None not in (label.id, has := self.rows[found[0]].get(ID)) and label.id != has:
            raise ConfigError(
                f"{label.where}: row {label.row} of the run has the id '{has}', and the label '{label.id}': it is of"
                " another run; give the run that was labelled, or labels without 'row'"
            )
        return found[0] if found else None

    def _joins_by_row(self, label: Label) -> bool:
        return label.joins_by_row(self._run, self._id_column)
