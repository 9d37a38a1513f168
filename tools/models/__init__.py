"""Random-weight GGUF models for tests and benchmarks."""
