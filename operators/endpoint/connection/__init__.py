"""How a server is asked: HTTP, tries and waits, several URLs, how many requests are in flight."""
