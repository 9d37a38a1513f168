"""The connection to servers: HTTP, retries, several URLs, the number of requests in flight."""
