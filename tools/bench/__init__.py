"""The benchmark (`job=bench`): the cost of each layer, comparisons with others, and the gain of each optimisation."""
