"""What the keys of a model file ask for: a chat template for tools, tokens that never come, sampling values."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from operators.engine.backend.loading import template_of
from operators.generation.model_sampling import values_of
from operators.generation.sampling_params import Drawing, RowParams
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings, SamplingSettings
from operators.settings.sampling import STEP_ORDER
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.config.compose import composed
from pipeline.config.jobs import find_job

pytestmark = pytest.mark.slow("Hydra composes jobs, and two run on the small model")
TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
KINDS = {
    **{str: GGUFValueType.STRING, float: GGUFValueType.FLOAT32, list: GGUFValueType.ARRAY},
    **{int: GGUFValueType.INT32, bool: GGUFValueType.BOOL},
}


def with_keys(folder: Path, **keys: Any) -> Path:
    """The small model with other values of some keys, whose dots are written `__`."""
    reader = GGUFReader(TINY)
    changed = {name.replace("__", "."): value for name, value in keys.items()}
    path = folder / "model.gguf"
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", *changed):
            item = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], item)
    for name, value in changed.items():
        item = GGUFValueType.INT32 if isinstance(value, list) else None
        writer.add_key_value(name, value, KINDS[type(value)], item)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
