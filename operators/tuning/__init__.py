"""The calibration for `runtime=auto`."""
