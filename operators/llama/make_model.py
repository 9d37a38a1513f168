"""Write GGUF models with random weights, for tests and benchmarks: any shape, any vocabulary, any common file type.

    python -m operators.llama.make_model --shape tiny --out tiny.gguf
    python -m operators.llama.make_model --shape qwen3-0.6b --vocab vocab.gguf --type q8_0 --out bench.gguf

A random model says nothing, but it computes exactly what a trained one of its shape computes, so it is good for every
question about speed, memory and determinism. Weights depend on the seed, the tensor's name and its size, and not on the
file type: an F32 and a Q8_0 file of one seed are the same model at two precisions.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape, quantize
from numpy.typing import NDArray
from tqdm import tqdm

from operators.llama.gguf_shapes import SHAPES, Shape, TensorSpec, named_shape, tensor_specs, with_overrides
from operators.llama.gguf_types import FILE_TYPES, FileType, named_file_type, quantize_file
from operators.llama.gguf_vocab import Vocabulary, builtin_vocabulary, read_vocabulary

_DRAWN_AT_ONCE = 1 << 22  # weights held in F32: 16 MiB, however large the tensor
_QUANTIZATION_VERSION = 2


@dataclass(frozen=True)
class Summary:
    """What `write_model` wrote. `tensor_types` counts tensors by GGML type, such as {"F32": 9, "Q8_0": 15}."""

    path: Path
    size_bytes: int
    n_params: int
    n_vocab: int
    tensor_types: dict[str, int]
    shape: Shape
    file_type: str
    seed: int

    def __str__(self) -> str:
        """One line for people."""
        types = ", ".join(f"{count} {name}" for name, count in self.tensor_types.items())
        return (
            f"{self.path}: {self.size_bytes / 1e6:,.1f} MB, {self.n_params:,} parameters, {self.shape.arch} with "
            f"{self.shape.n_layer} layers, {self.n_vocab:,} tokens, {self.file_type} ({types}), seed {self.seed}"
        )


def write_model(
    path: Path,
    *,
    shape: str | Shape = "tiny",
    file_type: str = "f32",
    vocab: Path | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Summary:
    """Write a random-weight GGUF model to `path`, which appears only once it is complete.

    `shape` is a key of `SHAPES` or a `Shape`; `file_type` a key of `FILE_TYPES`. `vocab` is a GGUF file whose
    tokenizer is copied, or None for the built-in vocabulary. Equal arguments give equal bytes (with the same versions
    of NumPy and llama.cpp). Memory holds the largest tensor in its file type and little else; K-quants need room for
    an F16 file beside `path`. `progress` draws a progress bar on a terminal. Missing folders are made.

    Raises ValueError for arguments that cannot be a model, naming what is allowed; OSError if writing fails;
    RuntimeError if llama.cpp fails to make a K-quant.
    """
    if isinstance(shape, str):
        shape = named_shape(shape)
    kind = named_file_type(file_type)
    kind.check_fits(shape)
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the file to write")
    vocabulary = builtin_vocabulary() if vocab is None else read_vocabulary(vocab)
    path.parent.mkdir(parents=True, exist_ok=True)

    with _atomic(path) as unfinished:
        if kind.matrices is not None:
            types = _write(unfinished, shape, kind, vocabulary, seed, progress)
        else:
            types = _write_by_llama(unfinished, shape, kind, vocabulary, seed, progress)
    return Summary(
        path=path,
        size_bytes=path.stat().st_size,
        n_params=sum(prod(spec.dims) for spec in tensor_specs(shape, vocabulary.n_tokens)),
        n_vocab=vocabulary.n_tokens,
        tensor_types=types,
        shape=shape,
        file_type=kind.name,
        seed=seed,
    )


def _write_by_llama(
    path: Path, shape: Shape, kind: FileType, vocabulary: Vocabulary, seed: int, progress: bool
) -> dict[str, int]:
    with _scratch(path.with_name(path.name + ".f16")) as source:
        _write(source, shape, FILE_TYPES["f16"], vocabulary, seed, progress)
        quantize_file(source, path, kind)
    return dict(Counter(tensor.tensor_type.name for tensor in GGUFReader(path).tensors))


def _write(
    path: Path, shape: Shape, kind: FileType, vocabulary: Vocabulary, seed: int, progress: bool
) -> dict[str, int]:
    """Write the whole file, one tensor at a time; returns the number of tensors of each type."""
    typed = [(spec, _tensor_type(spec, kind)) for spec in tensor_specs(shape, vocabulary.n_tokens)]
    sizes = [prod(quant_shape_to_byte_shape(spec.dims, stored)) for spec, stored in typed]
    writer = GGUFWriter(path, shape.arch)
    try:
        _add_metadata(writer, shape, kind, vocabulary, seed)
        for (spec, stored), size in zip(typed, sizes, strict=True):
            writer.add_tensor_info(spec.name, spec.dims, np.dtype(np.float32), size, raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        # disable=None: no bar where there is no terminal
        with tqdm(total=sum(sizes), unit="B", unit_scale=True, disable=None if progress else True) as bar:
            for (spec, stored), size in zip(typed, sizes, strict=True):
                writer.write_tensor_data(draw_weights(spec, seed, stored))
                bar.update(size)
    finally:
        writer.close()
    return dict(Counter(stored.name for _, stored in typed))


def _tensor_type(spec: TensorSpec, kind: FileType) -> GGMLQuantizationType:
    return kind.matrices if spec.is_matrix and kind.matrices is not None else GGMLQuantizationType.F32


def draw_weights(
    spec: TensorSpec, seed: int, stored: GGMLQuantizationType, at_once: int = _DRAWN_AT_ONCE
) -> NDArray[np.uint8]:
    """The weights of one tensor as the bytes of its GGML type: uint8 [rows, bytes a row], one row for a vector, the
    rows of all experts one after the other.

    The generator is seeded by `seed` and the tensor's name, so a tensor does not depend on those written before it.
    `at_once` is how many weights are held in F32 (at least a row); it does not change them.
    """
    rng = np.random.Generator(np.random.PCG64([seed, *spec.name.encode()]))
    n_rows, n_columns = prod(spec.dims[:-1]), spec.dims[-1]
    packed = np.empty(quant_shape_to_byte_shape((n_rows, n_columns), stored), np.uint8)
    step = max(1, at_once // n_columns)
    for start in range(0, n_rows, step):
        weights = rng.standard_normal((min(step, n_rows - start), n_columns), dtype=np.float32)
        weights *= np.float32(spec.std)
        weights += np.float32(spec.mean)
        packed[start : start + step] = quantize(weights, stored).view(np.uint8)
    return packed


def _add_metadata(writer: GGUFWriter, shape: Shape, kind: FileType, vocabulary: Vocabulary, seed: int) -> None:
    writer.add_name(f"random {shape.arch}, {shape.n_layer} x {shape.n_embd}")
    writer.add_description(f"random weights for tests and benchmarks, seed {seed}")
    writer.add_file_type(int(kind.code))
    writer.add_quantization_version(_QUANTIZATION_VERSION)
    writer.add_vocab_size(vocabulary.n_tokens)
    writer.add_context_length(shape.n_ctx_train)
    writer.add_block_count(shape.n_layer)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    if shape.n_expert > 1:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
        writer.add_expert_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    vocabulary.add_to(writer)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """`path` for a file that is gone afterwards."""
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; what was written there is flushed to disk and renamed if all went well."""
    with _scratch(path.with_name(f".{path.name}.{os.getpid()}.tmp")) as unfinished:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)


