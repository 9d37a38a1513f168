"""The process that `operators.llama.doctor` may lose: it loads llama.cpp, and decodes a tiny model that it writes.

    python -m operators.llama.doctor_child info
    python -m operators.llama.doctor_child decode q8_0 FOLDER

Prints one JSON object. Several sequences with prompts of several tokens go through llama.cpp in one call, because the
kernels for batches are others than those for a single token; then one prompt goes through token by token, and both
ways must agree.
"""

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import _ggml
from numpy.typing import NDArray

from operators.llama.make_model import write_model

SEQUENCES = 4
PROMPT_TOKENS = 12
NEW_TOKENS = 4
# Cosine of the logits. Activations are rounded differently in the two ways; garbage comes out near 0.
MIN_AGREEMENT = 0.98

Token = tuple[int, int, int, bool]  # token id, position, sequence, logits wanted


def info() -> dict[str, Any]:
    """Versions and the CPU features that were compiled in."""
    answer = {"system_info": llama_cpp.llama_print_system_info().decode().strip()}
    for name in ("ggml_version", "ggml_commit"):
        function = getattr(_ggml.libggml, name, None)
        if function is not None:
            function.restype = ctypes.c_char_p
            answer[name] = function().decode()
    return answer


class TinyContext:
    """A model and a context for SEQUENCES short sequences. The process ends soon: nothing is freed."""

    def __init__(self, path: Path) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(path), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = 64 * SEQUENCES, SEQUENCES
        params.n_threads = params.n_threads_batch = min(2, os.cpu_count() or 1)
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.model or not self.context:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(SEQUENCES * PROMPT_TOKENS, 0, 1)

    def decode(self, tokens: Sequence[Token]) -> NDArray[np.float32]:
        """Logits, float32 [wanted tokens, n_vocab]."""
        self.batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, position, wanted
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
        code = llama_cpp.llama_decode(self.context, self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        shape = (sum(wanted for *_, wanted in tokens), self.n_vocab)
        logits: NDArray[np.float32] = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), shape)
        return logits.copy()  # the view is only good until the next decode

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)


def prompt(sequence: int, n_vocab: int) -> list[int]:
    """Some token ids, others for each sequence."""
    return [(37 * sequence + 11 * i + 5) % n_vocab for i in range(PROMPT_TOKENS)]


def decode_batched(tiny: TinyContext) -> tuple[NDArray[np.float32], list[list[int]]]:
    """Logits after the prompts, float32 [SEQUENCES, n_vocab], and NEW_TOKENS greedy tokens of each sequence."""
    last = PROMPT_TOKENS - 1
    prompts = [prompt(sequence, tiny.n_vocab) for sequence in range(SEQUENCES)]
    first = tiny.decode([(t, i, s, i == last) for s, ids in enumerate(prompts) for i, t in enumerate(ids)])
    best, new = first.argmax(axis=1), []
    for step in range(NEW_TOKENS):
        new.append(best.tolist())
        logits = tiny.decode([(int(t), PROMPT_TOKENS + step, s, True) for s, t in enumerate(best)])
        best = logits.argmax(axis=1)
    return first, [list(tokens) for tokens in zip(*new, strict=True)]


def decode_singly(tiny: TinyContext, sequence: int) -> NDArray[np.float32]:
    """Logits after one prompt that was decoded token by token, float32 [n_vocab]."""
    rows = [tiny.decode([(token, i, 0, True)]) for i, token in enumerate(prompt(sequence, tiny.n_vocab))]
    return rows[-1].reshape(-1)


def decode(file_type: str, folder: Path) -> dict[str, Any]:
    """Write a tiny model, decode with it in both ways. Raises RuntimeError if the results are no numbers or differ."""
    path = folder / f"{file_type}.gguf"
    write_model(path, shape="tiny", file_type=file_type)
    tiny = TinyContext(path)
    batched, tokens = decode_batched(tiny)
    tiny.clear()
    single = decode_singly(tiny, 0)
    agreement = cosine(batched[0], single)
    if not np.isfinite(batched).all() or not agreement >= MIN_AGREEMENT:
        raise RuntimeError(
            f"wrong results: logits of a batch and of single tokens agree to {agreement:.3f}, not {MIN_AGREEMENT}"
        )
    return {"agreement": agreement, "tokens": tokens}


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Cosine of the angle between two vectors; nan if one is zero or not finite."""
    with np.errstate(all="ignore"):
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def main(argv: Sequence[str]) -> None:
    """See the module's docstring."""
    answer = info() if argv[0] == "info" else decode(argv[1], Path(argv[2]))
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
