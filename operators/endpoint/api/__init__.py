"""What is said to a server and what it says: dialects, bodies of requests, readers of answers."""
