"""The text of a completion is its tokens, byte for byte, also of a model that speaks, most of whose tokens stand for
sound and have no text.

$QWEN_VOCAB may name a GGUF file with a large vocabulary (llama.cpp's models/ggml-vocab-qwen2.gguf); it is tested too.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path

import llama_cpp
import numpy as np
import polars as pl
import pytest
from gguf import TokenType

from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence, StopWatcher
from operators.generation.completions import TEXT, completion_text
from operators.generation.sampling_params import Drawing, RowParams
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings, SamplingSettings
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from tests.operators.llama.gguf_files import header_alone, with_tokens
from tools.models.make_model import write_model

ROOT = Path(__file__).resolve().parents[3]
QWEN = os.environ.get("QWEN_VOCAB")


@pytest.fixture(
    scope="module",
    params=[
        "shipped",
        pytest.param("qwen", marks=pytest.mark.skipif(QWEN is None, reason="needs a vocabulary: QWEN_VOCAB=file.gguf")),
    ],
)
def vocabulary(request, tmp_path_factory):
    """Our model, and llama-cpp-python's, on one vocabulary."""
    path = ROOT / "models/tiny/tiny-q8_0.gguf"
    if request.param == "qwen":
        path = tmp_path_factory.mktemp("model") / "qwen.gguf"
        write_model(path, file_type="q8_0", shape="tiny", vocab=Path(str(QWEN)))
    ours = LlamaModel(ModelSettings(path=str(path)))
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    yield ours, theirs
    theirs.close()
    ours.close()


def detokenized(llama: llama_cpp.Llama, tokens: list[int]) -> bytes:
    """As llama.cpp has it. (llama-cpp-python's own `detokenize` is wrong for tokens of more than 32 bytes.)"""
    size = 64 * len(tokens) + 1024
    text = ctypes.create_string_buffer(size)
    ids = (ctypes.c_int32 * len(tokens))(*tokens)
    count = llama_cpp.llama_detokenize(llama._model.vocab, ids, len(tokens), text, size, False, False)
    assert count >= 0
    return text.raw[:count]


def row_of(tokens: list[int], stops: StopWatcher | None = None) -> Sequence:
    row = Sequence(0, np.array([1], np.int32), SamplingParams(), 0, 10_000, stops)
    for token in tokens:
        row.append(token)
    return row


def test_random_tokens_come_out_as_their_bytes(vocabulary):
    ours, theirs = vocabulary
    random = np.random.default_rng(0)
    pieces = ours.pieces()
    broken = 0
    for _ in range(300):
        tokens = random.integers(0, ours.n_vocab, random.integers(1, 60)).tolist()
        expected = detokenized(theirs, tokens)
        assert b"".join(pieces[t] for t in tokens) == expected
        text = completion_text(row_of(tokens), pieces)
        assert text == expected.decode("utf-8", "replace")
        broken += "\ufffd" in text
    assert broken  # characters cut in the middle were among them


def test_the_model_keeps_what_it_was_asked_for(vocabulary):
    ours, _ = vocabulary
    assert ours.pieces() is ours.pieces()


def test_control_tokens_have_no_text(vocabulary):
    ours, _ = vocabulary
    assert all(ours.pieces()[token] == b"" for token in ours.end_ids)


def test_a_stop_string_that_is_the_name_of_a_control_token_stops_there(vocabulary):
    ours, _ = vocabulary
    pieces = ours.pieces()
    controls = {i: name for i, name in ours.special_tokens.texts.items() if not pieces[i]}
    assert len(controls) > 3
    for token, name in controls.items():
        for keep in (False, True):
            drawing = RowParams(SamplingSettings(stop=["word", name], keep_stop=keep), ours).of(())
            assert isinstance(drawing, Drawing)
            assert drawing.params.stop_ids == {token} | ours.end_ids
            assert drawing.params.kept_stop_ids == ({token} if keep else set())
            assert drawing.stops == [b"word", name.encode()]  # in ordinary tokens it is a text
        for stop in (f"{name} ", f"\n{name}", f"a{name}b", name * 2):
            said = re.escape(f"give sampling.stop=['{name}'] or sampling.stop_token_ids=[{token}]")
            with pytest.raises(ConfigError, match=said):
                RowParams(SamplingSettings(stop=[stop]), ours)
            reason = RowParams(SamplingSettings(per_row=["stop"]), ours).of(([stop],))
            assert isinstance(reason, str)
            assert re.search(said, reason)
    others = ["<|im_start", "im_end|>", "<| im_end |>", "\n\n", "\u00e9"]
    drawing = RowParams(SamplingSettings(stop=others), ours).of(())
    assert isinstance(drawing, Drawing)
    assert drawing.params.stop_ids == ours.end_ids


KINDS = {TokenType.CONTROL: 3000, TokenType.UNUSED: 500, TokenType.USER_DEFINED: 200}
"""How many tokens of each kind come after those of the built-in vocabulary."""
DONE = ("progress=none", "output.completion_ids=true", "sampling.max_tokens=24", "sampling.ignore_eos=true")


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("speaker")
    added = {f"<|{kind.name}_{i}|>": kind for kind, count in KINDS.items() for i in range(count)}
    header_alone(folder / "vocabulary.gguf", "llama", with_tokens(added).values)
    return write_model(folder / "speaker.gguf", vocab=folder / "vocabulary.gguf").path


def spoken(model: Path, out: Path, *settings: str) -> pl.DataFrame:
    prompts = model.with_name("prompts.jsonl")
    prompts.write_text("".join(json.dumps({"prompt": f"Say {i}"}) + "\n" for i in range(20)))
    given = (f"model.path={model}", f"data.path={prompts}", f"output_dir={out}", *DONE, *settings)
    assert main(["job=generate", *given]) == ExitCode.DONE
    assert not (out / "rejects").exists()
    return pl.read_parquet(out / "data/*.parquet").sort("row")


def test_all_ids_are_there_whatever_they_have_of_a_text_and_no_row_is_refused(speaker, tmp_path):
    rows = spoken(speaker, tmp_path / "out", "sampling.temperature=1.0")
    assert rows["row"].to_list() == list(range(20))
    assert rows["completion_ids"].list.len().to_list() == rows["completion_token_count"].to_list() == [24] * 20
    model = LlamaModel(ModelSettings(path=str(speaker)), vocab_only=True)
    pieces = model.pieces()
    ids = [token for row in rows["completion_ids"].to_list() for token in row]
    without = [token for token in ids if not pieces[token]]
    assert len(without) > len(ids) / 2
    assert any(b"USER_DEFINED" in pieces[token] for token in ids)
    for row in rows.to_dicts():
        assert row[TEXT] == b"".join(pieces[token] for token in row["completion_ids"]).decode("utf-8", "replace")
    model.close()


def test_ids_of_texts_that_are_empty_come_back_from_the_store(speaker, tmp_path):
    made = spoken(speaker, tmp_path / "out", "sampling.max_tokens=1")
    assert (made[TEXT] == "").any()
    store = f"store.path={tmp_path}/out/completions.sqlite"
    again = spoken(speaker, tmp_path / "again", "sampling.max_tokens=1", store)
    assert again.equals(made)
    totals = json.loads(pl.read_parquet(tmp_path / "again/metrics/run.parquet")["totals"][0])
    assert totals["generate/store_hits"] == 20
