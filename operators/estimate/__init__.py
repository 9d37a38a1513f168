"""What nodes with a model will take, found out by a calibration: for `dry_run=true`."""
