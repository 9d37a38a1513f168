"""A model in several files, split as llama.cpp's gguf-split does it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from operators.engine.backend.loading import inspect_model
from operators.generation.wiring import model_memory
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ExitCode, InputError
from pipeline.cli.main import main

TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
PARTS = 3


def split(folder: Path) -> Path:
    """The small model in three files; the first, which has all keys."""
    reader = GGUFReader(TINY)
    total = len(reader.tensors)
    paths = [folder / f"tiny-{number:05}-of-{PARTS:05}.gguf" for number in range(1, PARTS + 1)]
    for number, path in enumerate(paths):
        writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
        if number == 0:
            for field in reader.fields.values():
                if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                    kinds = field.types
                    item = kinds[1] if kinds[0] == GGUFValueType.ARRAY else None
                    writer.add_key_value(field.name, field.contents(), kinds[0], item)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", PARTS)
        writer.add_int32("split.tensors.count", total)
        for tensor in reader.tensors[number * total // PARTS : (number + 1) * total // PARTS]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
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
