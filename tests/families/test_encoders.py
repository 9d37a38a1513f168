"""Encoders on real llama.cpp: vectors and scores are those of sentence-transformers and transformers, whatever stands
beside a text in a call."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gguf import GGUFValueType, LlamaFileType, PoolingType

from operators.engine.backend.interface import TokenIds
from operators.engine.backend.shape import Wanted
from operators.llama.header import read_header
from operators.llama.kernels import CLASSES, PROVEN
from operators.llama.model import LlamaModel
from operators.scoring.prefix_tree import Text
from operators.scoring.whole_texts import CALL_TOKENS, STEP, TILE, WholeTexts, most_tokens
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.operators.llama.gguf_files import copied
from tests.sets import often
from tools.models.make_model import quantize_file, write_model
from tools.models.shapes import named_shape
from tools.models.vocabularies import MetaValue

pytestmark = pytest.mark.slow("reads texts with a model of each kind")

HERE = Path(__file__).parent / "encoders"
NAMES = sorted(path.stem for path in HERE.glob("*.json"))
EMBEDDERS = [name for name in NAMES if name not in ("classifier", "reranker")]
LONGEST = 256
NEAR_COSINE, NEAR_SCORE = 0.99999, 1e-3


def reference(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return found


def made(job: str, model: str, rows: list[dict[str, Any]], out: Path, *settings: str) -> list[dict[str, Any]]:
    """The rows of a job, in order."""
    data = out.with_suffix(".jsonl")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = [f"job={job}", "model=gguf", f"data.path={data}"]
    arguments += [f"model.path={HERE / model}.gguf"] if model else []
    assert main([*arguments, f"output_dir={out}", "progress=none", "chunk_rows=64", *settings]) == ExitCode.DONE
    found: list[dict[str, Any]] = pq.read_table(out / "data").sort_by("row").to_pylist()
    return found


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_are_those_of_sentence_transformers(name, tmp_path):
    """Nothing says how to pool but the file."""
    known = reference(name)
    rows = made("embed", name, [{"prompt": text} for text in known["texts"]], tmp_path / "out")
    vectors, expected = np.array([row["embedding"] for row in rows]), np.array(known["vectors"])
    assert ((vectors * expected).sum(1) >= NEAR_COSINE).all()
    others = expected @ expected.T - 2 * np.eye(len(expected))
    assert others.max() < 0.995, "texts are too much alike to tell one from another"


def test_scores_are_those_of_a_cross_encoder_best_first(tmp_path):
    known = reference("reranker")
    queries = list(dict.fromkeys(query for query, _ in known["texts"]))
    documents = [[document for q, document in known["texts"] if q == query] for query in queries]
    rows = [{"query": query, "documents": each} for query, each in zip(queries, documents, strict=True)]
    found = made("rerank", "reranker", rows, tmp_path / "out")
    expected = iter(known["scores"])
    for row, each in zip(found, documents, strict=True):
        scores = [next(expected) for _ in each]
        assert row["rerank_scores"] == sorted(row["rerank_scores"], reverse=True)
        assert sorted(row["rerank_order"]) == list(range(len(each)))
        assert row["rerank_documents"] == [each[i] for i in row["rerank_order"]]
        assert np.allclose(row["rerank_scores"], [scores[i] for i in row["rerank_order"]], atol=NEAR_SCORE, rtol=0)
    raw = made("rerank", "reranker", rows, tmp_path / "raw", "nodes.rerank.op.normalize=false")
    logits = [score for row in raw for _, score in sorted(zip(row["rerank_order"], row["rerank_scores"], strict=True))]
    assert np.allclose(logits, known["logits"], atol=NEAR_SCORE, rtol=0)
    top = made("rerank", "reranker", rows, tmp_path / "top", "nodes.rerank.op.top_n=2")
    assert [row["rerank_order"] for row in top] == [row["rerank_order"][:2] for row in found]


def test_labels_are_those_of_transformers(tmp_path):
    known = reference("classifier")
    texts = [{"text": text} for text in known["texts"]]
    asked = ("data.prompt_column=text", "nodes.classify.op.as=null")
    rows = made("classify_head", "classifier", texts, tmp_path / "out", *asked)
    found = [[each["probability"] for each in row["label_probabilities"]] for row in rows]
    assert np.allclose(found, known["probabilities"], atol=NEAR_SCORE, rtol=0)
    names = ["complaint", "praise", "question"]
    assert [each["label"] for each in rows[0]["label_probabilities"]] == names
    assert [row["label"] for row in rows] == [names[int(np.argmax(each))] for each in known["probabilities"]]
    assert len({row["label"] for row in rows}) > 1
    assert [row["label_probability"] for row in rows] == [max(each) for each in found]
    each = made("classify_head", "classifier", texts, tmp_path / "sig", *asked, "nodes.classify.op.activation=sigmoid")
    alone = [[label["probability"] for label in row["label_probabilities"]] for row in each]
    assert np.allclose(alone, 1 / (1 + np.exp(-np.array(known["logits"]))), atol=NEAR_SCORE, rtol=0)


def read(
    model: LlamaModel, texts: list[TokenIds], settings: EngineSettings, *, count: int = 1, threads: int = 2
) -> list[bytes]:
    """The outputs of each text: of its tokens, or of the head. `count`: contexts, each with so many `threads`."""
    wanted = Wanted.HEAD if model.head else Wanted.EMBEDDINGS
    lent = [model.lease_encoder(replace(settings, threads=threads), most_tokens(LONGEST), wanted) for _ in range(count)]
    found = [b""] * len(texts)
    with closing(WholeTexts([encoder for encoder, _ in lent], wanted)) as reader:
        for parts in reader.read([Text(ids) for ids in texts]):
            for part in parts:
                found[part.texts[0]] = part.rows.tobytes()
    for _, give_back in lent:
        give_back()
    assert all(found)
    return found


LENGTHS = (1, 2, 15, 16, 17, 31, 33, 47, 49, 63, 64, 65, 90, 127, 128, 129, 200, 255, 256, *range(3, 60, 4))


OFTEN = [("q8_0", False)]
REST = [each for each in product(("f32", "bf16", "f16", "q8_0"), (True, False)) if each not in OFTEN]


@pytest.mark.parametrize(
    ("file_type", "flash"), [*OFTEN, *(pytest.param(*each, marks=pytest.mark.laws) for each in REST)]
)
@pytest.mark.parametrize("name", often(NAMES, NAMES[0], "reranker"))
def test_outputs_are_the_same_to_the_bit_in_any_company(name, file_type, flash, tmp_path):
    path = HERE / f"{name}.gguf"
    if file_type != "f32":
        path = tmp_path / "model.gguf"
        quantize_file(HERE / f"{name}.gguf", path, file_type)
    model = LlamaModel(ModelSettings(path=str(path)))
    assert model.doubt(EngineSettings()) is None
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 80, length).astype(np.int32) for length in LENGTHS]
    settings = EngineSettings(flash_attention=flash)
    together = read(model, texts, settings)
    assert [read(model, [ids], settings)[0] for ids in texts] == together
    shuffled = rng.permutation(len(texts)).tolist()
    sixteen = [shuffled[i : i + 16] for i in range(0, len(shuffled), 16)]
    for some in sixteen:
        assert read(model, [texts[i] for i in some], settings) == [together[i] for i in some]
    assert read(model, texts, settings, count=3, threads=1) == together
    model.close()


def test_what_is_promised_for_encoders_is_tested():
    tested = {read_header(HERE / f"{name}.gguf").architecture for name in NAMES}
    assert tested == {name for name, kind in CLASSES.items() if kind == "encoder"}
    assert PROVEN["encoder"] == {
        LlamaFileType[name] for name in ("ALL_F32", "MOSTLY_BF16", "MOSTLY_F16", "MOSTLY_Q8_0")
    }


class Recorder:
    """An encoder that keeps what it is given."""

    most_tokens, most_spans, packs = most_tokens(LONGEST), 64, True

    def __init__(self) -> None:
        self.calls: list[list[TokenIds]] = []

    def encode(self, spans):
        assert sum(map(len, spans)) <= self.most_tokens
        assert len(spans) <= self.most_spans
        self.calls.append(spans)
        return np.zeros((sum(map(len, spans)), 1), np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_a_text_begins_where_its_bits_cannot_depend_on_others(seed):
    """Short texts within a tile, at places that follow from their length; long ones at the beginning of one. Calls have
    whole tiles, and little is filled in."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.exp(rng.normal(3.8, 0.8, 1000)), 1, LONGEST).astype(int)
    texts = [np.full(length, number + 1, np.int32) for number, length in enumerate(lengths)]
    encoder = Recorder()
    reader = WholeTexts([encoder], Wanted.EMBEDDINGS)
    parts = [part for parts in reader.read([Text(ids) for ids in texts]) for part in parts]
    assert sorted(number for part in parts for number in part.texts) == list(range(len(texts)))
    assert all(part.end == lengths[part.texts[0]] for part in parts)
    places: dict[int, int] = {}
    for spans in encoder.calls:
        total = sum(map(len, spans))
        assert total % TILE == 0
        assert total <= CALL_TOKENS
        begins = np.cumsum([0, *map(len, spans)])
        for ids, begin in zip(spans, begins, strict=False):
            if ids[0]:
                assert begin % STEP == places.setdefault(len(ids), begin % STEP)
                assert begin % TILE == 0 or begin // TILE == (begin + len(ids) - 1) // TILE
                assert begin % TILE == 0 or len(ids) <= TILE
    assert reader.decoded < 1.1 * lengths.sum()


