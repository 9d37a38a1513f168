"""Build, benchmark and model writers: nothing that a run imports."""
