"""The calibration behind `runtime=auto`."""
