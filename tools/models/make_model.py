"""Write GGUF models with random weights, for tests and benchmarks: any shape, any vocabulary, any common file type.

    python -m tools.models.make_model --shape tiny --out tiny.gguf
    python -m tools.models.make_model --shape qwen3-0.6b --vocab vocab.gguf --type q8_0 --out bench.gguf

A random model computes the same operations as a trained one of its shape, so it serves for measurements of speed,
memory and determinism. Weights depend on the seed, the tensor's name and its size, and not on the file type: an F32 and
a Q8_0 file of one seed are the same model at two precisions.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import llama_cpp
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.lazy import LazyNumpyTensor
from numpy.typing import DTypeLike, NDArray

from operators.llama import library
from tools.models.shapes import CONVOLVED, SHAPES, Shape, TensorSpec, named_shape, tensor_specs
from tools.models.vocabularies import AROUND_IMAGES, Vocabulary, builtin_vocabulary, read_vocabulary

UNIFORM_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
"""File types that apply to every matrix."""
K_QUANTS = ("q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k")
"""File types for which llama.cpp chooses each tensor's type."""
FILE_TYPES = (*UNIFORM_TYPES, *K_QUANTS)
_DRAWN_AT_ONCE = 1 << 22  # weights held in F32: 16 MiB, however large the tensor
_K_BLOCK = 256  # weights in a super-block of every K-quant


class Summary(NamedTuple):
    """A model written by `write_model`, and a line about it."""

    path: Path
    n_params: int
    about: str


