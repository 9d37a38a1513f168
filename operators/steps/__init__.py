"""Steps: what a job asks of a model in one entry, and the nodes that it becomes."""
