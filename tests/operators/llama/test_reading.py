"""Score and Embed on real llama.cpp: what llama-cpp-python gives, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pyarrow as pa
import pytest
from gguf import GGUFValueType, Keys

from operators.embed import POOLING, Embed
from operators.engine.backend.shape import Wanted
from operators.llama.model import LlamaModel
from operators.score import Score
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import DecoderReader, reading_settings
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.runtime import Resources
from tests.operators.flow import Flow, Rows, chain
from tests.operators.llama.test_decoding import EXACT, USUAL, model, model_file
from tests.sets import often
from tools.models import make_model
from tools.models.vocabularies import MetaValue, builtin_vocabulary

pytestmark = pytest.mark.slow("reads texts with a model of each family")

__all__ = ["model", "model_file"]

TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
LENGTHS = (1, 2, 3, 5, 5, 31, 63, 64, 65, 65, 100, 127, 128, 129, 191, 192, 193, 300, 511, 512, 513, 700)
PLAIN: dict[str, Any] = {"flash_attention": False, "kv_type": "f32"}
"""As few differences to llama-cpp-python's own settings as possible: what is left is the order of additions."""
WORDS = [
    "Put these words in alphabetical order: hare, goose, fox",
    "a",
    "What is 12 plus 30?",
    "The donkey asked everyone who had lost the compass. They were tired, but they did not give up. " * 4,
    "naïve text, with \n a new line",
]


@pytest.fixture(scope="module")
def process():
    """What the flows of this module share: loaded models."""
    resources = Resources()
    yield resources
    resources.close()


def outputs(
    model: LlamaModel,
    wanted: Wanted,
    texts: Seq[np.ndarray],
    order: Seq[int],
    first: Seq[int] | None = None,
    heads: Seq[int] | None = None,
    **settings: Any,
) -> dict[int, list[bytes]]:
    """The bytes of the output of each token, by text."""
    how = reading_settings(EngineSettings(max_sequence_tokens=1024, **settings), model.n_vocab)
    decoder, give_back = model.lease(how, wanted)
    found: dict[int, list[bytes]] = {}
    read = [Text(texts[i], first[i] if first else 0, heads[i] if heads else 0) for i in order]
    for parts in DecoderReader(decoder).read(read):
        for part in parts:
            for number in part.texts:
                found.setdefault(order[number], []).extend(row.tobytes() for row in part.rows)
    give_back()
    return found


KINDS = [pytest.param(kind, marks=pytest.mark.laws) if kind in USUAL and kind != "q8_0" else kind for kind in EXACT]


@pytest.mark.parametrize("model_file", KINDS, indirect=True)
@pytest.mark.parametrize("wanted", [Wanted.EVERY, Wanted.EMBEDDINGS])
def test_outputs_are_the_same_to_the_bit_in_any_company(model, wanted):
    random = np.random.default_rng(0)
    texts = [random.integers(0, 300, n).astype(np.int32) for n in LENGTHS * 2]
    shuffled = random.permutation(len(texts)).tolist()
    expected = outputs(model, wanted, texts, range(len(texts)), slots=16)
    assert {i: len(rows) for i, rows in expected.items()} == {i: len(text) for i, text in enumerate(texts)}
    for slots, n_ubatch, order in [
        (1, 512, range(len(texts))),
        (2, 128, shuffled),
        (7, 200, shuffled),
        (16, 1024, shuffled),
    ]:
        assert outputs(model, wanted, texts, order, slots=slots, n_ubatch=n_ubatch) == expected, f"{slots} slots"


@pytest.mark.parametrize("model_file", often(["f32", "q8_0"], "q8_0"), indirect=True)
def test_a_beginning_without_outputs_changes_no_bit(model):
    """What is given before a scored text is computed without logits."""
    random = np.random.default_rng(1)
    texts = [random.integers(0, 300, n).astype(np.int32) for n in (700, 90, 90, 90, 40, 40, 2)]
    every = outputs(model, Wanted.EVERY, texts, range(7), slots=4)
    some = outputs(model, Wanted.EVERY, texts, range(7), first=[690, 88, 0, 40, 38, 1, 0], slots=4)
    assert {i: len(rows) for i, rows in some.items()} == {0: 10, 1: 2, 2: 90, 3: 50, 4: 2, 5: 39, 6: 2}
    assert all(rows == every[i][-len(rows) :] for i, rows in some.items())


