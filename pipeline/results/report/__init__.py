"""report.html: a run on one page that needs no network and no script."""
