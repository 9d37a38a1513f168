"""The API of servers: dialects, bodies of requests, readers of answers."""
