"""Sources: which files are read, and ReadPrompts, which reads them."""