def write_model(
    path: Path,
    *,
    shape: str | Shape = "tiny",
    file_type: str = "f32",
    vocab: Path | None = None,
    images: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> Summary:
    """Write a GGUF model with random weights to `path`, which appears only once it is complete.

    `shape` is a key of `SHAPES` or a `Shape`; `file_type` is one of `FILE_TYPES`, in any case. `vocab` is a GGUF file
    whose tokenizer is copied, or None for the built-in vocabulary; with `images` it gets the tokens that stand around
    images, for an encoder of tools.models.make_encoder. Equal arguments give equal bytes (with the same
    versions of NumPy and llama.cpp). Only F32 and F16 are written here; for other types llama.cpp quantises an F16
    file, which needs room beside `path`. `progress` draws a progress bar on a terminal. Missing folders are made.

    Raises ValueError for arguments that cannot be a model, naming what is allowed; OSError if writing fails;
    RuntimeError if llama.cpp fails to quantise.
    """
    if isinstance(shape, str):
        shape = named_shape(shape)
    file_type = file_type.lower()
    _check(path, shape, file_type, seed)
    vocabulary = builtin_vocabulary() if vocab is None else read_vocabulary(vocab)
    if images:
        vocabulary = vocabulary.with_tokens(AROUND_IMAGES, lines=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        unfinished = drawn = Path(folder) / "drawn.gguf"
        _write(drawn, shape, np.float32 if file_type == "f32" else np.float16, vocabulary, seed, progress)
        if file_type not in ("f32", "f16"):
            unfinished = Path(folder) / "quantised.gguf"
            quantize_file(drawn, unfinished, file_type)
        tensors = GGUFReader(unfinished).tensors
        types = Counter(tensor.tensor_type.name for tensor in tensors)
        n_params = sum(int(tensor.n_elements) for tensor in tensors)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    kinds = ", ".join(f"{count} {name}" for name, count in types.items())
    about = (
        f"{path}: {path.stat().st_size / 1e6:,.1f} MB, {n_params:,} parameters, {shape.arch} with {shape.n_layer}"
        f" layers, {vocabulary.n_tokens:,} tokens, {file_type} ({kinds}), seed {seed}"
    )
    return Summary(path, n_params, about)


def _check(path: Path, shape: Shape, file_type: str, seed: int) -> None:
    if file_type not in FILE_TYPES:
        raise ValueError(f"no file type is called {file_type!r}; allowed: {', '.join(FILE_TYPES)}")
    uniform = file_type in UNIFORM_TYPES
    block = GGML_QUANT_SIZES[GGMLQuantizationType[file_type.upper()]][0] if uniform else _K_BLOCK
    for name, size in shape.row_sizes.items():
        if size % block:
            raise ValueError(
                f"{file_type} packs {block} weights at a time and {name}={size} is no multiple of that; "
                f"use another type, or a shape such as tiny-256"
            )
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the file to write")


def _write(path: Path, shape: Shape, stored: DTypeLike, vocab: Vocabulary, seed: int, progress: bool) -> None:
    """Write the whole file, one tensor at a time: matrices as `stored` (float32 or float16), others as float32."""
    writer = GGUFWriter(path, shape.arch)
    try:
        kind = LlamaFileType.ALL_F32 if stored == np.float32 else LlamaFileType.MOSTLY_F16
        _add_metadata(writer, shape, kind, vocab, seed)
        add_random_tensors(writer, tensor_specs(shape, vocab.n_tokens), stored, seed)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=progress and sys.stderr.isatty())
    finally:
        writer.close()


def add_random_tensors(writer: GGUFWriter, specs: Iterable[TensorSpec], stored: DTypeLike, seed: int) -> None:
    """Add tensors that are drawn while they are written: matrices as `stored`, others as float32."""
    for spec in specs:
        dtype = stored if spec.is_matrix else np.float32
        meta = LazyNumpyTensor.meta_with_dtype_and_shape(dtype, spec.dims)
        writer.add_tensor(spec.name, LazyNumpyTensor(meta=meta, args=(spec, seed, dtype), func=_draw_weights))


def _draw_weights(spec: TensorSpec, seed: int, stored: DTypeLike) -> NDArray[np.floating]:
    """Draw the weights of one tensor, by a generator seeded by `seed` and its name alone."""
    rng = np.random.Generator(np.random.PCG64([seed, *spec.name.encode()]))
    n_rows, n_columns = prod(spec.dims[:-1]), spec.dims[-1]
    made = np.empty((n_rows, n_columns), stored)
    step = max(1, _DRAWN_AT_ONCE // n_columns)
    for start in range(0, n_rows, step):
        weights = rng.standard_normal((min(step, n_rows - start), n_columns), dtype=np.float32)
        weights *= np.float32(spec.std)
        weights += np.float32(spec.mean)
        made[start : start + step] = weights
    return made.reshape(spec.dims)


def _add_metadata(writer: GGUFWriter, shape: Shape, kind: LlamaFileType, vocabulary: Vocabulary, seed: int) -> None:
    writer.add_name(f"random {shape.arch}, {shape.n_layer} x {shape.n_embd}")
    writer.add_description(f"random weights for tests and benchmarks, seed {seed}")
    writer.add_file_type(int(kind))
    writer.add_quantization_version(2)
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
    if shape.attention_every > 1:
        writer.add_head_count_kv([shape.n_head_kv * shape.attends(layer) for layer in range(shape.n_layer)])
        writer.add_shortconv_l_cache(CONVOLVED)
    else:
        writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    vocabulary.add_to(writer)


def quantize_file(source: Path, target: Path, file_type: str) -> None:
    """Write the F16 model at `source` to `target` in `file_type`, with llama.cpp's own quantiser. Raises RuntimeError
    with what llama.cpp says if it fails."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = int(LlamaFileType[f"MOSTLY_{file_type.upper()}"])
    params.pure = file_type in UNIFORM_TYPES
    library.initialise()
    library.forget_errors()
    code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if code != 0:
        raise RuntimeError(f"llama.cpp could not quantise {source} to {file_type}: {library.last_errors()}")


def _parser() -> argparse.ArgumentParser:
    shapes = "\n".join(f"  {name:12} {s.arch}, {s.n_layer} layers, n_embd {s.n_embd}" for name, s in SHAPES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tools.models.make_model",
        description="Write a GGUF model with random weights, for tests and benchmarks.",
        epilog=f"shapes:\n{shapes}\n\ntypes:\n  {' '.join(FILE_TYPES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", default="tiny", help="a shape from the list below (default: tiny)")
    parser.add_argument("--type", default="f32", dest="file_type", help="a type from the list below (default: f32)")
    parser.add_argument("--vocab", type=Path, metavar="FILE.gguf", help="copy its tokenizer (default: built in)")
    parser.add_argument("--images", action="store_true", help="add the tokens that stand around images")
    parser.add_argument("--out", type=Path, metavar="FILE.gguf", required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    group = parser.add_argument_group("fields of the shape that are to be others")
    for field in fields(Shape):
        kind = type(field.default)
        how = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind, "metavar": kind.__name__}
        group.add_argument(f"--{field.name}", default=argparse.SUPPRESS, **how)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 if the file could not be written; invalid arguments exit with 2."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    changes = {field.name: options.pop(field.name) for field in fields(Shape) if field.name in options}
    path = options.pop("out")
    try:
        options["shape"] = replace(named_shape(options["shape"]), **changes)
        summary = write_model(path, progress=True, **options)
    except ValueError as error:
        parser.error(str(error))
    except (OSError, RuntimeError) as error:
        print(f"could not write {path}: {error}", file=sys.stderr)
        return 1
    print(summary.about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
