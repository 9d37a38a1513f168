"""Block diffusion decoding."""