def test_a_long_text_is_a_reject_with_numbers_or_is_cut_before_its_end(tmp_path):
    rows = [{"prompt": "late " * 300}, {"prompt": "late"}]
    found = made("embed", "bert", rows, tmp_path / "out", "max_error_rate=1")
    assert [row["row"] for row in found] == [1]
    (reject,) = pq.read_table(tmp_path / "out/rejects").to_pylist()
    assert "tokens, and runtime.max_sequence_tokens is 256" in reject["reason"]
    cut = made("embed", "bert", rows, tmp_path / "cut", "nodes.embed.op.truncate=true")
    fits = made("embed", "bert", [{"prompt": "late " * 254}], tmp_path / "fits")
    assert cut[0]["embedding"] == fits[0]["embedding"]
    query = {"query": "late"}
    pairs = [query | {"documents": [" ".join(["late"] * count)]} for count in (300, 20)]
    some = made("rerank", "reranker", pairs, tmp_path / "pairs", "max_error_rate=1")
    assert [row["row"] for row in some] == [1]
    (reject,) = pq.read_table(tmp_path / "pairs/rejects").to_pylist()
    assert reject["reason"].startswith("document 0 with its query: the text has ")
    assert len(made("rerank", "reranker", pairs, tmp_path / "whole", "nodes.rerank.op.truncate=true")) == 2


