"""A row in the engine: the sequence, and where the scheduler has put it."""

from operators.engine.sequence.sequence import SPAN_TOKENS, FinishReason, Owner, Sequence, State

__all__ = ["SPAN_TOKENS", "FinishReason", "Owner", "Sequence", "State"]
