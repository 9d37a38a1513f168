"""`python -m pipeline compare A B`: two runs side by side."""
