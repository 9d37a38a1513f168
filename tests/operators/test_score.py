"""Score, on the fake decoder: columns, rejects, independence of the batch, beside a Generate on one engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.score import Score
from operators.settings.runtime import EngineSettings, OptimiseSettings
from operators.tokens import Tokenize
from pipeline.api.errors import ConfigError, Interrupted, SchemaError
from pipeline.dataflow.graph import Node
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_generate import FAKE, TEXT, generate, prompts

TEXTS = pa.schema([("text", pa.string())])
GIVEN = pa.schema([("text", pa.string()), ("before", pa.string())])
IDS = pa.field("ids", pa.list_(pa.int32()))


def scorer(runtime: dict[str, Any] | None = None, **kwargs: Any) -> Score:
    return Score(FAKE, EngineSettings(**({"slots": 4, "max_sequence_tokens": 128} | (runtime or {}))), **kwargs)


def texts(count: int) -> list[dict[str, Any]]:
    return [{"text": f"text number {i}" + "." * (i * 7 % 90)} for i in range(count)]


def flow(tmp_path, rows, op, schema=TEXTS, batch=5) -> Flow:
    return Flow(tmp_path, chain(Rows(rows, schema, batch=batch), score=op))


def test_every_token_but_the_first_is_scored(tmp_path):
    run = flow(tmp_path, texts(40), scorer())
    rows = run.run()
    assert [row["row"] for row in rows] == list(range(40))
    assert run.committed == [0, 1, 2]
    for row in rows:
        assert row["token_count"] == len(row["logprobs"]) == len(row["text"]) - 1
        assert row["logprob_sum"] == pytest.approx(sum(row["logprobs"]), abs=1e-9)
        assert row["perplexity"] == pytest.approx(math.exp(-np.mean(row["logprobs"])), rel=1e-6)
        assert max(row["logprobs"]) <= 0
    node = next(meter for meter in run.executor.meters if meter.name == "score")
    assert node.tokens_in == sum(len(row["text"]) for row in rows)


def test_what_is_given_is_not_scored_but_counts(tmp_path):
    rows = [{"text": text, "before": before} for text in ("a", "some text") for before in ("", "b", "x" * 90)]
    out = flow(tmp_path / "a", rows[1:], scorer(given_column="before"), GIVEN).run()
    assert [row["token_count"] for row in out] == [1, 1, 8, 9, 9]
    alone = flow(tmp_path / "b", [{"text": r["before"] + r["text"]} for r in rows[1:]], scorer()).run()
    assert [row["logprobs"] for row in out] == [
        a["logprobs"][-o["token_count"] :] for a, o in zip(alone, out, strict=True)
    ]


def test_what_cannot_be_scored_is_rejected_with_the_reason(tmp_path):
    rows = [{"text": text, "before": "b"} for text in (None, "", "x" * 128, "x" * 127)] + [
        {"text": "a", "before": None}
    ]
    run = flow(tmp_path / "a", rows, scorer(given_column="before"), GIVEN)
    assert [row["row"] for row in run.run()] == [3]
    reasons = " | ".join(reason for _, _, reason in run.tally.by_reason)
    assert run.tally.errors == 4
    for part in ("is null", "is empty", "tokens, and runtime.max_sequence_tokens is"):
        assert part in reasons
    run = flow(tmp_path / "b", [{"text": "a"}], scorer())
    assert run.run() == []
    assert "nothing before it" in next(iter(run.tally.by_reason))[2]


def test_token_ids_are_taken_as_they_are(tmp_path):
    rows: list[dict[str, Any]] = [{"ids": [1, 2, 300]}, {"ids": [1, -5]}, {"ids": [320, 1]}, {"ids": [1, None]}]
    run = flow(tmp_path, [*rows, {"ids": []}, {"ids": None}], scorer(text_column="ids"), pa.schema([IDS]))
    (row,) = run.run()
    assert len(row["logprobs"]) == 2
    assert row["logprobs"][1] == -math.inf == row["logprob_sum"]
    assert row["perplexity"] == math.inf
    assert run.tally.errors == 5
    assert any("not in the vocabulary" in reason for _, _, reason in run.tally.by_reason)


def test_a_completion_is_scored_as_it_was_drawn(tmp_path):
    """Generate and Score in one graph, on one engine: both give the same log-probabilities."""
    small = {"slots": 2, "lookahead_rows": 1}
    sampling = {"temperature": 1.0, "logprobs": 0, "min_tokens": 1}
    scored = scorer(text_column="completion_ids", given_column="prompt_ids", as_="scored")
    nodes = {
        "source": Node(Rows(prompts(80), pa.schema([TEXT]), chunk_rows=10, batch=3)),
        "before": Node(scorer(text_column="prompt_text", as_="before"), ("source",), capacity_rows=1),
        "tokenize": Node(Tokenize(FAKE), ("before",), capacity_rows=1),
        "generate": Node(generate(sampling, small, completion_ids=True), ("tokenize",), capacity_rows=1),
        "score": Node(scored, ("generate",), capacity_rows=1),
    }
    run = Flow(tmp_path, nodes)
    rows = run.run()
    assert [row["row"] for row in rows] == list(range(80))
    assert all(row["scored_logprobs"] == row["logprobs"] for row in rows)
    assert not any(row["scored_is_greedy"] for row in rows if row["scored_token_count"] > 9)
    assert all(row["before_token_count"] == len(row["prompt_text"]) - 1 for row in rows)


def test_a_greedy_completion_is_greedy_and_with_another_token_it_is_not(tmp_path):
    generated = generate({"temperature": 0.0}, completion_ids=True)
    nodes = chain(Rows(prompts(20), pa.schema([TEXT])), tokenize=Tokenize(FAKE), generate=generated)
    made = Flow(tmp_path / "a", nodes).run()
    rows = [{"before": row["prompt_ids"], "ids": row["completion_ids"]} for row in made if row["completion_ids"]]
    count = len(rows)
    assert count > 10
    rows += [{**row, "ids": [*row["ids"][:-1], (row["ids"][-1] + 1) % 256]} for row in rows]
    schema = pa.schema([IDS, IDS.with_name("before")])
    out = flow(tmp_path / "b", rows, scorer(text_column="ids", given_column="before"), schema).run()
    assert [row["is_greedy"] for row in out] == [True] * count + [False] * count


def test_texts_are_tokenized_jointly_with_what_is_given(tmp_path):
    """A token of the fake model is a byte: only the white space that moves to the text tells the two ways apart."""
    rows: list[dict[str, Any]]
    rows = [{"before": before, "text": text} for before, text in [("a", " b"), ("a  ", "b"), (" ", "bc"), ("", "bc")]]
    out = flow(tmp_path / "a", rows, scorer(given_column="before", joint=True), GIVEN).run()
    assert [row["token_count"] for row in out] == [2, 3, 2, 1]
    rows = [{"before": "a", "text": None}, {"before": None, "text": "b"}, {"before": "a", "text": ""}]
    run = flow(tmp_path / "b", rows, scorer(given_column="before", joint=True), GIVEN)
    assert run.run() == []
    assert run.tally.errors == 3
    with pytest.raises(ConfigError, match="add given_column"):
        scorer(joint=True)
    both = scorer(text_column="ids", given_column="before", joint=True)
    with pytest.raises(SchemaError, match="'ids' has type list"):
        flow(tmp_path / "c", [], both, pa.schema([IDS, pa.field("before", pa.string())]))


def test_common_beginnings_are_computed_once_unless_switched_off(tmp_path):
    rows = [{"before": "shots " * 20, "text": f"text {i}" + "." * 70} for i in range(16)]
    found = []
    for on in (True, False):
        runtime = {"max_sequence_tokens": 256, "optimise": OptimiseSettings(prefix_sharing=on)}
        run = flow(tmp_path / f"{on}", rows, scorer(runtime, given_column="before"), GIVEN, batch=16)
        logprobs = [row["logprobs"] for row in run.run()]
        totals = run.context.counted()
        assert next(m.tokens_in for m in run.executor.meters if m.name == "score") == sum(
            len(row["before"] + row["text"]) for row in rows
        )
        found.append((logprobs, totals["score/decoded_tokens"]))
    (shared, few), (alone, many) = found
    assert shared == alone
    assert many == sum(len(row["before"] + row["text"]) for row in rows)
    assert few < 0.5 * many


def test_columns_and_sizes_that_cannot_work(tmp_path):
    with pytest.raises(SchemaError, match="would write the column 'logprobs'"):
        flow(tmp_path, [], scorer(), pa.schema([("text", pa.string()), ("logprobs", pa.float64())]))
    with pytest.raises(SchemaError, match="needs a column 'text'"):
        flow(tmp_path, [], scorer(), pa.schema([("other", pa.string())]))
    with pytest.raises(SchemaError, match="must be string or list"):
        flow(tmp_path, [], scorer(), pa.schema([("text", pa.int64())]))
    with pytest.raises(ConfigError, match="trained for"):
        flow(tmp_path, [], scorer({"max_sequence_tokens": 10_000}))


def test_an_interrupted_run_leaves_after_the_texts_that_it_is_at(tmp_path):
    class Interrupting(Score):
        def _read(self, texts, take, counts=None):
            def interrupting(part):
                take(part)
                run.executor.interrupt()
                assert run.context.cancelled.wait(10)

            yield from super()._read(texts, interrupting, counts)

    op = Interrupting(FAKE, EngineSettings(slots=4, max_sequence_tokens=128))
    run = flow(tmp_path, texts(40), op)
    with pytest.raises(Interrupted):
        run.run()
    totals = run.context.counted()
    assert totals["score/groups"] == 1
