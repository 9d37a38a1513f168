"""`where` of Generate and Embed: some rows are worked on, the others pass by, and none is lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from operators.embed import Embed
from operators.engine.backend.fake import FakeModel
from operators.engine.backend.fake import inspect as facts
from operators.engine.backend.loading import ModelFacts
from operators.render import Render
from operators.rows.sql import Where
from operators.settings import DataSettings, ModelSettings
from operators.settings.runtime import EngineSettings
from operators.tokens import Tokenize
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import ROW, Batch
from tests.arrow_extremes import taken
from tests.operators.fakes import chat_model
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_embed import embedder
from tests.operators.test_generate import FAKE, flow, generate, prompts
from tests.operators.test_render import MESSAGES, TURNS, user

KIND = pa.field("kind", pa.int64())
ODD = "kind % 2 = 1"


def rows_of_kinds(count: int) -> list[dict[str, object]]:
    """Every third kind is null, which is not true."""
    return [row | {"kind": None if i % 3 == 2 else i} for i, row in enumerate(prompts(count))]


def test_rows_for_which_the_condition_is_false_or_null_have_null_in_the_new_columns(tmp_path):
    op = generate({"logprobs": 1}, completion_ids=True, where=ODD)
    run = flow(tmp_path, rows_of_kinds(40), op, KIND)
    rows = run.run()
    assert [row["row"] for row in rows] == list(range(40))
    assert run.committed == [0, 1, 2]
    added = {"completion", "finish_reason", "completion_ids", "logprobs", "top_logprobs", "seed"}
    for row in rows:
        chosen = row["kind"] is not None and row["kind"] % 2 == 1
        assert {name for name in added if row[name] is None} == (set() if chosen else added)
        assert row["prompt_text"] == prompts(40)[row["row"]]["prompt_text"]


def test_a_row_is_completed_as_if_the_others_were_not_there(tmp_path):
    some = {r["row"]: r["completion"] for r in flow(tmp_path / "a", rows_of_kinds(40), generate(where=ODD), KIND).run()}
    every = {r["row"]: r["completion"] for r in flow(tmp_path / "b", rows_of_kinds(40), generate(), KIND).run()}
    assert {row: text for row, text in some.items() if text is not None}.items() <= every.items()


def test_a_row_that_passes_by_keeps_its_identity_where_the_others_are_expanded(tmp_path):
    rows = flow(tmp_path, rows_of_kinds(6), generate({"n": 2}, where=ODD), KIND).run()
    assert [(row["row"], row["lineage"]) for row in rows] == [
        (0, None),
        (1, [0]),
        (1, [1]),
        (2, None),
        (3, [0]),
        (3, [1]),
        (4, None),
        (5, None),
    ]


def test_embed_passes_rows_by_too_and_a_column_that_overrides_may_have_another_type(tmp_path):
    embed = embedder(text_column="prompt_text", where="kind IS NULL")
    op = generate({"per_row": ["logprobs"]}, where="kind IS NOT NULL")
    source = Rows(
        [row | {"logprobs": 0} for row in rows_of_kinds(12)],
        pa.schema([pa.field("prompt_text", pa.string()), KIND, pa.field("logprobs", pa.int64())]),
    )
    for row in Flow(tmp_path, chain(source, tokenize=Tokenize(FAKE), embed=embed, generate=op)).run():
        assert (row["embedding"] is None) == (row["completion"] is not None) == (row["kind"] is not None)
        assert (row["logprobs"] is None) == (row["kind"] is None)


COUNTED = FakeModel()


def load(settings: ModelSettings) -> FakeModel:
    """A loader whose model can be asked for its contexts."""
    return COUNTED


def inspect(settings: ModelSettings) -> ModelFacts:
    return facts(settings)


@pytest.mark.parametrize(("where", "contexts"), [("text = 'b'", 1), ("text = 'c'", 0), (None, 1)])
def test_embed_takes_no_context_for_rows_that_are_not_its_own(tmp_path, where, contexts):
    before = len(COUNTED.decoders)
    settings = ModelSettings(loader=f"{__name__}:load")
    op = Embed(settings, EngineSettings(slots=4, max_sequence_tokens=64), where=where)
    rows = Flow(
        tmp_path, chain(Rows([{"text": "a"}, {"text": "b"}], pa.schema([("text", pa.string())])), embed=op)
    ).run()
    assert [row["text"] for row in rows] == ["a", "b"]
    assert len(COUNTED.decoders) - before == contexts


@pytest.mark.parametrize(("where", "error"), [("kind", SchemaError), ("nothing = 1", SchemaError), ("=", ConfigError)])
def test_a_condition_that_is_none_is_refused_before_anything_runs(tmp_path, where, error):
    with pytest.raises(error):
        flow(tmp_path, [], generate(where=where), KIND)
    source = Rows([], pa.schema([pa.field("text", pa.string()), KIND]))
    with pytest.raises(error):
        Flow(tmp_path, chain(source, embed=embedder(where=where)))


IDS = pa.field("given", pa.list_(pa.int32()))


def test_ids_that_a_row_brings_take_the_place_of_its_text(tmp_path):
    given = [None, [7, 8], [], [5, 320], None, [-1]]
    rows = [{"prompt_text": "ab", "given": ids} for ids in given]
    source = Rows(rows, pa.schema([pa.field("prompt_text", pa.string()), IDS]))
    run = Flow(tmp_path, chain(source, tokenize=Tokenize(FAKE, "given")))
    ids = {row["row"]: row["prompt_ids"] for row in run.run()}
    assert ids == {0: [97, 98], 1: [7, 8], 2: [], 4: [97, 98]}
    reasons = {reason.partition(";")[0] for _, _, reason in run.tally.by_reason}
    assert reasons == {"column '…' has the token id N", "column '…' has the token id -N"}


RAW = pa.schema([*MESSAGES, ("raw", pa.string())])
MIXED: list[dict[str, Any]] = [
    {"chat": [user("hi")], "raw": None},
    {"chat": None, "raw": "<s>once"},
    {"chat": None, "raw": ""},
]


@pytest.mark.parametrize("template", [TURNS, None])
def test_a_raw_text_goes_to_the_model_as_it_is_beside_conversations(tmp_path, template):
    op = Render(chat_model(template), DataSettings(messages_column="chat"), raw_column="raw")
    run = Flow(tmp_path, chain(Rows(MIXED, RAW), render=op))
    texts = {row["row"]: row["prompt_text"] for row in run.run()}
    assert texts == ({0: "[user]hi[assistant]"} if template else {}) | {1: "<s>once", 2: ""}
    assert ["no chat template" in reason for _, _, reason in run.tally.by_reason] == ([] if template else [True])


def test_a_condition_on_another_column_holds_beside_columns_of_all_types():
    names = [str(i) for i in range(len(taken()))]
    where, data = Where("n > 2"), pa.record_batch([pa.array([1, 2, 3, 4]), *taken().values()], ["n", *names])
    where.plan(data.schema)
    assert where.split(Batch(0, data))[0].data["n"].to_pylist() == [3, 4]


def test_a_column_that_sql_cannot_read_is_named_with_its_type_or_its_value(capfd):
    column = taken()["timestamp[us, tz=PST]"]
    with pytest.raises(SchemaError, match=r"column 'x' has type timestamp\[us, tz=PST\], which SQL does not know"):
        Where("x IS NULL").plan(pa.schema([("x", column.type)]))
    where = Where("x IS NULL")
    data = pa.record_batch(
        [pa.array(range(4)), taken()["timestamp[us]"]], schema=pa.schema([ROW, ("x", pa.timestamp("us"))])
    )
    where.plan(data.schema)
    chosen, others, (rejects,) = where.split(Batch(0, data))
    assert chosen.num_rows + others.num_rows + rejects.num_rows == 4
    assert "column 'x' has -9223372036854775808 us since 1970-01-01, which is too far" in rejects.rows[0].reason
    assert "panicked" not in capfd.readouterr().err
