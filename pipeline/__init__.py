"""The dataflow engine: graph, edges, chunks, executor, run state. It imports no operator and no llama.cpp."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
"""The folder that holds pipeline/, operators/, conf/, jobs/ and models/."""

OURS = ("pipeline", "operators", "tools", "models")
"""The packages of this project; all others are user code or installed."""
