"""A sequence in the engine, and where the scheduler has put it."""

from operators.engine.sequence.sequence import FinishReason, Sequence, State

__all__ = ["FinishReason", "Sequence", "State"]
