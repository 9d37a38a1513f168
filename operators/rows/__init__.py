"""Rows and columns without a model: SQL conditions, chunk buffers, hashes, Arrow types."""
