"""Constraints on a text: JSON schema, regex, choices, grammar. The only place that imports llguidance."""
