"""The step loop, engines, their thread and clients, recovery, step log."""
