"""One run: admission, attempt, ending, repair, watchdog, on_finish."""
