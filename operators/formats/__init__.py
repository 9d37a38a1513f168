"""File formats, one in each file: how it is read, and where results may have it, how it is written.

`registry.py` lists them; sources, sinks, settings, messages and tests go by that list.
"""
