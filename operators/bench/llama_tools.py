"""llama.cpp's own benchmarks as contenders: command lines, and what their output says about a workload.

Neither runs our rows. llama-batched-bench gives the ceiling: its rows are all alike, all slots are always full and
nothing is sampled. llama-bench gives the same for one row at a time. From their speeds follows how long the workload's
tokens would take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from operators.bench.figures import Figures
from operators.bench.spec import Spec
from operators.bench.workload import Facts
from operators.setting_checks import usable_cores

BATCHED_BENCH, LLAMA_BENCH = "llama-batched-bench", "llama-bench"
_MOST_STEPS = 64
_CELL_PADDING = 256


def sizes(facts: Facts) -> tuple[int, int]:
    """Prompt and completion tokens of a row of llama-batched-bench whose mean depth is the workload's.

    Its step k sees the prompt and k tokens, so the mean depth is prompt + (steps - 1) / 2.
    """
    prompt = facts.prompt_tokens / facts.rows
    steps = min(_MOST_STEPS, max(8, round(2 * (facts.mean_depth - prompt)) + 1))
    return max(1, round(facts.mean_depth - (steps - 1) / 2)), steps


def batched_bench_command(spec: Spec, facts: Facts) -> list[str]:
    """The command line at the workload's mean depth and number of slots; each row has its own KV stream."""
    runtime = spec.runtime
    prompt, steps = sizes(facts)
    context = -(-(prompt + steps) // _CELL_PADDING) * _CELL_PADDING * runtime.slots
    return [
        str(Path(spec.peers) / BATCHED_BENCH),
        *("--model", str(spec.model.path), "--ctx-size", str(context), "--no-kv-unified", "--offline"),
        *("--batch-size", str(runtime.n_batch), "--ubatch-size", str(runtime.n_ubatch)),
        *("--threads", str(runtime.threads or usable_cores()), "--n-gpu-layers", str(spec.model.gpu_layers)),
        *("--flash-attn", "auto" if runtime.flash_attention else "off"),
        *("--cache-type-k", runtime.kv_type, "--cache-type-v", runtime.kv_type),
        *("-npp", str(prompt), "-ntg", str(steps), "-npl", str(runtime.slots), "--output-format", "jsonl"),
    ]


def of_batched_bench(output: str, facts: Facts) -> Figures:
    """The ceiling of a workload: its prompt tokens at the measured prompt speed, its new tokens at that of steps.

    Raises:
        ValueError: the output has no line of results.
    """
    found = next((v for v in _json_lines(output) if "speed_tg" in v), None)
    if found is None:
        raise ValueError(f"{BATCHED_BENCH} printed no results: {output[-300:]!r}")
    took = facts.prompt_tokens / found["speed_pp"] + facts.new_tokens / found["speed_tg"]
    return Figures(
        work_s=took,
        prompt_tokens=facts.prompt_tokens,
        new_tokens=facts.new_tokens,
        decode_step_ms=1000 * found["t_tg"] / found["tg"],
        prefill_s=facts.prompt_tokens / found["speed_pp"],
        note=f"computed from {found['speed_pp']:.1f} prompt and {found['speed_tg']:.1f} generated tokens/s"
        f" of {found['pl']} rows with {found['pp']} + {found['tg']} tokens",
    )


def llama_bench_command(spec: Spec, facts: Facts) -> list[str]:
    """The command line for prompts and steps of the workload's size, one row at a time."""
    runtime = spec.runtime
    prompt, steps = sizes(facts)
    return [
        str(Path(spec.peers) / LLAMA_BENCH),
        *("--model", str(spec.model.path), "--output", "jsonl", "--repetitions", "1", "--offline"),
        *("--n-prompt", str(prompt), "--n-gen", str(steps)),
        *("--batch-size", str(runtime.n_batch), "--ubatch-size", str(runtime.n_ubatch)),
        *("--threads", str(runtime.threads or usable_cores()), "--n-gpu-layers", str(spec.model.gpu_layers)),
        *("--flash-attn", "auto" if runtime.flash_attention else "off"),
        *("--cache-type-k", runtime.kv_type, "--cache-type-v", runtime.kv_type),
    ]


def of_llama_bench(output: str, facts: Facts) -> Figures:
    """How long a workload would take at the speeds of one row at a time.

    Raises:
        ValueError: the output lacks one of the two speeds.
    """
    found = list(_json_lines(output))
    prompt = next((v.get("avg_ts") for v in found if v.get("n_prompt") and not v.get("n_gen")), None)
    steps = next((v.get("avg_ts") for v in found if v.get("n_gen") and not v.get("n_prompt")), None)
    if not prompt or not steps:
        raise ValueError(f"{LLAMA_BENCH} printed no results: {output[-300:]!r}")
    return Figures(
        work_s=facts.prompt_tokens / prompt + facts.new_tokens / steps,
        prompt_tokens=facts.prompt_tokens,
        new_tokens=facts.new_tokens,
        decode_step_ms=1000 / steps,
        prefill_s=facts.prompt_tokens / prompt,
        note=f"computed from {prompt:.1f} prompt and {steps:.1f} generated tokens/s of one row",
    )


def _json_lines(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue
