"""Generate, on the fake decoder: rows, columns, rejects, overrides, the store, sharing an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from operators.generate import Generate
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from operators.tokens import Tokenize
from pipeline.api.errors import SchemaError
from pipeline.api.protocols import Operator
from pipeline.api.records import Batch
from pipeline.dataflow.graph import Node
from tests.operators.flow import Flow, Rows, chain
from tests.sets import often

FAKE = ModelSettings(loader="operators.engine.backend.fake:load")
TEXT = pa.field("prompt_text", pa.string())


def generate(
    sampling: dict[str, Any] | None = None,
    runtime: dict[str, Any] | None = None,
    model: ModelSettings = FAKE,
    **kwargs: Any,
) -> Generate:
    return Generate(
        model,
        SamplingSettings(**({"max_tokens": 20} | (sampling or {}))),
        DecodeSettings(),
        EngineSettings(**({"slots": 4, "max_sequence_tokens": 128, "lookahead_rows": 16} | (runtime or {}))),
        kwargs.pop("store", StoreSettings(enabled=False)),
        **kwargs,
    )


def prompts(count: int) -> list[dict[str, Any]]:
    return [{"prompt_text": f"prompt number {i}" + "." * (i * 7 % 60)} for i in range(count)]


def flow(tmp_path, rows, op, *fields, chunk_rows=16) -> Flow:
    source = Rows(rows, pa.schema([TEXT, *fields]), chunk_rows)
    return Flow(tmp_path, chain(source, tokenize=Tokenize(FAKE), generate=op))


def test_one_output_row_for_each_input_row(tmp_path):
    run = flow(tmp_path, prompts(50), generate(completion_ids=True))
    rows = run.run()
    assert [row["row"] for row in rows] == list(range(50))
    assert run.committed == [0, 1, 2, 3]
    for row in rows:
        assert row["prompt_token_count"] == len(row["prompt_text"])
        assert row["completion_token_count"] == len(row["completion_ids"])
        assert row["completion"] == bytes(row["completion_ids"]).decode("utf-8", "replace")
        assert row["finish_reason"] == ("length" if row["completion_token_count"] == 20 else "stop")
    assert {row["finish_reason"] for row in rows} == {"length", "stop"}


def test_its_meter_says_what_completions_cost_and_which_cost_nothing(tmp_path, either):
    """What the time left is judged by: rows from the store and twins are no computed completions."""
    store = StoreSettings(path=str(tmp_path / "all.sqlite"))
    rows = [*prompts(20), *prompts(5)]
    seen = []
    for name in ("first", "second"):
        run = flow(tmp_path / name, rows, either(store=store), chunk_rows=32)
        out = run.run()
        (meter,) = [m for m in run.executor.meters if m.name == "generate"]
        assert meter.completed is not None
        made = {row["prompt_text"]: row["completion_token_count"] for row in out}
        seen.append((meter.completed.rows, meter.completed.recalled, meter.completed.tokens, meter.tokens_out))
    assert seen == [(20, 5, sum(made.values()), sum(made.values())), (0, 25, 0, 0)]


def test_a_prompt_that_cannot_be_completed_is_rejected_with_the_numbers(tmp_path):
    rows = [{"prompt_text": ""}, {"prompt_text": "x" * 128}, {"prompt_text": "x" * 127}, {"prompt_text": "ok"}]
    run = flow(tmp_path, rows, generate())
    out = run.run()
    assert [row["row"] for row in out] == [2, 3]
    assert out[0]["completion_token_count"] <= 1
    (empty, long) = sorted(reason for _, _, reason in run.tally.by_reason)
    assert "N tokens" in empty + long
    assert "the prompt is empty" in empty + long
    assert run.tally.errors == 2


@pytest.mark.parametrize("admission", ["reserve", "optimistic"])
@pytest.mark.parametrize("n", often([1, 3], 3))
def test_a_unified_cache_shorter_than_a_row_bounds_it_like_max_sequence_tokens(tmp_path, admission, n):
    rows = [{"prompt_text": "x" * length} for length in (100, 64, 60, 10, 90)]
    unified = {"kv": "unified", "deterministic": False, "n_ctx": 64, "admission": admission}
    run = flow(tmp_path, rows, generate({"n": n, "ignore_eos": True}, unified))
    out = run.run()
    assert [(row["row"], row["completion_token_count"]) for row in out] == [(2, 4)] * n + [(3, 20)] * n
    assert {row["finish_reason"] for row in out} == {"length"}
    (reason,) = {reason for _, _, reason in run.tally.by_reason}
    assert reason == "the prompt has N tokens and leaves no room for a completion: runtime.n_ctx is N"
    assert run.tally.errors == 3 * n


def test_n_ctx_is_fingerprinted_where_it_bounds_a_row():
    def of(n_ctx: int) -> dict[str, Any]:
        return generate(runtime={"kv": "unified", "deterministic": False, "n_ctx": n_ctx}).fingerprint()

    assert of(64) != of(65)
    assert of(128) == of(500)


def test_a_row_overrides_the_job(tmp_path):
    fields = [pa.field("max_tokens", pa.int64()), pa.field("temperature", pa.float64()), pa.field("seed", pa.int64())]
    rows = [
        {"prompt_text": "a", "max_tokens": 3, "temperature": None, "seed": None},
        {"prompt_text": "a", "max_tokens": None, "temperature": 1.0, "seed": 5},
        {"prompt_text": "a", "max_tokens": None, "temperature": 1.0, "seed": 5},
        {"prompt_text": "a", "max_tokens": None, "temperature": 1.0, "seed": 6},
        {"prompt_text": "a", "max_tokens": 0, "temperature": None, "seed": None},
        {"prompt_text": "a", "max_tokens": 3, "temperature": -1.0, "seed": None},
    ]
    sampling = {"per_row": ["max_tokens", "temperature", "seed"], "ignore_eos": True}
    run = flow(tmp_path, rows, generate(sampling), *fields)
    out = run.run()
    assert [row["row"] for row in out] == [0, 1, 2, 3]
    assert out[0]["completion_token_count"] == 3
    assert out[1]["completion_token_count"] == 20
    assert out[1]["completion"] == out[2]["completion"] != out[3]["completion"]
    assert [row["seed"] for row in out[1:]] == [5, 5, 6]
    assert run.tally.errors == 2


def test_a_column_that_is_to_override_must_be_there(tmp_path):
    with pytest.raises(SchemaError, match="needs a column 'max_tokens'"):
        flow(tmp_path, [], generate({"per_row": ["max_tokens"]}))


def test_stop_strings_are_cut_off(tmp_path):
    plain = flow(tmp_path / "a", prompts(40), generate({"ignore_eos": True})).run()
    stops = [plain[3]["completion"][4:6], plain[7]["completion"][9:11]]
    stopped = flow(tmp_path / "b", prompts(40), generate({"ignore_eos": True, "stop": stops})).run()
    for before, after in zip(plain, stopped, strict=True):
        places = [before["completion"].find(s) for s in stops if s in before["completion"]]
        assert after["completion"] == before["completion"][: min(places)] if places else before["completion"]
        assert after["finish_reason"] == ("stop_string" if places else "length")


class Ask(Operator):
    """Makes the next prompt of the completion before."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        names = [f for f in schema if f.name not in ("prompt_text", "prompt_ids")]
        self.schema = pa.schema([*names, TEXT])
        return self.schema

    def process(self, batch: Batch):
        kept = [batch.data.column(f.name) for f in self.schema if f.name != "prompt_text"]
        text = pa.array(["about " + (t or "") for t in batch.data.column("completion").to_pylist()])
        yield batch.with_data(pa.record_batch([*kept, text], schema=self.schema))


