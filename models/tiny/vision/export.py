"""Write a training checkpoint as an mmproj file: `python -m models.tiny.vision.export --from outputs/tiny_vision`.

Matrices are float16, vectors float32. Pictures of another size llama.cpp resizes: it keeps the proportions and fills
up with black, which some of the training's pictures show.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from models.tiny.vision.network import VisionShape

PATH = Path(__file__).with_name("mmproj-tiny-f16.gguf")
ADAPTER = ("linear", "norm1", "gate", "dense_h_to_4h", "dense_4h_to_h")


def tensor_name(name: str) -> str:
    """The GGUF name of a parameter, such as v.blk.0.attn_q.weight for blk.0.attn_q.weight."""
    part = name.split(".")[0]
    if part in ADAPTER:
        return f"adapter.linear.linear{name.removeprefix('linear')}" if part == "linear" else f"adapter.linear.{name}"
    if part in ("conv", "boi", "eoi"):
        return f"adapter.{name}"
    return f"v.{name}.weight" if part == "position_embd" else f"v.{name}"


def add_shape(writer: gguf.GGUFWriter, shape: VisionShape) -> None:
    """The hyper-parameters."""
    writer.add_license("mit")
    writer.add_description("Eyes of the small model for examples and tests, trained on generated pictures.")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("adapter")
    writer.add_vision_projection_dim(shape.text_width)
    writer.add_vision_image_size(shape.side)
    writer.add_vision_patch_size(shape.patch)
    writer.add_vision_embedding_length(shape.width)
    writer.add_vision_feed_forward_length(shape.feed_forward)
    writer.add_vision_block_count(shape.layers)
    writer.add_vision_head_count(shape.heads)
    writer.add_vision_attention_layernorm_eps(shape.norm_eps)
    writer.add_vision_image_mean([shape.mean] * 3)
    writer.add_vision_image_std([shape.deviation] * 3)
    writer.add_vision_use_silu(True)
    writer.add_bool("clip.vision.resized_by_libmtmd", True)


def write_mmproj(
    path: Path, shape: VisionShape, tensors: dict[str, NDArray[np.float32]], matrices: type = np.float16
) -> None:
    """Write the parameters of an Encoder by name."""
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if matrices is np.float16 else gguf.LlamaFileType.ALL_F32)
    writer.add_name("tiny vision")
    add_shape(writer, shape)
    for name, values in tensors.items():
        kept = np.float32 if values.ndim == 1 or name == "position_embd" else matrices
        writer.add_tensor(tensor_name(name), np.ascontiguousarray(values, kept))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


def export(checkpoint: Path, path: Path) -> int:
    """Write the encoder of a checkpoint; returns the step it is of."""
    import torch

    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    tensors = {name: values.float().numpy() for name, values in state["encoder"].items()}
    write_mmproj(path, VisionShape(**state["shape"]), tensors)
    return int(state["step"])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.vision.export", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, default=Path("outputs/tiny_vision"), help="training --out")
    parser.add_argument("--out", type=Path, default=PATH, help="default %(default)s")
    options = parser.parse_args()
    step = export(options.source / "checkpoint.pt", options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB, step {step}")


if __name__ == "__main__":
    main()
