"""The dataset card and the uploads of finished files."""
