"""Write LoRA adapters with random weights for a model, for tests and benchmarks.

    python -m tools.models.make_adapter bench.gguf adapter.gguf --rank 16

It has all matrices of attention and feed-forward that llama.cpp multiplies with adapters, of each layer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, Keys

from operators.llama.adapters.targets import read_base
from pipeline.api.errors import PipelineError

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_SIZE = 0.1
"""Of what the adapter adds, about: it changes texts and leaves them texts."""


def write_adapter(base: Path, path: Path, *, rank: int = 16, seed: int = 0) -> Path:
    """Write an adapter for the model `base` to `path`, which appears only once it is complete."""
    model = read_base(base)
    random = np.random.default_rng(seed)
    endings = tuple(f".{name}.weight" for name in MATRICES)
    targets = {name: shape for name, shape in model.tensors.items() if name.endswith(endings) and len(shape) == 2}
    if not targets or rank < 1:
        raise ValueError(f"{base} has none of the matrices {', '.join(MATRICES)}" if rank > 0 else "rank is 1 or more")
    unfinished = path.with_name(f"{path.name}.unfinished")
    writer = GGUFWriter(unfinished, model.architecture)
    writer.add_type("adapter")
    writer.add_string(Keys.Adapter.TYPE, "lora")
    writer.add_float32(Keys.Adapter.LORA_ALPHA, float(rank))
    for name, (n_out, n_in) in targets.items():
        for half, size in (("a", (rank, n_in)), ("b", (n_out, rank))):
            values = random.normal(0, (_SIZE / np.sqrt(rank)) ** 0.5, size).astype(np.float16)
            writer.add_tensor(f"{name}.lora_{half}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)
    return path


def main(arguments: list[str] | None = None) -> int:
    """Write one as the command line says. Returns 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.models.make_adapter", description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    try:
        write_adapter(given.base, given.path, rank=given.rank, seed=given.seed)
    except (PipelineError, OSError, ValueError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
