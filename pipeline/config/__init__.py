"""From YAML to settings, graph and fingerprint. Only this package and pipeline.cli import Hydra."""
