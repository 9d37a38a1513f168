"""The contenders of a benchmark: each knows its command, the reasons to skip it, and how to read its figures.

`python -m tools.bench.contenders MODULE:FUNCTION FOLDER` measures the pickled Spec in a folder with a function.
"""

from __future__ import annotations

import json
import pickle
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from operators.settings import ModelSettings, SamplingSettings
from operators.settings.checks import usable_cores
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import PipelineError
from tools.bench.child import ChildFailed
from tools.bench.figures import Figures, of_job
from tools.bench.settings import BenchSettings
from tools.bench.workload import Workload
from tools.models.make_adapter import write_adapter

CELLS = 256
"""The KV cache of a row is a multiple of this."""
SPEC, FIGURES = "spec.pickle", "figures.pickle"
"""The files that a Function reads and writes in the folder of its case."""
_MOST_STEPS = 64


@dataclass
class Spec:
    """One case of the benchmark.

    Args:
        folder: an empty folder for the files of the case.
        model, runtime, sampling, bench: the settings groups; `runtime` has the slots and row length of the case.
        share_prefix: whether llama-server may use its prompt cache.
        adapters: files of adapters, of which each row has one, see `adapter_of`.
    """

    workload: Workload
    folder: Path
    model: ModelSettings
    runtime: EngineSettings
    sampling: SamplingSettings
    bench: BenchSettings
    share_prefix: bool = False
    adapters: Sequence[Path] = ()

    @property
    def model_path(self) -> str:
        return str(Path(self.model.path or "").expanduser())

    @property
    def threads(self) -> int:
        return self.runtime.threads or usable_cores()

    def with_adapters(self, count: int) -> Spec:
        """Return the case with so many random adapters, written into its folder."""
        paths = [self.folder / f"adapter-{i}.gguf" for i in range(count)]
        made = (write_adapter(Path(self.model_path), path, seed=i) for i, path in enumerate(paths))
        return replace(self, adapters=tuple(made))

    def adapter_of(self) -> list[int]:
        """Return the number of each row's adapter: in random order, the same for all contenders."""
        random = np.random.default_rng(0)
        return [int(i) for i in random.integers(0, len(self.adapters), self.workload.rows.num_rows)]

    def program(self, name: str) -> Path:
        return Path(self.bench.peers).expanduser() / name

    def llama_command(self, name: str) -> list[str]:
        """Return the start of a command for a program of llama.cpp: the common options for sizes."""
        runtime = self.runtime
        return [
            str(self.program(name)),
            *("--model", self.model_path, "--offline", "--threads", str(self.threads)),
            *("--batch-size", str(runtime.n_batch), "--ubatch-size", str(runtime.n_ubatch)),
            *("--flash-attn", "auto" if runtime.flash_attention else "off"),
            *("--cache-type-k", runtime.kv_types[0], "--cache-type-v", runtime.kv_types[1]),
            *("--n-gpu-layers", str(self.model.gpu_layers)),
        ]


@dataclass(frozen=True)
class Contender(ABC):
    """A way to do the work of a scenario.

    Args:
        copies: number of rows with the same prompt.
        once: runs only in the first repeat, since it takes long.
        against: the contender that the report compares its speed with; empty: the first of the scenario.
        row_tokens: KV cache per row, in tokens; None: as much as the rows need.
        makes_blocks: completes rows by block diffusion, which needs a mask token.
        needs_file: reads the model from a GGUF file.
        drafts: has a draft model.
        adapters: number of adapters, of which each row has one.
    """

    name: str
    _: KW_ONLY
    copies: int = 1
    once: bool = False
    against: str = ""
    row_tokens: int | None = None
    makes_blocks: bool = False
    needs_file: bool = False
    drafts: bool = False
    adapters: int = 0

    def reason_to_skip(self, spec: Spec) -> str | None:
        """Return the reason why it cannot be measured here; None if it can."""
        needed, n_ctx_train = self.row_tokens or spec.workload.longest, spec.workload.n_ctx_train
        if needed > n_ctx_train:
            return f"rows of {needed} tokens are needed and the model was trained for {n_ctx_train}"
        if self.makes_blocks and spec.bench.mask_token_id is None and not spec.workload.has_mask:
            return "the model's vocabulary names no mask token; give one with bench.mask_token_id="
        if self.drafts and spec.bench.draft_model is None:
            return "no draft model is given; name one with bench.draft_model=small.gguf"
        return "it needs a GGUF file (model.path)" if self.needs_file and not spec.model.path else None

    @abstractmethod
    def command(self, spec: Spec) -> list[str]:
        """Write its input into the folder of the case, and return the command of its process."""

    @abstractmethod
    def figures(self, spec: Spec, output: str) -> Figures:
        """Read the figures of its process from its files and `output`. Raises ValueError if it measured nothing."""


@dataclass(frozen=True)
class JobContender(Contender):
    """A job like `job=generate`, in a job file of its own, with the overrides (`key=value`) of this contender."""

    overrides: tuple[str, ...] = ()

    def command(self, spec: Spec) -> list[str]:
        job, data, template = (spec.folder / name for name in ("job.yaml", "prompts.jsonl", "chatml.jinja"))
        mask, spec = spec.bench.mask_token_id, spec.with_adapters(self.adapters)
        adapters = {str(i): str(path) for i, path in enumerate(spec.adapters)}
        spec = replace(spec, model=replace(spec.model, adapters=adapters or None))
        columns = spec.workload.columns(spec.folder) | ({"adapter": map(str, spec.adapter_of())} if adapters else {})
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        template.write_text(spec.workload.template, encoding="utf-8")
        settings: dict[str, Any] = {
            "defaults": [{"override /flow": "generate"}, {"override /model": "gguf"}],
            "report": False,  # drawing is not measured
            "output_dir": str(spec.folder / "out"),
            "data": {"path": str(data), **{f"{name}_column": name for name in columns.keys() & {"image", "adapter"}}},
            "nodes": {"render": {"op": {"template_file": str(template)}}},
            **{group: asdict(getattr(spec, group)) for group in ("model", "sampling", "runtime")},
        }
        del settings["model"]["room"]  # it takes that of its own `runtime`
        job.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return [
            *(sys.executable, "-m", "pipeline", f"job={job}", "progress=none", *self.overrides),
            *([f"decode.mask_token_id={mask}"] if self.makes_blocks and mask is not None else []),
            *([f"decode.draft.model={spec.bench.draft_model}"] if self.drafts else []),
        ]

    def figures(self, spec: Spec, output: str) -> Figures:
        return of_job(spec.folder / "out")


