"""The same job in many processes: segments of the graph run in workers, everything else in the driver."""
