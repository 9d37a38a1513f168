"""Continuous batching: the waiting queue, slots, prefix cache, KV budget, step batches."""
