"""Estimates of time, memory and disk for nodes with a model, by a trial on some rows (`dry_run=true`)."""
