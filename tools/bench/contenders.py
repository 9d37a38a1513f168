"""Who competes in a benchmark: how each is started on a case, why it may be skipped, how its figures are read."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from tools.bench.figures import Figures, of_job
from tools.bench.spec import Spec, overrides_of, written
from tools.bench.workload import PROMPTS, TEMPLATE, Facts

BLOCK_DIFFUSION = "decode=block_diffusion"
"""The override of a job that makes blocks."""
CELLS = 256
"""A row's room in a KV cache is a multiple of this."""
_MOST_STEPS = 64


@dataclass(frozen=True)
class Contender(ABC):
    """One way to do the work of a scenario.

    Args:
        name: in the results.
        copies: how many rows with the same text each prompt is given as.
        once: takes so long that it runs in the first repeat only.
        against: who stands in its ratio, where that is not the first contender.
        row_tokens: room of a row; None: as much as the rows need.
    """

    name: str
    _: KW_ONLY
    copies: int = 1
    once: bool = False
    against: str = ""
    row_tokens: int | None = None

    def reason_to_skip(self, spec: Spec) -> str | None:
        """Why it cannot be measured here; None if it can."""
        facts = spec.rows.facts
        needed = self.row_tokens or facts.longest
        if needed > facts.n_ctx_train:
            return f"rows of {needed} tokens are needed and the model was trained for {facts.n_ctx_train}"
        if self.makes_blocks and spec.mask_token_id is None and not facts.has_mask:
            return "the model's vocabulary names no mask token; give one with bench.mask_token_id="
        return None

    @property
    def makes_blocks(self) -> bool:
        """Whether it completes rows by block diffusion, which needs a mask token."""
        return False

    @abstractmethod
    def command(self, spec: Spec) -> list[str]:
        """The command line of its process."""

    def figures(self, spec: Spec, output: str) -> Figures:
        """What its process measured; `output` is what it printed.

        Raises:
            ValueError: it measured nothing.
        """
        return Figures.from_output(output)


@dataclass(frozen=True)
class Job(Contender):
    """`python -m pipeline job=generate`, with settings (`key=value`) that make it another contender."""

    overrides: tuple[str, ...] = ()

    @property
    def makes_blocks(self) -> bool:
        return BLOCK_DIFFUSION in self.overrides

    def command(self, spec: Spec) -> list[str]:
        mask = spec.mask_token_id
        return [
            *(
                sys.executable,
                "-m",
                "pipeline",
                "job=generate",
                "progress=none",
                "report=false",
            ),  # drawing is not measured
            f"output_dir={written(str(self._output(spec)))}",
            f"data.path={written(str(spec.rows.folder / PROMPTS))}",
            f"nodes.render.op.template_file={written(str(spec.rows.folder / TEMPLATE))}",
            *overrides_of("model", spec.model),
            *overrides_of("sampling", spec.sampling),
            *overrides_of("runtime", spec.runtime),
            *self.overrides,
            *([f"decode.mask_token_id={mask}"] if self.makes_blocks and mask is not None else []),
        ]

    def figures(self, spec: Spec, output: str) -> Figures:
        return of_job(self._output(spec))

    def _output(self, spec: Spec) -> Path:
        return Path(spec.folder) / "out"


@dataclass(frozen=True)
class Function(Contender):
    """A `module:function` that measures a Spec, in a process of its own; a part of our engine, or another library."""

    function: str = ""

    @property
    def makes_blocks(self) -> bool:
        return ":blocks_" in self.function

    def command(self, spec: Spec) -> list[str]:
        room = self.row_tokens or spec.runtime.max_sequence_tokens
        spec = replace(spec, runtime=replace(spec.runtime, max_sequence_tokens=room))
        return [sys.executable, "-m", "tools.bench", self.function, spec.save()]


@dataclass(frozen=True)
class CreateCompletion(Function):
    """llama-cpp-python's `Llama.create_completion` in a loop."""

    def reason_to_skip(self, spec: Spec) -> str | None:
        return super().reason_to_skip(spec) or (None if spec.model.path else "it needs a GGUF file (model.path)")


