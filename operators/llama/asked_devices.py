"""The devices that a process finds, asked of one that ends: whoever asks ggml keeps some memory of each taken."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping

from operators.llama.devices import Device, devices
from pipeline.api.errors import ConfigError
from pipeline.api.identity import PLANNED, Gpu, for_workers

_TIMEOUT_S = 120
_ASK = """import dataclasses, json, sys
sys.path[:] = {path!r}
from operators.llama.devices import devices
print(json.dumps([dataclasses.asdict(device) for device in devices()]))
"""


def gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that llama.cpp finds in a process with `environment`, in its order. Raises ConfigError if that
    process fails."""
    found = _asked(frozenset(environment.items()), _now())
    return tuple(Gpu(each.name, each.description, each.backend, each.shares_memory, each.total) for each in found)


def planned_devices() -> tuple[Device, ...]:
    """Return the devices with which models are planned: those of this process or, where workers have GPUs of their
    own, those that one of them will find. Raises ConfigError if they cannot be asked for."""
    if not (each := PLANNED.gpus):
        return devices()
    return tuple(for_workers(_asked(frozenset(os.environ.items()), _now()))[: math.ceil(each)])


def _now() -> int:
    """Return the minute: what is free of devices changes."""
    return int(time.monotonic() / 60)


@functools.lru_cache(maxsize=8)
def _asked(environment: frozenset[tuple[str, str]], now: int) -> tuple[Device, ...]:
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
    return tuple(Device(**values | {"handle": 0}) for values in json.loads(done.stdout.splitlines()[-1]))
