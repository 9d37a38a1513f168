"""The dataflow engine: graph, edges, chunks, executor, run state. It imports no operator and no llama.cpp."""

from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1]
"""The folder that holds pipeline/, operators/ and tools/: the checkout, or site-packages."""

PROJECT = next((p for p in [PACKAGES / "pipeline/_project"] if p.is_dir()), PACKAGES)
"""The folder that holds conf/, jobs/ and models/: the checkout, or what the wheel has of it."""

OURS = ("pipeline", "operators", "tools", "models")
"""The packages of this project; all others are user code or installed."""
