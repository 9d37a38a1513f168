"""A case of the benchmark as its contenders see it, and its settings as arguments of a command line."""

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
        folder: an empty folder for what the case writes.
        model, runtime, sampling, bench: the settings of those names; `runtime` has the case's slots and row length.
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
        """CPU threads that compute."""
        return self.runtime.threads or usable_cores()

    def program(self, name: str) -> Path:
        """One of llama.cpp's programs."""
        return Path(self.bench.peers).expanduser() / name

    def llama_command(self, name: str) -> list[str]:
        """The start of a command line for a program of llama.cpp: the options of our sizes that all of them take."""
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
    """The arguments (`group.key=value`) that make `settings`, a dataclass, of its defaults on a command line."""
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
    """A value as Hydra's command line reads it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(v) for v in value) + "]"
    if isinstance(value, str):
        # A backslash is itself except before a quote, where it is doubled.
        return "'" + re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), value) + "'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
