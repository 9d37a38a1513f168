"""A finished run, read: tables, report and comparison."""
