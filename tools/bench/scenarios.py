"""The scenarios of the benchmark: for each, prompts and lengths (a Recipe) and contenders.

All contenders of a scenario get the same work: the same prompts as the same text or tokens, the same lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.bench.contenders import BatchedBench, Contender, Function, JobContender, LlamaBench, Program
from tools.bench.rows import Rows
from tools.bench.scale import Workers
from tools.bench.workload import Recipe


@dataclass(frozen=True)
class Scenario:
    """Rows, and the contenders that complete them.

    Args:
        contenders: in the order in which they run; speeds are relative to that of the first.
        sampling: sampling settings that differ from the job's own.
        slots: numbers of slots; empty for those of `bench.slots`.
        rows: None for `rows_per_slot` per slot.
        rows_per_slot: None for `bench.rows_per_slot`.
        share_prefix: whether llama-server may use its prompt cache.
    """

    about: str
    contenders: tuple[Contender, ...]
    recipe: Recipe = field(default_factory=Recipe)
    sampling: Mapping[str, Any] = field(default_factory=lambda: EXACT_LENGTHS)
    slots: tuple[int, ...] = ()
    rows: int | None = None
    rows_per_slot: int | None = None
    share_prefix: bool = False


EXACT_LENGTHS: Mapping[str, Any] = {"per_row": ["max_tokens"], "ignore_eos": True}
"""Sampling settings with which every row has exactly its given length."""

RUNGS = "tools.bench.rungs"
JOB = JobContender("job")
PROCESSES = ("cluster=processes",)
RAY = ("cluster=ray", "cluster.address=local", "cluster.cpus=0.2")
ITS_KERNELS = JobContender("job, llama.cpp's kernels", ("model.kernels=llama.cpp",))
SERVER = Program("llama-server", "tools.bench.alternatives:server")
LADDER = (
    Function("engine", f"{RUNGS}:engine"),
    Function("sampling", f"{RUNGS}:sampling"),
    JobContender("dataflow", ("store.enabled=false", "nodes.write.op._target_=tools.bench.cases.Discard")),
    JOB,
)
PEERS = (
    JOB,
    ITS_KERNELS,
    SERVER,
    BatchedBench("llama-batched-bench"),
    LlamaBench("llama-bench", once=True),
    Function("create_completion", "tools.bench.alternatives:create_completion", once=True, needs_file=True),
)


def _outputs(low: int, high: int) -> Scenario:
    return Scenario(f"completions of {low} to {high} tokens", (JOB, SERVER), Recipe(low, high))


def _blocks(name: str, length: int, steps: int, *more: str) -> JobContender:
    overrides = ("decode=block_diffusion", f"decode.block_length={length}", f"decode.denoising_steps={steps}", *more)
    return JobContender(name, overrides, makes_blocks=True)


def _context(word: str, tokens: int) -> Function:
    against = f"reused, {tokens:,}"
    function = f"{RUNGS}:blocks_{word}"
    return Function(f"{word}, {tokens:,}", function, row_tokens=tokens, against=against, makes_blocks=True)


DYNAMIC = _blocks("4/4 dynamic", 4, 4, "decode.remasking=low_confidence_dynamic", "decode.confidence_threshold=0.2")
"""A model with random weights is never confident: with this threshold a step commits about two of four tokens with the
built-in vocabulary (measured on three shapes)."""

AS_THEY_COME = ("runtime.optimise.longest_first=false",)
ALWAYS = ("decode=speculative", "decode.adaptive=false")

FEW_SHOT = Scenario(
    "worked examples before every question: a long prefix that all rows share",
    (
        JOB,
        ITS_KERNELS,
        JobContender("job, unified KV", ("runtime.kv=unified", "runtime.deterministic=false")),
        SERVER,
    ),
    Recipe(few_shot=True),
    share_prefix=True,
)

SCENARIOS: Mapping[str, Scenario] = {
    "ladder": Scenario("what each layer costs: the same work with one layer more a row", LADDER),
    "ladder_small": Scenario(
        "the ladder with 160 requests, 5 at a time, 50 tokens each", LADDER, Recipe(50, 50), slots=(5,), rows=160
    ),
    "peers": Scenario("ragged lengths that are known beforehand", PEERS),
    "stops": Scenario(
        "one max_tokens for all rows; where a row ends is decided by a stop string",
        (JOB, SERVER),
        Recipe(stops=True),
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    ),
    "few_shot": FEW_SHOT,
    "outputs_10_50": _outputs(10, 50),
    "outputs_50_200": _outputs(50, 200),
    "outputs_200_500": _outputs(200, 500),
    "tiny_rows": Scenario("many rows of a few tokens", (*LADDER, SERVER), Recipe(2, 6, words=4), rows=1000),
    "diffusion": Scenario(
        "block diffusion against one token a step: tokens of a block and the steps in which it is made; dynamic: all"
        " tokens above a threshold with which a step commits about two",
        (
            JOB,
            *(_blocks(f"{size}/{steps}", size, steps) for size, steps in ((1, 1), (2, 2), (4, 4), (4, 2), (4, 1))),
            DYNAMIC,
        ),
        Recipe(128, 128, words=4),
        slots=(1, 8, 32),
        rows_per_slot=1,
    ),
    "diffusion_contexts": Scenario(
        "one context with room for so many tokens, cleared between calls of one row of 32 tokens in blocks of 4,"
        " against a new one a call",
        tuple(_context(word, tokens) for tokens in (512, 4096, 32_768) for word in ("reused", "fresh")),
        Recipe(32, 32, words=4),
        slots=(1,),
        rows=6,
    ),
    "speculative": Scenario(
        "drafts against one token per step: as many as pay, and always 1, 3 or 7, where a text of random weights shows"
        " what they cost and a model of your own what they gain; looked up, and of a draft model",
        (
            JOB,
            JobContender("speculative", ("decode=speculative",)),
            *(JobContender(f"{n} drafted", (*ALWAYS, f"decode.draft_tokens={n}")) for n in (1, 3, 7)),
            JobContender("draft model", ("decode=speculative",), drafts=True),
            *(
                JobContender(f"{n} by draft model", (*ALWAYS, f"decode.draft_tokens={n}"), drafts=True)
                for n in (1, 3, 7)
            ),
            Program("llama-server with drafts", "tools.bench.alternatives:drafting_server", drafts=True),
        ),
        Recipe(64, 64, words=4),
        slots=(1, 4, 16),
        rows=32,
    ),
    "speculative_tail": Scenario(
        "drafts where two rows go on long after the others, which nobody knows beforehand",
        (
            JobContender("job", AS_THEY_COME),
            JobContender("speculative", (*AS_THEY_COME, "decode=speculative")),
            JobContender("draft model", (*AS_THEY_COME, "decode=speculative"), drafts=True),
        ),
        Recipe(40, 40, tail=400),
        slots=(16,),
        rows=62,
    ),
    "speculative_extract": Scenario(
        "drafts where answers quote their prompts: those of jobs/data/extract_long.jsonl quote four fields twice",
        (
            JOB,
            JobContender("speculative", ("decode=speculative",)),
            *(JobContender(f"{n} drafted", (*ALWAYS, f"decode.draft_tokens={n}")) for n in (1, 3, 7)),
            SERVER,
        ),
        sampling={"temperature": 0.0},
        slots=(1, 4, 16),
        rows=100,
    ),
    "adapters": Scenario(
        "rows with adapters of rank 16 in random order, against one for all rows",
        (
            JobContender("job, 1 adapter", adapters=1),
            JobContender("job, no adapter"),
            *(JobContender(f"job, {n} adapters", adapters=n) for n in (4, 8)),
            *(JobContender(f"job, {n} drained", ("model.kernels=llama.cpp",), adapters=n) for n in (1, 4)),
            *(Program(f"llama-server with {n}", "tools.bench.alternatives:server", adapters=n) for n in (1, 4, 8)),
        ),
        slots=(16,),
        rows=400,
    ),
    "images": Scenario(
        "eight questions about each image, one after the other; llama-server has its prompt cache, and with rows in"
        " random order, and with one slot, more of use in it",
        (
            JobContender("job", ("store.images_mb=0",)),
            SERVER,
            Program("llama-server, shuffled", "tools.bench.alternatives:shuffled_server"),
            Program("llama-server, one slot", "tools.bench.alternatives:serial_server"),
        ),
        Recipe(16, 16, words=6, questions=8),
        slots=(16,),
        rows=400,
        share_prefix=True,
    ),
    "scale": Scenario(
        "what the driver costs with many workers, whose model only sleeps: rows are those of each worker, peak memory"
        " is the driver's, and figures begin when all workers are open",
        (
            *(Workers(f"{n} workers", PROCESSES, workers=n, once=True) for n in (1, 4, 16, 64)),
            Workers("64 workers, more rows", PROCESSES, workers=64, rows_each=4, once=True),
            Workers("8 quick workers", PROCESSES, workers=8, step_s=0.005, rows_each=8, once=True),
            Workers("8 quick workers, Ray", RAY, workers=8, step_s=0.005, rows_each=8, once=True),
            *(
                Workers(
                    f"8 quick workers, {n} slots",
                    (*PROCESSES, f"runtime.slots={n}"),
                    workers=8,
                    step_s=0.005,
                    rows_each=8,
                    once=True,
                )
                for n in (16, 32)
            ),
        ),
        slots=(8,),
        rows_per_slot=18,
    ),
    "rows": Scenario(
        "rows that no model completes: read, filter, map, render, dedup, sample, limit, select, write",
        (
            Rows("jsonl to parquet"),
            Rows("csv to jsonl", ("output=jsonl",), read="csv"),
            Rows("parquet to parquet", read="parquet"),
        ),
        slots=(1,),
        rows=1000,
    ),
    "one_worker": Scenario(
        "a worker as a process of its own, against none",
        (JOB, JobContender("one worker", (*PROCESSES, "cluster.workers=1"))),
        rows_per_slot=16,
    ),
}

TOGGLES = ("compaction", "grouped_prefill", "prefix_sharing", "sample_sharing", "longest_first", "identical_rows")
"""Optimisations that can be switched off: `runtime.optimise.NAME=false`."""

_COPIES = 4


def _toggle(name: str) -> Scenario:
    """Return a scenario with the optimisation `name` on and off, on rows that benefit from it."""
    overrides: tuple[str, ...] = (f"sampling.n={_COPIES}",) if name == "sample_sharing" else ()
    copies = _COPIES if name == "identical_rows" else 1
    sampling = {**EXACT_LENGTHS, "temperature": 0.8} if name == "sample_sharing" else EXACT_LENGTHS
    pair = tuple(
        JobContender(f"{word} {name}", (*overrides, f"runtime.optimise.{name}={value}"), copies=copies)
        for word, value in (("with", "true"), ("without", "false"))
    )
    recipe = FEW_SHOT.recipe if name == "prefix_sharing" else Recipe()
    return Scenario(f"the optimisation {name} on and off", pair, recipe, sampling)


ALL: Mapping[str, Scenario] = {**SCENARIOS, **{f"toggle_{name}": _toggle(name) for name in TOGGLES}}
"""Every scenario, by its name in the results."""
