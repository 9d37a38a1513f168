"""Write encoders of images with random weights for a model, for tests and benchmarks, of SmolVLM's kind (Idefics3).

    python -m tools.models.make_model --shape smolvlm-256m --images --type q8_0 --out bench.gguf
    python -m tools.models.make_encoder bench.gguf mmproj-bench.gguf

The model needs the tokens that stand around images (`--images`). Each image becomes a tile and, as llama.cpp wants it,
an overview, which are alike here: `(image_size / patch_size / scale)` squared cells each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import sqrt
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter, LlamaFileType, VisionProjectorType

from tools.models.make_model import add_random_tensors
from tools.models.shapes import ATTENTION_GAIN, BIAS_STD, EMBEDDING_STD, NORM_SPREAD, TensorSpec

_POSITION_STD = 0.3


@dataclass(frozen=True)
class EncoderShape:
    """The sizes of a vision transformer, by default those of SmolVLM-256M.

    `image_size` and `patch_size` are pixels of a side; `scale` squared patches become one cell.

    Raises ValueError for sizes that cannot be an encoder.
    """

    n_layer: int = 12
    n_embd: int = 768
    n_head: int = 12
    n_ff: int = 3072
    image_size: int = 512
    patch_size: int = 16
    scale: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name}={getattr(self, field.name)} must be positive")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} must be a multiple of n_head={self.n_head}")
        if self.image_size % (self.patch_size * self.scale) or self.image_size % 2:
            raise ValueError(
                f"image_size={self.image_size} must be even and a multiple of patch_size * scale ="
                f" {self.patch_size * self.scale}"
            )


def write_encoder(model: Path, path: Path, shape: EncoderShape | None = None, seed: int = 0) -> Path:
    """Write an encoder for the text model `model` to `path`, which appears only once it is complete: F16, norms and
    biases F32. Equal arguments give equal bytes."""
    shape = shape or EncoderShape()
    header = GGUFReader(model).fields
    width = int(header[f"{header['general.architecture'].contents()}.embedding_length"].contents())
    unfinished = path.with_name(f"{path.name}.unfinished")
    writer = GGUFWriter(unfinished, "clip")
    try:
        _add_metadata(writer, shape, width)
        add_random_tensors(writer, _tensor_specs(shape, width), np.float16, seed)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    unfinished.replace(path)
    return path


def _add_metadata(writer: GGUFWriter, shape: EncoderShape, width: int) -> None:
    writer.add_type("mmproj")
    writer.add_file_type(int(LlamaFileType.MOSTLY_F16))
    writer.add_quantization_version(2)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(VisionProjectorType.IDEFICS3)
    writer.add_vision_projection_dim(width)
    writer.add_vision_image_size(shape.image_size)
    writer.add_vision_preproc_image_size(shape.image_size)
    writer.add_vision_patch_size(shape.patch_size)
    writer.add_vision_projector_scale_factor(shape.scale)
    writer.add_vision_embedding_length(shape.n_embd)
    writer.add_vision_feed_forward_length(shape.n_ff)
    writer.add_vision_block_count(shape.n_layer)
    writer.add_vision_head_count(shape.n_head)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)


def _tensor_specs(shape: EncoderShape, width: int) -> Iterator[TensorSpec]:
    n, patch = shape.n_embd, shape.patch_size
    merged = n * shape.scale**2
    yield TensorSpec("mm.model.fc.weight", (width, merged), 0.0, EMBEDDING_STD / sqrt(merged))  # as tokens are
    yield TensorSpec("v.patch_embd.weight", (n, 3, patch, patch), 0.0, 1 / sqrt(3 * patch * patch))
    yield TensorSpec("v.patch_embd.bias", (n,), 0.0, BIAS_STD)
    yield TensorSpec("v.position_embd.weight", ((shape.image_size // patch) ** 2, n), 0.0, _POSITION_STD)
    sizes = (("attn_q", n, n), ("attn_k", n, n), ("attn_v", n, n), ("attn_out", n, n))
    for block in (f"v.blk.{layer}." for layer in range(shape.n_layer)):
        yield from _norm(f"{block}ln1", n)
        yield from _norm(f"{block}ln2", n)
        for name, n_out, n_in in (*sizes, ("ffn_up", shape.n_ff, n), ("ffn_down", n, shape.n_ff)):
            gain = ATTENTION_GAIN if name == "attn_q" else 1.0
            yield TensorSpec(f"{block}{name}.weight", (n_out, n_in), 0.0, gain / sqrt(n_in))
            yield TensorSpec(f"{block}{name}.bias", (n_out,), 0.0, BIAS_STD)
    yield from _norm("v.post_ln", n)


def _norm(name: str, size: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (size,), 1.0, NORM_SPREAD)
    yield TensorSpec(f"{name}.bias", (size,), 0.0, BIAS_STD)


def main(arguments: list[str] | None = None) -> int:
    """Write one as the command line says. Returns 0."""
    about = "Write an encoder of images with random weights for a model, for tests and benchmarks."
    parser = argparse.ArgumentParser(prog="python -m tools.models.make_encoder", description=about)
    parser.add_argument("model", type=Path)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    for field in fields(EncoderShape):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    given = vars(parser.parse_args(arguments))
    model, path, seed = (given.pop(name) for name in ("model", "path", "seed"))
    try:
        write_encoder(model, path, EncoderShape(**given), seed)
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
