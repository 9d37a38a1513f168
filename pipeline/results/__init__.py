"""Read the results of a run: tables, report and comparison."""
