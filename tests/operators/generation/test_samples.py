"""Several completions of a prompt, rows that come out the same, priorities: on the fake decoder."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.generation.store_lookup import HITS
from operators.settings import StoreSettings
from operators.settings.runtime import OptimiseSettings
from pipeline.api.errors import ConfigError, SchemaError
from tests.operators.test_generate import flow, generate, prompts

WARM = {"temperature": 1.0}


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_every_row_gets_its_samples_and_each_its_own_seed(tmp_path, slots):
    run = flow(tmp_path, prompts(20), generate(WARM | {"n": 3}, {"slots": slots}))
    rows = run.run()
    assert [(row["row"], row["lineage"]) for row in rows] == [(i, [k]) for i in range(20) for k in range(3)]
    assert len({row["seed"] for row in rows}) == 60
    assert len({row["completion"] for row in rows}) > 50
    assert len(run.committed) == 2


def test_a_column_says_how_many(tmp_path, either):
    asked = [1, 3, None, 0, 2, -1]
    rows = [{**row, "n": n} for row, n in zip(prompts(6), asked, strict=True)]
    run = flow(tmp_path, rows, either(WARM | {"n": 2, "per_row": ["n"]}), pa.field("n", pa.int64()))
    out = run.run()
    made = [sum(row["row"] == i for row in out) for i in range(6)]
    assert made == [1, 3, 2, 0, 2, 0]
    assert run.tally.errors == 2
    assert all("whole number" in reason for _, _, reason in run.tally.by_reason)


def test_samples_of_samples_append_to_the_lineage(tmp_path, either):
    rows = [{**row, "lineage": [7, i]} for i, row in enumerate(prompts(3))]
    run = flow(tmp_path, rows, either(WARM | {"n": 2}), pa.field("lineage", pa.list_(pa.int32())))
    assert [row["lineage"] for row in run.run()] == [[7, i, k] for i in range(3) for k in range(2)]


def test_greedy_rows_with_one_prompt_are_generated_once(tmp_path, either):
    rows = [*prompts(5), *prompts(5), *prompts(5)]
    op = either(store=StoreSettings())
    out = flow(tmp_path / "a", rows, op).run()
    assert op._lookup is not None
    assert op._duplicates.served + sum(op._lookup.counts[key] for key in HITS) == 10
    assert op._duplicates.waiting == 0
    texts = [row["completion"] for row in out]
    assert texts[:5] == texts[5:10] == texts[10:]
    op = either(runtime={"optimise": OptimiseSettings(identical_rows=False)})
    assert [row["completion"] for row in flow(tmp_path / "b", rows, op).run()] == texts
    assert op._duplicates.served == 0


def test_rows_that_draw_are_not_taken_for_the_same(tmp_path, either):
    op = either(WARM)
    rows = flow(tmp_path, [*prompts(5), *prompts(5)], op).run()
    assert op._duplicates.served == 0
    assert len({row["completion"] for row in rows}) == 10


def test_the_wait_for_a_duplicate_is_bounded(tmp_path, either):
    """Ten thousand equal rows, and a window of 16: what waits for the first of them is no more than that."""
    op = either({"ignore_eos": True})
    most: list[int] = []
    wants = op._wants_rows

    def watch():
        most.append(op._duplicates.waiting)
        return wants()

    op._wants_rows = watch
    rows = flow(tmp_path, [{"prompt_text": "one and the same"}] * 2000, op, chunk_rows=512).run()
    assert len(rows) == 2000
    assert len({row["completion"] for row in rows}) == 1
    assert 5 < max(most) <= 16 + 5  # the window and a batch


def test_the_metrics_say_which_rows_were_not_generated(tmp_path, either):
    op = either(store=StoreSettings())
    run = flow(tmp_path, [*prompts(4), *prompts(4)], op)
    run.run()
    for table in run.tables:
        table.flush()
        table.merge()
    table = pq.read_table(tmp_path / "metrics" / "rows.parquet")
    assert sum(table["identical"].to_pylist()) + sum(table["from_store"].to_pylist()) == 4


@pytest.mark.parametrize(
    ("priority", "error", "message"),
    [
        ("nope", SchemaError, "runtime.priority='nope'.*nope"),
        ("prompt_text", SchemaError, "not a number"),
        ("rank >", ConfigError, "not an expression in SQL"),
        ("max(rank)", ConfigError, "beyond its row"),
    ],
)
def test_a_priority_that_cannot_work(tmp_path, priority, error, message):
    with pytest.raises(error, match=message):
        flow(tmp_path, prompts(1), generate(runtime={"priority": priority}), pa.field("rank", pa.int64()))