@dataclass(frozen=True)
class Function(Contender):
    """A `module:function` that measures a Spec in a process of its own: a part of our engine, or an alternative."""

    function: str = ""

    def command(self, spec: Spec) -> list[str]:
        room = self.row_tokens or spec.runtime.max_sequence_tokens
        sized = replace(spec.with_adapters(self.adapters), runtime=replace(spec.runtime, max_sequence_tokens=room))
        (spec.folder / SPEC).write_bytes(pickle.dumps(sized))
        return [sys.executable, "-m", "tools.bench.contenders", self.function, str(spec.folder)]

    def figures(self, spec: Spec, output: str) -> Figures:
        figures: Figures = pickle.loads((spec.folder / FIGURES).read_bytes())
        return figures


@dataclass(frozen=True)
class Program(Function):
    """One of llama.cpp's own programs, which `make peers` builds; the first word of its name is that of the file."""

    needs_file: bool = field(default=True, kw_only=True)

    @property
    def program(self) -> str:
        """The name of the file."""
        return self.name.partition(" ")[0].removesuffix(",")

    def reason_to_skip(self, spec: Spec) -> str | None:
        reason = super().reason_to_skip(spec)
        if reason or spec.program(self.program).is_file():
            return reason
        return (
            f"there is no {self.program} in {spec.bench.peers}; build it with `make peers`, or name its folder with"
            " bench.peers=, and measure again with overwrite=true"
        )


@dataclass(frozen=True)
class BatchedBench(Program):
    """llama-batched-bench: the upper bound for a workload, computed from its speeds at the workload's mean depth.

    It does not run our rows: its rows are all equal, all slots are always full and nothing is sampled.
    """

    def command(self, spec: Spec) -> list[str]:
        (prompt, steps), slots = sizes(spec.workload), spec.runtime.slots
        cells = -(-(prompt + steps) // CELLS) * CELLS * slots
        return [
            *spec.llama_command(self.name),
            *("--ctx-size", str(cells), "--no-kv-unified"),  # each row has its own KV stream, as ours have
            *("-npp", str(prompt), "-ntg", str(steps), "-npl", str(slots), "--output-format", "jsonl"),
        ]

    def figures(self, spec: Spec, output: str) -> Figures:
        row = next((v for v in _json_lines(output) if "speed_tg" in v), None)
        if row is None:
            raise ValueError(f"{self.name} printed no results: {output[-300:]!r}")
        note = f"of {row['pl']} rows with {row['pp']} + {row['tg']} tokens"
        return _computed(spec.workload, row["speed_pp"], row["speed_tg"], 1000 * row["t_tg"] / row["tg"], note)


@dataclass(frozen=True)
class LlamaBench(Program):
    """llama-bench: the same for a single row."""

    def command(self, spec: Spec) -> list[str]:
        prompt, steps = sizes(spec.workload)
        return [
            *spec.llama_command(self.name),
            *("--n-prompt", str(prompt), "--n-gen", str(steps), "--repetitions", "1", "--output", "jsonl"),
        ]

    def figures(self, spec: Spec, output: str) -> Figures:
        speeds = {bool(v.get("n_prompt")): v.get("avg_ts") for v in _json_lines(output)}
        prompt, new = speeds.get(True), speeds.get(False)
        if not prompt or not new:
            raise ValueError(f"{self.name} printed no results: {output[-300:]!r}")
        return _computed(spec.workload, prompt, new, 1000 / new, "of one row")


def sizes(workload: Workload) -> tuple[int, int]:
    """Return prompt and completion tokens of a row with the workload's mean depth.

    Its step k sees the prompt and k tokens, so the mean depth is prompt + (steps - 1) / 2.
    """
    depth, prompt = workload.mean_depth, workload.prompt_tokens / workload.rows.num_rows
    steps = min(_MOST_STEPS, max(8, round(2 * (depth - prompt)) + 1))
    return max(1, round(depth - (steps - 1) / 2)), steps


def _computed(workload: Workload, prompt: float, new: float, step_ms: float, note: str) -> Figures:
    """Compute the figures of a workload from these speeds in tokens per second."""
    prefill_s = workload.prompt_tokens / prompt
    return Figures(
        work_s=prefill_s + workload.new_tokens / new,
        prompt_tokens=workload.prompt_tokens,
        new_tokens=workload.new_tokens,
        decode_step_ms=step_ms,
        prefill_s=prefill_s,
        note=f"computed from {prompt:.1f} prompt and {new:.1f} generated tokens/s {note}",
    )


def _json_lines(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def main(arguments: Sequence[str]) -> int:
    """Write the Figures of a Function. Returns 0, or an exit code with the reason on stderr."""
    function, folder = arguments[0], Path(arguments[1])
    try:
        figures = pkgutil.resolve_name(function)(pickle.loads((folder / SPEC).read_bytes()))
        (folder / FIGURES).write_bytes(pickle.dumps(figures))
    except (PipelineError, ChildFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
