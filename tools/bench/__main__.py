"""Measure a case in this process: `python -m tools.bench MODULE:FUNCTION FOLDER`.

Reads the pickled Spec in the folder, and writes the Figures beside it.
"""

from __future__ import annotations

import pickle
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.api.errors import PipelineError
from tools.bench.child import ChildFailed
from tools.bench.contenders import FIGURES, SPEC


def main(arguments: Sequence[str]) -> int:
    """Returns 0, or an exit code with the reason on stderr."""
    function, folder = arguments[0], Path(arguments[1])
    try:
        figures = pkgutil.resolve_name(function)(pickle.loads((folder / SPEC).read_bytes()))
        (folder / FIGURES).write_bytes(pickle.dumps(figures))
    except (PipelineError, ChildFailed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