def test_two_nodes_on_one_model_share_an_engine_and_never_deadlock(tmp_path):
    small = {"slots": 2, "lookahead_rows": 1}
    nodes = {
        "source": Node(Rows(prompts(120), pa.schema([TEXT]), chunk_rows=10, batch=1)),
        "tokenize": Node(Tokenize(FAKE), ("source",), capacity_rows=1),
        "first": Node(generate(runtime=small), ("tokenize",), capacity_rows=1),
        "ask": Node(Ask(), ("first",), capacity_rows=1),
        "again": Node(Tokenize(FAKE), ("ask",), capacity_rows=1),
        "second": Node(generate(runtime=small, as_="second"), ("again",), capacity_rows=1),
    }
    run = Flow(tmp_path, nodes)
    out = run.run()
    assert [row["row"] for row in out] == list(range(120))
    assert run.committed == list(range(12))
    assert all(row["second_prompt_token_count"] == len(row["completion"].encode()) + 6 for row in out)


def test_columns_that_are_there_already_are_refused(tmp_path):
    with pytest.raises(SchemaError, match="would write the column 'completion'"):
        flow(tmp_path, [], generate(), pa.field("completion", pa.string()))


def test_logprobs_are_columns_when_asked_for_and_come_back_from_the_store(tmp_path):
    store = StoreSettings(path=str(tmp_path / "store.sqlite"))
    sampling = {"temperature": 1.0, "logprobs": 3}
    made = flow(tmp_path / "a", prompts(30), generate(sampling, store=store, completion_ids=True)).run()
    for row in made:
        assert len(row["logprobs"]) == len(row["top_logprobs"]) == row["completion_token_count"]
        for token, logprob, top in zip(row["completion_ids"], row["logprobs"], row["top_logprobs"], strict=True):
            assert len(top) == 3
            assert top[0]["logprob"] >= max(logprob, top[2]["logprob"])
            assert {e["id"]: e["logprob"] for e in top}.get(token, logprob) == logprob
    again = flow(tmp_path / "b", prompts(30), generate(sampling, store=store, completion_ids=True))
    assert again.run() == made
    totals = again.context.counted()
    assert totals["generate/store_hits"] == 30

    plain = flow(tmp_path / "c", prompts(30), generate({"temperature": 1.0}, store=store)).run()
    assert [row["completion"] for row in plain] == [row["completion"] for row in made]
    assert not {"logprobs", "top_logprobs"} & plain[0].keys()
    chosen = flow(tmp_path / "d", prompts(30), generate(sampling | {"logprobs": 0}, store=store)).run()
    assert [row["logprobs"] for row in chosen] == [row["logprobs"] for row in made]
    assert "top_logprobs" not in chosen[0]


