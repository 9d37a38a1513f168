"""Runs command lines of the pipeline as a user whom permission bits hold back, root or not: `unprivileged.py JSON`, a
list of lists of arguments. Prints, as JSON, the exit code and stderr of each."""

from __future__ import annotations

import ctypes
import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
DROPPED = "PERMISSION_BITS_COUNT"


def drop() -> None:
    """Give up what lets root pass over permission bits; that takes effect with the next program."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, DROPPED: "1"})


def ended(arguments: list[str]) -> tuple[int, str]:
    from pipeline.cli.main import main  # not before the capabilities are dropped

    shown = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(shown):
        code = main(arguments)
    return code, shown.getvalue()


if __name__ == "__main__":
    if os.geteuid() == 0 and DROPPED not in os.environ:
        drop()
    print(json.dumps([ended(arguments) for arguments in json.loads(sys.argv[1])]))
