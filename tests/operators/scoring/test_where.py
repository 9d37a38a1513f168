"""Score, Choose, Embed, Rerank and Classify with `where`: the rows that it chooses as if there were no others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from operators.settings import StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import SchemaError
from pipeline.api.forecast import Forecast, Range, Task
from pipeline.api.meter import StageMeter
from pipeline.api.records import Batch
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.run_dir.metrics_table import MetricsTables
from tests.operators.flow import Flow, Rows, chain
from tests.operators.scoring.test_stored_answers import OPERATORS, SCHEMA, rows

OFF = StoreSettings(enabled=False)
WHERE = "LENGTH(text) > 1 AND row % 3 <> 1"
each = pytest.mark.parametrize("name", OPERATORS)


def made(name: str, **more: Any) -> Any:
    make, model, arguments = OPERATORS[name]
    settings = EngineSettings(slots=4, max_sequence_tokens=128, threads=1)
    return make(model, settings, store=OFF, as_="new", **(arguments | more))


@each
def test_chosen_rows_get_what_they_get_alone_and_the_others_null_and_are_not_read(name, tmp_path):
    given: list[dict[str, Any]] = [{"text": None, "given": None, "several": None}, *rows(*range(3, 30))]
    every = [{"row": i, **row} for i, row in enumerate(given)]
    chosen = [row for row in every if row["text"] and len(row["text"]) > 1 and row["row"] % 3 != 1]
    assert 0 < len(chosen) < len(every)
    some, alone = (
        Flow(tmp_path / folder, chain(Rows(these, SCHEMA), node=op))
        for folder, these, op in (
            ("some", given, made(name, where=WHERE)),
            ("alone", [{key: row[key] for key in SCHEMA.names} for row in chosen], made(name)),
        )
    )
    results = {row["row"]: row for row in some.run()}
    expected = {row["row"]: {**new, "row": row["row"]} for row, new in zip(chosen, alone.run(), strict=True)}
    names = sorted(results[0].keys() - every[0].keys())
    assert names
    assert results == {row["row"]: row | dict.fromkeys(names) | expected.get(row["row"], {}) for row in every}
    tokens = [next(m for m in flow.executor.meters if m.name == "node").tokens_in for flow in (some, alone)]
    assert tokens[0] == tokens[1] > 0
    assert not some.tally.errors


@each
def test_a_dry_run_counts_the_tokens_of_chosen_rows_alone(name, tmp_path):
    given = pa.RecordBatch.from_pylist([{"row": i, **row} for i, row in enumerate(rows(*range(3, 30)))])
    chosen = given.filter(pa.array([len(row["text"]) > 1 and row["row"] % 3 != 1 for row in given.to_pylist()]))

    def forecast(data: pa.RecordBatch, **more: Any) -> Forecast:
        task = Task(Range.exact(data.num_rows), whole=True, seconds=5.0, results=tmp_path)
        op = made(name, **more)
        op.plan(data.schema)
        context = RunContext(tmp_path, Resources(), MetricsTables(tmp_path).get)
        found: Forecast = op.forecast(Runtime(context, "node", 1, StageMeter("node")), [Batch(0, data)], task)
        context.resources.close()
        return found

    some, alone = forecast(given, where=WHERE), forecast(chosen)
    assert some.tokens_in == alone.tokens_in
    assert (some.rows_out.likely, alone.rows_out.likely) == (given.num_rows, chosen.num_rows)


@each
def test_a_condition_over_no_column_of_the_input_is_refused(name):
    with pytest.raises(SchemaError, match="where='txet = 1'"):
        made(name, where="txet = 1").plan(SCHEMA)
