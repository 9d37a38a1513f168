"""A run while it runs: snapshots, progress display, status file, Prometheus, run.log, summary."""
