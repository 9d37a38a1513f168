"""report.html: one page about a run, without network access and scripts."""
