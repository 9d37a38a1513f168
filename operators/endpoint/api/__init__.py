"""Bodies of OpenAI's API, read and written for servers and for batch files, and the dialects of servers."""
