"""The types of weights that a model can have: how fast they are here, and what they change."""
