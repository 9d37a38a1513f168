"""Images in prompts: their cells, their ids, and what an encoder makes of them, each once."""
