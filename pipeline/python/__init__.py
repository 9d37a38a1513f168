"""Jobs from Python: compose, run, plan and estimate them, and read their results. `pipeline` has the public names."""
