"""Dry runs: check and estimate a job without running it."""
