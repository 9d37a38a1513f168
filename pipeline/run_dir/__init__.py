"""The files of a run directory: state.sqlite, manifest, lock, metrics tables, integrity."""