def _parser() -> argparse.ArgumentParser:
    shapes = "\n".join(
        f"  {name:12} {shape.arch}, {shape.n_layer} layers, n_embd {shape.n_embd}" for name, shape in SHAPES.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m operators.llama.make_model",
        description="Write a GGUF model with random weights, for tests and benchmarks.",
        epilog=f"shapes:\n{shapes}\n\ntypes:\n  {' '.join(FILE_TYPES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", default="tiny", help="a shape from the list below (default: tiny)")
    parser.add_argument("--type", default="f32", dest="file_type", help="a type from the list below (default: f32)")
    parser.add_argument("--vocab", type=Path, metavar="FILE.gguf", help="copy its tokenizer (default: built in)")
    parser.add_argument("--out", type=Path, metavar="FILE.gguf", required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        dest="settings",
        metavar="FIELD=VALUE",
        help="change fields of the shape, such as n_layer=2 tied_embeddings=false",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns 0, or 1 if the file could not be written; arguments that cannot work exit with 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        summary = write_model(
            options.out,
            shape=with_overrides(named_shape(options.shape), options.settings),
            file_type=options.file_type,
            vocab=options.vocab,
            seed=options.seed,
            progress=True,
        )
    except ValueError as error:
        parser.error(str(error))
    except (OSError, RuntimeError) as error:
        print(f"could not write {options.out}: {error}", file=sys.stderr)
        return 1
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
