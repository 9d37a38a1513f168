"""Bodies of OpenAI's API, and the dialects of its servers: one set of readers, writers and texts for endpoints and batch files."""
