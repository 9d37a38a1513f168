"""The panel of rejects: how many rows were taken out, by which node, why, and an example of each reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from pipeline.api.records import RejectKind
from pipeline.dataflow.reject_writer import VALUES_OF_A_ROW
from pipeline.monitor.wording import share, shortened
from pipeline.results.reader import Results
from pipeline.results.report.charts import Table
from pipeline.results.report.panel import Card, Panel
from pipeline.results.report.sample_rows import MOST_FIELDS, shown
from pipeline.run_dir.names import REJECTS
from pipeline.system.result_files import scan

MOST_REASONS = 12
LONGEST_REASON = 300


def rejects(results: Results) -> list[Panel]:
    """Rejects by reason, the most frequent first, each with the first row that it took."""
    found: Sequence[Mapping[str, Any]] = results.manifest.get("rejects", [])
    if not found:
        return []
    ranked = sorted(found, key=lambda r: (-r["rows"], r["node"], r["reason"]))
    cells = [
        [
            *(f"{r['rows']:,}", shortened(r["reason"], LONGEST_REASON), r["kind"], r["node"]),
            _share(results, r),
        ]
        for r in ranked[:MOST_REASONS]
    ]
    left = ranked[MOST_REASONS:]
    caption = f"and {sum(r['rows'] for r in left):,} rows for {len(left):,} other reasons" if left else ""
    table = Table(["rows", "reason", "kind", "node", "of the rows there"], cells, caption)
    return [Panel("Rejects", tables=[table], cards=_examples(results, ranked[:MOST_REASONS]))]


def _share(results: Results, reject: Mapping[str, Any]) -> str | None:
    """Of the rows that the node had, samples and pieces counted."""
    counts = results.accounts.get(reject["node"])
    return None if counts is None else share(reject["rows"], counts.rows_in + counts.expanded)


def _values(record: str) -> list[tuple[str, str]]:
    """The columns of a rejected row; what cannot be taken apart as it is. Token ids tell nothing."""
    try:
        row = json.loads(record)
    except ValueError:
        row = record
    if not isinstance(row, dict):
        return [("the row", shown(row))] if row else []
    return [(name, shown(value)) for name, value in row.items() if not name.endswith("_ids")][:MOST_FIELDS]


def _examples(results: Results, ranked: Sequence[Mapping[str, Any]]) -> list[Card]:
    """The first row of each reason."""
    table = results.rejects()
    if table is None:
        return []
    plain = pl.col("reason")
    for pattern, instead in VALUES_OF_A_ROW:
        plain = plain.str.replace_all(pattern, instead)
    counted_as = pl.when(pl.col("kind") == RejectKind.ERROR.value).then(plain).otherwise("reason")
    groups = table.group_by("node", "kind", counted_as.alias("counted_as"))
    firsts = groups.agg(pl.col("row").min(), pl.col("reason").sort_by("row").first())
    of_reason = {(f["node"], f["kind"], f["counted_as"]): f for f in firsts.collect(engine="streaming").to_dicts()}
    keys = [(reject["node"], reject["kind"], reject["reason"]) for reject in ranked]
    wanted = [of_reason[key] for key in keys if key in of_reason]
    records = {_identity(record): record for record in _records(results, [first["row"] for first in wanted])}
    return [_card(records[_identity(first)]) for first in wanted if _identity(first) in records]


def _identity(reject: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(reject[key] for key in ("row", "node", "kind", "reason"))


def _records(results: Results, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The rejects of these rows, whole. Files are read up to where the last of them is."""
    left = set(rows)
    for path, _ in results.shards(REJECTS):
        if not left:
            return
        table = scan([path])
        here = [] if table is None else table.filter(pl.col("row").is_in(sorted(left))).collect().to_dicts()
        yield from here
        left -= {record["row"] for record in here}


def _card(record: Mapping[str, Any]) -> Card:
    fields = [("reason", shortened(record["reason"], LONGEST_REASON))]
    if record.get("file"):
        line = record.get("line")
        fields.append(("from", record["file"] + (f", line {line}" if line is not None else "")))
    fields += _values(record.get("record") or "")
    return Card(f"{record['kind']} at {record['node']}: row {record['row']:,}", fields)
