"""Sources: ReadPrompts and one reader for each file format."""

from operators.sources.read_prompts import ReadPrompts

__all__ = ["ReadPrompts"]
