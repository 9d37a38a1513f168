"""Write a GGUF model with more layers than another one, which predicts nearly what that one does.

    python -m tools.models.deepen --of models/tiny/tiny-q8_0.gguf --layers 48 --n_ff 4096 --noise 0.05 --out deep.gguf

The layers that are added have random weights. What attention and feed-forward write is scaled by `noise`: with 0 they
change nothing, and the larger it is, the more often the two models disagree. So a call costs that of a large model, and
the small one is a realistic draft model for it (decode=speculative).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor, quants
from numpy.typing import NDArray

WRITES = ("attn_output", "ffn_down")
"""Matrices that write to what the next layer reads."""
WIDENED = {"ffn_gate": 0, "ffn_up": 0, "ffn_down": 1}
"""Matrices as wide as the feed-forward block, and the axis of that."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_SAME = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


def deepen(source: Path, target: Path, layers: int, *, n_ff: int | None = None, noise: float = 0.0) -> None:
    """Write the model at `source` with `layers` layers more to `target`, all in the types of its own tensors.

    Args:
        n_ff: width of the feed-forward blocks; None: as it is. What is added to the layers that there are is 0 times
            random weights.
        noise: what the added layers write, relative to random weights of the usual size.

    Raises:
        ValueError: `n_ff` is less than the width of the model.
    """
    reader = GGUFReader(source)
    name = str(reader.fields["general.architecture"].contents())
    depth, width = (int(reader.fields[f"{name}.{key}"].contents()) for key in ("block_count", "feed_forward_length"))
    more = (n_ff or width) - width
    if more < 0:
        raise ValueError(f"n_ff={n_ff} is less than the {width} of {source}")
    writer = GGUFWriter(target, name)
    new = {f"{name}.block_count": depth + layers, f"{name}.feed_forward_length": width + more}
    for field in reader.fields.values():
        if field.name not in _SAME:
            item = field.types[1] if field.types[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, new.get(field.name, field.contents()), field.types[0], item)
    random = np.random.default_rng(0)
    last: dict[str, NDArray[np.generic]] = {}
    for tensor in reader.tensors:
        match = _LAYER.fullmatch(tensor.name)
        data = tensor.data if match is None or not more else _wider(tensor, match[2], more, random)
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        if match is not None and int(match[1]) == depth - 1:
            last[match[2]] = data
    types = {match[2]: t.tensor_type for t in reader.tensors if (match := _LAYER.fullmatch(t.name)) is not None}
    for layer in range(depth, depth + layers):
        for part, data in last.items():
            if not part.endswith("norm"):
                data = _random(data, types[part], random, noise if part in WRITES else 1.0)
            writer.add_tensor(f"blk.{layer}.{part}.weight", data, raw_dtype=types[part])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _wider(tensor: ReaderTensor, part: str, more: int, random: np.random.Generator) -> NDArray[np.generic]:
    """Return the data of `tensor` with `more` columns or rows if it is as wide as the feed-forward block."""
    data: NDArray[np.generic] = tensor.data
    if part not in WIDENED:
        return data
    axis = WIDENED[part]
    columns, rows = (int(size) for size in tensor.shape)
    shape = (more, columns) if axis == 0 else (rows, more)
    added = random.normal(0, shape[1] ** -0.5, shape) if axis == 0 else np.zeros(shape)
    made: NDArray[np.generic] = quants.quantize(added.astype(np.float32), tensor.tensor_type)
    return np.concatenate([data, made], axis=axis)


def _random(
    like: NDArray[np.generic], kind: GGMLQuantizationType, random: np.random.Generator, scale: float
) -> NDArray[np.generic]:
    """Return random weights of the shape and type of `like`."""
    shape: tuple[int, ...] = like.shape
    if like.dtype == np.uint8:
        shape = quants.quant_shape_from_byte_shape(shape, kind)
    drawn = random.normal(0, scale * shape[1] ** -0.5, shape).astype(np.float32)
    weights: NDArray[np.generic] = quants.quantize(drawn, kind)
    return weights


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0; invalid arguments exit with 2."""
    parser = argparse.ArgumentParser(prog="python -m tools.models.deepen", description=__doc__.partition("\n")[0])
    parser.add_argument("--of", type=Path, metavar="FILE.gguf", required=True, help="the model that gets more layers")
    parser.add_argument("--layers", type=int, required=True, help="layers to add")
    parser.add_argument("--n_ff", type=int, help="width of the feed-forward blocks (default: as it is)")
    parser.add_argument("--noise", type=float, default=0.0, help="what the added layers change (default: 0, nothing)")
    parser.add_argument("--out", type=Path, metavar="FILE.gguf", required=True, help="the file to write")
    options = parser.parse_args(arguments)
    try:
        deepen(options.of, options.out, options.layers, n_ff=options.n_ff, noise=options.noise)
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
