"""A sequence in the engine, its placement by the scheduler, and its node's queue."""

from operators.engine.sequence.sequence import FinishReason, Sequence, State

__all__ = ["FinishReason", "Sequence", "State"]
