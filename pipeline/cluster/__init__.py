"""The same job in many processes: islands of the graph run in workers, everything else in the driver."""
