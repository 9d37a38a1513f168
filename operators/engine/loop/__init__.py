"""The step loop: engine, worker, thread, clients, recovery, step log."""
