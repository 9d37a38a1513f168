"""Measures block diffusion beside one token a step on the same file: `python -m operators.llama.bench_diffusion FILE`.

All rows have prompts of the same length and make the same number of tokens, so a case is a number of calls of one size.
Each case is timed once in every round, one after the other, so that what else the machine does meets all of them alike.
A model with random weights will do: what is measured depends on its sizes alone. Such a model is never sure, so what
`low_confidence_dynamic` can give is measured as its bound: a block in one step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from operators.decoding.engine import Engine
from operators.decoding.model import Model
from operators.decoding.params import SamplingParams
from operators.decoding.scheduler import Scheduler
from operators.decoding.worker import Worker
from operators.diffusion_settings import BlockDiffusionSettings
from operators.engine_settings import EngineSettings
from operators.engines import decode_method
from operators.llama.model import LlamaModel
from operators.settings import DecodeSettings, ModelSettings
from pipeline.meter import StageMeter

PROMPT_TOKENS = 8
CONTEXTS = (512, 4096, 32_768)
"""Tokens of a context that is made anew or used again."""


@dataclass(frozen=True)
class Outcome:
    """A case, timed once: `seconds` in all, of which `own_s` outside of llama.cpp, for `calls` calls."""

    seconds: float
    own_s: float
    calls: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def call_ms(self) -> float:
        """Milliseconds of a call inside llama.cpp."""
        return (self.seconds - self.own_s) / self.calls * 1000


class NoTable:
    """A table of metrics that keeps nothing."""

    def append(self, *values: object) -> None:
        """See pipeline.protocols.Table."""

    def extend(self, columns: Seq[Seq[object]]) -> None:
        """See pipeline.protocols.Table."""


def measure(model: Model, decode: DecodeSettings, settings: EngineSettings, rows: int, new_tokens: int) -> Outcome:
    """Have `rows` rows make `new_tokens` tokens each, in this thread."""
    method = decode_method(decode)
    decoder, give_back = method.context(model, settings)
    queue = method.queue(settings)
    scheduler = Scheduler(decoder, queue, settings, method.cut(decoder.shape))
    meters = (StageMeter("decode"), StageMeter("sample"))
    engine = Engine([Worker(decoder, scheduler, method.strategy(decoder, model), meters)], queue, NoTable())
    client = engine.client(StageMeter("generate"), 1, rows, lambda: None)
    engine.add(client)
    prompts = np.random.default_rng(0).integers(0, 256, (rows, PROMPT_TOKENS)).astype(np.int32)
    client.submit([method.rows()(i, prompt, SamplingParams(), i, new_tokens) for i, prompt in enumerate(prompts)])
    client.end()
    began = time.perf_counter()
    while scheduler.runnable:
        engine.step()
    seconds = time.perf_counter() - began
    give_back()
    totals = engine.totals()
    made = sum(len(row.tokens) for row in client.collect())
    return Outcome(seconds, seconds - totals["decode_s"], totals["steps"], made)


def cases(length: int) -> dict[str, DecodeSettings]:
    """What is compared, by name."""
    steps = dict.fromkeys((length, max(1, length // 2), 1))
    return {"one token a step": DecodeSettings()} | {
        f"blocks of {length} in {n} steps": BlockDiffusionSettings(block_length=length, denoising_steps=n)
        for n in steps
    }


def main(arguments: Seq[str] | None = None) -> None:
    """Print Markdown tables of medians."""
    parser = argparse.ArgumentParser(prog="python -m operators.llama.bench_diffusion", description=__doc__)
    parser.add_argument("model", metavar="FILE.gguf", help="a Qwen3-shaped model with a mask token")
    parser.add_argument("--length", type=int, default=4, help="tokens of a block (default: 4)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], help="rows that decode (default: 1 8 32)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens that each makes (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is timed (default: 3)")
    parser.add_argument("--unified", action="store_true", help="runtime.kv=unified, where blocks share a call")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (default: all cores)")
    options = parser.parse_args(arguments)
    model = LlamaModel(ModelSettings(path=options.model))
    layout = "unified" if options.unified else "per_sequence"
    settings = EngineSettings(threads=options.threads, kv=layout, deterministic=not options.unified)
    _print_rates(model, settings, options)
    _print_contexts(model, settings, options.length, options.rounds)
    model.close()


def _print_rates(model: LlamaModel, settings: EngineSettings, options: argparse.Namespace) -> None:
    timed: dict[tuple[str, int], list[Outcome]] = {}
    for _ in range(options.rounds):
        for rows in options.rows:
            tokens = max(settings.n_ubatch, 2 * rows * options.length)
            sized = replace(settings, slots=rows, n_ubatch=tokens, n_batch=max(settings.n_batch, tokens))
            for name, decode in cases(options.length).items():
                timed.setdefault((name, rows), []).append(measure(model, decode, sized, rows, options.tokens))
    print("| case | rows | tokens/s | against one token a step | calls | ms a call | of what calls allow | own time |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    least = min(options.rows)
    for (name, rows), outcomes in timed.items():
        rate, call = _median(outcomes, "rate"), _median(outcomes, "call_ms")
        other = _median(timed["one token a step", rows], "rate")
        first = timed[name, least]
        allowed = rows / least * _median(first, "call_ms") / call
        kept = rate / _median(first, "rate") / allowed
        own = statistics.median(one.own_s / one.seconds for one in outcomes)
        print(
            f"| {name} | {rows} | {rate:,.0f} | {rate / other:.2f}x | {outcomes[0].calls:,.0f} | {call:.2f} |"
            f" {kept:.2f} | {own:.1%} |"
        )


def _print_contexts(model: LlamaModel, settings: EngineSettings, length: int, rounds: int) -> None:
    print("\n| tokens of the context | make it, ms | 32 tokens, made anew, ms | used again, ms | |")
    print("|---:|---:|---:|---:|---:|")
    decode = BlockDiffusionSettings(block_length=length)
    for tokens in (n for n in CONTEXTS if n <= model.n_ctx_train):
        making: list[float] = []
        again: list[float] = []
        for number in range(rounds):
            # Another n_batch is another context to the pool, and nothing else.
            sized = replace(settings, slots=1, max_sequence_tokens=tokens, n_batch=settings.n_batch + number)
            began = time.perf_counter()
            model.lease(sized, block=length)[1]()
            making.append((time.perf_counter() - began) * 1000)
            measure(model, decode, sized, 1, 32)
            again.append(measure(model, decode, sized, 1, 32).seconds * 1000)
        made, used = statistics.median(making), statistics.median(again)
        print(f"| {tokens:,} | {made:.1f} | {made + used:.1f} | {used:.1f} | {(made + used) / used:.2f}x |")


def _median(outcomes: Seq[Outcome], name: str) -> float:
    return float(statistics.median(getattr(one, name) for one in outcomes))


if __name__ == "__main__":
    main()
