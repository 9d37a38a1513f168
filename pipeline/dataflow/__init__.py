"""The dataflow engine: graph, executor, inboxes, outboxes, chunks and their commits."""
