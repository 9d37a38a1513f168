"""From YAML to settings, graph and fingerprint; the only place that knows Hydra."""
