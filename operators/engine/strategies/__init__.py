"""Decode strategies: token by token, or in diffused blocks."""
