"""The parts of Generate: requests, completions, samples, duplicates, the completion store."""
