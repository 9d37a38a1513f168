"""Turn a quantised GGUF into the F32 GGUF of the same weights, for exactness tests: needs only gguf and NumPy.

python -m models.tiny.dequantise models/tiny/tiny-q8_0.gguf tiny-f32.gguf
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import gguf
import numpy as np


def copied_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copy every field but those that the writer sets itself."""
    own = {gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE}
    for name, field in reader.fields.items():
        if name in own or name.startswith("GGUF."):
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=part)


def dequantise(path_in: Path, path_out: Path) -> None:
    """Write `path_in` with all tensors as float32 to `path_out`, which appears only once it is whole."""
    reader = gguf.GGUFReader(path_in)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    partial = path_out.with_name(f"{path_out.name}.{os.getpid()}.partial")
    writer = gguf.GGUFWriter(partial, architecture)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    copied_metadata(reader, writer)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, np.ascontiguousarray(values.reshape(shape), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path_out)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.dequantise", description=__doc__.splitlines()[0])
    parser.add_argument("path_in", type=Path)
    parser.add_argument("path_out", type=Path)
    options = parser.parse_args()
    dequantise(options.path_in, options.path_out)


if __name__ == "__main__":
    main()
