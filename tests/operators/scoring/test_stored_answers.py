"""Score, Choose, Embed, Rerank and Classify find in the completion store, to the bit, what they computed before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.choose import Choose
from operators.classify import Classify
from operators.embed import Embed
from operators.generation import wiring
from operators.generation.wiring import identity_of
from operators.rerank import Rerank
from operators.score import Score
from operators.settings import ModelSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import NodeFailed
from pipeline.api.runtime import Resources
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_generate import FAKE

HEADS = Path(__file__).parents[2] / "families/encoders"
SCHEMA = pa.schema([("text", pa.string()), ("given", pa.string()), ("several", pa.list_(pa.string()))])
CHUNK_ROWS = 16
OPERATORS: dict[str, tuple[Any, ModelSettings, dict[str, Any]]] = {
    "score": (Score, FAKE, {"given_column": "given"}),
    "choose": (Choose, FAKE, {"options": "several", "question_column": "given"}),
    "embed": (Embed, FAKE, {}),
    "rerank": (
        Rerank,
        ModelSettings(path=str(HEADS / "reranker.gguf")),
        {"query_column": "given", "documents_column": "several"},
    ),
    "classify": (Classify, ModelSettings(path=str(HEADS / "classifier.gguf")), {}),
}
each = pytest.mark.parametrize("name", OPERATORS)


@dataclass
class Ran:
    """A run of a node: its rows, what it read, and its counts of hits and misses that are not 0."""

    rows: list[str]
    tokens_in: int
    counts: dict[str, float]


@pytest.fixture(scope="module")
def process() -> Iterator[Resources]:
    resources = Resources()
    yield resources
    resources.close()


@pytest.fixture
def store(tmp_path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path / "store.sqlite"))


def rows(*numbers: int) -> list[dict[str, Any]]:
    """Texts of letters, which all vocabularies have."""
    words = {i: " ".join("abcdefgh"[int(digit)] for digit in f"{i:o}") for i in numbers}
    return [{"text": words[i], "given": f"{words[i]} a", "several": ["a b", f"{words[i]} b", "b b a"]} for i in numbers]


def ran(directory: Path, process: Resources, name: str, store: StoreSettings | None, given: Any, **changes: Any) -> Ran:
    """`changes`: arguments of the operator, and keys of `runtime` as `runtime_KEY`."""
    make, model, arguments = OPERATORS[name]
    runtime = {key.removeprefix("runtime_"): v for key, v in changes.items() if key.startswith("runtime_")}
    own = {key: v for key, v in changes.items() if not key.startswith("runtime_")}
    settings = EngineSettings(**{"slots": 4, "max_sequence_tokens": 128, "threads": 1} | runtime)
    op = make(model, settings, store=store, **(arguments | own))
    flow = Flow(directory, chain(Rows(given, SCHEMA, CHUNK_ROWS), node=op), process)
    flow.context.run_id = directory.name
    found = [str(row) for row in flow.run()]  # a float's shortest digits are its bits
    totals = flow.context.counted()
    counts = {
        k.removeprefix("node/"): v for k, v in totals.items() if k.startswith(("node/found", "node/missed")) and v
    }
    return Ran(found, next(m for m in flow.executor.meters if m.name == "node").tokens_in, counts)


@each
def test_what_is_found_has_the_bits_of_what_is_computed_and_only_new_rows_are_read(name, tmp_path, store, process):
    first = ran(tmp_path / "a", process, name, store, rows(*range(20)))
    assert first.counts == {"missed_new": 20}
    grown, new = rows(*range(30, 40), *range(20)), rows(*range(30, 40))
    found = ran(tmp_path / "b", process, name, store, grown)
    alone = ran(tmp_path / "c", process, name, StoreSettings(enabled=False), new)
    assert found.counts == {"found_earlier": 20, "missed_new": 10}
    assert found.tokens_in == alone.tokens_in > 0
    assert found.rows == ran(tmp_path / "d", process, name, StoreSettings(enabled=False), grown).rows
    again = ran(tmp_path / "b", process, name, store, grown)
    assert again.counts == {"found_earlier": 20, "found_resumed": 10}
    assert (again.tokens_in, again.rows) == (0, found.rows)
    assert not list((tmp_path / "c").rglob("*.sqlite"))
    twins = ran(tmp_path / "e", process, name, None, [*new, *new])  # the job's store is the default
    assert twins.tokens_in == alone.tokens_in
    assert (tmp_path / "e/completions.sqlite").exists()


OTHERS: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {f"runtime_{key}": value})
        for name in OPERATORS
        for key, value in (("flash_attention", False), ("kv_type", "f32"))
    ),
    *(("embed", {key: value}) for key, value in (("normalize", False), ("pooling", "last"), ("pooling", "cls"))),
    ("score", {"given_column": None}),
    ("choose", {"options": ["a", "b"]}),
]
SAME: list[tuple[str, dict[str, Any]]] = [
    *((name, {f"runtime_{key}": value}) for name in OPERATORS for key, value in (("threads", 2), ("slots", 2))),
    ("choose", {"normalize": "bytes"}),
    ("choose", {"as_": "label"}),
    ("rerank", {"top_n": 1}),
    ("rerank", {"normalize": False}),
    ("classify", {"activation": "none"}),
]


@pytest.mark.parametrize(("name", "changes", "hits"), [*((*o, 0) for o in OTHERS), *((*s, 8) for s in SAME)])
def test_other_arguments_are_never_answered_and_those_of_columns_always(name, changes, hits, tmp_path, store, process):
    given = rows(*range(8, 16))
    ran(tmp_path / "a", process, name, store, given)
    found = ran(tmp_path / "b", process, name, store, given, **changes)
    assert (found.counts.get("found_earlier", 0), sum(found.counts.values())) == (hits, 8)
    assert found.rows == ran(tmp_path / "c", process, name, StoreSettings(enabled=False), given, **changes).rows


@each
def test_nothing_is_answered_that_something_else_computed(name, tmp_path, store, process, monkeypatch):
    """What computes is in the key; tests/operators/generation/test_store.py says what that is."""
    given = rows(*range(4))
    ran(tmp_path / "a", process, name, store, given)
    with monkeypatch.context() as patched:
        patched.setattr(wiring, "identity_of", lambda *of: replace(identity_of(*of), device="another"))
        assert ran(tmp_path / "b", process, name, store, given).counts == {"missed_settings": 4}
    assert ran(tmp_path / "c", process, name, store, given).counts == {"found_earlier": 4}


def test_no_operator_takes_the_answer_of_another(tmp_path, store, process):
    """On one model, for the same texts."""
    given = [row | {"several": [row["text"], row["given"]]} for row in rows(*range(8, 16))]
    assert ran(tmp_path / "a", process, "score", store, given, given_column=None).counts == {"missed_new": 8}
    for name in ("embed", "choose"):
        assert ran(tmp_path / name, process, name, store, given).counts == {"missed_settings": 8}


def test_what_was_read_before_an_interrupt_is_not_read_again(tmp_path, store, process, monkeypatch):
    given, read = rows(*range(16)), Score._read
    whole = ran(tmp_path / "a", process, "score", StoreSettings(enabled=False), given)

    def interrupted(self, texts, take, counts=None):
        for number in read(self, texts, take, counts):
            yield number
            raise RuntimeError("the end")

    with monkeypatch.context() as patched:
        patched.setattr(Score, "_read", interrupted)
        with pytest.raises(NodeFailed, match="the end"):
            ran(tmp_path / "b", process, "score", store, given)
    rest = ran(tmp_path / "b", process, "score", store, given)
    assert rest.rows == whole.rows
    assert rest.counts == {"found_resumed": 2, "missed_new": 14}  # one of the batch, then the batch's first row alone
    assert rest.tokens_in < whole.tokens_in


@pytest.mark.parametrize("name", ["score", "choose", "embed"])
def test_an_adapter_changes_answers_and_their_keys_and_the_model_as_it_is_keeps_its_own(
    name, tmp_path, store, process, monkeypatch
):
    given, (make, _, arguments) = rows(*range(8)), OPERATORS[name]
    base = ran(tmp_path / "a", process, name, store, given)
    monkeypatch.setitem(OPERATORS, name, (make, replace(FAKE, adapters={"one": "a.gguf", "two": "b.gguf"}), arguments))
    found = {each: ran(tmp_path / each, process, name, store, given, adapter=each) for each in ("base", "one", "two")}
    assert found["base"].counts == {"found_earlier": 8}
    assert found["one"].counts == found["two"].counts == {"missed_settings": 8}
    assert found["base"].rows == base.rows != found["one"].rows != found["two"].rows != base.rows
    assert ran(tmp_path / "again", process, name, store, given, adapter="two").counts == {"found_earlier": 8}