@pytest.mark.parametrize(
    ("job", "model", "says"),
    [
        ("generate", "bert", ("a model of the architecture bert is an encoder", "Embed, Rerank or Classify")),
        ("score_perplexity", "modernbert", ("architecture modern-bert is an encoder", "continues texts")),
        ("rerank", None, ("the model has no classifier head", "Rerank takes rerankers")),
        ("classify_head", "bert", ("the model has no classifier head",)),
        ("rerank", "classifier", ("a classifier with the labels complaint, praise, question", "Classify")),
    ],
)
def test_a_model_of_the_wrong_kind_is_exit_code_2(job, model, says, tmp_path, capfd):
    chosen = ("model=tiny",) if model is None else ("model=gguf", f"model.path={HERE / model}.gguf")
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"prompt": "a", "text": "a", "query": "a", "documents": ["a"]}) + "\n", encoding="utf-8")
    code = main([f"job={job}", *chosen, f"data.path={data}", f"output_dir={tmp_path / 'out'}", "progress=none"])
    assert code == ExitCode.CONFIG
    said = capfd.readouterr().err
    assert all(part in said for part in says), said


TEMPLATE = "Query: {query}\nDocument: {document}\nAnswer:"


def write_causal_reranker(path: Path) -> np.ndarray:
    """Write a model that generates, with a head as Qwen3-Reranker has: logits of yes and no after the last token."""
    base = write_model(path.with_suffix(".base"), file_type="f16").path
    head = np.random.default_rng(0).normal(0, 0.2, (2, named_shape("tiny").n_embd)).astype(np.float32)
    keys = [
        MetaValue("qwen3.pooling_type", int(PoolingType.RANK), GGUFValueType.UINT32),
        MetaValue("qwen3.classifier.output_labels", ["yes", "no"], GGUFValueType.ARRAY, GGUFValueType.STRING),
        MetaValue("tokenizer.chat_template.rerank", TEMPLATE, GGUFValueType.STRING),
    ]
    copied(base, path, keys, more={"cls.output.weight": head})
    return head


def test_a_causal_reranker_reads_its_template_and_answers_yes_with_a_probability(tmp_path):
    head = write_causal_reranker(tmp_path / "model.gguf")
    documents = ["It is late.", "The parcel is here, and {query} is no query.", "a " * 90]
    path = f"model.path={tmp_path / 'model.gguf'}"
    (row,) = made("rerank", "", [{"query": "Where?", "documents": documents}], tmp_path / "out", path)
    texts = [{"prompt": TEMPLATE.format(query="Where?", document=document)} for document in documents]
    asked = ("nodes.embed.op.pooling=last", "nodes.embed.op.normalize=false")
    vectors = np.array([each["embedding"] for each in made("embed", "", texts, tmp_path / "vectors", path, *asked)])
    yes, no = head @ vectors.T
    expected = 1 / (1 + np.exp(no - yes))
    assert row["rerank_order"] == np.argsort(-expected).tolist()
    assert np.allclose(row["rerank_scores"], expected[row["rerank_order"]], atol=NEAR_SCORE, rtol=0)
    alone = made("rerank", "", [{"query": "Where?", "documents": documents[:1]}], tmp_path / "alone", path)
    assert alone[0]["rerank_scores"] == [row["rerank_scores"][row["rerank_order"].index(0)]]
    (cut,) = made(
        *("rerank", "", [{"query": "Where?", "documents": ["a " * 900]}], tmp_path / "cut", path),
        *("runtime.max_sequence_tokens=128", "nodes.rerank.op.truncate=true"),
    )
    assert cut["rerank_tokens"] in range(120, 129)


@pytest.mark.parametrize("job", often(["rerank", "classify_head"], "rerank"))
def test_the_dry_run_knows_memory_and_time(job, tmp_path, capfd):
    assert main([f"job={job}", "dry_run=true", f"output_dir={tmp_path / 'out'}", "progress=none"]) == ExitCode.DONE
    said = capfd.readouterr()
    assert "tokens" in said.out + said.err
