"""Spec: one case of the benchmark for its contenders, and its settings as command-line arguments."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from operators.settings import ModelSettings, SamplingSettings
from operators.settings.checks import usable_cores
from operators.settings.runtime import EngineSettings
from tools.bench.settings import BenchSettings
from tools.bench.workload import Workload


@dataclass
class Spec:
    """One case.

    Args:
        workload: the rows.
        folder: an empty folder for the files of the case.
        model, runtime, sampling, bench: the settings groups; `runtime` has the slots and row length of the case.
        share_prefix: whether llama-server may use its prompt cache.
    """

    workload: Workload
    folder: Path
    model: ModelSettings
    runtime: EngineSettings
    sampling: SamplingSettings
    bench: BenchSettings
    share_prefix: bool = False

    @property
    def model_path(self) -> str:
        """The GGUF file."""
        return str(Path(self.model.path or "").expanduser())

    @property
    def threads(self) -> int:
        """Number of CPU threads that compute."""
        return self.runtime.threads or usable_cores()

    def program(self, name: str) -> Path:
        """Return the path of one of llama.cpp's programs."""
        return Path(self.bench.peers).expanduser() / name

    def llama_command(self, name: str) -> list[str]:
        """Return the start of a command for a program of llama.cpp: the common options for sizes."""
        runtime = self.runtime
        return [
            str(self.program(name)),
            *("--model", self.model_path, "--offline", "--threads", str(self.threads)),
            *("--batch-size", str(runtime.n_batch), "--ubatch-size", str(runtime.n_ubatch)),
            *("--flash-attn", "auto" if runtime.flash_attention else "off"),
            *("--cache-type-k", runtime.kv_type, "--cache-type-v", runtime.kv_type),
            *("--n-gpu-layers", str(self.model.gpu_layers)),
        ]


def overrides_of(group: str, settings: Any) -> list[str]:
    """Return the arguments (`group.key=value`) that turn the default settings of a dataclass into `settings`."""
    found: list[str] = []
    default = type(settings)()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value == getattr(default, field.name):
            continue
        if dataclasses.is_dataclass(value):
            found += overrides_of(f"{group}.{field.name}", value)
        else:
            found.append(f"{group}.{field.name}={written(value)}")
    return found


def written(value: object) -> str:
    """Format a value for Hydra's command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(v) for v in value) + "]"
    if isinstance(value, str):
        # A backslash is literal except before a quote, where it must be doubled.
        return "'" + re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), value) + "'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
