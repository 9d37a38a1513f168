"""A model that speaks: nearly all of its tokens stand for sound and have no text, and none of them is lost."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from gguf import GGUFWriter, Keys, TokenType

from operators.generation.completions import TEXT
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tools.models.make_model import write_model
from tools.models.vocabularies import Vocabulary, builtin_vocabulary

KINDS = {TokenType.CONTROL: 3000, TokenType.UNUSED: 500, TokenType.USER_DEFINED: 200}
"""How many tokens of each kind come after those of the built-in vocabulary."""
DONE = ("progress=none", "output.completion_ids=true", "sampling.max_tokens=24", "sampling.ignore_eos=true")


def with_sound(vocabulary: Vocabulary) -> Vocabulary:
    added = [(f"<|{kind.name}_{i}|>", int(kind)) for kind, count in KINDS.items() for i in range(count)]
    more = {Keys.Tokenizer.LIST: [text for text, _ in added], Keys.Tokenizer.TOKEN_TYPE: [kind for _, kind in added]}
    values = [
        meta._replace(value=[*meta.value, *more[meta.key]]) if meta.key in more else meta  # type: ignore[misc]
        for meta in vocabulary.values
    ]
    return Vocabulary(vocabulary.n_tokens + len(added), tuple(values))


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("speaker")
    writer = GGUFWriter(folder / "vocabulary.gguf", "llama")
    with_sound(builtin_vocabulary()).add_to(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
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
