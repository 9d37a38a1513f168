"""The step loop: engine, worker, threads, clients, recovery, step log."""
