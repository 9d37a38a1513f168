"""Measures the sampler against llama.cpp's chain: `python -m tools.bench.bench_sampler`.

Each case is timed once in every round, one after the other, so that what else the machine does meets all of them alike.
llama.cpp's chain goes through ctypes, one row at a time; copying the logits into its candidates is part of its time, as
it is in llama.cpp itself (`set_logits` of common/sampling.cpp).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np

from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.sequence import Sequence as Row
from tools.bench.reference_chain import ReferenceChain, reference_chain

CASES = {
    "greedy": SamplingParams(),
    "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05": SamplingParams(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.05
    ),
    "the same, repetition penalty 1.1, DRY 0.8": SamplingParams(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1, dry_multiplier=0.8
    ),
    "temperature 0.8, top-p 0.95, min-p 0.05, no top-k": SamplingParams(temperature=0.8, top_p=0.95, min_p=0.05),
    "temperature 0.8 alone": SamplingParams(temperature=0.8),
}
COMPARED = ("greedy", "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05", "temperature 0.8 alone")
"""Cases that llama.cpp is timed at as well."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table of medians in milliseconds a step."""
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
    """Milliseconds a step, by case."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (rows, n_vocab)).astype(np.float32)
    history = random.integers(0, n_vocab, (rows, 100)).astype(np.int32)
    steps: dict[str, Callable[[], object]] = {}
    chains: list[ReferenceChain] = []
    for name, params in CASES.items():
        sequences = [Row(i, history[i], params, seed=i, max_tokens=1) for i in range(rows)]
        sampler = Sampler()
        steps[name] = lambda s=sampler, r=sequences: s.draw(logits, r)  # type: ignore[misc]
    for name in COMPARED:
        chain = _llama_chain(CASES[name], n_vocab)
        chains.append(chain)
        steps[f"llama.cpp: {name}"] = lambda c=chain: [c.draw(line) for line in logits]  # type: ignore[misc]
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - began)
    for chain in chains:
        chain.close()
    return {name: statistics.median(seconds[1:]) * 1000 for name, seconds in taken.items()}


def _llama_chain(params: SamplingParams, n_vocab: int) -> ReferenceChain:
    if params.temperature == 0:
        return ReferenceChain(n_vocab, [llama_cpp.llama_sampler_init_greedy()])
    return reference_chain(params, n_vocab, last=[llama_cpp.llama_sampler_init_dist(0)])


if __name__ == "__main__":
    main()