@pytest.mark.parametrize("flash_attention", often([True, False], True))
@pytest.mark.parametrize("model_file", KINDS, indirect=True)
def test_a_shared_beginning_changes_no_bit(model, flash_attention):
    """Texts that begin alike, with and without a head, give the bits that each gives alone."""
    how: dict[str, Any] = {"flash_attention": flash_attention}
    random = np.random.default_rng(2)
    shots = random.integers(0, 300, 333).astype(np.int32)
    texts, heads = [], []
    for shared in (40, 64, 333):
        for more in (2, 5, 64, 129):
            text = np.concatenate([shots[:shared], random.integers(0, 300, more).astype(np.int32)])
            texts += [text, text, np.concatenate([text[:-1], text[:4]])]
            heads += [0, shared, shared]
    alone: dict[int, list[bytes]] = {}
    for number, text in enumerate(texts):
        (alone[number],) = outputs(model, Wanted.EVERY, [text], [0], heads=[heads[number]], slots=1, **how).values()
    shuffled = random.permutation(len(texts)).tolist()
    for slots, n_ubatch in [(1, 128), (4, 512), (16, 200)]:
        together = outputs(model, Wanted.EVERY, texts, shuffled, heads=heads, slots=slots, n_ubatch=n_ubatch, **how)
        for number, rows in together.items():
            assert rows == alone[number], (slots, len(texts[number]), heads[number])


def column(name: str, values: Seq[str]) -> tuple[list[dict[str, str]], pa.Schema]:
    return [{name: value} for value in values], pa.schema([(name, pa.string())])


def run(directory: Path, process: Resources, op: Any, texts: Seq[str] = WORDS) -> list[dict[str, Any]]:
    return Flow(directory, chain(Rows(*column("text", texts)), op=op), process).run()


def their_logprobs(path: Path, ids: Seq[int]) -> np.ndarray:
    """Of each token but the first, by llama-cpp-python."""
    llama = llama_cpp.Llama(str(path), n_ctx=1024, logits_all=True, verbose=False, type_k=0, type_v=0)
    llama.eval(list(ids))
    logits = llama.scores[: len(ids)].astype(np.float64)
    llama.close()
    top = logits.max(axis=1, keepdims=True)
    logprobs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return logprobs[np.arange(len(ids) - 1), ids[1:]]


def test_scores_are_those_of_llama_cpp_python(tmp_path, process):
    settings = ModelSettings(path=str(TINY), kernels="llama.cpp")
    rows = run(tmp_path, process, Score(settings, EngineSettings(**PLAIN)), [w for w in WORDS if len(w) > 1])
    vocabulary = llama_cpp.Llama(str(TINY), vocab_only=True, verbose=False)
    for row in rows:
        expected = their_logprobs(TINY, vocabulary.tokenize(row["text"].encode(), add_bos=True, special=True))
        assert np.abs(np.array(row["logprobs"]) - expected).max() < 1e-4
        assert row["logprob_sum"] == pytest.approx(expected.sum(), abs=1e-3)
        assert row["perplexity"] == pytest.approx(np.exp(-expected.mean()), rel=1e-4)
    vocabulary.close()
    assert len(rows) == len(WORDS) - 1


@pytest.mark.parametrize("pooling", POOLING)
@pytest.mark.parametrize("normalize", often([True, False], True))
def test_embeddings_are_those_of_llama_cpp_python(tmp_path, process, pooling, normalize):
    settings = ModelSettings(path=str(TINY), kernels="llama.cpp")
    op = Embed(settings, EngineSettings(**PLAIN), pooling=pooling, normalize=normalize)
    ours = np.array([row["embedding"] for row in run(tmp_path, process, op)])
    theirs = their_embeddings(TINY, pooling, normalize=normalize)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()


