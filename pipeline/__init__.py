"""The dataflow engine: graph, channels, chunks, executor, run state. It knows no operator and no llama.cpp."""
