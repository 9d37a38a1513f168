"""Measure products of quantised matrices, in thousands of millions of multiplications a second (GMAC/s): by this
project's kernels, llama.cpp's plain ones (tiled for K-quants from 8 columns up), and its repacked or AMX ones. And
attention, by this project's kernels and llama.cpp's.

    python -m tools.bench.kernels --threads 2 --types Q8_0 Q4_K

Each is the same operation of a graph, whose weights lie in another type of buffer. `cache`: a matrix that the second
cache holds; `memory`: one that no cache holds, of which GB/s are what a single column reads. Other work on the machine
is in the figures: the best of many runs is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from llama_cpp import llama_cpp as binding

from operators.llama import packed
from operators.llama.library import initialise
from operators.llama.limits import peak_bytes, peak_products

TYPES = ("Q8_0", "Q4_0", "IQ4_NL", "MXFP4", "Q4_K", "Q5_K", "Q6_K", "BF16", "F16")
COLUMNS = (1, 4, 16, 64)
SIZES = {"cache": (256, 1024), "memory": (16_384, 4096)}
"""Outputs and values a row."""
_QUANTISED, _LONG_ENOUGH_S = 64, 0.3  # rows; a larger matrix has them again and again
_CPU, _F32, _F16 = 0, 0, 1
PLAIN = "CPU"
ATTENTION = {
    "16 rows, 1,280 deep": (16, 1, 1280),
    "16 rows, 256 deep": (16, 1, 256),
    "1 row, 1,280 deep": (1, 1, 1280),
    "a prompt of 256": (1, 256, 256),
    "256 more at 1,280": (1, 256, 1280),
}
"""Streams, tokens, and cells that the last token sees."""
HEADS, KEY_HEADS, SIZE = 16, 8, 128
"""Of Qwen3-0.6B."""
Address = ctypes.c_void_p
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


class _Memory(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", Address), ("no_alloc", ctypes.c_bool))


def ggml(name: str, *arguments: Any, returns: type[Any] | None = Address) -> Any:
    """Call a function of ggml."""
    function = getattr(binding._lib, name)
    function.restype = returns
    result = function(*(ctypes.c_int64(each) if isinstance(each, int) else each for each in arguments))
    return Address(result) if returns is Address else result


class Bench:
    """llama.cpp's CPU, with `threads` threads, and its types of buffers by name."""

    def __init__(self, threads: int) -> None:
        self.device = ggml("ggml_backend_dev_by_type", _CPU)
        self.backend = ggml("ggml_backend_dev_init", self.device, None)
        self._of_registry("ggml_backend_set_n_threads", None, Address, ctypes.c_int)(self.backend, threads)
        extra = self._of_registry("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(Address), Address)(self.device)
        places = [ggml("ggml_backend_dev_buffer_type", self.device)]
        while extra and extra[len(places) - 1]:
            places.append(Address(extra[len(places) - 1]))
        names = [ggml("ggml_backend_buft_name", place, returns=ctypes.c_char_p).decode() for place in places]
        self.places = dict(zip(names, places, strict=True))

    def _of_registry(self, name: str, returns: Any, *takes: Any) -> Callable[..., Any]:
        registry = ggml("ggml_backend_dev_backend_reg", self.device)
        address = ggml("ggml_backend_reg_get_proc_address", registry, name.encode())
        return ctypes.CFUNCTYPE(returns, *takes)(address.value)

    def speed(self, place: str, kind: str, rows: int, values: int, columns: int) -> float | None:
        """Return multiplications a second; None where llama.cpp does not keep such a matrix there."""
        with _context() as of_weights, _context() as of_graph:
            number = int(GGMLQuantizationType[kind])
            weights = ggml("ggml_new_tensor_2d", of_weights, number, values, rows)
            inputs = ggml("ggml_new_tensor_2d", of_graph, _F32, values, columns)
            output = ggml("ggml_mul_mat", of_graph, weights, inputs)
            graph = ggml("ggml_new_graph", of_graph)
            ggml("ggml_build_forward_expand", graph, output, returns=None)
            buffers = [
                ggml("ggml_backend_alloc_ctx_tensors_from_buft", of_weights, self.places[place]),
                ggml("ggml_backend_alloc_ctx_tensors_from_buft", of_graph, self.places[PLAIN]),
            ]
            try:
                if not ggml("ggml_backend_dev_supports_op", self.device, output, returns=ctypes.c_bool):
                    return None
                _set(weights, _quantised(kind, rows, values))
                _set(inputs, np.random.default_rng(0).standard_normal((columns, values), np.float32))
                return rows * values * columns / self._seconds(graph)
            finally:
                for buffer in buffers:
                    ggml("ggml_backend_buffer_free", buffer, returns=None)

    def attend(
        self,
        queries: Floats,
        keys: Halves,
        values: Halves,
        mask: Halves,
        *,
        scale: float,
        cap: float = 0.0,
        sinks: Floats | None = None,
        at_least_s: float = 0.0,
    ) -> tuple[Floats, float]:
        """Return attention and the least time of some runs, in seconds. Whose kernels compute it is what
        `kernels_attend` of the library says.

        Args:
            queries: (streams, tokens, heads, size), and so is what is returned.
            keys, values: (streams, cells, heads of keys, size), as in a KV cache.
            mask: (streams, tokens, cells), is added to scores.
            scale, cap: of scores; cap 0: none.
            sinks: (heads), scores without a value.
            at_least_s: it is computed again and again for so long.
        """
        with _context() as context:
            pairs = [(each, self._tensor(context, each)) for each in (queries, keys, values)]
            pairs.append((mask, self._tensor(context, mask[:, None])))
            swapped = [ggml("ggml_permute", context, each, *map(ctypes.c_int, (0, 2, 1, 3))) for _, each in pairs[:3]]
            numbers = map(ctypes.c_float, (scale, 0.0, cap))
            output = ggml("ggml_flash_attn_ext", context, *swapped, pairs[3][1], *numbers)
            if sinks is not None:
                pairs.append((sinks, self._tensor(context, sinks)))
                ggml("ggml_flash_attn_ext_add_sinks", output, pairs[-1][1], returns=None)
            return self._computed(context, output, pairs, queries.shape, at_least_s)

    def multiply(self, weights: Floats, inputs: Floats, name: bytes) -> Floats:
        """Return `inputs`, (tokens, size), times a matrix in F32 of that name, (rows, size): (tokens, rows)."""
        with _context() as context:
            pairs = [(each, self._tensor(context, each)) for each in (weights, inputs)]
            ggml("ggml_set_name", pairs[0][1], name)
            output = ggml("ggml_mul_mat", context, *(tensor for _, tensor in pairs))
            return self._computed(context, output, pairs, (len(inputs), len(weights)))[0]

    def _computed(
        self,
        context: Address,
        output: Address,
        pairs: Sequence[tuple[np.ndarray[Any, Any], Address]],
        shape: tuple[int, ...],
        at_least_s: float = 0.0,
    ) -> tuple[Floats, float]:
        """Return `output`, of that shape, and the least time of some runs. `pairs`: arrays and the tensors for them."""
        graph = ggml("ggml_new_graph", context)
        ggml("ggml_build_forward_expand", graph, output, returns=None)
        buffer = ggml("ggml_backend_alloc_ctx_tensors_from_buft", context, self.places[PLAIN])
        try:
            for array, tensor in pairs:
                _set(tensor, np.ascontiguousarray(array))
            seconds = self._seconds(graph, at_least_s)
            result = np.empty(shape, np.float32)
            ggml("ggml_backend_tensor_get", output, Address(result.ctypes.data), 0, result.nbytes, returns=None)
            return result, seconds
        finally:
            ggml("ggml_backend_buffer_free", buffer, returns=None)

    def _tensor(self, context: Address, array: np.ndarray[Any, Any]) -> Address:
        lengths = [*reversed(array.shape), 1, 1, 1][:4]
        tensor: Address = ggml("ggml_new_tensor_4d", context, _F16 if array.dtype == np.float16 else _F32, *lengths)
        return tensor

    def _seconds(self, graph: Address, at_least_s: float = _LONG_ENOUGH_S) -> float:
        best, began, start = float("inf"), time.perf_counter(), 0.0
        while not start or start - began < at_least_s:
            start = time.perf_counter()
            ggml("ggml_backend_graph_compute", self.backend, graph, returns=ctypes.c_int)
            best = min(best, time.perf_counter() - start)
        return best


@contextmanager
def _context() -> Iterator[Address]:
    context = ggml("ggml_init", _Memory(1 << 20, None, True))
    try:
        yield context
    finally:
        ggml("ggml_free", context, returns=None)


def _set(tensor: Address, data: np.ndarray[Any, Any]) -> None:
    ggml("ggml_backend_tensor_set", tensor, Address(data.ctypes.data), 0, data.nbytes, returns=None)


def _quantised(kind: str, rows: int, values: int) -> np.ndarray[Any, Any]:
    drawn = np.random.default_rng(1).standard_normal((_QUANTISED, values), np.float32)
    n_values, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = np.empty((_QUANTISED, values // n_values * n_bytes), np.uint8)
    number, source = int(GGMLQuantizationType[kind]), Address(drawn.ctypes.data)
    ggml("ggml_quantize_chunk", number, source, Address(blocks.ctypes.data), 0, _QUANTISED, values, None, returns=None)
    return np.tile(blocks, (rows // _QUANTISED, 1))


def _print_attention(bench: Bench, library: ctypes.CDLL | None) -> None:
    """Print a table of attention by both kernels."""
    print(f"\n{'attention':24}{'ours, ms':>10}{'GB/s':>8}{'llama.cpp, ms':>16}")
    random = np.random.default_rng(2)
    for name, (streams, tokens, cells) in ATTENTION.items():
        queries = random.standard_normal((streams, tokens, HEADS, SIZE), np.float32)
        keys, values = random.standard_normal((2, streams, cells, KEY_HEADS, SIZE), np.float32).astype(np.float16)
        hidden = np.arange(cells) > np.arange(cells - tokens, cells)[:, None]
        mask = np.where(hidden, -np.inf, 0).astype(np.float16)[None].repeat(streams, 0)
        seconds = {}
        for ours in (True, False):
            if library is not None:
                library.kernels_attend(ours)
            _, seconds[ours] = bench.attend(queries, keys, values, mask, scale=SIZE**-0.5, at_least_s=_LONG_ENOUGH_S)
        read = 2 * keys.nbytes / seconds[True] / 1e9
        print(f"{name:24}{1e3 * seconds[True]:10.2f}{read:8.1f}{1e3 * seconds[False]:16.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.kernels", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    options = parser.parse_args(arguments)
    initialise()
    library, description = packed.state()
    print(description)
    if library is not None:
        peaks = peak_products(library, options.threads), peak_bytes(library, options.threads)
        print(f"this machine at most: {peaks[0] / 1e9:.0f} GMAC/s in registers, {peaks[1] / 1e9:.1f} GB/s from memory")
    bench = Bench(options.threads)
    print(f"{'type':8}{'from':8}{'weights in':14}" + "".join(f"{n:>8}" for n in COLUMNS) + " columns, GMAC/s")
    for kind in options.types:
        n_values, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        for size, (rows, values) in SIZES.items():
            for place in bench.places:
                measured = [bench.speed(place, kind, rows, values, columns) for columns in COLUMNS]
                speeds = [speed for speed in measured if speed is not None]
                if len(speeds) == len(COLUMNS):
                    read = f"{speeds[0] / n_values * n_bytes / 1e9:8.1f} GB/s" if size == "memory" else ""
                    print(f"{kind:8}{size:8}{place:14}" + "".join(f"{each / 1e9:8.1f}" for each in speeds) + read)
    _print_attention(bench, library)


if __name__ == "__main__":
    main()
