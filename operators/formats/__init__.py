"""File formats, one in each file: how it is read, and how results are written in it. `registry.py` lists them."""