def their_embeddings(path: Path, pooling: str, *, normalize: bool) -> np.ndarray:
    kind = {"mean": 1, "cls": 2, "last": 3}[pooling]
    llama = llama_cpp.Llama(str(path), n_ctx=1024, embedding=True, pooling_type=kind, verbose=False, type_k=0, type_v=0)
    made = np.array([llama.embed(text, normalize=normalize) for text in WORDS])
    llama.close()
    return made


def test_joint_tokens_are_those_of_the_whole_behind_those_of_the_beginning(tmp_path, process):
    """As `_encode_pair` of lm-evaluation-harness has them. Here the pieces of a word become one token."""
    vocabulary = llama_cpp.Llama(str(TINY), vocab_only=True, verbose=False)
    rows = [{"text": text, "before": before} for before, text in [("They were ", "tired"), ("many peo", "ple of")]]
    schema = pa.schema([("text", pa.string()), ("before", pa.string())])
    settings = ModelSettings(path=str(TINY), kernels="llama.cpp"), EngineSettings(**PLAIN)
    joint, apart = (
        Flow(
            tmp_path / f"{on}", chain(Rows(rows, schema), op=Score(*settings, given_column="before", joint=on)), process
        )
        for on in (True, False)
    )
    different = 0
    for row, other in zip(joint.run(), apart.run(), strict=True):
        before, whole = (
            vocabulary.tokenize(text.encode(), add_bos=True, special=True)
            for text in (row["before"].rstrip(), row["before"] + row["text"])
        )
        text = whole[len(before) :]
        expected = their_logprobs(TINY, [*before, *text])[len(before) - 1 :]
        assert row["token_count"] == len(text)
        assert np.abs(np.array(row["logprobs"]) - expected).max() < 1e-4
        different += row["logprobs"] != other["logprobs"]
    assert different
    vocabulary.close()


@pytest.fixture(scope="module")
def framed(tmp_path_factory) -> Path:
    """A model that wants a BOS before a text and an EOS behind it, and was made for the pooling `last`."""
    path = tmp_path_factory.mktemp("framed") / "framed.gguf"
    plain = builtin_vocabulary()
    values = [value for value in plain.values if value.key != Keys.Tokenizer.ADD_BOS]
    values += [MetaValue(key, True, GGUFValueType.BOOL) for key in (Keys.Tokenizer.ADD_BOS, Keys.Tokenizer.ADD_EOS)]
    values.append(MetaValue(Keys.LLM.POOLING_TYPE.format(arch="qwen3"), 3, GGUFValueType.UINT32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_model, "builtin_vocabulary", lambda: plain._replace(values=tuple(values)))
        make_model.write_model(path)
    return path


def test_a_text_is_framed_as_the_model_wants_it(tmp_path, process, framed):
    """Embedded with BOS and EOS, pooled as its file says; scored behind the BOS, from its first token on."""
    settings = ModelSettings(path=str(framed))
    ours = np.array([r["embedding"] for r in run(tmp_path / "a", process, Embed(settings, EngineSettings(**PLAIN)))])
    assert np.abs(ours - their_embeddings(framed, "last", normalize=True)).max() < 1e-4
    vocabulary = llama_cpp.Llama(str(framed), vocab_only=True, verbose=False)
    for row in run(tmp_path / "b", process, Score(settings, EngineSettings(**PLAIN))):
        ids = vocabulary.tokenize(row["text"].encode(), add_bos=False, special=True)
        assert row["token_count"] == len(ids)
        expected = their_logprobs(framed, [vocabulary.token_bos(), *ids])
        assert np.abs(np.array(row["logprobs"]) - expected).max() < 1e-4
    rows = [{"text": "of the water", "before": "many people"}]
    schema = pa.schema([("text", pa.string()), ("before", pa.string())])
    op = Score(settings, EngineSettings(**PLAIN), given_column="before")
    (row,) = Flow(tmp_path / "c", chain(Rows(rows, schema), op=op), process).run()
    before, text = (vocabulary.tokenize(rows[0][k].encode(), add_bos=False, special=True) for k in ("before", "text"))
    expected = their_logprobs(framed, [vocabulary.token_bos(), *before, *text])[len(before) :]
    assert np.abs(np.array(row["logprobs"]) - expected).max() < 1e-4
    vocabulary.close()
