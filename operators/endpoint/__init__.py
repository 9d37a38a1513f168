"""A server with OpenAI's API in place of a model: requests, answers, retries, and the operators that use it."""
