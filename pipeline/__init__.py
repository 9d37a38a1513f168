"""The dataflow engine: graph, channels, chunks, executor, run state. It knows no operator and no llama.cpp."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
"""The folder that holds pipeline/, operators/, conf/, jobs/ and models/."""

OURS = ("pipeline", "operators", "tools", "models")
"""Packages whose code a version of this project decides, and no user."""
