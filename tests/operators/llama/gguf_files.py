"""GGUF files for tests: copies of others with other keys or tensors, and vocabularies with further tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys, TokenType

from tools.models.vocabularies import MetaValue, Vocabulary, builtin_vocabulary

SIZES = {"context_length": 512, "embedding_length": 64, "block_count": 1, "feed_forward_length": 64}
SIZES |= {"attention.head_count": 4}


def write_file(writer: GGUFWriter) -> None:
    """Write what `writer` was given, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def keys_of(reader: GGUFReader) -> list[MetaValue]:
    """Return the keys of a file but for those that a writer sets itself."""
    fields = (field for name, field in reader.fields.items() if not name.startswith("GGUF."))
    return [
        MetaValue(field.name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
        for field in fields
        if field.name != Keys.General.ARCHITECTURE
    ]


def copied(
    source: Path,
    target: Path,
    keys: Iterable[MetaValue] = (),
    *,
    tensors: slice = slice(None),
    only_given: bool = False,
    changed: Callable[[MetaValue], MetaValue] = lambda key: key,
    rows: Callable[[Any], Any] = lambda tensor: tensor.data,
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Copy a model: `tensors` of it with `rows` as their data and `more` in F32, and its keys as `changed` makes them,
    if not `only_given`. `keys` replace those of the file, or are added."""
    reader, given = GGUFReader(source), {key.key: key for key in keys}
    writer = GGUFWriter(target, reader.fields[Keys.General.ARCHITECTURE].contents())
    kept = [] if only_given else [changed(key) for key in keys_of(reader) if key.key not in given]
    for key in [*kept, *given.values()]:
        writer.add_key_value(*key)
    for tensor in reader.tensors[tensors]:
        writer.add_tensor(tensor.name, rows(tensor), raw_dtype=tensor.tensor_type)
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    write_file(writer)
    return target


def header_alone(path: Path, architecture: str, keys: Iterable[MetaValue], **values: Any) -> Path:
    """Write a file of a small model without a tensor. `values`: further keys of its architecture."""
    writer = GGUFWriter(path, architecture)
    for name, size in SIZES.items():
        writer.add_uint32(f"{architecture}.{name}", size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    for name, value in values.items():
        writer.add_key_value(f"{architecture}.{name}", value, GGUFValueType.get_type(value))
    for key in keys:
        writer.add_key_value(*key)
    write_file(writer)
    return path


def with_tokens(added: Mapping[str, TokenType]) -> Vocabulary:
    """Return the built-in vocabulary with further tokens behind its own."""
    usual = builtin_vocabulary()
    more = {Keys.Tokenizer.LIST: list(added), Keys.Tokenizer.TOKEN_TYPE: [int(kind) for kind in added.values()]}
    values = (
        key._replace(value=[*key.value, *more[key.key]]) if key.key in more else key  # type: ignore[misc]
        for key in usual.values
    )
    return Vocabulary(usual.n_tokens + len(added), tuple(values))
