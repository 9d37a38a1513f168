"""Which adapters a row has: by node, by column, by list; what is refused; and what keys and fingerprints say of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.choose import Choose
from operators.embed import Embed
from operators.engine.backend.fake import FakeModel
from operators.engine.backend.loading import model_key
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.generation.adapters import RowAdapters
from operators.generation.duplicates import RepeatedDraws
from operators.generation.requests import SequenceMaker
from operators.generation.seeds import RowSeeds
from operators.generation.wiring import completion_keys, identity_of
from operators.score import Score
from operators.settings import DataSettings, DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import Batch
from tests.operators.test_generate import FAKE, generate

NAMES = ("support", "legal")


def masks(
    values: list[Any], chosen: Any = None, column: str | None = "own", samples: int = 1
) -> tuple[list[int], list[str]]:
    """Return the masks of rows with these values in a column, and why others were refused."""
    data = {"row": range(len(values)), "prompt_ids": pa.array([[1]] * len(values), pa.list_(pa.int32())), "own": values}
    adapters = RowAdapters(chosen, column, NAMES)
    batch = pa.RecordBatch.from_pydict(data)
    adapters.plan(batch.schema)
    sampling, model = SamplingSettings(n=samples), FakeModel(adapters=NAMES)
    maker = SequenceMaker(sampling, model, 64, RowSeeds(0, "n"), adapters=adapters)
    rows, rejects = maker.of(Batch(0, batch))
    return [row.adapters for row in rows], [row.reason for some in rejects for row in some.rows]


def test_a_column_names_one_or_none():
    assert masks(["support", None, "legal", "base", "support"]) == ([1, 0, 2, 0, 1], [])


def test_each_sample_of_a_row_has_its_adapters():
    assert masks(["support", None, "legal"], samples=2) == ([1, 1, 0, 0, 2, 2], [])


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null())])
def test_a_column_of_nulls_alone_is_the_model_as_it_is(kind):
    adapters = RowAdapters(None, "own", NAMES)
    data = pa.RecordBatch.from_arrays([pa.array([None, None], kind)], ["own"])
    adapters.plan(data.schema)
    assert adapters.of(data) == [(), ()]


def test_a_list_names_several_in_any_order_once():
    assert masks([["support", "legal"], ["legal", "support", "legal"], [], None, ["base"], [None]])[0] == [
        3,
        3,
        0,
        0,
        0,
        0,
    ]


def test_a_row_that_names_what_is_not_there_is_a_reject_and_no_row_of_the_base():
    found, reasons = masks(["support", "legall", ""])
    assert found == [1]
    assert reasons[0] == "column 'own': 'legall' is not among model.adapters; did you mean legal?"
    assert len(reasons) == 2


@pytest.mark.parametrize(("chosen", "mask"), [("legal", 2), (["legal", "support"], 3), ("base", 0)])
def test_what_a_node_names_goes_before_the_column(chosen, mask):
    assert masks(["support", "nobody"], chosen) == ([mask, mask], [])


@pytest.mark.parametrize("chosen", ["legall", ["support", "x"], [], 3, [None]])
def test_a_node_that_names_what_is_not_there_is_refused(chosen):
    with pytest.raises(ConfigError, match="adapter"):
        RowAdapters(chosen, None, NAMES)


OWN = replace(FAKE, adapters={"support": "a.gguf", "legal": "b.gguf"})


def test_the_column_of_a_job_is_there_when_it_is_planned():
    op = generate(model=OWN, data=DataSettings(adapter_column="own"))
    with pytest.raises(SchemaError, match="own"):
        op.plan(pa.schema([("prompt_ids", pa.list_(pa.int32()))]))


@pytest.mark.parametrize(("chosen", "told"), [(None, None), ("base", ()), ("legal", ("legal",))])
def test_a_fingerprint_has_the_adapters_where_they_are_given_and_the_content_of_all(chosen, told):
    """So a run that was begun before there were any goes on, whose nodes have the same key with nothing in it."""
    op = generate(model=OWN, adapter=chosen)
    contents = {"adapter support": "support", "adapter legal": "legal"}
    expected = generate().fingerprint() | contents | ({} if told is None else {"adapter": told})
    assert op.fingerprint() == expected
    assert Score(OWN, EngineSettings()).fingerprint() == Score(FAKE, EngineSettings()).fingerprint() | contents
    assert "adapter" in op.told_by_fingerprint


def test_a_model_with_other_adapters_is_loaded_apart():
    others = [OWN, FAKE, replace(FAKE, adapters={"support": "b.gguf", "legal": "a.gguf"})]
    assert len({model_key(each) for each in others}) == 3


AT_SERVER = EndpointSettings(url="http://127.0.0.1:1", api="completions")


@pytest.mark.parametrize("kind", [Score, partial(Choose, options=["a", "b"], joint=True), Embed])
@pytest.mark.parametrize("model", [OWN, AT_SERVER])
def test_a_node_that_does_not_go_by_the_column_has_to_say_its_adapters(kind, model):
    """Else its rows would be those of the base, in silence."""
    if model is AT_SERVER and kind is Embed:
        model = replace(model, api="embeddings")
    data = DataSettings(adapter_column="own")
    with pytest.raises(ConfigError, match="=own is for answers that Generate draws; give this node adapter: NAME"):
        kind(model, EngineSettings(), data=data)
    assert "data" in kind(model, EngineSettings(), data=data, adapter="base").told_by_fingerprint


def test_equal_prompts_with_equal_seeds_are_told_where_their_adapters_are_equal_too():
    params, prompt = SamplingParams(temperature=1.0), np.array([1, 2], np.int32)
    for masks, repeats in (((1, 2, 0), 0), ((1, 2, 1), 1)):
        draws = RepeatedDraws(of_ids=False)
        draws.note(Sequence(i, prompt, params, 7, 5, adapters=mask) for i, mask in enumerate(masks))
        assert draws.count == repeats


def test_a_column_without_adapters_and_one_of_another_type_are_refused():
    with pytest.raises(ConfigError, match="=own names adapters, and"):
        RowAdapters(None, "own", ())
    with pytest.raises(SchemaError, match="own"):
        masks([1, 2])


def test_a_server_takes_any_one_name():
    at_server = RowAdapters(None, "own", None)
    data = pa.RecordBatch.from_pydict({"own": [["a"], ["a", "b"], None, [""]]})
    assert at_server.of(data) == [
        ("a",),
        "column 'own': a server takes one adapter, and ['a', 'b'] are several",
        (),
        "column 'own': an empty name; null (data.null_texts=true: empty fields of CSV, too) and base are the bare"
        " model",
    ]


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"a": "a.gguf"}, True),
        ({"a": {"path": "a.gguf", "scale": -0.5}}, True),
        ({"a": {"repo": "o/n", "revision": "main"}}, True),
        ({}, True),
        ({"base": "a.gguf"}, False),
        ({"a b": "a.gguf"}, False),
        ({"a": {"scale": 1.0}}, False),
        ({"a": {"path": "a", "repo": "b"}}, False),
        ({"a": {"path": "a", "scale": "1"}}, False),
        ({"a": {"path": "a", "scale": float("inf")}}, False),
        ({"a": {"path": "a", "scael": 1}}, False),
        ({"a": {"repo": "o/n", "revision": 1.0}}, False),
        ({"a": {"repo": "o/n", "revision": "v1", "file": 5}}, False),
        ({"a": {"path": "a", "revision": "v1"}}, False),
        ({f"a{i}": "a.gguf" for i in range(65)}, False),
        (["a.gguf"], False),
    ],
)
def test_what_model_adapters_may_be(given, fits):
    if fits:
        ModelSettings(adapters=given)
        return
    with pytest.raises(ConfigError, match=r"model\.adapters[.=]"):
        ModelSettings(adapters=given)


class Named(FakeModel):
    """A fake model whose adapters have the content of their names in small letters."""

    def __init__(self, *names: str) -> None:
        super().__init__(adapters=names)
        self.adapter_contents = tuple(map(str.lower, names))


def key(model: FakeModel, mask: int) -> bytes:
    row = Sequence("r", np.array([1, 2], np.int32), SamplingParams(), 7, 5, adapters=mask)
    completion_keys(model, DecodeSettings(), EngineSettings()).give([row])
    return row.key


def test_a_key_has_the_content_of_the_row_s_adapters_and_no_name_nor_that_of_others():
    plain, one, two = Named(), Named("a"), Named("b", "A")
    assert key(plain, 0) == key(one, 0) == key(two, 0)
    assert key(one, 1) == key(two, 2)
    assert len({key(two, mask) for mask in range(4)}) == 4


def test_what_computes_is_told_apart_by_all_adapters():
    settings = EngineSettings()
    plain, one = identity_of(FakeModel(), settings), identity_of(Named("a"), settings)
    assert one == replace(plain, adapters="a")
    assert "the adapters" not in plain.in_words()
