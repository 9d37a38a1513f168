"""Batch files in the format of OpenAI's API: requests in, responses and errors out."""
