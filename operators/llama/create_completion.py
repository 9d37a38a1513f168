"""llama-cpp-python's high-level API as a contender: `python -m operators.llama.create_completion SPEC.json`.

`Llama.create_completion` row by row, as a script would call it: what a user has without this project. It keeps the
beginning of a prompt that it shares with the last one by itself. It cannot be told to ignore the end of text, so a row
of a trained model may end early; its tokens are counted as they come.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from operators.bench.figures import Figures
from operators.bench.spec import Spec
from operators.bench.workload import Workload
from operators.setting_checks import usable_cores


def measure(spec: Spec) -> Figures:
    """Complete all rows, one after the other."""
    runtime, sampling = spec.runtime, spec.sampling
    threads = runtime.threads or usable_cores()
    llama = llama_cpp.Llama(
        str(spec.model.path),
        n_ctx=runtime.max_sequence_tokens or 1024,
        n_batch=runtime.n_batch,
        n_ubatch=runtime.n_ubatch,
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=spec.model.gpu_layers,
        flash_attn=runtime.flash_attention,
        verbose=False,
    )
    rows = Workload(Path(spec.workload)).rendered()
    began = time.perf_counter()
    usages = [
        llama.create_completion(
            text,
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            stop=list(sampling.stop),
            seed=i,
        )["usage"]
        for i, (text, max_tokens) in enumerate(
            zip(rows["prompt_text"].to_pylist(), rows["max_tokens"].to_pylist(), strict=True)
        )
    ]
    took = time.perf_counter() - began
    counts = (sum(usage[key] for usage in usages) for key in ("prompt_tokens", "completion_tokens"))
    return Figures(took, *counts)


def main(arguments: Sequence[str]) -> int:
    """SPEC.json: measure and print the figures."""
    print(measure(Spec.load(Path(arguments[0]))).to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
