"""`python -m pipeline`: install signal handlers, import the rest, run the command line (pipeline/cli/main.py)."""

import importlib
import sys

from pipeline import PACKAGES
from pipeline.system.deadlines import last_exit
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.signals import leave_on_signals
from pipeline.system.terminal import open_closed_streams

if __name__ == "__main__":  # the imports below take a second; a signal during it gives exit code 4 too
    open_closed_streams()
    leave_on_signals()
    end = last_exit()
    reached(Failpoint.PROCESS_STARTED)
    # Import our `operators`, not a module of that name in the current directory, which is first on sys.path.
    sys.path.insert(0, str(PACKAGES))
    importlib.import_module("operators")
    del sys.path[0]

    from pipeline.cli.main import main

    end(main())
