"""A sequence in the engine, and its place."""

from operators.engine.sequence.sequence import FinishReason, Sequence, State, StopWatcher

__all__ = ["FinishReason", "Sequence", "State", "StopWatcher"]
