"""The benchmark (`job=bench`): what each layer costs, ours beside others, and what each optimisation brings."""
