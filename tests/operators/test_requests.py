"""Seeds and content keys of rows."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pyarrow as pa

from operators.decoding.fake import FakeModel
from operators.decoding.sequence import Sequence
from operators.requests import Requests, key_parameters
from operators.settings import SamplingSettings
from pipeline.records import Batch


def rows(
    columns: dict[str, Any] | None = None,
    order: Seq[int] = range(6),
    *,
    seed: int = 0,
    node: str = "generate",
    id_column: str | None = None,
    **sampling: Any,
) -> list[Sequence]:
    data = {"row": list(order), "name": [f"r{i}" for i in order], "prompt_ids": [[i + 1] for i in order]}
    batch = pa.RecordBatch.from_pydict(data | (columns or {}))
    batch = batch.set_column(2, "prompt_ids", batch.column("prompt_ids").cast(pa.list_(pa.int32())))
    made = Requests(SamplingSettings(**sampling), FakeModel(), 64, seed, node, id_column).sequences(Batch(0, batch))
    return [row for row in made if isinstance(row, Sequence)]


def seeds(*args: Any, **kwargs: Any) -> list[int]:
    return [row.seed for row in rows(*args, **kwargs)]


def test_seeds_differ_by_row_job_seed_and_node():
    made = [*seeds(), *seeds(seed=1), *seeds(node="judge")]
    assert len(set(made)) == 18
    assert seeds() == seeds()
    assert all(0 <= s < 2**63 for s in made)


def test_an_id_column_seeds_a_row_wherever_it_stands():
    order = [3, 0, 5, 1, 4, 2]
    straight = seeds(id_column="name")
    assert seeds(order=order, id_column="name") == [straight[i] for i in order]
    moved = seeds({"row": [9, 8, 7, 6, 5, 4]}, id_column="name")
    assert moved == straight
    assert seeds({"row": [9, 8, 7, 6, 5, 4]}) != seeds()


def test_the_samples_of_a_row_have_seeds_of_their_own():
    lineage = pa.array([[0], [1], [0, 0], [0, 1], [1, 0], None], pa.list_(pa.int32()))
    assert len(set(seeds({"row": [7] * 6, "lineage": lineage}))) == 6


def test_a_seed_column_wins_and_a_null_in_it_does_not():
    given = seeds({"seed": pa.array([5, None, 5, 6, 2**62, 0])}, per_row=["seed"])
    assert given == [5, seeds()[1], 5, 6, 2**62, 0]


def test_a_content_key_has_all_that_can_change_the_text_and_the_seed_only_where_numbers_are_drawn():
    def keys(**kwargs: Any) -> bytes:
        return key_parameters(rows(**kwargs)[0])

    assert keys(seed=1) == keys(seed=2)
    assert keys(temperature=1.0, seed=1) != keys(temperature=1.0, seed=2)
    changes: list[dict[str, Any]] = [
        {},
        {"max_tokens": 9},
        {"stop": ["x"]},
        {"stop_token_ids": [7]},
        {"ignore_eos": True},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_p": 0.5},
        {"temperature": 1.0, "min_p": 0.5},
    ]
    assert len({keys(**change) for change in changes}) == len(changes)
    assert keys(top_k=3, top_p=0.5) == keys()  # greedy: what is cut off cannot be the best
    assert np.array_equal(rows()[0].prompt, [1])
