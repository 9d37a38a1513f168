"""The life of a run: admission, attempt, ending, repair, watchdog, on_finish."""