@pytest.mark.parametrize(("temperature", "id_column", "told"), [(1.0, "id", 4), (0.0, "id", 4), (1.0, None, 0)])
def test_ids_that_repeat_are_told(tmp_path, caplog, temperature, id_column, told):
    """Rows 8, 9 and 19 have the id and the prompt of an earlier row; row 15 has an id alone."""
    rows = [{"id": str(i), **row} for i, row in enumerate(prompts(20))]
    rows[8], rows[9], rows[19] = rows[0], rows[1], rows[1]
    rows[15]["id"] = "0"
    op = generate({"temperature": temperature}, id_column=id_column)
    out = flow(tmp_path, rows, op, pa.field("id", pa.string())).run()
    assert (out[8]["completion"] == out[0]["completion"]) == (told > 0 or temperature == 0)
    said = [record.getMessage() for record in caplog.records if "get equal texts" in record.getMessage()]
    assert len(said) == (told > 0)
    assert all("at least 4 rows" in text and "data.id_column=null" in text for text in said)


def test_rows_with_many_bytes_are_taken_a_few_at_a_time(tmp_path):
    """As an image in a row: counted by number alone they would fill the memory."""
    op = generate()
    run = flow(tmp_path, [{**row, "blob": bytes(1 << 20)} for row in prompts(10)], op, pa.field("blob", pa.binary()))
    assert len(run.run()) == 10
    assert 8 <= op._row_load < 9
    found = []
    for op._row_load in (1.0, 8.0):
        op._backend = op._duplicates = SimpleNamespace(waiting=4)  # type: ignore[assignment]
        found.append(op._wants_rows())
    assert found == [True, False]
