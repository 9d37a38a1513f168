"""The work: sources, render, tokenize, batch forming, generation, transforms and sinks."""
