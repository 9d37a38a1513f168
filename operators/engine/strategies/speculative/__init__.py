"""Speculative decoding: drafts of the next tokens, verified in one call."""
