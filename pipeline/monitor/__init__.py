"""Monitoring of a run: snapshots, progress display, status file, Prometheus, run.log, summary."""