@dataclass(frozen=True)
class Program(CreateCompletion):
    """One of llama.cpp's own programs, which `make peers` builds; its name is that of the file."""

    def reason_to_skip(self, spec: Spec) -> str | None:
        if reason := super().reason_to_skip(spec):
            return reason
        if not spec.program(self.name).is_file():
            return (
                f"there is no {self.name} in {spec.peers}; build it with `make peers`, or name its folder with"
                " bench.peers=, and measure again with overwrite=true"
            )
        return None


@dataclass(frozen=True)
class BatchedBench(Program):
    """llama-batched-bench: the ceiling of a workload, computed from its speeds at the workload's mean depth.

    It does not run our rows: its rows are all alike, all slots are always full and nothing is sampled.
    """

    def command(self, spec: Spec) -> list[str]:
        prompt, steps = sizes(spec.rows.facts)
        slots = spec.runtime.slots
        return [
            *(str(spec.program(self.name)), *spec.llama_options()),
            *(
                "--ctx-size",
                str(-(-(prompt + steps) // CELLS) * CELLS * slots),
                "--no-kv-unified",
            ),  # each row has its own KV stream, as ours have
            *("-npp", str(prompt), "-ntg", str(steps), "-npl", str(slots), "--output-format", "jsonl"),
        ]

    def figures(self, spec: Spec, output: str) -> Figures:
        found = next((v for v in _json_lines(output) if "speed_tg" in v), None)
        if found is None:
            raise ValueError(f"{self.name} printed no results: {output[-300:]!r}")
        note = f"of {found['pl']} rows with {found['pp']} + {found['tg']} tokens"
        step_ms = 1000 * found["t_tg"] / found["tg"]
        return _computed(spec.rows.facts, found["speed_pp"], found["speed_tg"], step_ms, note)


@dataclass(frozen=True)
class LlamaBench(Program):
    """llama-bench: the same for one row at a time."""

    def command(self, spec: Spec) -> list[str]:
        prompt, steps = sizes(spec.rows.facts)
        return [
            *(str(spec.program(self.name)), *spec.llama_options()),
            *("--n-prompt", str(prompt), "--n-gen", str(steps), "--repetitions", "1", "--output", "jsonl"),
        ]

    def figures(self, spec: Spec, output: str) -> Figures:
        found = list(_json_lines(output))
        prompt = next((v.get("avg_ts") for v in found if v.get("n_prompt") and not v.get("n_gen")), None)
        steps = next((v.get("avg_ts") for v in found if v.get("n_gen") and not v.get("n_prompt")), None)
        if not prompt or not steps:
            raise ValueError(f"{self.name} printed no results: {output[-300:]!r}")
        return _computed(spec.rows.facts, prompt, steps, 1000 / steps, "of one row")


def sizes(facts: Facts) -> tuple[int, int]:
    """Prompt and completion tokens of a row whose mean depth is the workload's.

    Its step k sees the prompt and k tokens, so the mean depth is prompt + (steps - 1) / 2.
    """
    prompt = facts.prompt_tokens / facts.rows
    steps = min(_MOST_STEPS, max(8, round(2 * (facts.mean_depth - prompt)) + 1))
    return max(1, round(facts.mean_depth - (steps - 1) / 2)), steps


def _computed(facts: Facts, prompt: float, new: float, step_ms: float, note: str) -> Figures:
    """The figures of a workload at these speeds, in tokens a second."""
    return Figures(
        work_s=facts.prompt_tokens / prompt + facts.new_tokens / new,
        prompt_tokens=facts.prompt_tokens,
        new_tokens=facts.new_tokens,
        decode_step_ms=step_ms,
        prefill_s=facts.prompt_tokens / prompt,
        note=f"computed from {prompt:.1f} prompt and {new:.1f} generated tokens/s {note}",
    )


def _json_lines(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue
