"""What the keys of a model file ask for: a template for tools, tokens that never come, sampling values; and a model in
several files, split as llama.cpp's gguf-split does it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from gguf import GGUFReader, GGUFValueType

from operators.engine.backend.loading import inspect_model, template_of
from operators.generation.memory import model_memory
from operators.generation.model_sampling import values_of
from operators.generation.sampling_params import Drawing, RowParams
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from operators.settings.sampling import STEP_ORDER
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, ExitCode, InputError
from pipeline.cli.main import main
from pipeline.config.compose import composed
from pipeline.config.jobs import find_job
from tests.operators.llama.gguf_files import copied
from tools.models.vocabularies import MetaValue

pytestmark = pytest.mark.slow("Hydra composes jobs, and two run on the small model")
TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
KINDS = {
    **{str: GGUFValueType.STRING, float: GGUFValueType.FLOAT32, list: GGUFValueType.ARRAY},
    **{int: (INT32 := GGUFValueType.INT32), bool: GGUFValueType.BOOL},
}


def with_keys(folder: Path, **keys: Any) -> Path:
    """The small model with other values of some keys, whose dots are written `__`."""
    changed = [
        MetaValue(name.replace("__", "."), value, KINDS[type(value)], INT32 if isinstance(value, list) else None)
        for name, value in keys.items()
    ]
    return copied(TINY, folder / "model.gguf", changed)


def generated(model: Path, rows: list[dict[str, Any]], *settings: str) -> pl.DataFrame:
    data, out = model.with_name("rows.jsonl"), model.with_name("out")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (f"model.path={model}", f"data.path={data}", f"output_dir={out}", "progress=none", "overwrite=true")
    assert main(["job=generate", "sampling.max_tokens=4", *given, *settings]) == ExitCode.DONE
    return pl.read_parquet(out / "data/*.parquet").sort("row")


def test_rows_with_tools_have_the_template_for_tools(tmp_path):
    said = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tools = '\n {{ bos_token }}<tool_call>{{ {"name": tools[0].function.name, "arguments": {}} | tojson }}' + said
    model = with_keys(
        tmp_path,
        tokenizer__chat_template="plain " + said,
        tokenizer__chat_template__tool_use=tools,
        tokenizer__ggml__add_bos_token=True,
    )
    settings = ModelSettings(path=str(model))
    assert template_of(settings) == "plain " + said
    assert template_of(settings, tools=True) == tools
    assert template_of(ModelSettings(path=str(TINY)), tools=True) == template_of(ModelSettings(path=str(TINY)))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    rows: list[dict[str, Any]] = [{"prompt": "a", "tools": []}, {"prompt": "b", "tools": [tool, tool]}]
    made = generated(model, rows, "data.tools_column=tools", "output.prompt_text=true")
    assert made["prompt_text"].to_list() == ["plain a", '<tool_call>{"name": "f", "arguments": {}}b']
    assert "tool_calls" in made.columns


def test_suppressed_tokens_are_bad_words(tmp_path):
    path = with_keys(tmp_path, tokenizer__ggml__suppress_tokens=[7, -1, 10**9])
    model = LlamaModel(ModelSettings(path=str(path)), vocab_only=True)
    other = LlamaModel(ModelSettings(path=str(TINY)), vocab_only=True)
    assert (model.suppressed_ids, other.suppressed_ids) == ((7,), ())
    plain, banned = SamplingSettings(bad_words=["cat"]), SamplingSettings(bad_words=["cat", 7])
    given, wanted = RowParams(plain, model).of(()), RowParams(banned, other).of(())
    assert isinstance(given, Drawing)
    assert isinstance(wanted, Drawing)
    assert given.params.identity == wanted.params.identity
    model.close()
    other.close()


ASKED = {
    "general__sampling__temp": 0.6,
    "general__sampling__top_k": 20,
    "general__sampling__penalty_repeat": 1.1,
    "general__sampling__penalty_last_n": -1,
    "general__sampling__sequence": "penalties;top-k;typ_p;temp",
    "general__sampling__what_is_to_come": 3,
}
TAKEN = {
    "temperature": 0.6,
    "top_k": 20,
    "repetition_penalty": 1.1,
    "penalty_last_n": None,
    "order": ["penalties", "top_k", "typical_p", "temperature"],
    "top_p": 0.95,
    "min_p": 0.05,
}


def sampling_of(model: Path, **values: Any) -> SamplingSettings:
    given = {"model.path": str(model), **{f"sampling.{key}": value for key, value in values.items()}}
    return composed(find_job("generate"), {"sampling": "model"}, given).sampling


def test_sampling_is_what_the_file_asks_for_and_what_is_given_comes_first(tmp_path, caplog):
    model = with_keys(tmp_path, **ASKED)
    assert {key: getattr(sampling_of(model), key) for key in TAKEN} == TAKEN
    own = sampling_of(model, temperature=1.5, order=list(STEP_ORDER))
    assert (own.temperature, own.order, own.top_k) == (1.5, list(STEP_ORDER), 20)
    with caplog.at_level(logging.INFO):
        made = generated(model, [{"prompt": "Hi"}], "sampling=model", "sampling.top_k=7")
    assert made.height == 1
    (said,) = [record.getMessage() for record in caplog.records if "asks for" in record.getMessage()]
    assert "temperature=0.6" in said
    assert said.endswith("; this job has top_k=7")
    kept = json.loads((tmp_path / "out/manifest.json").read_text())["fingerprint"]["keys"]
    assert (kept["sampling.temperature"], kept["sampling.top_k"]) == (0.6, 7)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"temp": "hot"}, "the model's file has general.sampling.temp=hot, which sampling.temperature cannot be"),
        ({"top_k": ""}, "general.sampling.top_k=, which sampling.top_k cannot be"),
        ({"sequence": "top_k;infill"}, "general.sampling.sequence=top_k;infill, which sampling.order cannot be"),
        ({"top_p": "7.0"}, "sampling.top_p=7.0 cannot work"),
        ({"mirostat": "1"}, "sampling.mirostat=1 cannot work"),
        ({"sequence": "top_k", "temp": "0.5"}, "sampling.order=['top_k'] cannot work"),
    ],
)
def test_values_that_cannot_be_are_refused(asked, says):
    with pytest.raises(ConfigError) as refused:
        SamplingSettings(**values_of(asked))
    assert says in str(refused.value)


def test_a_file_that_asks_for_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"^sampling=model takes .*, and it has none \(general.sampling.\*\); give"):
        sampling_of(TINY)


PARTS = 3
UINT16 = GGUFValueType.UINT16


def split(folder: Path) -> Path:
    """The small model in three files; the first, which has all keys."""
    total = len(GGUFReader(TINY).tensors)
    paths = [folder / f"tiny-{number:05}-of-{PARTS:05}.gguf" for number in range(1, PARTS + 1)]
    for number, path in enumerate(paths):
        keys = [MetaValue("split.no", number, UINT16), MetaValue("split.count", PARTS, UINT16)]
        keys.append(MetaValue("split.tensors.count", total, GGUFValueType.INT32))
        tensors = slice(number * total // PARTS, (number + 1) * total // PARTS)
        copied(TINY, path, keys, tensors=tensors, only_given=number > 0)
    return paths[0]


def run(tmp_path: Path, model: Path) -> int:
    fixed = ("job=quickstart", f"model.path={model}", f"output_dir={tmp_path / model.stem}", "data.limit=12")
    return main([*fixed, "sampling.max_tokens=12", "runtime.slots=4", "progress=none"])


def test_its_texts_are_those_of_the_model_in_one_file(tmp_path):
    first = split(tmp_path)
    assert run(tmp_path, first) == run(tmp_path, TINY) == ExitCode.DONE
    tables = [pq.read_table(tmp_path / path.stem / "data") for path in (first, TINY)]
    assert tables[0].num_rows == 12
    assert tables[0] == tables[1]


def test_all_parts_count_in_the_content_and_in_the_memory(tmp_path):
    first = split(tmp_path)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    settings = ModelSettings(path=str(first), kernels="llama.cpp")
    weights, _ = model_memory(settings, EngineSettings(max_sequence_tokens=256), "key")
    assert weights.size_bytes == sum(part.stat().st_size for part in parts) > TINY.stat().st_size
    before = inspect_model(settings).fingerprint
    data = parts[2].read_bytes()
    parts[2].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert inspect_model(settings).fingerprint != before


def damage(change):
    return lambda part: part.write_bytes(change(part.read_bytes()))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (Path.unlink, "tiny-00002-of-00003.gguf is missing: tiny-00001-of-00003.gguf needs all 3 parts"),
        (damage(lambda data: b""), "tiny-00002-of-00003.gguf is an empty file, not a GGUF model"),
        (damage(lambda data: data[:60]), "tiny-00002-of-00003.gguf claims"),
        (damage(lambda data: data[: len(data) // 2]), "data is not within the file bounds"),
    ],
    ids=["missing", "empty", "header", "weights"],
)
def test_a_part_that_is_missing_or_damaged_is_told_before_anything_runs(tmp_path, harm, says, capsys):
    first = split(tmp_path)
    harm(first.with_name("tiny-00002-of-00003.gguf"))
    assert run(tmp_path, first) == ExitCode.CONFIG
    assert says in capsys.readouterr().err


def test_another_part_than_the_first_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"give the first: tiny-00001-of-00003\.gguf"):
        inspect_model(ModelSettings(path=str(split(tmp_path).with_name("tiny-00002-of-00003.gguf"))))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is an empty file"),
        (b"PK\x03\x04 a zip", "not a GGUF model"),
        (b"GGUF\x03\x00\x00\x00" + bytes(100), "could not be loaded"),
    ],
)
def test_a_file_that_is_no_model_is_named(tmp_path, content, message):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        LlamaModel(ModelSettings(path=str(path)))
