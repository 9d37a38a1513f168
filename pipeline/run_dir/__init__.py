"""The contents of a run's directory: state.sqlite, manifest, lock, metrics tables, integrity."""
