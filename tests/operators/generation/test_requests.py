"""Seeds and content keys of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.engine.backend.fake import FakeModel
from operators.engine.sequence import Sequence
from operators.generation.completions import completion_text
from operators.generation.requests import SequenceMaker
from operators.generation.sampling_params import RowParams
from operators.generation.seeds import RowSeeds
from operators.generation.store_lookup import CompletionKeys
from operators.rows.sql import RowExpression
from operators.settings import SamplingSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError
from pipeline.api.records import Batch
from tests.operators.settings.test_keys import BROKEN


def rows(
    columns: dict[str, Any] | None = None,
    numbers: Seq[int] = range(6),
    *,
    seed: int = 0,
    node: str = "generate",
    id_column: str | None = None,
    round_rows: int = 100,
    **sampling: Any,
) -> list[Sequence]:
    data = {"row": list(numbers), "name": [f"r{i}" for i in numbers], "prompt_ids": [[i + 1] for i in numbers]}
    batch = pa.RecordBatch.from_pydict(data | (columns or {}))
    batch = batch.set_column(2, "prompt_ids", batch.column("prompt_ids").cast(pa.list_(pa.int32())))
    by_row = "seed" in sampling.get("per_row", [])
    its_seeds = RowSeeds(seed, node, id_column, by_row=by_row, round_of=lambda rows: rows // round_rows)
    requests = SequenceMaker(SamplingSettings(**sampling), FakeModel(), 64, its_seeds)
    made, rejected = requests.of(Batch(0, batch))
    refused[:] = [row.reason for rejects in rejected for row in rejects.rows]
    return made


refused: list[str] = []
"""Why rows of the last call of `rows` were refused."""


@pytest.mark.parametrize(("most", "per_row", "told"), [(1, [], True), (2, [], False), (1, ["max_tokens"], False)])
def test_choices_of_which_none_fits_are_told_before_a_row_is_generated(most, per_row, told):
    structured = StructuredSettings(choices=["yes", "no"])
    sampling = SamplingSettings(max_tokens=most, structured=structured, per_row=per_row)
    warning = SequenceMaker(sampling, FakeModel(), 64, RowSeeds(0, "n")).too_short()
    assert warning == (
        "sampling.max_tokens=1 is too few: the shortest of sampling.structured.choices has 2 tokens" if told else None
    )


def seeds(*args: Any, **kwargs: Any) -> list[int]:
    return [row.seed for row in rows(*args, **kwargs)]


def test_seeds_differ_by_row_job_seed_and_node():
    made = [*seeds(), *seeds(seed=1), *seeds(node="judge")]
    assert len(set(made)) == 18
    assert seeds() == seeds()
    assert all(0 <= s < 2**63 for s in made)


def test_an_id_comes_with_another_seed_in_every_round():
    ids = {"name": ["a", "b", "a", "b", "a", "b"]}
    made = seeds(ids, id_column="name", round_rows=2)
    assert len(set(made)) == 6
    assert made[:2] == seeds(ids, id_column="name")[:2]  # the first round is what there is without a target
    moved = seeds(ids, numbers=[102, 103, 104, 105, 106, 107], id_column="name", round_rows=34)
    assert moved[:2] == seeds(ids, numbers=[6, 7, 8, 9, 10, 11], id_column="name", round_rows=2)[:2]


def test_an_id_column_seeds_a_row_wherever_it_stands():
    order = [3, 0, 5, 1, 4, 2]
    straight = seeds(id_column="name")
    assert seeds(numbers=order, id_column="name") == [straight[i] for i in order]
    moved = seeds({"row": [9, 8, 7, 6, 5, 4]}, id_column="name")
    assert moved == straight
    assert seeds({"row": [9, 8, 7, 6, 5, 4]}) != seeds()


def test_a_seed_column_wins_and_a_null_in_it_does_not():
    given = seeds({"seed": pa.array([5, None, 5, 6, 2**62, 0])}, per_row=["seed"])
    assert given == [5, seeds()[1], 5, 6, 2**62, 0]


def test_what_is_no_seed_is_a_reject_and_is_not_made_one():
    given = {"seed": pa.array([5.0, float("nan"), 1.5, None, float("inf"), -1.0])}
    own, allowed = seeds()[3], f"allowed: whole numbers from 0 to {(1 << 63) - 1}"
    assert seeds(given, per_row=["seed"]) == [5, own]
    assert refused == [f"column 'seed' has {v}; {allowed}" for v in ("nan", "1.5", "inf", "-1.0")]
    for value, kind in ((True, pa.bool_()), (1 << 63, pa.uint64()), (-1, pa.int64())):
        assert not rows({"seed": pa.array([value] * 6, kind)}, per_row=["seed"])
        assert refused == [f"column 'seed' has {value}; {allowed}"] * 6


def test_rows_without_an_id_draw_numbers_of_their_own():
    made = seeds({"name": [None, "a", None, "b", None, "a"]}, id_column="name")
    assert len(set(made)) == 5
    assert made[1] == made[5]


def test_each_row_has_its_chunk_and_its_priority_also_as_one_of_several():
    rank = RowExpression("runtime.priority", "rank * 2")
    rank.plan(pa.schema([("rank", pa.int64())]), lambda kind: kind.is_numeric(), "a number")
    requests = SequenceMaker(SamplingSettings(n=2), FakeModel(), 64, RowSeeds(0, "generate"), priority=rank)
    ids = pa.array([[1], [], [3], [4]], pa.list_(pa.int32()))
    batch = pa.RecordBatch.from_pydict({"row": [0, 1, 2, 3], "rank": [5, 6, None, 8], "prompt_ids": ids})
    made, rejected = requests.of(Batch(7, batch))
    assert [(row.chunk, row.priority) for row in made] == [(7, p) for p in (10.0, 10.0, 0.0, 0.0, 16.0, 16.0)]
    assert [rejects.num_rows for rejects in rejected] == [2]


CHANGES: list[dict[str, Any]] = [
    {},
    {"stop": ["x"]},
    {"stop_token_ids": [7]},
    {"ignore_eos": True},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.5},
    {"temperature": 1.0, "typical_p": 0.5},
    {"temperature": 1.0, "top_n_sigma": 1.0},
    {"temperature": 1.0, "dynatemp_range": 0.5},
    {"temperature": 1.0, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0},
    {"repetition_penalty": 1.1},
    {"repetition_penalty": 1.1, "penalty_last_n": 5},
    {"repetition_penalty": 1.1, "penalty_last_n": None},
    {"presence_penalty": 0.1},
    {"frequency_penalty": 0.1},
    {"dry_multiplier": 0.5},
    {"dry_multiplier": 0.5, "dry_base": 2.0},
    {"dry_multiplier": 0.5, "dry_allowed_length": 3},
    {"dry_multiplier": 0.5, "dry_penalty_last_n": 3},
    {"dry_multiplier": 0.5, "dry_sequence_breakers": ["x"]},
    {"temperature": 1.0, "xtc_probability": 0.5},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.2},
    {"temperature": 1.0, "mirostat": 2},
    {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 3.0},
    {"temperature": 1.0, "mirostat": 2, "mirostat_eta": 0.3},
    {"logit_bias": {7: 1.0}},
    {"logit_bias": {"a": 1.0}},
    {"bad_words": ["ab"]},
    {"bad_words": [7]},
    {"bad_words": [[7, 8]]},
    {"min_tokens": 3},
    {"min_tokens": 3, "stop_token_ids": [7]},
    {"stop_token_ids": [7], "keep_stop": True},
    {"stop": ["x"], "keep_stop": True},
    {"logprobs": 0},
    {"logprobs": 2},
    {"temperature": 1.0, "order": ["top_p", "top_k", "temperature"]},
    {"structured": StructuredSettings(regex="a+")},
    {"structured": StructuredSettings(regex="a+", skip_forced=False)},
    {"structured": StructuredSettings(choices=["a", "b"])},
    {"structured": StructuredSettings(json_schema={"type": "integer"})},
    {"structured": StructuredSettings(json_schema={"type": "array"})},
    {"structured": StructuredSettings(json_schema={"type": "array"}, whitespace="compact")},
    {"structured": StructuredSettings(grammar='start: "a"')},
]
"""Settings of which each pair gives other texts: every one of them has to be in the key."""


def test_a_content_key_has_all_that_can_change_the_text_and_the_seed_only_where_numbers_are_drawn():
    def keys(**kwargs: Any) -> bytes:
        row = rows(**kwargs)[0]
        CompletionKeys().give([row])
        return row.key

    assert keys(seed=1) == keys(seed=2)
    assert keys(temperature=1.0, seed=1) != keys(temperature=1.0, seed=2)
    first: dict[bytes, Any] = {}
    same = [
        (before, change) for change in CHANGES if (before := first.setdefault(keys(**change), change)) is not change
    ]
    assert not same, "these have one key: SamplingParams.identity leaves a value out"
    settable = {f.name for f in fields(SamplingSettings)} - {
        "per_row",
        "n",
        "max_tokens",
        "thinking_budget",  # for models that reason; see test_reasoning.py
        "tools",  # see test_tool_calls.py
    }  # samples differ in their seeds; see test_store_lookup.py
    assert settable == {name for change in CHANGES for name in change}
    text = json.dumps({"type": "integer"})  # the content counts, not how it was written
    assert keys(structured=StructuredSettings(json_schema=text)) == keys(
        structured=StructuredSettings(json_schema={"type": "integer"})
    )
    assert keys(top_k=3, top_p=0.5) == keys()  # greedy: what is cut off cannot be the best
    assert keys(seed=1, mirostat=2, temperature=1.0) != keys(seed=2, mirostat=2, temperature=1.0)
    assert keys(typical_p=0.5) != keys()  # but not of every step
    assert keys(xtc_probability=0.5, seed=1) != keys(xtc_probability=0.5, seed=2)
    assert np.array_equal(rows()[0].prompt, [1])


@pytest.mark.parametrize(("values", "allowed"), BROKEN, ids=str)
def test_a_value_that_the_job_would_refuse_rejects_its_row(values, allowed):
    ((key, value),) = values.items()
    assert len(rows({key: pa.array([value, None])}, range(2), per_row=[key])) == 1
    assert refused[0].startswith(f"column '{key}' has {value!r}; allowed: {allowed}")


@pytest.mark.parametrize("values", [{"logit_bias": {320: 1.0}}, {"bad_words": [[1, 999]]}, {"stop_token_ids": [320]}])
def test_ids_that_the_model_does_not_have_are_named(values):
    with pytest.raises(ConfigError, match=r"has the token id (320|999); the model's ids are 0 to 319"):
        rows(**values)


def test_a_column_can_override_every_kind_of_value():
    pairs = pa.struct([pa.field("token", pa.int64()), pa.field("text", pa.string()), pa.field("bias", pa.float64())])
    columns = {
        "top_k": pa.array([3.0, None, 3.5]),
        "keep_stop": pa.array([True, None, None]),
        "stop": pa.array([["x", "yz"], None, None]),
        "stop_token_ids": pa.array([[7], None, None]),
        "bad_words": pa.array([["no"], None, None]),
        "order": pa.array([["top_k", "temperature"], None, None]),
        "logit_bias": pa.array(
            [[{"token": 5, "bias": 1.0}, {"text": "ab", "bias": -2.0}], None, None], pa.list_(pairs)
        ),
        "logprobs": pa.array([2, None, None]),
    }
    changed, plain = rows(columns, range(3), per_row=list(columns), temperature=1.0, bad_words=[9])
    assert refused == ["column 'top_k' has 3.5; allowed: a whole number"]
    assert changed.params.top_k == 3
    assert changed.params.order == ("top_k", "temperature")
    assert changed.params.bad_words == ((110, 111), (32, 110, 111))
    assert dict(changed.params.logit_bias) == {5: 1.0, ord("a"): -2.0, ord("b"): -2.0}
    assert changed.params.kept_stop_ids == {7}
    assert changed.params.logprobs == 2
    assert changed.stops is not None
    assert changed.stops.stops == [b"x", b"yz"]
    assert changed.stops.keep
    assert plain.params.bad_words == ((9,),)
    assert plain.stops is None


@pytest.mark.parametrize(("keep", "text"), [(True, "abENDING"), (False, "ab")])
def test_a_stop_string_is_kept_or_dropped(keep, text):
    (one,) = rows(numbers=range(1), stop=["ENDING", "DING"], keep_stop=keep)
    for token in b"abENDINGxyz":
        one.append(token)
        if one.finish_reason is not None:
            break
    assert completion_text(one, FakeModel().pieces()) == text
    assert one.finish_reason == "stop_string"


def test_a_step_that_is_left_out_of_the_order_does_not_act():
    (one,) = rows(numbers=range(1), temperature=1.0)
    assert [type(s).__name__ for s in one.params.chain.steps] == ["TopK", "TopP"]  # with min_p as its floor
    drawing = RowParams(SamplingSettings(temperature=0.7, order=["temperature"]), FakeModel()).of(())
    assert not isinstance(drawing, str)
    assert [type(s).__name__ for s in drawing.params.chain.steps] == ["Temperature"]
