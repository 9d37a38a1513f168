"""What processes with fake devices do for tests: each function runs in one of its own (`FakeGpus.call`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from operators.llama.devices import describe, devices


def listed() -> dict[str, Any]:
    """Return the devices, and their description."""
    found = devices()
    return {"devices": [asdict(device) for device in found], "text": describe(found)}
