"""llama-cpp-python's high-level API as a contender: `Llama.create_completion` row by row.

It is the alternative to this project. It reuses the KV cache of the prefix that a prompt shares with the last one. It
cannot be told to ignore the end of text, so a row of a trained model may end early; its tokens are counted as they
come.
"""

from __future__ import annotations

import time

import llama_cpp

from tools.bench.figures import Figures
from tools.bench.spec import Spec


def measure(spec: Spec) -> Figures:
    """Complete all rows, one after the other."""
    runtime, sampling = spec.runtime, spec.sampling
    llama = llama_cpp.Llama(
        spec.model_path,
        n_ctx=runtime.max_sequence_tokens or 1024,
        n_batch=runtime.n_batch,
        n_ubatch=runtime.n_ubatch,
        n_threads=spec.threads,
        n_threads_batch=spec.threads,
        n_gpu_layers=spec.model.gpu_layers,
        flash_attn=runtime.flash_attention,
        verbose=False,
    )
    same = {key: getattr(sampling, key) for key in ("temperature", "top_k", "top_p", "min_p")}
    same |= {"stop": list(sampling.stop)}
    rows = spec.workload.rows.to_pylist()
    began = time.perf_counter()
    usages = [
        llama.create_completion(row["prompt_text"], max_tokens=row["max_tokens"], seed=i, **same)["usage"]
        for i, row in enumerate(rows)
    ]
    return Figures(
        work_s=time.perf_counter() - began,
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        new_tokens=sum(usage["completion_tokens"] for usage in usages),
    )
