"""The GPUs that a process finds, asked of one that ends: whoever asks ggml keeps some memory of each GPU taken."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping

from pipeline.api.errors import ConfigError
from pipeline.api.identity import Gpu

_TIMEOUT_S = 120
_ASK = """import json, sys
sys.path[:] = {path!r}
from operators.llama.devices import devices
print(json.dumps([[gpu.name, gpu.description, gpu.backend, gpu.kind == "igpu", gpu.total] for gpu in devices()]))
"""


def gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that llama.cpp finds in a process with `environment`, in its order. Raises ConfigError if that
    process fails."""
    return _asked(frozenset(environment.items()))


@functools.cache
def _asked(environment: frozenset[tuple[str, str]]) -> tuple[Gpu, ...]:
    command = [sys.executable, "-c", _ASK.format(path=sys.path)]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or "").strip().splitlines()
        raise ConfigError(
            f"llama.cpp does not say which GPUs there are: {error}{''.join(f'; {line}' for line in said[-1:])}."
            " `python -m pipeline doctor` tries what is installed"
        ) from error
    return tuple(Gpu(*values) for values in json.loads(done.stdout.splitlines()[-1]))
