"""GGUF models with random weights, for tests and benchmarks."""
