"""The panel of rejects: counts by reason, with an example of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from pipeline.api.records import RejectKind
from pipeline.dataflow.reject_writer import VALUES_OF_A_ROW
from pipeline.monitor.wording import share, shortened
from pipeline.results.reader import Results
from pipeline.results.report.charts import Table
from pipeline.results.report.panel import Card, Panel
from pipeline.results.report.sample_rows import MOST_FIELDS, shown

MOST_REASONS = 12
LONGEST_REASON = 300
KEYS = ("node", "kind", "counted_as")
"""The columns that rejects are counted by."""


def rejects(results: Results) -> list[Panel]:
    """Return the panel: rejects by reason, the most frequent first, each with its first row."""
    found: Sequence[Mapping[str, Any]] = results.manifest.get("rejects", [])
    if not found:
        return []
    ranked = sorted(found, key=lambda r: (-r["rows"], r["node"], r["reason"]))
    cells = [
        [f"{r['rows']:,}", shortened(r["reason"], LONGEST_REASON), r["kind"], r["node"], _share(results, r)]
        for r in ranked[:MOST_REASONS]
    ]
    left = ranked[MOST_REASONS:]
    caption = f"and {sum(r['rows'] for r in left):,} rows for {len(left):,} other reasons" if left else ""
    table = Table(["rows", "reason", "kind", "node", "of the rows there"], cells, caption)
    return [Panel("Rejects", tables=[table], cards=_examples(results, ranked[:MOST_REASONS]))]


def _share(results: Results, reject: Mapping[str, Any]) -> str | None:
    """Return the share of the node's rows, expanded ones included."""
    counts = results.accounts.get(reject["node"])
    return None if counts is None else share(reject["rows"], counts.rows_in + counts.expanded)


def _values(record: str) -> list[tuple[str, str]]:
    """Return the columns of a rejected row without token ids, or the whole record if it is not a JSON object."""
    try:
        row = json.loads(record)
    except ValueError:
        row = record
    if not isinstance(row, dict):
        return [("the row", shown(row))] if row else []
    return [(name, shown(value)) for name, value in row.items() if not name.endswith("_ids")][:MOST_FIELDS]


def _examples(results: Results, ranked: Sequence[Mapping[str, Any]]) -> list[Card]:
    table = results.rejects()
    if table is None:
        return []
    plain = pl.col("reason")
    for pattern, instead in VALUES_OF_A_ROW:
        plain = plain.str.replace_all(pattern, instead)
    counted_as = pl.when(pl.col("kind") == RejectKind.ERROR.value).then(plain).otherwise("reason")
    wanted = [(reject["node"], reject["kind"], reject["reason"]) for reject in ranked]
    here = table.with_columns(counted_as.alias("counted_as"))
    here = here.join(pl.LazyFrame(wanted, schema=list(KEYS), orient="row"), on=KEYS, how="semi")
    firsts = here.join(here.group_by(KEYS).agg(pl.col("row").min()), on=[*KEYS, "row"], how="semi")
    found = firsts.collect(engine="streaming").to_dicts()
    cards = {tuple(record[key] for key in KEYS): _card(record) for record in found}
    return [cards[key] for key in wanted if key in cards]


def _card(record: Mapping[str, Any]) -> Card:
    fields = [("reason", shortened(record["reason"], LONGEST_REASON))]
    if record.get("file"):
        line = record.get("line")
        fields.append(("from", record["file"] + (f", line {line}" if line is not None else "")))
    fields += _values(record.get("record") or "")
    return Card(f"{record['kind']} at {record['node']}: row {record['row']:,}", fields)
