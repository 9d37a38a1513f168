"""A case of the benchmark as those who run it see it: a file with its settings."""

from __future__ import annotations

import dataclasses
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operators.settings import ModelSettings, SamplingSettings
from operators.settings.checks import usable_cores
from operators.settings.runtime import EngineSettings
from tools.bench.workload import Workload


@dataclass
class Spec:
    """One case.

    Args:
        workload: folder of the rows (see tools.bench.workload).
        folder: an empty folder for what the case writes.
        model, runtime, sampling: the settings of those names; `runtime` has the slots and row length of the case.
        peers: folder of llama.cpp's programs.
        share_prefix: whether llama-server may use its prompt cache.
        server_arguments: further arguments of llama-server.
        mask_token_id: of block diffusion; None: the mask that the model names.
    """

    workload: str
    folder: str
    model: ModelSettings
    runtime: EngineSettings
    sampling: SamplingSettings
    peers: str
    share_prefix: bool = False
    server_arguments: list[str] = field(default_factory=list)
    mask_token_id: int | None = None

    @property
    def rows(self) -> Workload:
        """The rows of the case."""
        return Workload(Path(self.workload))

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
        return Path(self.peers).expanduser() / name

    def llama_options(self) -> list[str]:
        """The options of our sizes that all of llama.cpp's programs take."""
        runtime = self.runtime
        return [
            *("--model", self.model_path, "--offline", "--threads", str(self.threads)),
            *("--batch-size", str(runtime.n_batch), "--ubatch-size", str(runtime.n_ubatch)),
            *("--flash-attn", "auto" if runtime.flash_attention else "off"),
            *("--cache-type-k", runtime.kv_type, "--cache-type-v", runtime.kv_type),
            *("--n-gpu-layers", str(self.model.gpu_layers)),
        ]

    def save(self) -> str:
        """Write it into its folder, for a process of its own; returns the path."""
        path = Path(self.folder) / "spec.pickle"
        path.write_bytes(pickle.dumps(self))
        return str(path)

    @staticmethod
    def load(path: Path) -> Spec:
        """Read what `save` wrote."""
        spec: Spec = pickle.loads(path.read_bytes())
        return spec


def overrides_of(group: str, settings: Any) -> list[str]:
    """The arguments (`group.key=value`) that make `settings`, a dataclass, of its defaults on a command line."""
    found: list[str] = []
    default = type(settings)()
    for each in dataclasses.fields(settings):
        value = getattr(settings, each.name)
        if value == getattr(default, each.name):
            continue
        if dataclasses.is_dataclass(value):
            found += overrides_of(f"{group}.{each.name}", value)
        else:
            found.append(f"{group}.{each.name}={written(value)}")
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
