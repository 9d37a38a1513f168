"""Contexts of llama.cpp: what rows are computed in, and what is kept of them."""
