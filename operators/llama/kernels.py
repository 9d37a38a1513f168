"""The choice of llama.cpp's CPU kernels, where its own choice costs speed or lets bits differ, and the models whose
bits tests prove (docs/models.md has the same table; tests/families/test_architectures.py compares).

For K-quants llama.cpp (as vendored by llama-cpp-python 0.3.36) has three ways to multiply on x86:

- repacked weights (`use_extra_bufts`, its default): two kernels, one for four rows at a time and one for the rest, that
  differ in the last bits, so that a row's logits depend on how many rows there are;
- tiled kernels, taken from 8 rows up unless the weights are repacked;
- row by row below 8 rows, again with other last bits.

Measured on 2 AVX-512 cores without AMX, Q4_K_M, 8 layers of Qwen3-0.6B's shape: a step of 16 rows takes 124 ms
repacked and 60 ms tiled, a prompt is read at 630 and 1,570 tokens/s. So K-quants are not repacked; and where a row's
text must not depend on its neighbours the tiled kernels are taken at any number of rows. That costs speed below 8 rows:
a lone row 49 instead of 9 ms.
With AMX neither was measured, and llama.cpp's choice is left alone, but for models that its AMX kernels do not know:

- recurrent layers multiply with a row of their sequences as a dimension of its own: small models got wrong texts where
  several rows decode, and a larger one ended the process (SIGSEGV; llama-server, too; the crash of llama.cpp's issue
  20824 is of that kind);
- weights of three dimensions that are no experts' (latent attention) end the process (GGML_ASSERT in ggml-backend.cpp);
- rows of 32 numbers, which only very small models have, give wrong texts.

So no weights of such models are repacked there.

On arm64 with dotprod (seen with tools/build/arm64.py) Q8_0 and Q4_0 are repacked, too. The two kernels of Q4_0 give
the same bits, those of Q8_0 do not; not repacked Q8_0 has one kernel for a lone row and one for more, and the scheduler
leaves no row alone. F32 has one for up to three rows and one for more, which nothing here keeps apart.
"""

from __future__ import annotations

import math
import os
import platform
import threading
from collections.abc import Mapping

import llama_cpp

from operators.llama.gguf_check import Tensor

TILED_ALWAYS = "GGML_CPU_TILED_MM_FORCE"
"""Read by llama.cpp once, at its first multiplication."""
_EXPERTS = b"_exps."
"""In the names of weights that llama.cpp multiplies in another way, without AMX."""
_LEAST_AMX_ROW = 64
"""Numbers in a row of weights from which the AMX kernels are right."""
_system_info_free = threading.Lock()

_X86 = ("x86_64", "amd64")
_ARM = ("aarch64", "arm64")
K_QUANTS = frozenset(
    getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    for name in ("Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K")
)
_QUANTS = K_QUANTS | {llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}
_LONE_WITH_AMX = frozenset({llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0})
_FLOATS = frozenset({llama_cpp.LLAMA_FTYPE_ALL_F32, llama_cpp.LLAMA_FTYPE_MOSTLY_BF16})
CLASSES = {
    **dict.fromkeys(("llama", "olmo2", "phi3", "qwen2", "qwen3"), "dense"),
    **dict.fromkeys(("qwen2vl", "qwen3vl"), "dense, M-RoPE"),
    "qwen3moe": "experts",
    "deepseek2": "experts, latent attention",
    "gemma3": "sliding window",
    "gpt-oss": "experts, sliding window",
    **dict.fromkeys(("falcon-h1", "lfm2", "nemotron_h", "qwen35"), "hybrid"),
    **dict.fromkeys(("granitehybrid", "jamba", "nemotron_h_moe"), "hybrid, experts"),
    **dict.fromkeys(("mamba", "mamba2", "rwkv7"), "recurrent"),
    **dict.fromkeys(("bert", "modern-bert", "nomic-bert"), "encoder"),
}
"""The class of each architecture (`general.architecture` of a GGUF) that tests run (tests/families)."""
PROVEN = dict.fromkeys(CLASSES.values(), _FLOATS) | {
    "dense": _FLOATS | _QUANTS | {llama_cpp.LLAMA_FTYPE_MOSTLY_F16},
    "encoder": _FLOATS | {llama_cpp.LLAMA_FTYPE_MOSTLY_F16, llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0},
}
"""File types whose logits were found to be the same to the bit in any company, by class
(tests/operators/llama/test_decoding.py, tests/families/test_exact.py, test_images_exact.py and test_encoders.py)."""
PROVEN_PACKED = frozenset({llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0})
"""The same for all classes where kernels of our own multiply (operators/llama/packed.py)."""
PROVEN_KV = frozenset((*((kind, kind) for kind in ("f16", "f32", "q8_0")), ("q8_0", "f16"), ("f16", "q8_0")))
"""Types of keys and values with which that holds (tests/operators/llama/test_kv_types.py)."""
PROVEN_ON_ARM = frozenset({llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0})
"""The same for dense models on arm64, where llama.cpp was compiled with _ARM_TESTED and without _ARM_UNTESTED."""
_ARM_TESTED = (b" DOTPROD = 1 ", b" FP16_VA = 1 ")
_ARM_UNTESTED = (b" MATMUL_INT8 = 1 ", b" SVE = 1 ", b" SME = 1 ", b" KLEIDIAI = 1 ")
_SPLIT_FROM = 512
"""Cells from which flash attention splits a lone row among the threads (ggml-cpu/ops.cpp); cells are counted in steps
of 256."""
_CELL_STEP = 256


