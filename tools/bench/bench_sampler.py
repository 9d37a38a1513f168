"""Measures the sampler against llama.cpp's chain: `python -m tools.bench.bench_sampler`.

Each case is timed once in every round, one after the other, so that what else the machine does meets all of them alike.
llama.cpp's chain goes through ctypes, one row at a time; copying the logits into its candidates is part of its time, as
it is in llama.cpp itself (`set_logits` of common/sampling.cpp).
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp._internals import LlamaSampler, LlamaTokenDataArray

from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.sequence import Sequence as Row

_USUAL = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
CASES = {
    "greedy": SamplingParams(),
    "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05": _USUAL,
    "the same, repetition penalty 1.1, DRY 0.8": replace(_USUAL, repetition_penalty=1.1, dry_multiplier=0.8),
    "temperature 0.8, top-p 0.95, min-p 0.05, no top-k": SamplingParams(temperature=0.8, top_p=0.95, min_p=0.05),
    "temperature 0.8 alone": SamplingParams(temperature=0.8),
}
COMPARED = ("greedy", "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05", "temperature 0.8 alone")
"""Cases that llama.cpp's chain is timed with as well."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table of medians in milliseconds per step."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.bench_sampler", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64], help="rows of a step")
    parser.add_argument("--vocab", type=int, default=151_936, help="words")
    parser.add_argument("--rounds", type=int, default=15, help="how often each case is timed")
    options = parser.parse_args(arguments)
    table = [_medians(rows, options.vocab, options.rounds) for rows in options.rows]
    print(f"| ms per step, {options.vocab:,} words | " + " | ".join(f"{rows} rows" for rows in options.rows) + " |")
    print("|---|" + "---:|" * len(options.rows))
    for name in table[0]:
        print(f"| {name} | " + " | ".join(f"{column[name]:.2f}" for column in table) + " |")


def _medians(rows: int, n_vocab: int, rounds: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (rows, n_vocab)).astype(np.float32)
    history = random.integers(0, n_vocab, (rows, 100)).astype(np.int32)
    steps: dict[str, Callable[[], object]] = {}
    for name, params in CASES.items():
        sequences = [Row(i, history[i], params, seed=i, max_tokens=1) for i in range(rows)]
        steps[name] = partial(Sampler().draw, logits, sequences)
    for name in COMPARED:
        steps[f"llama.cpp: {name}"] = _llama_step(CASES[name], logits)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds[1:]) * 1000 for name, seconds in taken.items()}


def _llama_step(params: SamplingParams, logits: npt.NDArray[np.float32]) -> Callable[[], None]:
    """Return a step of llama.cpp's chain with the same values, one row at a time."""
    chain, candidates = LlamaSampler(), LlamaTokenDataArray(n_vocab=logits.shape[1])
    if params.temperature == 0:
        chain.add_greedy()
    else:
        chain.add_top_k(params.top_k)
        chain.add_top_p(params.top_p, 0)
        chain.add_min_p(params.min_p, 0)
        chain.add_temp(params.temperature)
        chain.add_dist(0)

    def step() -> None:
        for row in logits:
            candidates.copy_logits(row)
            llama_cpp.llama_sampler_apply(chain.sampler, ctypes.byref(candidates.candidates))

    return step


if __name__ == "__main__":
    main()
