"""Dataset card and uploads."""