def lone_tokens(file_type: int | None, *, floats: bool, flash_attention: bool, longest: int) -> int:
    """Return the depth up to which a row's logits are the same, to the bit, when it is computed alone and with others.

    Floating-point weights have other kernels for a lone row, at any depth. Quantised ones have not, but flash attention
    has from _SPLIT_FROM cells up (seen on x86 for each of these types; with AMX for Q8_0 only).

    Args:
        file_type: of most weights.
        floats: whether some matrix is in floating point (packed.has_floats).

    Returns:
        tokens; 0: never alone; `longest`: at any depth.
    """
    alike = _LONE_WITH_AMX if has_amx() else _QUANTS
    if platform.machine().lower() not in _X86 or file_type not in alike or floats:
        return 0
    return _SPLIT_FROM - _CELL_STEP if flash_attention else longest


def doubt(
    architecture: str | None,
    file_type: int | None,
    machine: str | None = None,
    *,
    packed: bool = False,
    kv_types: tuple[str, str] = ("f16", "f16"),
) -> str | None:
    """Say why a row's bits may depend on its neighbours; None: a test proves that they do not.

    Args:
        architecture, file_type: of the model file.
        machine: the processor's kind, as `platform.machine` has it; default: this one's.
        packed: whether kernels of our own multiply.
        kv_types: of keys and values in the KV cache.
    """
    machine = machine or platform.machine()
    if kv_types not in PROVEN_KV:
        return f"runtime.kv_type={{k: {kv_types[0]}, v: {kv_types[1]}}} is not tested"
    kind = CLASSES.get(architecture or "")
    if machine.lower() in _ARM and kv_types[0] != kv_types[1]:
        return "unlike types of keys and values (runtime.kv_type) are not tested on arm64"
    if machine.lower() in _ARM:
        return _doubt_on_arm(kind, file_type, system_info())
    if machine.lower() not in _X86:
        return f"no test ran on a processor of this kind, {machine}"
    if kv_types[0] != kv_types[1] and kind not in ("dense", "experts"):
        return f"unlike types of keys and values (runtime.kv_type) are not tested with its architecture, {architecture}"
    if kind is None:
        return f"no test ran a model of its architecture, {architecture}"
    if file_type not in (PROVEN[kind] | PROVEN_PACKED if packed else PROVEN[kind]):
        return f"its file type is not tested with its architecture, {architecture} ({kind})"
    if file_type in K_QUANTS and has_amx():
        return "K-quants on a processor with AMX"
    return None


def _doubt_on_arm(kind: str | None, file_type: int | None, compiled: bytes) -> str | None:
    """Do as `doubt`; `compiled` is llama.cpp's list of instructions."""
    if kind != "dense" or file_type not in PROVEN_ON_ARM:
        return "on arm64 only dense models in q8_0 and q4_0 are the same to the bit"
    tested = all(name in compiled for name in _ARM_TESTED) and not any(name in compiled for name in _ARM_UNTESTED)
    return None if tested else "on arm64 only kernels with dotprod and fp16 and without i8mm, SVE and SME are tested"


def is_arm() -> bool:
    """Return whether this is a 64-bit ARM processor."""
    return platform.machine().lower() in _ARM


def has_amx() -> bool:
    """Return whether llama.cpp was compiled with AMX kernels."""
    return b"AMX" in system_info()


def system_info() -> bytes:
    """Return llama.cpp's list of the instructions that it was compiled with.

    llama_print_system_info writes it to one static string at each call: threads that call it at once get a mixture.
    """
    with _system_info_free:
        return bytes(llama_cpp.llama_print_system_info())


def fits_amx(tensors: Mapping[bytes, Tensor]) -> bool:
    """Return whether llama.cpp's AMX kernels compute these weights, if no layer is recurrent."""
    weights = [each.lengths for name, each in tensors.items() if len(each.lengths) > 1 and _EXPERTS not in name]
    return all(math.prod(more) == 1 and row >= _LEAST_AMX_ROW for row, _, *more in weights)


def repacks(file_type: int | None, *, amx: bool) -> bool:
    """Return whether llama.cpp may repack the weights of such a file. `amx`: its AMX kernels compute them."""
    if is_arm():
        return file_type not in K_QUANTS | {llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}
    return amx if has_amx() else file_type not in K_QUANTS


_settled: list[bool] = []


def keep_rows_apart(wanted: bool) -> bool:
    """Make the kernels of K-quants independent of the number of rows, if `wanted`; return whether they are.

    llama.cpp decides once per process, so the first caller decides for all; a value that the user has set in the
    environment wins over that.
    """
    if not _settled:
        if wanted:
            os.environ.setdefault(TILED_ALWAYS, "1")
        _settled.append(os.environ.get(TILED_ALWAYS) == "1")
    return _settled[0]
