"""The steps between logits and a token, in NumPy; docs/sampling.md says what each does to a user."""
