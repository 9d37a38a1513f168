"""Sequences, slots, the scheduler, the sampler and the step loop: plain Python and NumPy, without llama.cpp."""
