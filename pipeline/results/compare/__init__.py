"""Compare two runs, for `python -m pipeline compare A B`."""
