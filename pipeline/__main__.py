"""`python -m pipeline`: answer signals, import the rest, run the command line (pipeline/cli/main.py)."""

import importlib
import sys

from pipeline import PROJECT
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.signals import leave_on_signals

if __name__ == "__main__":  # importing what follows takes a second, in which a signal is exit code 4 too
    leave_on_signals()
    reached(Failpoint.PROCESS_STARTED)
    # Ours, also where the current directory has something else of that name, which comes first on sys.path.
    sys.path.insert(0, str(PROJECT))
    importlib.import_module("operators")
    del sys.path[0]

    from pipeline.cli.main import main

    sys.exit(main())
