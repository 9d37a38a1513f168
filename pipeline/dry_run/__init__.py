"""Check and estimate a job without running it."""
