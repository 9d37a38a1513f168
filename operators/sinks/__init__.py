"""Sinks: where finished rows are written."""
